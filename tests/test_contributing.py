"""The walk in CONTRIBUTING.md is true."""

import re
from pathlib import Path

import pytest
import torch

import dape
from dape.positional import catalogue

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


@pytest.fixture
def inverse(monkeypatch) -> type[dape.RelativeBias]:
    code, line = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
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
        assert (root / path).exists() or "inverse" in path, path
