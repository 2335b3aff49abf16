"""The encoder against the same model written out: dense matrices, one head at a time, no operator."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dape.models.encoder import Block, Encoder, haiku_init_
from dape.positional.catalogue import RANDOMIZED, encodings
from dape.positional.grid import Grid
from dape.positional.positions import Draw, draw_positions
from dape.tasks.chomsky.catalogue import load
from dape.tasks.chomsky.config import PAPER_METHODS, CheConfig
from dape.tasks.chomsky.model import encoder_for, model_input, shape_for, total_length

CONFIG = CheConfig(width=32, layers=3, heads=4, hidden=6, pool=64, lengths=(5, 50))
METHODS = [*PAPER_METHODS, "randomized-dape-kerple", "alibi", "nope"]
COUNT, OUTPUTS = 9, 3
"""Tokens in all, and how many of them are answered."""


def model_for(method: str, **changes) -> Encoder:
    torch.manual_seed(0)
    model = encoder_for(CheConfig(**{**CONFIG.__dict__, **changes}), load("bucket_sort"), method).double()
    with torch.no_grad():  # biases and norms begin at 0 and 1, where mistakes do not show
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    return model


def tokens(batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 6, (batch, COUNT), generator=torch.Generator().manual_seed(1))


# The model written out -----------------------------------------------------------------------------------------------


def read(draw: Draw | None, i: int, j: int) -> int:
    """Signed distance i - j, through the draw if there is one."""
    if draw is None:
        return i - j
    return int(draw.past[i - j]) if i >= j else -int(draw.future[j - i])


def distance(draw: Draw | None, i: int, j: int) -> float:
    return abs(read(draw, i, j)) - (0.5 if j < i else 0.0)


def bias(pe, draw: Draw | None, head: int, i: int, j: int):
    match type(pe).__name__:
        case "Alibi":
            return -(2.0 ** (-8 * (head + 1) / 4)) * distance(draw, i, j)
        case "Kerple":
            return -pe.r1[head] * torch.log(1 + pe.r2[head] * distance(draw, i, j))
        case "Fire":
            farthest = max(distance(draw, i, other) for other in range(COUNT))
            reach = max(farthest, abs(float(pe.threshold_multiplier)) * pe.threshold)
            u = math.log(abs(float(pe.c)) * distance(draw, i, j) + 1) / (math.log(abs(float(pe.c)) * reach + 1) + 1e-6)
            hidden = F.leaky_relu(pe.first.weight[:, 0] * u + pe.first.bias, pe.slope)
            return pe.second.weight[head] @ hidden + pe.second.bias[head]
    return 0.0


def turned(x: torch.Tensor, position: int) -> torch.Tensor:
    half = len(x) // 2
    angle = position * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[:half], x[half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])


def wave(position: int, width: int) -> torch.Tensor:
    angle = position * 10000.0 ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)
    return torch.cat([angle.sin(), angle.cos()])


def scores(base, draw: Draw | None, q, k, i: int, j: int) -> torch.Tensor:
    """All heads of one cell, before any bias."""
    heads, size = q.shape[0], q.shape[-1]
    name = type(base).__name__
    if name == "Rope":
        places = (i, j) if draw is None else (int(draw.positions[i]), int(draw.positions[j]))
        return torch.stack([turned(q[h, i], places[0]) @ turned(k[h, j], places[1]) for h in range(heads)]) / size**0.5
    if name == "TransformerXL":
        r = (base.w_r.weight @ wave(-read(draw, i, j), heads * size)).view(heads, size)
        content = torch.stack([(q[h, i] + base.u[h]) @ k[h, j] for h in range(heads)])
        return (content + torch.stack([(q[h, i] + base.v[h]) @ r[h] for h in range(heads)])) / size**0.5
    return torch.stack([q[h, i] @ k[h, j] for h in range(heads)]) / size**0.5


def attended(x: torch.Tensor, attention, pe) -> torch.Tensor:
    """One sequence."""
    draw = getattr(pe, "fixed_draw", None)
    pe = pe.base if type(pe).__name__ == "Randomized" else pe
    base = pe.base if type(pe).__name__ == "Dape" else pe
    heads, size = attention.heads, x.shape[1] // attention.heads
    q, k, v = (w.reshape(-1, heads, size).transpose(0, 1) for w in (x @ attention.qkv.weight.T).chunk(3, dim=1))
    rows = []
    for i in range(len(x)):
        columns = []
        for j in range(len(x)):
            a = scores(base, draw, q, k, i, j)
            b = torch.stack([torch.as_tensor(bias(base, draw, h, i, j), dtype=a.dtype) for h in range(heads)])
            logits = a + b
            if pe is not base:
                hidden = F.leaky_relu(pe.f.first.weight @ torch.cat([a, b]) + pe.f.first.bias, 0.01)
                logits = logits + pe.f.second.weight @ hidden + pe.f.second.bias
            columns.append(logits)
        weights = torch.softmax(torch.stack(columns, dim=1), dim=1)
        rows.append(torch.cat([weights[h] @ v[h] for h in range(heads)]))
    return torch.stack(rows) @ attention.out.weight.T


def normed(x: torch.Tensor, layer) -> torch.Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


def written_out(model: Encoder, sequence: torch.Tensor, encodings) -> torch.Tensor:
    x = model.embedding.weight[sequence] * math.sqrt(model.shape.width)
    pe = encodings[0]
    base = getattr(pe, "base", pe)
    places = pe.fixed_draw.positions[: len(x)] if pe is not base and hasattr(pe, "fixed_draw") else range(len(x))
    if type(base).__name__ == "Learned":
        x = x + torch.stack([base.table[int(p)] for p in places])
    if type(base).__name__ == "Sinusoidal":
        x = x + torch.stack([wave(int(p), x.shape[1]) for p in places])
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        x = normed(x + attended(x, block.attention, encodings[index % len(encodings)]), block.norm1)
        up = (x @ block.feed_forward.up.weight.T + block.feed_forward.up.bias).clamp(min=0)
        x = normed(x + up @ block.feed_forward.down.weight.T + block.feed_forward.down.bias, block.norm2)
    return x[-OUTPUTS:] @ model.head.weight.T + model.head.bias


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_encoder_is_what_is_written_out(method):
    model = model_for(method)
    encodings = model.drawn_encodings(COUNT, torch.Generator().manual_seed(3))
    found = model(tokens(), OUTPUTS, encodings=encodings)
    expected = torch.stack([written_out(model, sequence, encodings) for sequence in tokens()])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_nothing_is_hidden_from_the_outputs():
    """Without causal mask the first answer depends on the last input and on the placeholders behind it."""
    model, changed = model_for("dape-alibi"), tokens()
    changed[:, -OUTPUTS + 1] = (changed[:, -OUTPUTS + 1] + 1) % 6
    assert not torch.allclose(model(tokens(), OUTPUTS)[:, 0], model(changed, OUTPUTS)[:, 0])


@pytest.mark.parametrize("method", ["randomized-fire", "dape-fire", "randomized-transformer-xl", "randomized-rope"])
@torch.no_grad()
def test_answers_alone_are_those_of_all_tokens(method):
    model = model_for(method)
    encodings = model.drawn_encodings(COUNT, torch.Generator().manual_seed(3))
    every = model(tokens(), COUNT, encodings=encodings)
    for outputs in (1, 4):
        torch.testing.assert_close(model(tokens(), outputs, encodings=encodings), every[:, -outputs:])


EVERY = [prefix + name for name, entry in encodings().items() if entry.bidirectional for prefix in ("", RANDOMIZED)]


@pytest.mark.parametrize("method", EVERY)
def test_any_encoding_that_looks_both_ways_can_be_used(method):
    """Answers are finite, every parameter of the encoding is reached, and parts of a batch do not mix."""
    model = model_for(method)
    encodings = model.drawn_encodings(COUNT, torch.Generator().manual_seed(0))
    out = model(tokens(), OUTPUTS, encodings=encodings)
    assert out.shape == (2, OUTPUTS, 5) and out.isfinite().all()
    torch.testing.assert_close(model(tokens()[:1], OUTPUTS, encodings=encodings), out[:1])
    out.square().sum().backward()
    untouched = [name for name, p in model.encodings.named_parameters() if p.grad is None]
    assert not untouched


# Positions -----------------------------------------------------------------------------------------------------------


def test_every_layer_draws_its_own_positions():
    encodings = model_for("randomized-alibi").drawn_encodings(COUNT, torch.Generator().manual_seed(0))
    draws = [tuple(pe.fixed_draw.past.tolist()) for pe in encodings]
    assert len(set(draws)) == len(draws) == CONFIG.layers
    assert all(draw[0] == 0 and max(draw) < CONFIG.pool for draw in draws)


def test_embedded_positions_are_drawn_once():
    assert len(model_for("randomized-learned").drawn_encodings(COUNT)) == 1


def test_draws_follow_from_the_generator():
    model = model_for("randomized-kerple")
    draws = [model.drawn_encodings(COUNT, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)]
    for one, two, other in zip(*draws, strict=True):
        assert torch.equal(one.fixed_draw.past, two.fixed_draw.past)
        assert not torch.equal(one.fixed_draw.past, other.fixed_draw.past)


@torch.no_grad()
def test_deepminds_relative_table_has_one_side():
    """The whole future looks the same there, and differs here."""
    q, k = torch.randn(2, 1, 4, COUNT, 8, dtype=torch.float64)
    draw = draw_positions(COUNT, pool=CONFIG.pool, generator=torch.Generator().manual_seed(0))
    spreads = []
    for compat in ("", "deepmind"):
        pe = model_for("randomized-transformer-xl", compat=compat).encodings[0].with_draw(draw)
        grid = Grid.of_length(COUNT, COUNT, causal=False)
        zeros = torch.zeros(1, 4, COUNT, COUNT, dtype=torch.float64)
        spreads.append(float(pe.logits(zeros, q, torch.zeros_like(k), grid)[0, :, 0, 1:].std(-1).max()))
    assert spreads[0] > 0.05 and spreads[1] < 1e-9


# Sizes, layout, weights ----------------------------------------------------------------------------------------------


def test_the_papers_shape():
    config, task = CheConfig(), load("duplicate_string")
    model = encoder_for(config, task, "dape-kerple")
    shape = model.shape
    assert (shape.layers, shape.width, shape.heads, model.dropout) == (5, 256, 8, 0.1)
    assert model.encodings[0].f.first.weight.shape == (64, 16) and model.encodings[0].f.second.weight.shape == (8, 64)
    assert shape.train_length == 120 and model.embedding.weight.shape == (3, 256)
    names = {name for name, _ in model.named_parameters() if name.startswith("blocks.0.")}
    assert "blocks.0.attention.qkv.bias" not in names and "blocks.0.attention.out.bias" not in names
    assert {"blocks.0.feed_forward.up.bias", "blocks.0.norm2.bias"} <= names
    assert shape_for(config, task, "randomized-rope").encoding_options == {"pool": 2048}
    assert total_length(config, task, 500) == 1500


def test_layout_is_that_of_the_original(original, golden):
    for length in golden["lengths"]:
        inputs, padded = golden[f"{original}__L{length}__in"], golden[f"{original}__L{length}__padded"]
        outputs = int(golden[f"{original}__L{length}__outlen"])
        np.testing.assert_array_equal(model_input(inputs, outputs, load(original)), padded)


def test_layout_with_computation_tokens():
    task = load("reverse_string")
    assert model_input(np.array([[1, 0]]), 2, task, computation=2).tolist() == [[1, 0, 2, 2, 2, 2, 3, 3]]
    assert shape_for(CheConfig(computation=2), task, "alibi").vocabulary == 4


def test_initial_weights():
    torch.manual_seed(0)
    layer = torch.nn.Linear(400, 300)
    haiku_init_(layer)
    assert layer.weight.abs().max() <= 2 / 20 and not layer.bias.any()
    assert layer.weight.std().item() == pytest.approx(0.8796 / 20, rel=0.01)  # of a normal cut at two deviations
    model = encoder_for(CheConfig(), load("bucket_sort"), "randomized-learned")
    assert 0.03 < model.embedding.weight.abs().max() <= 0.04
    assert 1.9 < model.encodings[0].base.table.abs().max() <= 2


def test_same_seed_same_weights_apart_from_the_encoding():
    models = []
    for method in ("randomized-alibi", "dape-kerple"):
        torch.manual_seed(7)
        models.append(dict(encoder_for(CONFIG, load("odds_first"), method).named_parameters()))
    for name, weight in models[0].items():
        assert torch.equal(weight, models[1][name])


def test_constants_are_those_of_the_original(constants):
    config, shape = CheConfig(), shape_for(CheConfig(scale="cpu", width=64), load("even_pairs"), "alibi")
    assert config.batch == constants["train_batch_size"] and config.layers == constants["arch_num_layers"]
    assert config.heads == constants["cfgdefault_num_heads"] and config.dropout == constants["arch_dropout_prob"]
    assert config.pool == constants["arch_noise_max_length"] and shape.width == constants["arch_embedding_dim"]
    assert list(range(1, config.train_length + 1)) == constants["train_curriculum_values"].tolist()
    assert config.samples == constants["train_range_test_total_batch_size"]


# Dropout -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "places"), [("randomized-learned", 7), ("randomized-alibi", 6)])
def test_places_of_dropout(method, places, monkeypatch):
    """After attention and feed-forward of each layer, and after the sum with positions where there is one."""
    calls = []
    monkeypatch.setattr("dape.models.encoder.drop", lambda x, p, noise: (noise and calls.append(p), x)[1])
    model_for(method)(tokens(), OUTPUTS, noise=torch.Generator())
    assert calls == [0.1] * places
    calls.clear()
    model_for(method).train()(tokens(), OUTPUTS)
    assert not calls
