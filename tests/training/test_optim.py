"""Learning rate, weight decay and AdamW, against numbers and names written out by hand."""

import itertools
import math

import pytest
import torch

from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.training.config import TrainConfig
from dape.training.optim import decayed, learning_rate, make_optimizer

PAPER = TrainConfig(steps=50_000, lr=6e-4)


def model_with(encoding: str, **settings) -> DecoderLM:
    return DecoderLM(DecoderConfig(layers=1, width=16, heads=2, train_length=8, encoding=encoding, **settings))


# Learning rate -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 6e-4 / 500),  # one percent of the steps warms up; the first step already moves
        (249, 3e-4),
        (499, 6e-4),
        (500 + 24_750 - 1, (6e-4 + 6e-5) / 2),  # half way down the cosine
        (500 + 12_375 - 1, 6e-5 + 5.4e-4 * (1 + math.sqrt(0.5)) / 2),  # a quarter
        (49_999, 6e-5),
    ],
)
def test_learning_rate_of_the_paper(step, expected):
    assert learning_rate(step, PAPER) == pytest.approx(expected, rel=1e-12)


def test_learning_rate_rises_then_falls():
    config = TrainConfig(steps=40, lr=1.0, warmup_share=0.25, final_lr_share=0.2)
    rates = [learning_rate(step, config) for step in range(40)]
    assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert all(a > b for a, b in itertools.pairwise(rates[9:]))
    assert rates[-1] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("share", "steps", "expected"),
    [
        (0.0, 3, [1.0, 0.55, 0.1]),
        (0.01, 3, [1.0, 0.55, 0.1]),  # at least one step of warm-up, which is the highest rate at once
        (1.0, 4, [0.25, 0.5, 0.75, 1.0]),
        (0.5, 1, [1.0]),
        (0.34, 3, [1.0, 0.55, 0.1]),
    ],
)
def test_learning_rate_of_short_runs(share, steps, expected):
    config = TrainConfig(steps=steps, lr=1.0, warmup_share=share)
    assert [learning_rate(step, config) for step in range(steps)] == pytest.approx(expected)


# Weight decay --------------------------------------------------------------------------------------------------------

NOT_DECAYED = {
    *(f"blocks.0.{norm}.{what}" for norm in ("norm1", "norm2") for what in ("weight", "bias")),
    *(f"blocks.0.{layer}.bias" for layer in ("attention.qkv", "attention.out", "feed_forward.up", "feed_forward.down")),
    "norm.weight",
    "norm.bias",
}
DECAYED = {
    "embedding.weight",
    "head.weight",
    *(f"blocks.0.attention.{layer}.weight" for layer in ("qkv", "out")),
    *(f"blocks.0.feed_forward.{layer}.weight" for layer in ("up", "down")),
}
DAPE = {"decayed": {"f.first.weight", "f.second.weight"}, "not": {"f.first.bias", "f.second.bias"}}
# (decayed always, position scalars and vectors, never decayed), as in section 0 of the encodings' specification.
POSITIONS = {
    "rope": (set(), set(), set()),
    "kerple": (set(), {"r1", "r2"}, set()),
    "t5": ({"table"}, set(), set()),
    "cope": ({"table"}, set(), set()),
    "learned": ({"table"}, set(), set()),
    "transformer-xl": ({"u", "v", "w_r.weight"}, set(), set()),
    "fire": ({"first.weight", "second.weight"}, {"c", "threshold_multiplier"}, {"first.bias", "second.bias"}),
    "dape-kerple": (DAPE["decayed"], {"base.r1", "base.r2"}, DAPE["not"]),
    "dape-fire": (
        {"base.first.weight", "base.second.weight", *DAPE["decayed"]},
        {"base.c", "base.threshold_multiplier"},
        {"base.first.bias", "base.second.bias", *DAPE["not"]},
    ),
}


@pytest.mark.parametrize("encoding", POSITIONS)
@pytest.mark.parametrize("decay_positions", [True, False])
def test_what_is_decayed(encoding, decay_positions):
    always, scalars, never = ({f"encodings.0.{name}" for name in names} for names in POSITIONS[encoding])
    found = decayed(model_with(encoding), TrainConfig(decay_positions=decay_positions))
    yes = DECAYED | always | (scalars if decay_positions else set())
    assert {name for name, decays in found.items() if decays} == yes
    assert {name for name, decays in found.items() if not decays} == NOT_DECAYED | never | (scalars - yes)


def test_optimizer_has_the_papers_settings():
    model = model_with("dape-kerple")
    optimizer = make_optimizer(model, PAPER)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["betas"] == (0.9, 0.95) and optimizer.defaults["eps"] == 1e-8
    with_decay, without = optimizer.param_groups
    assert (with_decay["weight_decay"], without["weight_decay"]) == (0.1, 0.0)
    decays = decayed(model, PAPER)
    assert {id(p) for p in with_decay["params"]} == {id(p) for n, p in model.named_parameters() if decays[n]}
    assert len(with_decay["params"]) + len(without["params"]) == len(list(model.parameters()))


def test_optimizer_takes_other_settings():
    config = TrainConfig(beta1=0.5, beta2=0.75, eps=1e-3, weight_decay=0.25)
    optimizer = make_optimizer(model_with("nope"), config)
    assert optimizer.defaults["betas"] == (0.5, 0.75) and optimizer.defaults["eps"] == 1e-3
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.25, 0.0]


def literal_adamw(model, gradients, state, count: int, lr: float, config: TrainConfig) -> None:
    """One step as in Loshchilov and Hutter (2019), with decoupled decay, after clipping to the global norm."""
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
    shrink = min(1.0, config.clip / (norm + 1e-6))
    no_decay = {*NOT_DECAYED, *(name.replace("blocks.0", "blocks.1") for name in NOT_DECAYED)}
    for name, p in model.items():
        g = gradients[name].double() * shrink
        m, v = state.setdefault(name, (torch.zeros_like(g), torch.zeros_like(g)))
        m, v = config.beta1 * m + (1 - config.beta1) * g, config.beta2 * v + (1 - config.beta2) * g * g
        state[name] = m, v
        m_hat, v_hat = m / (1 - config.beta1**count), v / (1 - config.beta2**count)
        decay = 0.0 if name in no_decay else config.weight_decay
        model[name] = p * (1 - lr * decay) - lr * m_hat / (v_hat.sqrt() + config.eps)


@pytest.mark.parametrize("clip", [1.0, 0.1])
def test_three_steps_of_training_equal_adamw_written_out(make_trainer, train, clip):
    """The whole loop: data, loss, clipping, learning rate, optimizer. A larger eps, as gradients near 0 are noise."""
    trainer = make_trainer(steps=3, lr=1e-2, clip=clip, eps=1e-4, weight_decay=0.5, warmup_share=0.5, save_every=0)
    twin = make_trainer("twin", steps=3).model
    assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), trainer.model.parameters(), strict=True))
    weights = {name: p.detach().double() for name, p in twin.named_parameters()}
    state, config = {}, trainer.train
    for step, lr in enumerate([5e-3, 1e-2, 1e-3]):
        for name, p in twin.named_parameters():
            p.data, p.grad = weights[name].float(), None
        tokens = torch.from_numpy(trainer.task.windows.batch(step, 4))
        probabilities = torch.softmax(twin(tokens[:, :-1]), dim=-1)
        (-probabilities.gather(-1, tokens[:, 1:, None]).log()).mean().backward()
        gradients = {name: p.grad for name, p in twin.named_parameters()}
        literal_adamw(weights, gradients, state, step + 1, lr, config)
    assert train(trainer)
    for name, p in trainer.model.named_parameters():
        torch.testing.assert_close(p.detach().double(), weights[name], rtol=1e-3, atol=2e-5, msg=name)


# Settings that cannot be meant ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"steps": 0}, "`steps` must be at least 1, got 0"),
        ({"batch": -1}, "`batch` must be at least 1"),
        ({"log_every": 0}, "`log_every` must be at least 1"),
        ({"keep": 0}, "`keep` must be at least 1"),
        ({"accumulate": 0}, "`accumulate` must be at least 1"),
        ({"batch": 4, "accumulate": 3}, "`batch` 4 cannot be split into `accumulate` 3 equal parts"),
        ({"lr": 0.0}, "`lr` must be a positive number"),
        ({"lr": math.nan}, "`lr` must be a positive number"),
        ({"eps": math.inf}, "`eps` must be a positive number"),
        ({"clip": -1.0}, "`clip` must be 0 or more"),
        ({"weight_decay": -0.1}, "`weight_decay` must be 0 or more"),
        ({"save_every": -1}, "`save_every` must be 0 or more"),
        ({"warmup_share": 1.5}, "`warmup_share` must lie between 0 and 1"),
        ({"final_lr_share": -0.1}, "`final_lr_share` must lie between 0 and 1"),
        ({"beta2": math.nan}, "`beta2` must be at least 0 and below 1"),
        ({"beta1": 1.0}, "`beta1` must be at least 0 and below 1"),
        ({"seed": -1}, "`seed` must lie between 0 and"),
        ({"seed": 2**63}, "`seed` must lie between 0 and"),
    ],
    ids=str,
)
def test_impossible_settings(setting, words):
    with pytest.raises(ValueError, match=words):
        TrainConfig(**setting).check()
