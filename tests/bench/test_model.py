"""``dape bench model``: shared weights that change nothing, the arithmetic of depth, what is reported and refused."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dape import paper
from dape.bench import model, model_measure
from dape.bench.cost import dense_parameters, encoding_parameters
from dape.bench.model import ModelBench, filled_in, measure, run
from dape.bench.model_cases import make_trainees, make_trunk
from dape.bench.model_plan import bytes_needed, plan, shape_of
from dape.bench.model_records import Group, Line, ModelResult, lines, make_rows, make_table, rows
from dape.bench.train_cases import Workload
from dape.bench.train_records import Spread
from dape.errors import UsageError
from dape.evaluation.records import Row
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM

TINY = {"sizes": ("tiny",), "lengths": (9,), "rounds": 2, "encodings": ("kerple", "dape-kerple")}
WORKLOAD = Workload(
    layers=2, width=24, heads=4, vocabulary=19, batch=2, precision="float32", compile=False, device="cpu", seed=0
)
GROUP = Group(size="350m", layers=24, length=512, pass_="step", rounds=3, as_published=True)


def report_of(tmp_path: Path, **options) -> dict:
    path = tmp_path / "model.json"
    assert run(ModelBench(**{**TINY, **options, "json": path})) == 0
    return json.loads(path.read_text())


# Shared weights ------------------------------------------------------------------------------------------------------


@pytest.fixture
def trainees():
    return make_trainees(make_trunk(WORKLOAD, 9), ("rope", "kerple", "t5", "dape-fire"), (1, 2), WORKLOAD, 9)


def test_models_on_shared_weights_are_decoders_of_their_own(trainees):
    for (encoding, depth), trainee in trainees.items():
        config = DecoderConfig(layers=depth, width=24, heads=4, vocabulary=19, encoding=encoding, train_length=9)
        alone = DecoderLM(config)
        alone.load_state_dict(trainee.model.state_dict())  # strict: the same parts, of the same shapes
        torch.testing.assert_close(alone(trainee.inputs), trainee.model(trainee.inputs))
        assert trainee.model.config == config


def test_weights_are_shared_and_encodings_are_not(trainees):
    views = [trainee.model for trainee in trainees.values()]
    assert len({id(view.embedding.weight) for view in views}) == len({id(view.blocks[0]) for view in views}) == 1
    shallow, deep = trainees["kerple", 1].model, trainees["kerple", 2].model
    assert shallow.encodings[0].r1 is not deep.encodings[0].r1
    (optimizer,) = {id(t.optimizer): t.optimizer for t in trainees.values()}.values()
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held}) and {id(p) for v in views for p in v.parameters()} == set(
        map(id, held)
    )


def test_a_step_of_one_model_leaves_the_parameters_of_the_others_alone(trainees):
    before = {case: [p.detach().clone() for p in t.model.encodings.parameters()] for case, t in trainees.items()}
    second = [p.detach().clone() for p in trainees["kerple", 2].model.blocks[1].parameters()]
    trainees["kerple", 1].step()
    for case, trainee in trainees.items():
        changed = any(
            not torch.equal(a, b) for a, b in zip(before[case], trainee.model.encodings.parameters(), strict=True)
        )
        assert changed == (case == ("kerple", 1))
    after = trainees["kerple", 2].model.blocks[1].parameters()
    assert all(torch.equal(a, b) for a, b in zip(second, after, strict=True))
    assert not any(p.grad is not None for t in trainees.values() for p in t.parameters)


def test_models_repeat_and_leave_the_random_state_alone():
    made = []
    for state in (17, 18):  # what the global state was must not matter
        torch.manual_seed(state)
        before = torch.get_rng_state()
        made += make_trainees(make_trunk(WORKLOAD, 9), ("kerple",), (1,), WORKLOAD, 9).values()
        assert torch.equal(torch.get_rng_state(), before)
    first, second = made
    assert all(torch.equal(a, b) for a, b in zip(first.parameters, second.parameters, strict=True))


def test_depths_of_one_encoding_are_neighbours(trainees):
    assert list(trainees)[:4] == [("rope", 1), ("rope", 2), ("kerple", 1), ("kerple", 2)]


# Arithmetic ----------------------------------------------------------------------------------------------------------


def test_a_line_through_two_depths():
    line = Line.through({1: 5.0, 2: 7.0})
    assert (line.fixed, line.per_layer, line.at(24)) == (3.0, 2.0, 51.0)


def test_a_line_through_three_depths_is_that_of_least_squares():
    line = Line.through({1: 1.0, 2: 3.0, 6: 4.0})  # slope 7 / 14, worked out by hand
    assert line.per_layer == pytest.approx(0.5) and line.fixed == pytest.approx(8 / 3 - 1.5)


def test_a_line_needs_two_depths_of_one_round():
    assert lines({2: [1.0, 2.0]}) == []
    assert [line.per_layer for line in lines({1: [1.0, 2.0], 3: [5.0]})] == [2.0]


SAMPLES = {
    ("kerple", 1): [1.0, 10.0, 1.0],
    ("kerple", 2): [2.0, 20.0, 2.0],
    ("dape-kerple", 1): [1.0, 10.0, 1.0],
    ("dape-kerple", 2): [2.5, 25.0, 2.25],
}


def test_the_whole_model_is_extrapolated_within_rounds():
    """Round 2 meets a machine ten times slower. Per layer: kerple 1, 10, 1; dape-kerple 1.5, 15, 1.25."""
    found = {(row.encoding, row.layers): row for row in make_rows(SAMPLES, GROUP)}
    assert list(found) == [(e, n) for n in (1, 2, 24) for e in ("kerple", "dape-kerple")]
    whole, base = found["dape-kerple", 24], found["kerple", 24]
    assert base.samples_ms == (24_000.0, 240_000.0, 24_000.0)
    assert whole.samples_ms == (35_500.0, 355_000.0, 29_750.0) and whole.ms.median == 35_500.0
    assert whole.vs_base.median == pytest.approx(35.5 / 24)
    assert whole.vs_base.q1 == pytest.approx((35.5 + 29.75) / 2 / 24)
    assert base.vs_dape_kerple.median == pytest.approx(24 / 35.5) and base.vs_base is None
    assert (whole.per_layer_ms, whole.fixed_ms) == (1500.0, -500.0)
    assert (whole.extrapolated, whole.layers_measured, whole.note) == (True, (1, 2), "")
    measured = found["dape-kerple", 2]
    assert not measured.extrapolated and measured.ms == Spread(2500.0, 2375.0, 13750.0)
    assert measured.vs_base.median == 1.25


def test_a_whole_model_that_was_timed_is_not_extrapolated():
    found = make_rows(SAMPLES, replace(GROUP, layers=2))
    assert [(row.layers, row.extrapolated) for row in found] == [(1, False), (1, False), (2, False), (2, False)]


def test_one_depth_says_nothing_about_others():
    found = make_rows({("kerple", 2): [1.0]}, GROUP)
    assert [(row.layers, row.per_layer_ms, row.note) for row in found] == [(2, None, "1 of 3 rounds")]


def test_noise_is_named_and_gives_no_ratio():
    """A layer that takes less than no time; continued to 24 layers, the whole model would."""
    samples = {**SAMPLES, ("kerple", 2): [0.5, 20.0, 2.0]}
    *_, kerple, wrapped = make_rows(samples, GROUP)
    assert kerple.samples_ms[0] < 0 and kerple.note == "noisy: 1 of 3"
    assert wrapped.vs_base == Spread.of([355 / 240, 29.75 / 24]) and wrapped.note == ""


def test_an_interrupted_round_counts_as_far_as_it_went():
    samples = {("kerple", 1): [1.0, 1.0], ("kerple", 2): [2.0], ("dape-kerple", 1): [1.0], ("dape-kerple", 2): []}
    found = make_rows(samples, GROUP)
    assert [(row.encoding, row.layers) for row in found] == [
        ("kerple", 1),
        ("dape-kerple", 1),
        ("kerple", 2),
        ("kerple", 24),
    ]
    assert [row.note for row in found] == ["2 of 3 rounds", *["1 of 3 rounds"] * 3]


def test_ratios_of_the_paper():
    *_, kerple, wrapped = make_rows(SAMPLES, GROUP)
    published = {
        (r.model, r.method): r.value for r in paper.load("A1") if r.metric == "time_ratio_to_dape_kerple"
    }  # its own quotients
    assert kerple.paper_vs_dape_kerple == pytest.approx(published["350M", "kerple"], abs=2e-4)
    assert wrapped.paper_vs_base == pytest.approx(224.22 / 189.91) and kerple.paper_vs_base is None
    for other in (replace(GROUP, as_published=False), replace(GROUP, size="tiny")):
        assert {row.paper_vs_dape_kerple for row in make_rows(SAMPLES, other)} == {None}


# The plan ------------------------------------------------------------------------------------------------------------

SHAPE = shape_of("6.7b")
WANTED = [(512, pass_) for pass_ in ("forward", "forward_backward", "step")]
CASE = {"encodings": ("rope", "dape-kerple"), "batch": 1, "half": False}


def test_sizes_are_the_papers():
    assert [shape_of(size).width for size in ("350m", "2.7b", "6.7b")] == [1024, 2560, 4096]
    assert (shape_of("6.7b").vocabulary, shape_of("tiny").vocabulary, shape_of("tiny", 5).vocabulary) == (50304, 257, 5)
    assert not shape_of("6.7b").checkpoint_activations


def test_weights_count_once_for_all_encodings():
    """2 x 201M of the layers and 2 x 206M of the vocabulary: weights, gradients and two moments, 4 bytes each."""
    step = bytes_needed(SHAPE, (1, 2), 512, "step", **CASE)
    own = sum(encoding_parameters(replace(SHAPE, encoding="dape-kerple", layers=n)) for n in (1, 2))
    weights = dense_parameters(replace(SHAPE, layers=2)) + own
    activations = 512 * (2 * 17 * 4 * 4096 + 3 * 4 * 50304)
    assert step == 16 * weights + activations and 13e9 < step < 14e9
    assert bytes_needed(SHAPE, (1, 2), 512, "forward_backward", **CASE) == 8 * weights + activations
    assert bytes_needed(SHAPE, (1, 2), 512, "forward", **CASE) == 4 * weights + 512 * (17 * 4 * 4096 + 12 * 50304)


def test_what_fits_is_run_and_the_rest_is_named():
    fits, skipped = plan("6.7b", SHAPE, None, WANTED, limit=8e9, **CASE)
    assert (fits.depths, fits.cases) == ((1, 2), tuple(WANTED[:2]))
    assert skipped == ["6.7b, 2 layers, 512 tokens, step: not run, needs about 13.6 GB of 8 GB that may be used"]


def test_one_layer_if_two_never_fit():
    fits, skipped = plan("6.7b", SHAPE, None, WANTED, limit=3e9, **CASE)
    assert (fits.depths, fits.cases) == ((1,), ((512, "forward"),)) and len(skipped) == 5
    fits, skipped = plan("6.7b", SHAPE, (1, 2), WANTED, limit=3e9, **CASE)  # as asked
    assert (fits.depths, fits.cases, len(skipped)) == ((1, 2), (), 3)


# The report ----------------------------------------------------------------------------------------------------------


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
    assert len(times) == len(result.rows) == 18 and {row.metric for row in found} == {
        "milliseconds",
        "time_ratio_to_dape_kerple",
        "time_ratio_to_base",
    }
    last, row = times[-1], result.rows[-1]
    assert (last.method, last.value, last.seed, last.length) == ("dape-kerple", row.ms.median, 3, 9)
    assert last.extra["model"] == "tiny" and last.extra["layers"] == 4 and last.extra["layers_measured"] == [1, 2]
    assert (last.extra["extrapolated"], last.extra["pass"], last.extra["dtype"]) == (True, "step", "bfloat16")
    assert {"threads", "device", "torch", "cpu", "commit", "date", "q1", "q3"} <= set(last.extra)
    assert [r.extra["extrapolated"] for r in times[:5]] == [False] * 4 + [True]
    assert len({(r.run, r.metric, r.length) for r in found}) == len(found)
    assert all(Row.from_json(r.as_json()).as_dict() == r.as_dict() for r in found)
    assert told == ["tiny: initial weights"] + [f"tiny, 9 tokens, {p}" for p in ("forward", "forward+backward", "step")]


def test_ratio_rows_have_the_ratio():
    result = ModelResult(
        rows=tuple(make_rows(SAMPLES, GROUP)),
        skipped=(),
        complete=True,
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
        console.print(make_table(found, ""))
    return captured.get().splitlines()


def test_table_marks_what_is_extrapolated():
    text = shown(make_rows(SAMPLES, GROUP))
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
        line for line in shown(make_rows(SAMPLES, replace(GROUP, layers=2))) if "dape-kerple" in line and "step" in line
    ]
    assert line.split() == ["step", "dape-kerple", "1000", "2500", "1.00", "(0.00)", "1.00", "1.25", "(0.06)", "1.18"]


def test_a_single_round_shows_no_range():
    text = shown(make_rows({case: seconds[:1] for case, seconds in SAMPLES.items()}, replace(GROUP, rounds=1)))
    (line,) = [line for line in text if "dape-kerple" in line and "step" in line]
    assert line.split() == ["step", "dape-kerple", "1000", "2500", "~35500", "~1.00", "1.00", "~1.48", "1.18"]


def test_every_length_has_its_lines():
    slow = {case: [2 * s for s in seconds] for case, seconds in SAMPLES.items()}
    text = shown(make_rows(SAMPLES, GROUP) + make_rows(slow, replace(GROUP, length=1024)))
    found = [line.split() for line in text if "step " in line and "kerple  " in line]
    expected = [("512", "kerple", "1000"), ("512", "dape-kerple", "1000")]
    expected += [("1024", "kerple", "2000"), ("1024", "dape-kerple", "2000")]
    assert [(line[0], line[2], line[3]) for line in found] == expected


def test_notes_and_lengths_get_columns_where_there_are_any():
    def headers(found):
        return [str(column.header) for column in make_table(found, "").columns]

    plain = make_rows(SAMPLES, GROUP)
    assert headers(plain)[:2] == ["pass", "encoding"] and "note" not in headers(plain)
    noisy = make_rows({**SAMPLES, ("kerple", 2): [0.5, 20.0, 2.0]}, replace(GROUP, length=64))
    assert headers(plain + noisy)[0] == "length" and headers(plain + noisy)[-1] == "note"
    assert any("distrust" in line for line in shown(noisy)) and not any("distrust" in line for line in shown(plain))


# The course of it ----------------------------------------------------------------------------------------------------


def test_interruption_reports_what_was_finished(tmp_path, monkeypatch, capsys):
    def interrupted(calls, rounds, warm_up):
        yield from ((case, 0.002) for case in calls)
        raise KeyboardInterrupt

    monkeypatch.setattr(model_measure, "interleaved", interrupted)
    path = tmp_path / "model.json"
    assert run(ModelBench(**TINY, json=path)) == 130
    report = json.loads(path.read_text())
    assert not report["config"]["complete"] and {r["pass"] for r in report["rows"]} == {"forward"}
    assert "1 of 2 rounds" in report["rows"][0]["note"] and len(report["rows"]) == 6
    assert "interrupted" in capsys.readouterr().err


def test_time_ends_rounds_but_each_case_has_one(monkeypatch):
    """Each timed call takes a minute on this clock, a round four; two passes share ten minutes, the second gets two."""
    now = [0.0]

    def slow(calls, rounds, warm_up):
        for _ in range(rounds):
            for case in calls:
                now[0] += 60.0
                yield case, 60.0

    monkeypatch.setattr(model_measure, "interleaved", slow)
    monkeypatch.setattr(model_measure, "monotonic", lambda: now[0])
    given = {**TINY, "passes": ("forward", "step"), "rounds": 9}
    found = measure(ModelBench(**given, minutes=10), lambda _: None).rows
    assert [len(row.samples_ms) for row in found if row.layers == 1] == [2, 2, 1, 1]
    assert found[0].note.startswith("2 of 9 rounds")


def test_warm_up_and_rounds_are_as_long_as_asked(monkeypatch):
    asked = []
    real = model_measure.interleaved
    monkeypatch.setattr(
        model_measure,
        "interleaved",
        lambda calls, rounds, warm_up: asked.append((rounds, warm_up)) or real(calls, rounds, warm_up=warm_up),
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
    trunk, planned = model_measure.make_trunk, model.plan
    monkeypatch.setattr(model_measure, "make_trunk", lambda w, length: workloads.append(w) or trunk(w, length))
    monkeypatch.setattr(model, "plan", lambda *args, **given: halves.append(given["half"]) or planned(*args, **given))
    for precision in ("bf16", "fp32"):
        options = {**TINY, "passes": ("forward",), "layers": (1, 3), "batch": 2, "seed": 5, "vocabulary": 31}
        measure(ModelBench(**options, precision=precision), lambda _: None)
    assert [w.precision for w in workloads] == ["bfloat16", "float32"] and halves == [True, False]
    assert {(w.layers, w.batch, w.seed, w.vocabulary, w.width, w.heads) for w in workloads} == {(3, 2, 5, 31, 128, 8)}


def test_mixed_precision_needs_a_rounded_copy_of_the_weights():
    full, half = (bytes_needed(SHAPE, (1, 2), 512, "step", **{**CASE, "half": h}) for h in (False, True))
    saved = 512 * (2 * (68 - 46) * 4096 - 4 * 50304)  # activations are smaller, logits larger
    assert half - full == 2 * dense_parameters(replace(SHAPE, layers=2)) - saved


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
        ({"sizes": ("3b",)}, "--sizes: '3b' is not known; choose from tiny, small, 125m"),
        ({"sizes": ()}, "--sizes needs at least one of"),
        ({"encodings": ()}, "--encodings needs at least one"),
        ({"encodings": ("dape-kerpel",)}, "Did you mean 'dape-kerple'"),
        ({"passes": ("backward",)}, "--passes: 'backward'"),
        ({"precision": "fp8"}, "--precision: 'fp8'"),
        ({"lengths": (0,)}, "--lengths must be positive, got 0"),
        ({"layers": (0, 1)}, "--layers must be at least 1, got 0"),
        ({"layers": ()}, "--layers needs at least one depth"),
        ({"layers": (1, 5)}, "--layers 5: tiny has only 4"),
        ({"batch": 0}, "--batch must be at least 1"),
        ({"vocabulary": 0}, "--vocabulary"),
        ({"rounds": 0}, "--rounds"),
        ({"warm_up": 0}, "--warm-up"),
        ({"threads": 0}, "--threads"),
        ({"minutes": 0.0}, "--minutes must be positive, got 0.0"),
        ({"memory_limit_gb": -1.0}, "--memory-limit-gb must be positive"),
        ({"json": Path("/nonexistent/folder/bench.json")}, "does not exist"),
        ({"device": "abacus"}, "--device abacus: cannot be used here"),
    ],
)
def test_bad_input_is_refused_before_any_work(options, message, monkeypatch):
    monkeypatch.setattr(model, "_plan", lambda *_: pytest.fail("work was started"))
    config = ModelBench(**TINY)
    for name, value in options.items():
        object.__setattr__(config, name, value)  # past the type checks that tests may run with
    with pytest.raises(UsageError, match=message):
        run(config)


def test_the_command_line_need_not_wait_for_torch():
    code = "import sys, dape.bench.model; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
