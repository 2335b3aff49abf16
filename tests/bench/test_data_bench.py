"""``dape bench data``: what is timed, and what it is compared with."""

import pytest

from dape.bench.data import BPE, BYTES, LIBRARY, DataBench, run
from dape.bench.records import Results
from dape.errors import UsageError


@pytest.mark.slow
def test_speeds_of_bytes_and_of_bpe_beside_the_library(tmp_path, capsys):
    path = tmp_path / "data.json"
    assert run(DataBench(bytes_mb=1, bpe_mb=1, vocabulary=300, repeats=1, json=path)) == 0
    found = {record["what"]: record for record in Results.read(path).records}
    assert list(found) == [BYTES, LIBRARY, BPE]
    assert all(record["megabytes"] == 1 and record["mb_per_second"] > 0 for record in found.values())
    ratio = found[BPE]["mb_per_second"] / found[LIBRARY]["mb_per_second"]
    assert found[BPE]["vs_library"] == pytest.approx(ratio) and found[BYTES]["vs_library"] is None
    shown = capsys.readouterr().out
    assert all(name in shown for name in found) and f"{ratio:.2f}x" in shown


@pytest.mark.parametrize("options", [{"bytes_mb": 0}, {"repeats": 0}, {"vocabulary": 10}])
def test_senseless_options(options):
    with pytest.raises(UsageError, match="must be at least"):
        run(DataBench(**options))
