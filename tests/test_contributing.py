"""The walk in CONTRIBUTING.md is true."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import torch

import dape
from dape.actions.found import Found
from dape.actions.running import run_all
from dape.experiments import catalogue as catalogue_of_jobs
from dape.positional import catalogue

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def inverse(monkeypatch) -> type[dape.RelativeBias]:
    code, line, *_ = BLOCKS
    namespace: dict = {}
    exec(code, namespace)
    entry = eval(line.strip(), {"Entry": dape.Entry})
    monkeypatch.setitem(catalogue.ENTRIES, "inverse", catalogue.replace(entry, target=namespace["Inverse"]))
    return namespace["Inverse"]


def test_the_example_encoding_computes_its_equation(inverse):
    pe = dape.build("inverse", num_heads=2, head_dim=4, train_length=8)
    bias = pe.bias(torch.tensor([3]), torch.tensor([0, 2, 3]))
    torch.testing.assert_close(bias, torch.tensor([[[-0.75, -0.5, 0.0]]] * 2))


@pytest.mark.parametrize("name", ["inverse", "dape-inverse", "dape-v2-inverse", "randomized-inverse"])
def test_its_wraps_exist_and_run(inverse, name):
    pe = dape.build(name, num_heads=2, head_dim=4, train_length=8)
    q, k, v = torch.randn(3, 1, 2, 8, 4, generator=torch.Generator().manual_seed(0))
    results = {}
    for impl in ("auto", "reference"):
        torch.manual_seed(1)  # of drawn positions
        results[impl] = dape.attention(q, k, v, pe, impl=impl)
    torch.testing.assert_close(results["auto"], results["reference"])
    nope = dape.build("nope", num_heads=2, head_dim=4, train_length=8)
    assert not torch.allclose(results["auto"], dape.attention(q, k, v, nope), atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint16, torch.int64])
def test_it_takes_lags_of_any_width(inverse, dtype):
    """Of the conformance tests that every entry of the catalogue must pass, the one that the example once failed."""
    pe = dape.build("inverse", num_heads=2, head_dim=4, train_length=8)
    lag = torch.arange(5) if dtype == torch.uint16 else torch.arange(-128, 3)
    assert torch.equal(pe.bias_at(lag.to(dtype), causal=False), pe.bias_at(lag, causal=False))


def test_the_files_it_names_exist(inverse):
    root = Path(__file__).parents[1]
    for path in re.findall(r"`((?:src|tests)/[\w/.]+)`", TEXT):
        assert (root / path).exists() or "inverse" in path or "untrained" in path, path


def test_the_example_task_is_learned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict = {}
    exec(BLOCKS[2], names)
    losses = [json.loads(line)["loss"] for line in Path("runs/before/metrics.jsonl").read_text().splitlines()]
    assert losses[0] > 1.9 and losses[-1] < 0.5  # ln 8 is 2.08


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """The example experiment, for this process and for workers. In place of the line in the catalogue, a
    ``sitecustomize`` puts it there: workers import the catalogue afresh."""
    code, line = BLOCKS[3:5]
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "example_untrained.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "package")
    kind, target = (word.strip(' "') for word in line.strip().split(": "))
    target = target.replace("dape.experiments.untrained", "example_untrained")
    site = f"from dape.experiments import catalogue\ncatalogue.JOBS[{kind!r}] = {target!r}\n"
    (tmp_path / "package" / "sitecustomize.py").write_text(site)
    monkeypatch.setitem(catalogue_of_jobs.JOBS, kind, target)
    monkeypatch.setitem(sys.modules, "dape.experiments.untrained", importlib.import_module("example_untrained"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_experiment_runs_and_goes_on(package, capsys):
    """In processes of their own, as a user's would."""
    names: dict = {}
    exec(BLOCKS[5], names)
    rows = names["plan"].collect()
    assert names["failures"] == {}
    assert len(rows) == 8 and all(200 < row.value < 400 for row in rows)  # 256 symbols
    printed = capsys.readouterr()
    assert "rope-seed0  perplexity 64: 3" in printed.err and f"rope-seed0 64 {rows[0].value}" in printed.out
    exec(BLOCKS[5], names)
    assert names["plan"].collect() == rows and "rope" not in capsys.readouterr().err

    names["Found"] = Found
    exec(BLOCKS[6], names)
    found = names["untrained"](("rope", "alibi"), seeds=2, out="runs/ground")
    assert found.rows == rows and "| alibi" in found.table() and found.figure().axes


def test_the_example_is_about_thirty_lines():
    assert sum(bool(line.strip()) for line in BLOCKS[3].splitlines()) <= 32


def test_a_job_without_its_line_is_refused_before_a_process_begins(package, monkeypatch):
    monkeypatch.delitem(catalogue_of_jobs.JOBS, "untrained")
    plan = sys.modules["dape.experiments.untrained"].Untrained(out=Path("out"), methods=("rope",), seeds=1)
    plan.begin()
    with pytest.raises(ValueError, match="a line in JOBS"):
        run_all(plan)
