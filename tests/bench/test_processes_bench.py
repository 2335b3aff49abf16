"""``dape bench processes``: who takes turns with whom."""

import pytest

from dape.bench.processes import ProcessesBench, run
from dape.bench.records import Results
from dape.errors import UsageError


@pytest.mark.slow
def test_ddp_and_fsdp_beside_one_process(tmp_path, capsys):
    path = tmp_path / "speed.json"
    assert run(ProcessesBench(counts=(2,), preset="tiny", batch=2, repeats=1, json=path)) == 0
    found = Results.read(path).records
    assert [(record["processes"], record["parallel"]) for record in found] == [(2, "ddp"), (2, "fsdp"), (1, "alone")]
    assert found[2]["vs_alone"] == 1 and all(record["tokens_per_second"] > 0 for record in found)
    shown = capsys.readouterr().out
    assert "training tiny with dape-kerple" in shown and "1.00x" in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"counts": (3,)}, "cannot be divided among 3"),
        ({"counts": (65,)}, "between 1 and 64"),
        ({"repeats": 0}, "least"),
    ],
)
def test_senseless_options(options, words):
    with pytest.raises(UsageError, match=words):
        run(ProcessesBench(**options))
