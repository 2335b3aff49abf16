"""What ``dape bench model`` reports: JSON, rows and a table."""

from dataclasses import replace

import pytest
from rich.console import Console
from tests.bench.model_samples import GROUP, SAMPLES, TINY, report_of

from dape.bench import model
from dape.bench.model import ModelBench, measure
from dape.bench.model_records import make_records, rows, table_of
from dape.bench.records import Results
from dape.models.config import DecoderConfig
from dape.results.records import Row


def test_json_holds_every_row_and_its_circumstances(tmp_path, capsys):
    report = report_of(tmp_path, lengths=(9, 12))
    config, found = report["config"], report["rows"]
    assert {"torch", "threads", "cpu", "commit", "date", "seed", "precision", "dtype"} <= set(config)
    assert config["complete"] and config["skipped"] == [] and config["models"]["tiny"]["layers"] == 4
    expected = [
        (t, p, n, e)
        for t in (9, 12)
        for p in ("forward", "forward_backward", "step")
        for n in (1, 2, 4)
        for e in ("kerple", "dape-kerple")
    ]
    assert [(r["length"], r["pass"], r["layers"], r["encoding"]) for r in found] == expected
    assert all(r["extrapolated"] == (r["layers"] == 4) and len(r["samples_ms"]) == 2 for r in found)
    assert all(r["paper_vs_dape_kerple"] is None for r in found)
    shown = capsys.readouterr()
    assert "tiny: width 128, 8 heads, vocabulary 257, batch 1, float32" in shown.out
    assert "1 and 2 of 4 layers measured" in shown.out and "[0/48] tiny: initial weights" in shown.err


def test_what_the_paper_measured_stands_beside(tmp_path, monkeypatch):
    """The shape of 350m, narrower: only whether the conditions are the paper's decides."""
    narrow = DecoderConfig(layers=24, width=16, heads=2, vocabulary=50304, encoding="nope", train_length=512)
    monkeypatch.setattr(
        model, "shape_of", lambda size, vocabulary=None: replace(narrow, vocabulary=vocabulary or 50304)
    )
    given = {"sizes": ("350m",), "passes": ("forward",), "rounds": 1}

    def ratios(**options) -> set:
        return {r["paper_vs_dape_kerple"] is None for r in report_of(tmp_path, **{**given, **options})["rows"]}

    assert ratios(lengths=(512,)) == {False}
    assert ratios(lengths=(16,)) == ratios(lengths=(512,), vocabulary=99) == ratios(lengths=(512,), batch=2) == {True}


def test_rows_of_the_one_type():
    told = []
    result = measure(ModelBench(**TINY, precision="bf16", seed=3), told.append)
    found = rows(result)
    times = [row for row in found if row.metric == "milliseconds"]
    assert len(times) == len(result.records) == 18 and {row.metric for row in found} == {
        "milliseconds",
        "time_ratio_to_dape_kerple",
        "time_ratio_to_base",
    }
    last, row = times[-1], result.records[-1]
    assert (last.method, last.value, last.seed, last.length) == ("dape-kerple", row["ms"], 3, 9)
    assert last.extra["model"] == "tiny" and last.extra["layers"] == 4 and last.extra["layers_measured"] == [1, 2]
    assert (last.extra["extrapolated"], last.extra["pass"], last.extra["dtype"]) == (True, "step", "bfloat16")
    assert {"threads", "device", "torch", "cpu", "commit", "date", "q1", "q3"} <= set(last.extra)
    assert [r.extra["extrapolated"] for r in times[:5]] == [False] * 4 + [True]
    assert len({(r.run, r.metric, r.length) for r in found}) == len(found)
    assert all(Row.from_json(r.as_json()).as_dict() == r.as_dict() for r in found)
    assert told == ["tiny: initial weights"] + [f"tiny, 9 tokens, {p}" for p in ("forward", "forward+backward", "step")]


def test_ratio_rows_have_the_ratio():
    result = Results(
        records=make_records(GROUP, SAMPLES),
        settings={**dict.fromkeys(("dtype", "threads", "device", "torch", "cpu", "cores", "platform")), "batch": 1}
        | {"seed": 0, "python": "", "commit": "", "date": ""},
    )
    by_metric = {r.metric: r.value for r in rows(result) if r.method == "dape-kerple" and r.extra["layers"] == 24}
    assert by_metric == {
        "milliseconds": 35_500.0,
        "time_ratio_to_dape_kerple": 1.0,
        "time_ratio_to_base": pytest.approx(35.5 / 24),
    }


def shown(found, width: int = 120) -> list[str]:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table_of(found, ""))
    return captured.get().splitlines()


def test_table_marks_what_is_extrapolated():
    text = shown(make_records(GROUP, SAMPLES))
    (line,) = [line for line in text if " dape-kerple " in line and "step" in line]
    assert line.split() == [
        *("step", "dape-kerple", "1000", "2500", "~35500", "(162625)"),
        *("~1.00", "(0.00)", "1.00", "~1.48", "(0.12)", "1.18"),
    ]
    (base,) = [line for line in text if " kerple " in line]
    assert base.split()[-5:] == ["~0.68", "(0.07)", "0.85", "-", "-"]
    assert any("~24 layers" in line and " 2 layers" in line and " 1 layer " in line for line in text)


def test_table_without_extrapolation_marks_nothing():
    (line,) = [
        line
        for line in shown(make_records(replace(GROUP, layers=2), SAMPLES))
        if "dape-kerple" in line and "step" in line
    ]
    assert line.split() == ["step", "dape-kerple", "1000", "2500", "1.00", "(0.00)", "1.00", "1.25", "(0.06)", "1.18"]


def test_a_single_round_shows_no_range():
    text = shown(make_records(replace(GROUP, rounds=1), {case: seconds[:1] for case, seconds in SAMPLES.items()}))
    (line,) = [line for line in text if "dape-kerple" in line and "step" in line]
    assert line.split() == ["step", "dape-kerple", "1000", "2500", "~35500", "~1.00", "1.00", "~1.48", "1.18"]


def test_every_length_has_its_lines():
    slow = {case: [2 * s for s in seconds] for case, seconds in SAMPLES.items()}
    text = shown(make_records(GROUP, SAMPLES) + make_records(replace(GROUP, length=1024), slow))
    found = [line.split() for line in text if "step " in line and "kerple  " in line]
    expected = [("512", "kerple", "1000"), ("512", "dape-kerple", "1000")]
    expected += [("1024", "kerple", "2000"), ("1024", "dape-kerple", "2000")]
    assert [(line[0], line[2], line[3]) for line in found] == expected


def test_notes_and_lengths_get_columns_where_there_are_any():
    def headers(found):
        return [str(column.header) for column in table_of(found, "").columns]

    plain = make_records(GROUP, SAMPLES)
    assert headers(plain)[:2] == ["pass", "encoding"] and "note" not in headers(plain)
    noisy = make_records(replace(GROUP, length=64), {**SAMPLES, ("kerple", 2): [0.5, 20.0, 2.0]})
    assert headers(plain + noisy)[0] == "length" and headers(plain + noisy)[-1] == "note"
    assert any("distrust" in line for line in shown(noisy)) and not any("distrust" in line for line in shown(plain))
