"""What README.md shows is true: its example runs, and the files it links exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dape.positional import catalogue

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


@pytest.fixture
def example() -> Iterator[dict]:
    before = dict(catalogue.ENTRIES)
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert code is not None
    names: dict = {}
    exec(code.group(1), names)
    yield names
    catalogue.ENTRIES.clear()
    catalogue.ENTRIES.update(before)


def test_the_example_has_eight_lines_of_work(example):
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert code is not None
    lines = [line for line in code.group(1).splitlines() if line.strip() and not line.startswith("import")]
    assert len(lines) <= 8


def test_the_example_is_dape_over_the_bias_it_defines(example):
    """Against the equation written out with the module's own weights."""
    q, k, v, pe, out = (example[name] for name in ("q", "k", "v", "pe", "out"))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    lag = torch.arange(300)[:, None] - torch.arange(300)
    bias = torch.where(lag.abs() >= 64, -1.0, 0.0).expand(1, 8, 300, 300)
    x = torch.cat([scores, bias], dim=1).permute(0, 2, 3, 1)
    f = pe.f.second(torch.nn.functional.leaky_relu(pe.f.first(x), 0.01)).permute(0, 3, 1, 2)
    expected = (scores + bias + f).masked_fill(lag < 0, -torch.inf).softmax(-1) @ v
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    out.sum().backward()
    assert all(p.grad is not None for p in pe.parameters())


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", TEXT))))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()


def test_figures_are_those_that_the_command_printed():
    """README's sentence and the table of docs/results.md, against results/compare."""
    head, _, *lines = (ROOT / "results/compare/table.md").read_text().partition("\n\n")[0].splitlines()
    lengths = re.findall(r"\d+", head)
    printed = {}
    for line in lines:
        method, *cells = line.strip("| ").split(" | ")
        printed |= {(method, n): float(re.search(r"[\d.]+", cell)[0]) for n, cell in zip(lengths, cells, strict=True)}
    said = re.search(r"at 2048 perplexity\s+is ([\d.]+) with rope, ([\d.]+) with kerple, ([\d.]+) with DAPE", TEXT)
    claims = [(name, "2048", said[at + 1]) for at, name in enumerate(("rope", "kerple", "dape-kerple"))]
    shown = re.findall(r"^\| ([a-z-]+) \| ([\d.| ]+) \|$", (ROOT / "docs/results.md").read_text(), re.MULTILINE)
    assert len(shown) == len(lines) == 7
    for method, cells in shown:
        claims += zip([method] * 4, ("64", "256", "1024", "2048"), cells.split(" | "), strict=True)
    for method, length, claim in claims:
        assert abs(printed[method, length] - float(claim)) < 0.0051, (method, length, claim)
