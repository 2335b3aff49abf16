"""``dape bench train`` and its parts. Shapes are tiny: these tests are about what is reported, not about speed."""

import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dape.bench import plain_gpt, runner, train_cases
from dape.bench.plain_gpt import PlainGPT
from dape.bench.records import Record, Spread, spread
from dape.bench.runner import interleaved
from dape.bench.train import TrainBench, base_of, filled_in, make_records, run, table_of
from dape.bench.train_cases import Trainee, Workload, make_batch, make_model, make_trainee
from dape.errors import UsageError
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM

SHAPE = {"layers": 2, "width": 24, "heads": 3, "vocabulary": 19, "batch": 2}
TINY = {**SHAPE, "lengths": (9,), "repeats": 2, "warm_up": 1}
WORKLOAD = Workload(**SHAPE, precision="float32", compile=False, device="cpu", seed=0)


def report_of(tmp_path: Path, **options) -> dict:
    """The JSON that a tiny benchmark writes."""
    path = tmp_path / "bench.json"
    assert run(TrainBench(**{**TINY, **options, "json": path})) == 0
    return json.loads(path.read_text())


def row(**changes) -> Record:
    return {
        "model": "dape-kerple",
        "length": 512,
        "pass": "step",
        **spread("ms", Spread(2477.0, 2400.0, 2800.0)),
        "tokens_per_second": 12345.6,
        **spread("speed_vs_plain_gpt", Spread(0.97, 0.9, 1.0)),
        **spread("time_vs_base", Spread(1.23, 1.1, 1.3)),
        "parameters": 128_345_678,
        "note": "",
        **changes,
    }


def rows_of(samples: dict[str, list[float]], length: int, **options) -> list[Record]:
    return make_records(TrainBench(**options), length, "step", dict.fromkeys(samples, 7), samples)


# The baseline --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "t"), [(3, 23), (4, 1), (2, 16)])
def test_plain_gpt_is_our_model_with_rotary_positions(heads, t):
    torch.manual_seed(0)
    config = DecoderConfig(layers=3, width=48, heads=heads, vocabulary=31, encoding="rope", train_length=23)
    ours = DecoderLM(config)
    for parameter in ours.parameters():  # biases and norms too, which start at 0 and 1
        torch.nn.init.normal_(parameter, std=0.2)
    plain = PlainGPT(layers=3, width=48, heads=heads, vocabulary=31, length=23)
    plain.load_state_dict(ours.state_dict())
    tokens = torch.randint(31, (2, t))
    torch.testing.assert_close(plain(tokens), ours(tokens), rtol=1e-5, atol=2e-5)
    assert [p.shape for p in plain.parameters()] == [p.shape for p in ours.parameters()]


def test_a_baseline_that_computes_something_else_is_not_timed(monkeypatch, capsys):
    monkeypatch.setattr(plain_gpt, "rotate", lambda x, cos, sin: x)
    monkeypatch.setattr(runner, "interleaved", lambda *_, **__: pytest.fail("was timed"))
    assert run(TrainBench(**TINY)) == 1
    errors = capsys.readouterr().err
    assert "gradient of blocks.0.attention.qkv.weight is off" in errors and "not the same function" in errors


def test_without_the_baseline_nothing_is_verified(monkeypatch, tmp_path):
    monkeypatch.setattr(train_cases, "disagreements", lambda _: pytest.fail("was verified"))
    assert report_of(tmp_path, encodings=("nope",))["rows"]


# The step ------------------------------------------------------------------------------------------------------------


def test_a_step_follows_the_clipped_gradient():
    model = make_model("kerple", WORKLOAD, 9)
    # AdamW hides the length of a gradient, and turns rounding of a vanishing one into steps.
    trainee = Trainee(model, WORKLOAD, 9, torch.optim.SGD(model.parameters(), lr=0.5))
    with torch.no_grad():
        trainee.model.head.weight.mul_(40)
    before = [p.detach().clone() for p in trainee.parameters]
    inputs, targets = make_batch(WORKLOAD, 9)
    loss = torch.nn.functional.cross_entropy(trainee.model(inputs).transpose(1, 2), targets)
    gradients = torch.autograd.grad(loss, trainee.parameters)
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    assert norm > 2
    trainee.step()
    for old, new, gradient in zip(before, trainee.parameters, gradients, strict=True):
        torch.testing.assert_close(new.detach(), old - 0.5 * gradient / norm)
        assert new.grad is None


def test_the_optimizer_is_fused_adamw():
    optimizer = make_trainee("kerple", WORKLOAD, 9).optimizer
    assert isinstance(optimizer, torch.optim.AdamW) and optimizer.defaults["fused"]


def test_a_step_projects_constrained_parameters():
    trainee = make_trainee("kerple", WORKLOAD, 9)
    with torch.no_grad():
        trainee.model.encodings[0].r1.fill_(-5.0)
    trainee.step()
    assert (trainee.model.encodings[0].r1 > 0).all()


@pytest.mark.parametrize("pass_", ["forward", "forward_backward"])
def test_the_other_passes_leave_the_weights_alone(pass_, monkeypatch):
    trainee = make_trainee("rope", WORKLOAD, 9)
    before = [p.clone() for p in trainee.parameters]
    graphs, seen, real = [], [], Trainee.loss
    monkeypatch.setattr(Trainee, "loss", lambda self: graphs.append(x := real(self)) or x)
    trainee.model.embedding.weight.register_hook(seen.append)
    getattr(trainee, pass_)()
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, trainee.parameters, strict=True))
    assert [loss.requires_grad for loss in graphs] == [pass_ == "forward_backward"]
    assert len(seen) == (pass_ == "forward_backward")


def test_mixed_precision_rounds_activations_but_not_weights():
    full, mixed = (
        make_trainee("dape-kerple", Workload(**{**vars(WORKLOAD), "precision": p}), 9) for p in ("float32", "bfloat16")
    )
    assert mixed.loss().item() != full.loss().item()
    assert mixed.loss().item() == pytest.approx(full.loss().item(), rel=0.02)
    mixed.step()
    assert {p.dtype for p in mixed.parameters} == {torch.float32}


def test_models_and_tokens_repeat_and_leave_the_random_state_alone():
    torch.manual_seed(17)  # not the seed of the models, after which the state might happen to be the same
    before = torch.get_rng_state()
    first, second = (make_model("dape-kerple", WORKLOAD, 9) for _ in range(2))
    inputs, targets = make_batch(WORKLOAD, 9)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(inputs, make_batch(WORKLOAD, 9)[0]) and torch.equal(inputs[:, 1:], targets[:, :-1])
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


# Warnings of the compiler about itself, as in the other tests that compile.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.compile
def test_every_model_is_compiled(tmp_path):
    """Torch keeps few graphs of one piece of code, here one, and runs other models uncompiled: an error here."""
    import torch._dynamo

    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        report = report_of(tmp_path, compile=True, layers=1, encodings=("nope", "rope"), passes=("forward", "step"))
    assert len(report["rows"]) == 4 and torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 4
    torch._dynamo.reset()


# Ratios --------------------------------------------------------------------------------------------------------------


def test_ratios_are_taken_within_a_round():
    """Round 2 meets a machine ten times slower; the median times would give 2 / 1 and 3 / 2."""
    samples = {"plain-gpt": [1.0, 10.0, 1.0], "kerple": [2.0, 20.0, 2.0], "dape-kerple": [2.5, 30.0, 3.0]}
    plain, kerple, wrapped = rows_of(samples, 50, batch=4, repeats=3)
    assert Spread.found_in(kerple, "speed_vs_plain_gpt") == Spread(0.5, 0.5, 0.5) and kerple["time_vs_base"] is None
    assert Spread.found_in(wrapped, "time_vs_base") == Spread(1.5, 1.375, 1.5)
    assert wrapped["speed_vs_plain_gpt"] == pytest.approx(1 / 3)
    assert (wrapped["base"], plain["base"], plain["speed_vs_plain_gpt"]) == ("kerple", None, 1.0)
    assert Spread.found_in(wrapped, "ms") == Spread(3000.0, 2750.0, 16500.0) and wrapped["fastest_ms"] == 2500.0
    assert wrapped["tokens_per_second"] == pytest.approx(4 * 50 / 3.0)
    assert wrapped["parameters"] == 7 and wrapped["note"] == ""


def test_an_interrupted_round_counts_as_far_as_it_went():
    samples = {"plain-gpt": [1.0], "kerple": [2.0, 5.0], "dape-kerple": []}
    plain, kerple = rows_of(samples, 8, batch=1, repeats=9)
    assert Spread.found_in(kerple, "speed_vs_plain_gpt") == Spread(0.5, 0.5, 0.5)
    assert plain["note"] == "interrupted after 1 of 9 repetitions" and "2 of 9" in kerple["note"]


@pytest.mark.parametrize(
    ("model", "base"),
    [
        ("dape-kerple", "kerple"),
        ("dape-v2-fire", "fire"),
        ("randomized-dape-alibi", "randomized-alibi"),
        ("kerple", None),
        ("randomized-rope", None),
        ("plain-gpt", None),
    ],
)
def test_base_of_a_model(model, base):
    assert base_of(model) == base


def test_warm_up_rounds_are_not_timed():
    calls = []
    candidates = {name: lambda name=name: calls.append(name) for name in "ab"}
    assert [name for name, _ in interleaved(candidates, 2, warm_up=3)] == ["a", "b", "b", "a"]
    assert "".join(calls) == "ababab" + "abba"


# The report ----------------------------------------------------------------------------------------------------------


def test_json_holds_every_row_and_its_circumstances(tmp_path, capsys):
    report = report_of(tmp_path, lengths=(9, 12), passes=("forward", "step"))
    config, rows = report["config"], report["rows"]
    assert {"torch", "threads", "cpu", "commit", "date", "seed", "precision", "compile"} <= set(config)
    assert config["complete"] and (config["layers"], config["lengths"]) == (2, [9, 12])
    models = ["plain-gpt", "rope", "kerple", "dape-kerple"]
    expected = [(t, p, m) for t in (9, 12) for p in ("forward", "step") for m in models]
    assert [(r["length"], r["pass"], r["model"]) for r in rows] == expected
    for r in rows:
        assert 0 < r["fastest_ms"] <= r["ms_q1"] <= r["ms"] <= r["ms_q3"]
        assert r["tokens_per_second"] == pytest.approx(2 * r["length"] / r["ms"] * 1000)
        assert r["speed_vs_plain_gpt_q1"] <= r["speed_vs_plain_gpt"] <= r["speed_vs_plain_gpt_q3"]
        assert (r["base"], r["time_vs_base"] is None) == (
            ("kerple", False) if r["model"] == "dape-kerple" else (None, True)
        )
    by_model = {r["model"]: r["parameters"] for r in rows}
    assert by_model["plain-gpt"] == by_model["rope"] == by_model["kerple"] - 2 * 2 * 3
    shown = capsys.readouterr()
    assert "dape-kerple" in shown.out and "forward" in shown.out and "[0/32] 9 tokens" in shown.err


def test_warm_up_is_as_long_as_asked(tmp_path, monkeypatch):
    steps, real = [], Trainee.step
    monkeypatch.setattr(Trainee, "step", lambda self: steps.append(self) or real(self))
    report_of(tmp_path, encodings=("nope",), warm_up=3, repeats=2)
    assert len(steps) == 5


def test_numbers_without_baseline_and_base(tmp_path):
    (only,) = report_of(tmp_path, encodings=("dape-kerple", "dape-kerple"))["rows"]
    assert only["speed_vs_plain_gpt"] is only["base"] is only["time_vs_base"] is only["time_vs_base_q1"] is None


def test_interruption_reports_what_was_finished(tmp_path, monkeypatch, capsys):
    def interrupted(calls, repeats, warm_up, clock):
        yield from ((name, 0.002) for name in calls)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "interleaved", interrupted)
    path = tmp_path / "bench.json"
    assert run(TrainBench(**{**TINY, "lengths": (9, 12)}, json=path)) == 130
    report = json.loads(path.read_text())
    assert not report["config"]["complete"]
    assert [r["length"] for r in report["rows"]] == [9] * 4
    assert {r["note"] for r in report["rows"]} == {"interrupted after 1 of 2 repetitions"}
    assert "interrupted" in capsys.readouterr().err


def test_table_fits_a_terminal_and_shows_both_ratios():
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table_of([row(), row(model="dape-v2-kerple")], ""))
    (line,) = [line for line in captured.get().splitlines() if "dape-kerple" in line]
    assert line.split() == ["512", "dape-kerple", "2477", "(400)", "12346", "0.97", "(0.10)", "1.23", "(0.20)", "128M"]
    assert "dape-v2-kerple" in captured.get()


def test_passes_and_notes_get_columns_where_they_differ():
    other = row(**{"pass": "forward_backward", "note": "alone"})
    headers = [str(c.header) for c in table_of([row(), other], "").columns]
    assert headers[-2:] == ["pass", "note"]
    assert "pass" not in [c.header for c in table_of([row()], "").columns]


# Options -------------------------------------------------------------------------------------------------------------


def test_flags_change_a_preset():
    config = filled_in(TrainBench(preset="350m-slice", layers=1, encodings=("rope", "rope")))
    assert (config.layers, config.width, config.heads, config.vocabulary) == (1, 1024, 16, 50304)
    assert (config.batch, config.lengths, config.encodings) == (1, (512,), ("rope",))
    assert filled_in(TrainBench(lengths=(8,))).lengths == (8,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "huge"}, "`preset`: 'huge' is not known; choose from tiny"),
        ({"lengths": (0,)}, "`lengths` must be positive, got 0"),
        ({"lengths": ()}, "at least one length"),
        ({"encodings": ()}, "`encodings` needs at least one"),
        ({"encodings": ("plain-gtp",)}, "unknown positional encoding 'plain-gtp'"),
        ({"encodings": ("dape-kerpel",)}, "Did you mean 'dape-kerple'"),
        ({"passes": ("backward",)}, "`passes`: 'backward'"),
        ({"precision": "float8"}, "`precision`: 'float8'"),
        ({"heads": 5}, "`width` 24 cannot be divided into `heads` 5"),
        ({"heads": 8}, "plain-gpt rotates pairs of channels: .* got 3"),
        ({"heads": 8, "encodings": ("dape-rope",)}, "dape-rope rotates pairs"),
        ({"layers": 0}, "`layers` must be at least 1, got 0"),
        ({"batch": -1}, "`batch` must be at least 1"),
        ({"repeats": 0}, "`repeats`"),
        ({"warm_up": 0}, "`warm_up`"),
        ({"threads": 0}, "`threads`"),
        ({"vocabulary": 10**10}, "4 models together need at least .* GB"),
        ({"json": Path("/nonexistent/folder/bench.json")}, "does not exist"),
        ({"device": "abacus"}, "`device` abacus: cannot be used here"),
    ],
)
def test_bad_input_is_refused_before_any_work(options, message, monkeypatch):
    monkeypatch.setattr(train_cases, "disagreements", lambda *_: pytest.fail("work was started"))
    config = TrainBench(**TINY)
    for name, value in options.items():
        object.__setattr__(config, name, value)  # past the type checks that tests may run with
    with pytest.raises(UsageError, match=message):
        run(config)


def test_threads_are_used_and_restored(tmp_path):
    assert report_of(tmp_path, threads=2, encodings=("nope",))["config"]["threads"] == 2
    assert torch.get_num_threads() == 1
