"""``dape bench attention`` and its parts. Shapes are tiny: these tests are about what is reported, not about speed."""

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dape.bench import attention, cases, listing, memory, runner
from dape.bench.attention import AttentionBench, run, table_of
from dape.bench.estimate import dense_bytes
from dape.bench.options import fields_for
from dape.bench.records import Record, Results
from dape.bench.runner import interleaved
from dape.cli.bench import bench_attention
from dape.errors import UsageError
from dape.report.bench import bench_figure

TINY = {"lengths": (9,), "heads": 2, "head_dim": 4, "hidden": 8, "repeats": 2, "memory": False}


def report_of(tmp_path: Path, **options) -> dict:
    """The JSON that a tiny benchmark writes."""
    path = tmp_path / "bench.json"
    assert bench_attention(AttentionBench(**{**TINY, **options, "json": path})) == 0
    return json.loads(path.read_text())


def shape_of(**options) -> cases.Shape:
    return fields_for(cases.Shape, AttentionBench(**options))


SETTINGS = {"encoding": "dape-kerple", "batch": 1, "heads": 2, "head_dim": 4, "hidden": 8, "dtype": "float32"}
SETTINGS |= {"causal": True, "threads": 1, "device": "cpu", "complete": True}


def record(**changes) -> Record:
    values = {
        "impl": "blocked",
        "encoding": "e",
        "length": 8,
        "pass": "forward",
        "ms": 1.0,
        "peak_mb": None,
        "note": "",
    }
    return {**values, **changes}


# Timing --------------------------------------------------------------------------------------------------------------


class Workshop:
    """Candidates that take a known time on a clock that only they move."""

    def __init__(self, **durations: float) -> None:
        self.now, self.calls = 0.0, []
        self.candidates: dict[str, Callable[[], None]] = {n: self._candidate(n, s) for n, s in durations.items()}

    def _candidate(self, name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            self.calls.append(name)
            self.now += seconds

        return call


def test_rounds_rotate_and_follow_an_untimed_one():
    shop = Workshop(a=1.0, b=2.0, c=4.0)
    samples = list(interleaved(shop.candidates, 4, clock=lambda: shop.now))
    assert "".join(shop.calls) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert [name for name, _ in samples] == shop.calls[3:]
    assert set(samples) == {("a", 1.0), ("b", 2.0), ("c", 4.0)}


def test_whoever_stops_early_keeps_the_samples():
    shop = Workshop(a=1.0, b=2.0)
    samples = interleaved(shop.candidates, 100, clock=lambda: shop.now)
    assert [next(samples), next(samples), next(samples)] == [("a", 1.0), ("b", 2.0), ("b", 2.0)]


# Memory --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def child_module(tmp_path, monkeypatch):
    (tmp_path / "hungry.py").write_text(
        "def allocate(megabytes):\n"
        "    freed = bytearray(400 * 10**6)  # what came before the call does not count\n"
        "    del freed\n"
        "    return lambda: bytearray(megabytes * 10**6)\n"
        "def fail():\n"
        "    raise ValueError('no such thing')\n"
        "def die():\n"
        "    import os\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "hungry"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget an earlier peak")
def test_child_reports_the_peak_of_the_call_alone(child_module):
    held_by_the_parent = bytearray(300 * 10**6)
    assert memory.peak_extra_mb(f"{child_module}:allocate", megabytes=200) == pytest.approx(200, abs=40)
    del held_by_the_parent


def test_failures_of_the_child_are_told(child_module):
    with pytest.raises(memory.MeasurementError, match="no such thing"):
        memory.peak_extra_mb(f"{child_module}:fail")
    with pytest.raises(memory.MeasurementError, match="signal 9"):
        memory.peak_extra_mb(f"{child_module}:die")


def needed(impl: str, pass_: str, length: int) -> float:
    """The estimate at the default shape; 0 where there is none."""
    default = {"encoding": "dape-kerple", "batch": 1, "heads": 12, "hidden": 32, "dtype": "float32"}
    return dense_bytes(impl, pass_, **default, length=length) or 0.0


def test_estimate_at_8192_tokens():
    assert needed("appendix", "forward", 8192) > 20e9
    assert needed("appendix", "forward_backward", 8192) > 40e9
    assert needed("blocked", "forward", 8192) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="calibrated on Linux")
def test_estimate_is_near_what_is_measured():
    shape = shape_of(head_dim=8)
    measured = cases.measure_mb(shape, "appendix", 768, "forward", threads=1)
    assert measured == pytest.approx(needed("appendix", "forward", 768) / memory.MB, rel=0.35)


# Correctness ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_every_implementation_agrees_with_the_reference(causal, dtype):
    config = AttentionBench(**{**TINY, "causal": causal, "dtype": dtype, "heads": 3})
    shape = fields_for(cases.Shape, config)
    for impl in (*config.impls, "auto"):
        if cases.why_not(impl, shape):
            continue
        assert cases.disagreements(shape, impl, config.passes) == []
        assert cases.disagreements(shape, impl, ("forward",)) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_listings_agree_in_half_precision_at_the_default_shape(dtype):
    """Where hidden units of f round to the other side of 0, gradients of q and k are off by a hundredth."""
    shape = shape_of(dtype=dtype, seed=0)
    for impl in ("appendix", "static"):
        assert cases.disagreements(shape, impl, ("forward", "forward_backward")) == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_listing_without_slope_is_found_in_every_precision(dtype, monkeypatch):
    monkeypatch.setattr(listing, "LEAKY_SLOPE", 0.0)
    wrong = cases.disagreements(shape_of(**TINY, dtype=dtype), "appendix", ("forward", "forward_backward"))
    assert any("gradient of f.first.bias is off" in words for words in wrong)


def test_no_hidden_unit_is_near_its_kink_where_the_listing_is_judged_in_half_precision():
    inputs = cases._away_from_kinks(cases.make_inputs(shape_of(**TINY, dtype="float16"), 23))
    q, k, pe = inputs.q.float(), inputs.k.float(), inputs.pe
    with torch.no_grad():
        z = listing.hidden_units(listing.scaled_scores(q, k), listing.bias(pe, q, causal=True), pe)
    assert z.abs().min() > 0.1 * z.abs().max() and {True, False} == set((z > 0).flatten().tolist())


def test_the_size_of_half_precision_is_known():
    sizes = {"encoding": "dape-kerple", "batch": 1, "heads": 12, "hidden": 32, "length": 512}
    half, single = (dense_bytes("appendix", "forward", **sizes, dtype=dtype) for dtype in ("float16", "float32"))
    assert half and single == 2 * half


def test_the_compiled_kernel_is_left_out_where_it_cannot_run(tmp_path, capsys):
    report = report_of(tmp_path, dtype="float64", impls=("fused", "blocked"))
    assert "computes in float32, q is torch.float64" in report["config"]["left_out"]["fused"]
    assert {row["impl"] for row in report["rows"]} == {"blocked"}
    with pytest.raises(UsageError, match=r"nothing to run: .*computes in float32"):
        report_of(tmp_path, dtype="float64", impls=("fused",))


def test_a_wrong_output_is_not_timed(monkeypatch, capsys, tmp_path):
    right = listing.appendix
    monkeypatch.setattr(listing, "appendix", lambda *args, **kw: right(*args, **kw) * 1.01)
    monkeypatch.setattr(cases, "make_call", lambda *_: pytest.fail("was timed"))
    assert run(AttentionBench(**TINY, json=tmp_path / "bench.json")) == 1
    shown = capsys.readouterr()
    assert "appendix: output is off" in shown.err and shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_gradient_is_found(monkeypatch, capsys):
    def without_gradient_of_f(q, k, v, pe, *, causal):
        with torch.no_grad():
            gone = right(q, k, v, pe, causal=causal)
        kept = listing.static(q, k, v, pe, causal=causal)
        return kept + (gone - kept).detach()

    right = listing.appendix
    monkeypatch.setattr(listing, "appendix", without_gradient_of_f)
    assert run(AttentionBench(**TINY)) == 1
    errors = capsys.readouterr().err
    assert "gradient of f.first.weight is off" in errors
    assert "output is off" not in errors


def test_not_a_number_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(listing, "static", lambda q, *_, **__: q * float("nan"))
    assert run(AttentionBench(**TINY)) == 1
    assert "static: output is off by inf" in capsys.readouterr().err


def test_inputs_repeat_and_leave_the_random_state_alone():
    shape = shape_of(**TINY)
    before = torch.get_rng_state()
    first, second = cases.make_inputs(shape, 9), cases.make_inputs(shape, 9)
    assert torch.equal(torch.get_rng_state(), before)
    for name, x in first.differentiable().items():
        assert torch.equal(x, second.differentiable()[name])


# The report ----------------------------------------------------------------------------------------------------------


def test_json_holds_every_row_and_its_circumstances(tmp_path, capsys):
    report = report_of(tmp_path, lengths=(9, 12))
    config, rows = report["config"], report["rows"]
    assert {"torch", "threads", "cpu", "commit", "date", "lengths", "encoding", "seed"} <= set(config)
    assert config["complete"] and set(config["left_out"]) <= {"fused"}
    impls = [i for i in ("fused", "blocked", "appendix", "sdpa", "static", "reference") if i not in config["left_out"]]
    expected = [(t, p, i) for t in (9, 12) for p in ("forward", "forward_backward") for i in impls]
    assert [(r["length"], r["pass"], r["impl"]) for r in rows] == expected
    for row in rows:
        assert set(row) == {"impl", "encoding", "length", "pass", "ms", "peak_mb", "note"}
        assert row["ms"] > 0 and row["peak_mb"] is None and row["note"] == ""
    out = capsys.readouterr().out
    assert "appendix" in out and "forward+backward" in out


def test_the_figure_has_a_line_for_each_implementation(tmp_path):
    rows = [
        record(impl=impl, length=length, ms=ms, peak_mb=mb)
        for impl, length, ms, mb in (("fused", 8, 1.0, 2.0), ("fused", 16, 4.0, 4.0), ("sdpa", 8, 3.0, None))
    ]
    time, size = bench_figure(Results(SETTINGS, rows)).axes
    assert [list(line.get_ydata()) for line in time.lines if len(line.get_xdata())] == [[1.0, 4.0], [3.0]]
    assert [list(line.get_ydata()) for line in size.lines] == [[2.0, 4.0]]
    assert report_of(tmp_path, figure=tmp_path / "f.png")["config"]["figure"] == str(tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="figure and draw come together"):
        run(AttentionBench(**TINY, figure=tmp_path / "g.png"))


def test_what_does_not_fit_is_named_but_not_run(tmp_path, monkeypatch, capsys):
    started = []
    real = cases.make_call
    monkeypatch.setattr(cases, "make_call", lambda impl, *rest: started.append(impl) or real(impl, *rest))
    rows = report_of(tmp_path, memory_limit_gb=1e-9, memory=True, impls=("appendix", "static"))["rows"]
    assert started == []
    for row in rows:
        assert row["ms"] is None and row["peak_mb"] is None
        assert row["note"].startswith("needs about ") and row["note"].endswith(" GB, not run")
    assert "not run" in capsys.readouterr().out


def test_ratios_compare_within_length_and_pass():
    times = {"blocked": 3.0, "sdpa": 1.0, "appendix": 18.0}
    rows = [record(impl=i, ms=ms) for i, ms in times.items()]
    rows.append(record(length=16, ms=5.0, note="alone"))
    columns = {str(c.header): list(c.cells) for c in table_of(Results(SETTINGS, rows)).columns}
    assert columns["vs sdpa"] == ["3.00x", "1.00x", "18.00x", "-"]
    assert columns["speed-up"] == ["6.00x", "18.00x", "1.00x", "-"]
    assert columns["note"][-1] == "alone"


def test_a_table_without_notes_fits_a_terminal():
    row = record(**{"impl": "reference", "length": 16384, "pass": "forward_backward", "ms": 123456, "peak_mb": 12345})
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table_of(Results(SETTINGS, [row])))
    assert "forward+backward" in captured.get() and "reference" in captured.get() and "123456" in captured.get()


def test_other_encodings_leave_the_listings_out(tmp_path, capsys):
    report = report_of(tmp_path, encoding="dape-alibi")
    assert {row["impl"] for row in report["rows"]} - {"fused"} == {"blocked", "sdpa", "reference"}
    assert set(report["config"]["left_out"]) - {"fused"} == {"appendix", "static"}
    assert "appendix left out: it only knows dape-kerple, not dape-alibi" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["kerple", "randomized-dape-kerple"])
def test_encodings_without_f_or_with_drawn_positions(tmp_path, encoding):
    rows = report_of(tmp_path, encoding=encoding)["rows"]
    assert {row["encoding"] for row in rows} == {encoding} and all(row["ms"] > 0 for row in rows)
    assert {"blocked", "reference"} <= {row["impl"] for row in rows}


def test_interruption_reports_what_was_finished(tmp_path, monkeypatch, capsys):
    def interrupted(calls, repeats, warm_up, clock):
        for name in calls:
            yield name, 0.002
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "interleaved", interrupted)
    path = tmp_path / "bench.json"
    assert run(AttentionBench(**TINY, json=path)) == 130
    report = json.loads(path.read_text())
    assert not report["config"]["complete"]
    assert {row["pass"] for row in report["rows"]} == {"forward"}
    assert {row["note"] for row in report["rows"]} == {"interrupted after 1 of 2 repetitions"}
    assert "interrupted" in capsys.readouterr().err


def test_memory_that_cannot_be_measured_is_a_note(tmp_path, monkeypatch):
    def fail(*_):
        raise memory.MeasurementError("killed by signal 9 (out of memory?)")

    monkeypatch.setattr(cases, "measure_mb", fail)
    row = report_of(tmp_path, memory=True)["rows"][0]
    assert row["ms"] > 0 and row["peak_mb"] is None
    assert row["note"] == "memory not measured: killed by signal 9 (out of memory?)"


# Files ---------------------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        Results({"not json": object()}, []).write(path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    Results({}, []).write(path)
    assert json.loads(path.read_text()) == {"config": {}, "rows": []}
    assert list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) & 0o400


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    Results({}, []).write(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["rows"] == []


# Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": (0,)}, "`lengths` must be positive, got 0"),
        ({"lengths": (512, -3)}, "`lengths` must be positive, got -3"),
        ({"lengths": ()}, "at least one length"),
        ({"impls": ("blocked", "fast")}, "'fast' is not known; choose from fused, triton, blocked"),
        ({"impls": ()}, "`impls` needs at least one"),
        ({"passes": ("backward",)}, "`passes`: 'backward'"),
        ({"dtype": "float8"}, "`dtype`: 'float8'"),
        ({"encoding": "dape-kerpel"}, "Did you mean 'dape-kerple'"),
        ({"encoding": "dape-cope"}, "dape cannot be put on 'cope'"),
        ({"hidden": 0}, "`hidden` must be at least 1, got 0"),
        ({"head_dim": -1}, "`head_dim` must be at least 1"),
        ({"repeats": 0}, "`repeats`"),
        ({"threads": 0}, "`threads`"),
        ({"memory_limit_gb": 0.0}, "`memory_limit_gb`"),
        ({"json": Path("/nonexistent/folder/bench.json")}, "does not exist"),
        ({"json": Path("/dev/null")}, "not a regular file"),
        ({"json": Path("/")}, "not a regular file"),
        ({"figure": Path("f.pdf")}, "`figure` must end in .png or .svg"),
        ({"encoding": "alibi", "impls": ("appendix",)}, "nothing to run: appendix only knows"),
        ({"device": "abacus"}, "`device` abacus: cannot be used here"),
    ],
)
def test_bad_input_is_refused_before_any_work(options, message, monkeypatch):
    monkeypatch.setattr(cases, "disagreements", lambda *_: pytest.fail("work was started"))
    config = AttentionBench(**TINY)
    for name, value in options.items():
        object.__setattr__(config, name, value)  # past the type checks that tests may run with
    with pytest.raises(UsageError, match=message):
        bench_attention(config)


def test_quick_keeps_the_short_lengths():
    quick = attention.checked(AttentionBench(lengths=(64, 512, 2048), quick=True))
    assert (quick.lengths, quick.repeats) == ((64, 512), 3)
    assert attention.checked(AttentionBench(lengths=(4096,), repeats=1, quick=True)).lengths == (512,)


def test_threads_are_restored(tmp_path):
    assert report_of(tmp_path, threads=2, impls=("sdpa",))["config"]["threads"] == 2
    assert torch.get_num_threads() == 1
