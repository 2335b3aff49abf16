"""``dape bench decode``: verified before it is timed, rows with their circumstances, and what it refuses."""

import json

import pytest

from dape.bench import decode, runner
from dape.bench.decode import DecodeBench
from dape.errors import UsageError

TINY = {"lengths": (9, 70), "heads": 3, "head_dim": 4, "repeats": 2}


def report_of(tmp_path, **options) -> dict:
    path = tmp_path / "decode.json"
    assert decode.run(DecodeBench(**{**TINY, "json": path, **options})) == 0
    return json.loads(path.read_text())


def test_rows_and_circumstances(tmp_path, capsys):
    report = report_of(tmp_path, encodings=("rope", "dape-kerple", "cope", "randomized-fire"))
    names = ["sdpa", "rope", "dape-kerple", "cope", "randomized-fire"]
    assert [(row["length"], row["encoding"]) for row in report["rows"]] == [
        (t, name) for t in (9, 70) for name in names
    ]
    assert all(row["ms"] > 0 and row["vs_sdpa"] > 0 for row in report["rows"])
    assert {row["vs_sdpa"] for row in report["rows"] if row["encoding"] == "sdpa"} == {1.0}
    assert report["config"]["complete"] and {"torch", "threads", "cpu", "commit", "date"} <= set(report["config"])
    assert "one query, 3 heads of 4" in capsys.readouterr().out


def test_a_wrong_result_is_not_timed(tmp_path, monkeypatch, capsys):
    import dape.ops.attention as operators

    real = operators.attention

    def wrong(*args, explain=False, **call):
        found = real(*args, explain=explain, **call)
        return (found[0] * 1.01, found[1]) if explain else found

    monkeypatch.setattr(operators, "attention", wrong)
    assert decode.run(DecodeBench(**TINY, encodings=("kerple",), json=tmp_path / "x.json")) == 1
    assert "kerple at 9 keys is off by 1.0e-02" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encodings": ()}, "`encodings` needs at least one name"),
        ({"encodings": ("dape-kerpl",)}, "Did you mean 'dape-kerple'"),
        ({"lengths": (0,)}, "`lengths` must be positive, got 0"),
        ({"repeats": 0}, "`repeats` must be at least 1, got 0"),
    ],
)
def test_refused(options, message):
    with pytest.raises(UsageError, match=message):
        decode.run(DecodeBench(**{**TINY, **options}))


def test_interruption_keeps_what_was_finished(tmp_path, monkeypatch, capsys):
    real, calls = runner.interleaved, []

    def interrupted(*args, **options):
        for sample in real(*args, **options):
            calls.append(sample)
            if len(calls) == 7:  # within the second length, two calls of two rounds
                raise KeyboardInterrupt
            yield sample

    monkeypatch.setattr(runner, "interleaved", interrupted)
    path = tmp_path / "decode.json"
    assert decode.run(DecodeBench(**TINY, encodings=("rope",), json=path)) == 130
    report = json.loads(path.read_text())
    assert not report["config"]["complete"] and {row["length"] for row in report["rows"]} == {9}
    assert "interrupted" in capsys.readouterr().err
