"""The course of ``dape bench model``: its options, interruptions, limits, and what it refuses."""

import json
import time
from pathlib import Path

import pytest
import torch
from tests.bench.model_samples import TINY, report_of

from dape.bench import model, model_cases, runner
from dape.bench.model import ModelBench, filled_in, measure, run
from dape.errors import UsageError

# The course of it ----------------------------------------------------------------------------------------------------


def test_interruption_reports_what_was_finished(tmp_path, monkeypatch, capsys):
    def interrupted(calls, rounds, warm_up, clock):
        yield from ((case, 0.002) for case in calls)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "interleaved", interrupted)
    path = tmp_path / "model.json"
    assert run(ModelBench(**TINY, json=path)) == 130
    report = json.loads(path.read_text())
    assert not report["config"]["complete"] and {r["pass"] for r in report["rows"]} == {"forward"}
    assert "1 of 2 rounds" in report["rows"][0]["note"] and len(report["rows"]) == 6
    assert "interrupted" in capsys.readouterr().err


def test_time_ends_rounds_but_each_case_has_one(monkeypatch):
    """Each timed call takes a minute on this clock, a round four; two passes share ten minutes, the second gets two."""
    now = [0.0]

    def slow(calls, rounds, warm_up, clock):
        for _ in range(rounds):
            for case in calls:
                now[0] += 60.0
                yield case, 60.0

    monkeypatch.setattr(runner, "interleaved", slow)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    given = {**TINY, "passes": ("forward", "step"), "rounds": 9}
    found = measure(ModelBench(**given, minutes=10), lambda _: None).records
    assert [len(row["samples_ms"]) for row in found if row["layers"] == 1] == [2, 2, 1, 1]
    assert found[0]["note"].startswith("2 of 9 rounds")


def test_warm_up_and_rounds_are_as_long_as_asked(monkeypatch):
    asked = []
    real = runner.interleaved
    monkeypatch.setattr(
        runner,
        "interleaved",
        lambda calls, rounds, warm_up, clock: asked.append((rounds, warm_up)) or real(calls, rounds, warm_up=warm_up),
    )
    measure(ModelBench(**TINY, passes=("forward",), warm_up=3), lambda _: None)
    assert asked == [(2, 3)]


def test_what_does_not_fit_is_said_and_nothing_is_an_error(capsys, tmp_path):
    assert run(ModelBench(**TINY, memory_limit_gb=1e-4)) == 1
    out, err = capsys.readouterr()
    assert "tiny, 2 layers, 9 tokens, step: not run, needs about" in err and out == ""
    # 0.5M parameters in two layers: 2 MB of weights, 8 MB with gradients and moments.
    report = report_of(tmp_path, memory_limit_gb=0.006)
    assert {r["pass"] for r in report["rows"]} == {"forward", "forward_backward"}
    assert len(report["config"]["skipped"]) == 1


def test_options_reach_the_models(monkeypatch):
    """Not only the report: a row that says bfloat16 was computed in it."""
    workloads, halves = [], []
    trunk, planned = model_cases.make_trunk, model.plan
    monkeypatch.setattr(model_cases, "make_trunk", lambda w, length: workloads.append(w) or trunk(w, length))
    monkeypatch.setattr(model, "plan", lambda *args, **given: halves.append(given["half"]) or planned(*args, **given))
    for precision in ("bf16", "fp32"):
        options = {**TINY, "passes": ("forward",), "layers": (1, 3), "batch": 2, "seed": 5, "vocabulary": 31}
        measure(ModelBench(**options, precision=precision), lambda _: None)
    assert [w.precision for w in workloads] == ["bfloat16", "float32"] and halves == [True, False]
    assert {(w.layers, w.batch, w.seed, w.vocabulary, w.width, w.heads) for w in workloads} == {(3, 2, 5, 31, 128, 8)}


def test_threads_are_used_and_restored():
    result = measure(ModelBench(**TINY, threads=2, passes=("forward",)), lambda _: None)
    assert result.settings["threads"] == 2 and torch.get_num_threads() == 1


# Options -------------------------------------------------------------------------------------------------------------


def test_defaults_are_the_papers_table():
    config = filled_in(ModelBench())
    assert config.sizes == ("350m", "2.7b", "6.7b") and (config.batch, config.lengths) == (1, (512,))
    assert config.encodings == ("rope", "t5", "alibi", "kerple", "fire", "dape-kerple")
    assert (config.passes, config.rounds, config.minutes) == (("forward", "forward_backward", "step"), 5, None)


def test_quick_changes_only_what_was_not_given():
    config = filled_in(ModelBench(quick=True, rounds=4))
    assert (config.sizes, config.rounds, config.minutes) == (("350m",), 4, 0.5)
    assert config.encodings == ("rope", "kerple", "dape-kerple")


def test_lists_are_put_in_order():
    config = filled_in(ModelBench(layers=(3, 1, 3), passes=("step", "forward"), encodings=("rope", "rope")))
    assert (config.layers, config.passes, config.encodings) == ((1, 3), ("forward", "step"), ("rope",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": ("3b",)}, "`sizes`: '3b' is not known; choose from tiny, small, 125m"),
        ({"sizes": ("126m",)}, "Did you mean '125m'?"),
        ({"sizes": ()}, "`sizes` needs at least one of"),
        ({"encodings": ()}, "`encodings` needs at least one"),
        ({"encodings": ("dape-kerpel",)}, "Did you mean 'dape-kerple'"),
        ({"passes": ("backward",)}, "`passes`: 'backward'"),
        ({"precision": "fp8"}, "`precision`: 'fp8'"),
        ({"lengths": (0,)}, "`lengths` must be positive, got 0"),
        ({"layers": (0, 1)}, "`layers` must be at least 1, got 0"),
        ({"layers": ()}, "`layers` needs at least one depth"),
        ({"layers": (1, 5)}, "`layers` 5: tiny has only 4"),
        ({"batch": 0}, "`batch` must be at least 1"),
        ({"vocabulary": 0}, "`vocabulary`"),
        ({"rounds": 0}, "`rounds`"),
        ({"warm_up": 0}, "`warm_up`"),
        ({"threads": 0}, "`threads`"),
        ({"minutes": 0.0}, "`minutes` must be positive, got 0.0"),
        ({"memory_limit_gb": -1.0}, "`memory_limit_gb` must be positive"),
        ({"json": Path("/nonexistent/folder/bench.json")}, "does not exist"),
        ({"device": "abacus"}, "`device` abacus: cannot be used here"),
    ],
)
def test_bad_input_is_refused_before_any_work(options, message, monkeypatch):
    monkeypatch.setattr(model, "_plan", lambda *_: pytest.fail("work was started"))
    config = ModelBench(**TINY)
    for name, value in options.items():
        object.__setattr__(config, name, value)  # past the type checks that tests may run with
    with pytest.raises(UsageError, match=message):
        run(config)
