"""Training: it learns, it can be stopped anywhere without a trace in the weights, and it stops when it diverges."""

import json
import math

import numpy as np
import pytest
import torch
from tests.thinned import few

from dape.data.windows import evaluation_ends
from dape.tasks.base import step_seed
from dape.training.description import checkpoints, find
from dape.training.language_model import vocabulary_for
from dape.training.run import read_metrics
from dape.training.trainer import NonFiniteLossError

# Learning ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_loss_falls(make_trainer, train, precision):
    trainer = make_trainer(encoding="dape-kerple", steps=40, batch=8, lr=2e-2, precision=precision, save_every=0)
    assert train(trainer)
    losses = [line["loss"] for line in read_metrics(trainer.folder) if "loss" in line]
    assert losses[0] == pytest.approx(math.log(257), abs=0.3)
    assert np.mean(losses[-5:]) < 3.0
    # The validation text is of the same kind.
    assert trainer.validation_loss == pytest.approx(np.mean(losses[-5:]), abs=0.4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_computes_in_it_and_keeps_the_weights_in_fp32(make_trainer, precision):
    trainer = make_trainer(precision=precision)
    seen = []
    trainer.model.blocks[0].attention.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    line = trainer.take_step()[0]
    assert seen == [{"bf16": torch.bfloat16, "fp16": torch.float16}[precision]]
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    full = make_trainer("fp32").take_step()[0]
    assert line.loss == pytest.approx(full.loss, rel=0.01) and line.loss != full.loss
    assert line.gradient_norm == pytest.approx(full.gradient_norm, rel=0.1)  # not scaled any more


def test_fp16_leaves_out_a_step_that_overflows_and_lowers_the_scale(make_trainer):
    trainer = make_trainer(precision="fp16", weight_decay=0.0)
    trainer.updater.scaler.load_state_dict({**trainer.updater.scaler.state_dict(), "scale": 2.0**40})
    before = [p.clone() for p in trainer.model.parameters()]
    line, _ = trainer.take_step()
    assert math.isfinite(line.loss) and not math.isfinite(line.gradient_norm)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.updater.scaler.get_scale() == 2.0**39 and trainer.step == 1
    trainer.updater.scaler.load_state_dict({**trainer.updater.scaler.state_dict(), "scale": 2.0**10})
    trainer.take_step()
    assert not all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_constrained_parameters_are_put_back_after_every_step(make_trainer, train):
    trainer = make_trainer(encoding="kerple", lr=1.0, warmup_share=1.0, save_every=0)
    pushed = trainer.model.encodings[0].r1
    train(trainer, 1)
    with torch.no_grad():
        pushed.fill_(-3.0)
    train(trainer, 1)
    assert pushed.min() > 0


# The same whatever the way -------------------------------------------------------------------------------------------


def gradients_of_a_step(trainer) -> dict[str, torch.Tensor]:
    """What the optimizer gets to see."""
    seen = {}
    real = trainer.optimizer.step

    def step(*args, **kwargs):
        seen.update({name: p.grad.clone() for name, p in trainer.model.named_parameters()})
        return real(*args, **kwargs)

    trainer.optimizer.step = step
    line, _ = trainer.take_step()
    return {"loss": torch.tensor(line.loss), **seen}


@pytest.mark.parametrize("encoding", ["rope", "dape-kerple"])
def test_accumulating_gives_the_gradient_of_the_whole_batch(make_trainer, encoding):
    whole = gradients_of_a_step(make_trainer("whole", encoding=encoding, batch=6))
    assert len(whole) > 20
    for parts in (2, 3, 6):
        trainer = make_trainer(f"parts{parts}", encoding=encoding, batch=6, accumulate=parts)
        sizes = []
        real = trainer.task.loss_of
        trainer.task.loss_of = lambda model, tokens, drawn, real=real, sizes=sizes: (
            sizes.append(len(tokens)),
            real(model, tokens, drawn),
        )[1]
        torch.testing.assert_close(gradients_of_a_step(trainer), whole, rtol=1e-4, atol=1e-6)
        assert sizes == [6 // parts] * parts


@pytest.mark.parametrize("encoding", ["dape-kerple", "randomized-rope"])
def test_recomputing_activations_gives_the_same_weights(make_trainer, train, encoding):
    plain, lean = (
        make_trainer(str(recompute), encoding=encoding, checkpoint_activations=recompute, steps=3)
        for recompute in (False, True)
    )
    assert train(plain) and train(lean)
    for a, b in zip(plain.model.parameters(), lean.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert plain.validation_loss == pytest.approx(lean.validation_loss)


def test_encodings_of_one_seed_see_the_same_batches_and_start_alike(make_trainer, monkeypatch):
    def first_batches(folder: str, **settings) -> list[torch.Tensor]:
        trainer, seen = make_trainer(folder, **settings), []
        real = trainer.task.loss_of
        trainer.task.loss_of = lambda model, tokens, drawn: (seen.append(tokens.clone()), real(model, tokens, drawn))[1]
        for _ in range(3):
            trainer.take_step()
        return seen

    rope = first_batches("rope", encoding="rope")
    for encoding in ("dape-fire", "randomized-kerple", "t5"):
        assert all(map(torch.equal, rope, first_batches(encoding, encoding=encoding)))
    assert not all(map(torch.equal, rope, first_batches("seed1", seed=1)))
    assert all(map(torch.equal, rope, first_batches("again", lr=1e-4, precision="bf16")))


def test_seeds_of_steps_do_not_repeat():
    seeds = [step_seed(seed, step) for seed in range(30) for step in range(200)]
    assert len(set(seeds)) == len(seeds) and all(0 <= seed < 2**63 for seed in seeds)


def test_randomised_positions_change_from_step_to_step(make_trainer):
    trainer = make_trainer(encoding="randomized-rope")
    draws = []
    real = trainer.task.loss_of

    def loss_of(model, tokens, drawn):
        draws.append(drawn[0].fixed_draw.positions.tolist())
        return real(model, tokens, drawn)

    trainer.task.loss_of = loss_of
    for _ in range(3):
        trainer.take_step()
    assert len({tuple(draw) for draw in draws}) == 3 and all(len(draw) == 8 for draw in draws)


# Stopped and continued -----------------------------------------------------------------------------------------------

WAYS = [
    *({"encoding": name} for name in ("rope", "dape-kerple", "dape-fire", "randomized-rope", "t5")),
    {"encoding": "dape-kerple", "accumulate": 2},
    {"encoding": "randomized-rope", "accumulate": 2},
    {"encoding": "kerple", "precision": "fp16"},
    {"encoding": "kerple", "precision": "bf16", "checkpoint_activations": True},
]


@pytest.mark.parametrize("settings", WAYS, ids=lambda s: "-".join(map(str, s.values())))
def test_a_run_in_pieces_ends_like_one_in_one_go(make_trainer, train, saved, same_bits, settings):
    """Pieces of one, two and three steps, each a new trainer, as after Ctrl-C."""
    whole = make_trainer("whole", **settings)
    assert train(whole)
    piece = None
    for number, steps in enumerate((1, 2, 9)):
        torch.manual_seed(100 + number)  # what other code drew must not matter
        piece = make_trainer("pieces", **settings)
        assert piece.step == sum((1, 2, 9)[:number])
        assert train(piece, steps) is (number == 2)
    assert piece is not None
    same_bits(saved(find(piece.folder)), saved(find(whole.folder)))
    assert piece.validation_loss == whole.validation_loss
    assert [{**line, "tokens_per_second": 0} for line in read_metrics(piece.folder)] == [
        {**line, "tokens_per_second": 0} for line in read_metrics(whole.folder)
    ]


@pytest.mark.parametrize("settings", few(4, WAYS), ids=lambda s: "-".join(map(str, s.values())))
def test_steps_after_the_last_checkpoint_are_done_again(make_trainer, train, saved, same_bits, settings):
    """As after SIGKILL: nothing was saved at the moment of death."""
    whole = make_trainer("whole", **settings)
    assert train(whole)
    killed = make_trainer("killed", **settings)

    class Died(Exception):
        pass

    def die(progress) -> None:
        if progress.step == 5:
            raise Died

    with pytest.raises(Died):
        killed.run(watch=die, stop=lambda: False)
    assert [p.name for p in checkpoints(killed.folder / "checkpoints")] == ["step-00000002", "step-00000004"]
    assert [line["step"] for line in read_metrics(killed.folder)] == [1, 2, 3, 4, 5]
    again = make_trainer("killed", **settings)
    assert again.step == 4 and train(again)
    same_bits(saved(find(again.folder)), saved(find(whole.folder)))
    steps = [line["step"] for line in read_metrics(again.folder) if "loss" in line]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_the_state_of_the_loss_scaler_goes_on(make_trainer, train):
    trainer = make_trainer(precision="fp16")
    scaler = trainer.updater.scaler
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**7, "_growth_tracker": 5})
    train(trainer, 2)
    again = make_trainer(precision="fp16")
    assert again.step == 2
    state = again.updater.scaler.state_dict()
    assert state == scaler.state_dict() and state["scale"] == 2.0**7 and state["_growth_tracker"] == 7


def test_a_finished_run_stays_as_it_is(make_trainer, train):
    trainer = make_trainer(steps=2)
    train(trainer)
    before = (trainer.folder / "metrics.jsonl").read_text()
    again = make_trainer(steps=2)
    assert again.step == 2 and train(again)
    assert (trainer.folder / "metrics.jsonl").read_text() == before


def test_stopping_before_the_first_step_saves_it_too(make_trainer, train, saved, same_bits):
    trainer = make_trainer(steps=2)
    assert not train(trainer, 0)
    assert find(trainer.folder).name == "step-00000000"
    whole, again = make_trainer("whole", steps=2), make_trainer(steps=2)
    assert train(again) and train(whole)
    same_bits(saved(find(again.folder)), saved(find(whole.folder)))


# Validation ----------------------------------------------------------------------------------------------------------


def test_validation_changes_nothing(make_trainer, train, saved, same_bits):
    seldom, often = make_trainer("seldom"), make_trainer("often", validate_every=1)
    assert train(seldom) and train(often)
    same_bits(saved(find(seldom.folder)), saved(find(often.folder)))
    assert seldom.validation_loss == often.validation_loss


@pytest.mark.parametrize("encoding", ["rope", "randomized-rope"])
def test_validation_is_the_same_for_the_same_weights(make_trainer, encoding):
    trainer = make_trainer(encoding=encoding)
    torch.manual_seed(1)
    first = trainer.validate()
    torch.manual_seed(2)
    assert trainer.validate() == first == pytest.approx(math.log(257), abs=0.6)


def test_validation_is_the_mean_over_the_windows(make_trainer, corpus):
    """One window at a time, from the definition of the windows."""
    trainer = make_trainer()
    ends = evaluation_ends(corpus.validation, reach=8, k=8, windows=64, same_document=False)
    total = count = 0
    for end in ends:
        tokens = torch.from_numpy(corpus.validation.read(int(end) - 9, int(end)))
        with torch.no_grad():
            log = torch.log_softmax(trainer.model(tokens[None, :-1])[0].double(), dim=-1)
        total -= sum(float(log[i, token]) for i, token in enumerate(tokens[1:]))
        count += 8
    assert count >= 64 and trainer.validate() == pytest.approx(total / count, rel=1e-5)


# Divergence ----------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_a_number_stops_the_run(make_trainer, train, saved, same_bits):
    trainer = make_trainer(lr=3e-3)
    train(trainer, 4)
    before = {path.name: saved(path) for path in checkpoints(trainer.folder / "checkpoints")}
    with torch.no_grad():
        trainer.model.head.weight[0, 0] = math.nan
    with pytest.raises(NonFiniteLossError) as error:
        train(trainer)
    words = str(error.value)
    beginning = trainer.corpus.tokenizer.decode(trainer.task.windows.batch(4, 4)[0].tolist())
    for part in (
        "step 5",
        "the loss is nan",
        "batch 4 of seed 0",
        repr(beginning),
        "step-00000004",
        "`lr` (now 0.003)",
    ):
        assert part in words
    assert {path.name: path.exists() for path in checkpoints(trainer.folder / "checkpoints")} == dict.fromkeys(
        before, True
    )
    for path in checkpoints(trainer.folder / "checkpoints"):
        same_bits(saved(path), before[path.name])


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_weights_change(make_trainer):
    trainer = make_trainer()
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.model.embedding.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(
        NonFiniteLossError, match=r"step 1: the gradient's norm is (inf|nan).*No checkpoint had been written"
    ):
        trainer.take_step()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_clipping_can_be_switched_off(make_trainer):
    off, on = make_trainer("off", clip=0.0), make_trainer("on", clip=1e-3)
    free, clipped = gradients_of_a_step(off), gradients_of_a_step(on)
    norms = [
        math.sqrt(sum(float(g.square().sum()) for n, g in grads.items() if n != "loss")) for grads in (free, clipped)
    ]
    assert norms[0] > 0.1 and norms[1] == pytest.approx(1e-3, rel=1e-3)


# The vocabulary ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ids", "expected"), [(257, 257), (1023, 1023), (1024, 1024), (1025, 1152), (50257, 50304)])
def test_large_vocabularies_are_rounded_up(ids, expected):
    class Tokenizer:
        vocabulary = ids

    class Corpus:
        tokenizer = Tokenizer

    assert vocabulary_for(Corpus) == expected


def test_the_model_has_the_vocabulary_of_the_data(make_trainer):
    trainer = make_trainer(vocabulary=9)
    assert trainer.model.embedding.num_embeddings == trainer.config.model.vocabulary == 257
    trainer.save()
    assert json.loads((find(trainer.folder) / "checkpoint.json").read_text())["model"]["vocabulary"] == 257
