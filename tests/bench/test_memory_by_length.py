"""``dape bench memory``: rows and a table of peak memory by length, and what it refuses."""

import json

import pytest

from dape.bench import memory_by_length
from dape.bench.memory import MeasurementError
from dape.bench.memory_by_length import MemoryBench
from dape.errors import UsageError

TINY = {"heads": 4, "head_dim": 16, "hidden": 8, "threads": 1}


def test_memory_grows_with_the_length_as_the_kernel_says(tmp_path, capsys):
    path = tmp_path / "memory.json"
    config = MemoryBench(**TINY, lengths=(256, 2048), encodings=("dape-kerple", "dape-v2-fire"), json=path)
    assert memory_by_length.run(config) == 0
    found = json.loads(path.read_text())
    rows = {(row["encoding"], row["length"]): row for row in found["rows"]}
    assert set(rows) == {(name, length) for name in config.encodings for length in config.lengths}
    assert rows["dape-kerple", 2048]["kernel"] == "lag tables"
    assert rows["dape-v2-fire", 2048]["kernel"] == "row blocks"
    # A whole matrix of logits alone: 4 heads of 2048 x 2048 numbers.
    assert 0 < rows["dape-kerple", 2048]["peak_mb"] < 4 * 2048**2 * 4 / 1e6
    assert rows["dape-kerple", 2048]["peak_mb"] > rows["dape-kerple", 256]["peak_mb"]
    printed = capsys.readouterr().out
    assert "dape-kerple" in printed and "2048" in printed


def test_a_call_that_fails_is_told(monkeypatch, capsys):
    def failing(*_):
        raise MeasurementError("killed by signal 9 (out of memory?)")

    monkeypatch.setattr("dape.bench.cases.measure_mb", failing)
    assert memory_by_length.run(MemoryBench(**TINY, lengths=(8,), encodings=("kerple",))) == 1
    assert "out of memory" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [{"lengths": (0,)}, {"encodings": ("kerpel",)}, {"heads": 0}])
def test_refused_before_anything_is_measured(wrong):
    with pytest.raises(UsageError):
        memory_by_length.run(MemoryBench(**{**TINY, **wrong}))
