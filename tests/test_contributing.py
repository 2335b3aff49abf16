"""The walk in CONTRIBUTING.md is true."""

import importlib
import re
from pathlib import Path

import pytest
import torch

import dape
from dape.actions.running import run_all
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
    assert dape.attention(q, k, v, pe).isfinite().all()


def test_the_files_it_names_exist(inverse):
    root = Path(__file__).parents[1]
    for path in re.findall(r"`((?:src|tests)/[\w/.]+)`", TEXT):
        assert (root / path).exists() or "inverse" in path or "untrained" in path, path


def test_the_example_experiment_runs_and_goes_on(tmp_path, monkeypatch, capsys):
    """In processes of their own, as a user's would."""
    code, line = BLOCKS[2:]
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "example_untrained.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "package")
    kind, target = (word.strip().strip('"') for word in line.split(": "))
    # A worker imports the catalogue afresh: the line is put into it there too.
    site = "from dape.experiments import catalogue\n"
    site += f"catalogue.JOBS[{kind!r}] = {target.replace('dape.experiments.untrained', 'example_untrained')!r}\n"
    (tmp_path / "package" / "sitecustomize.py").write_text(site)
    module = importlib.import_module("example_untrained")
    plan = module.Untrained(out=tmp_path / "out", methods=("rope", "alibi"), seeds=2)
    plan.begin()
    assert run_all(plan, jobs=2) == {}
    rows = plan.collect()
    assert len(rows) == 8 and all(5 < row.value < 6 for row in rows)  # ln 256 is 5.5
    assert "rope-seed0  nll 64: 5." in capsys.readouterr().err
    assert run_all(plan) == {} and plan.collect() == rows
