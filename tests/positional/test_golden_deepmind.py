"""Numbers of DeepMind's randomized_positional_encodings, see tests/golden/README.md."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import dape
from dape.positional.alibi import alibi_slopes
from dape.positional.sinusoidal import sinusoid

with np.load(Path(__file__).parents[1] / "golden" / "posenc_deepmind.npz") as _file:
    GOLDEN = {name: torch.from_numpy(_file[name]) for name in _file.files}
POOL = int(GOLDEN["noise_max_length"])
BATCH, LENGTH, HEADS, WIDTH = GOLDEN["rel__args"].tolist()[:4]


def build(name, **options):
    return dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=LENGTH, **options)


def draw_of(past, future, positions=None) -> dape.Draw:
    """A draw from stored distances 1, 2, ... (and positions)."""
    past, future = (torch.cat([torch.zeros(1, dtype=torch.long), x.long()]) for x in (past, future))
    positions = torch.arange(len(past)) if positions is None else positions.long()
    return dape.Draw(positions=positions, past=past, future=future, pool=POOL)


def heads_first(name):
    return GOLDEN[name].transpose(1, 2)


# Sinusoid ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1])
def test_sinusoid_table_with_negative_positions(n):
    length, width, base = (int(x) for x in GOLDEN[f"sin{n}__args"])
    positions = torch.arange(-length, length)
    table = sinusoid(positions, width, base=float(base), dtype=torch.float64)
    torch.testing.assert_close(table, GOLDEN[f"sin{n}__table_neg"], rtol=0, atol=1e-13)
    torch.testing.assert_close(table[length:], GOLDEN[f"sin{n}__table"], rtol=0, atol=1e-13)


@pytest.mark.parametrize("n", [0, 1])
def test_sinusoidal_embedding(n):
    length, width, base = (int(x) for x in GOLDEN[f"sin{n}__args"])
    pe = build("sinusoidal", model_dim=width, base=float(base))
    x = torch.randn(2, length, width, dtype=torch.float64)
    torch.testing.assert_close(pe.embed(x, torch.arange(length)) - x, GOLDEN[f"sin{n}__table"].expand_as(x))


def test_sinusoid_at_drawn_positions():
    _, length, width, _ = (int(x) for x in GOLDEN["noisysin__args"])
    distances = torch.arange(1, length)
    draw = draw_of(distances, distances, positions=GOLDEN["noisysin__positions"])
    pe = dape.Randomized(build("sinusoidal", model_dim=width), draw=draw)
    out = pe.embed(torch.zeros(length, width), torch.arange(length))
    torch.testing.assert_close(out, GOLDEN["noisysin__out"], rtol=0, atol=1e-5)


# Rotary ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "positions, out, base",
    [
        ("pos_arange", "out_arange", 10000.0),
        ("pos_random", "out_random", 10000.0),
        ("pos_unsorted", "out_unsorted", 10000.0),
        ("pos_perbatch", "out_perbatch", 10000.0),
        ("pos_random", "out_random_maxtime500", 500.0),
        ("noisy_positions", "noisy_out", 10000.0),
    ],
)
def test_rope_at_given_positions(positions, out, base):
    x, index = heads_first("rope__x"), GOLDEN[f"rope__{positions}"].long()
    grid = dape.Grid(q_index=index, k_index=index, causal=False)
    q, k = build("rope", interleaved=True, base=base).rotate(x, 2 * x, grid)
    torch.testing.assert_close(q, heads_first(f"rope__{out}"), rtol=0, atol=2e-5)
    torch.testing.assert_close(k, 2 * heads_first(f"rope__{out}"), rtol=0, atol=4e-5)


def test_rope_read_through_a_draw():
    x, distances = heads_first("rope__x"), torch.arange(1, LENGTH)
    draw = draw_of(distances, distances, positions=GOLDEN["rope__noisy_positions"])
    pe = dape.Randomized(build("rope", interleaved=True), draw=draw)
    q, _ = pe.rotate(x, x, dape.Grid.of_length(LENGTH, LENGTH, causal=False))
    torch.testing.assert_close(q, heads_first("rope__noisy_out"), rtol=0, atol=2e-5)


def test_the_half_layout_is_another_permutation():
    x, grid = heads_first("rope__x"), dape.Grid.of_length(LENGTH, LENGTH, causal=False)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # even channels, then odd ones
    q, _ = build("rope").rotate(x[..., order], x, grid)
    torch.testing.assert_close(q, heads_first("rope__out_arange")[..., order], rtol=0, atol=2e-5)
    assert not torch.allclose(build("rope").rotate(x, x, grid)[0], heads_first("rope__out_arange"), atol=1e-2)


# Transformer-XL ----------------------------------------------------------------------------------------------------


def transformer_xl(**options):
    pe = build("transformer-xl", **options)
    with torch.no_grad():
        pe.u.copy_(GOLDEN["rel__content_bias"])
        pe.v.copy_(GOLDEN["rel__relative_bias"])
        pe.w_r.weight.copy_(GOLDEN["rel__W"].T)  # stored as row vector times matrix
    return pe


def unscaled_logits(pe, draw=None):
    q, k = heads_first("rel__q"), heads_first("rel__k")
    grid = dape.Grid.of_length(LENGTH, LENGTH, causal=False).read_through(draw)
    return pe.logits(q @ k.mT / math.sqrt(WIDTH), q, k, grid).detach() * math.sqrt(WIDTH)


def drawn(sides: str) -> dape.Draw:
    right = GOLDEN[f"rel__noisy_{sides}_right"]
    if sides == "sym":
        return draw_of(right, right)
    left = GOLDEN["rel__noisy_both_left"]  # the past offset of distance e is left[T - e]
    return draw_of(torch.stack([-left[LENGTH - e] for e in range(1, LENGTH)]), right)


@pytest.mark.parametrize("base, name", [(10000.0, "bidir"), (500.0, "bidir_maxtime500")])
def test_transformer_xl_bidirectional(base, name):
    logits = unscaled_logits(transformer_xl(base=base))
    torch.testing.assert_close(logits, GOLDEN[f"rel__logits_{name}"], rtol=1e-5, atol=5e-5)


def test_transformer_xl_causal_encodes_the_authors_positions():
    """DeepMind's causal form reads position T-1-(i-j) where ours reads i-j; the encoding of a position is the same."""
    q, k = heads_first("rel__q"), heads_first("rel__k")
    pe = transformer_xl()
    encoded = pe.encode(torch.arange(LENGTH))
    u, v = GOLDEN["rel__content_bias"], GOLDEN["rel__relative_bias"]
    content = (q + u[:, None]) @ k.mT
    for i in range(LENGTH):
        for j in range(i + 1):
            position = ((q[:, :, i] + v) * encoded[:, LENGTH - 1 - (i - j)]).sum(-1)
            expected = GOLDEN["rel__logits_causal"][:, :, i, j]
            torch.testing.assert_close((content[:, :, i, j] + position).detach(), expected, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("sides", ["sym", "both"])
def test_transformer_xl_with_drawn_lags_as_deepmind_ran_it(sides):
    """Spec section 6, item 10: the compatibility flag reproduces the clipped table; without it the numbers differ."""
    expected = GOLDEN[f"rel__noisy_{sides}_logits"]
    compatible = unscaled_logits(transformer_xl(dm_compat=True), drawn(sides))
    torch.testing.assert_close(compatible, expected, rtol=1e-5, atol=5e-5)
    correct = unscaled_logits(transformer_xl(dm_compat=False), drawn(sides))
    differs = (correct - expected).abs() > 1e-2
    assert differs.any(0).any(0).all(), "every cell read a wrong row in DeepMind's program"


def test_dm_compat_changes_nothing_without_a_draw():
    assert torch.equal(unscaled_logits(transformer_xl(dm_compat=True)), unscaled_logits(transformer_xl()))


def test_lag_sign():
    grid = dape.Grid.of_length(LENGTH, LENGTH, causal=False)
    assert torch.equal(-grid.lag(), GOLDEN["shift__bidir"].long())


# ALiBi -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1])
def test_alibi_slopes(n):
    slopes = GOLDEN[f"alibi{n}__slopes"]
    torch.testing.assert_close(alibi_slopes(len(slopes), dtype=torch.float64), slopes, rtol=1e-15, atol=0)


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("kind", ["plain", "noisy_sym", "noisy_both"])
def test_alibi_bidirectional(n, kind):
    heads, length = GOLDEN[f"alibi{n}__args"].tolist()
    draw = None
    if kind != "plain":
        future = GOLDEN[f"alibi{n}__{kind}_drawn0"]
        draw = draw_of(GOLDEN[f"alibi{n}__{kind}_drawn1"] if kind == "noisy_both" else future, future)
    pe = dape.build("alibi", num_heads=heads, head_dim=WIDTH, train_length=length)
    bias = pe.bias_on(dape.Grid.of_length(length, length, causal=False).read_through(draw))
    stored = GOLDEN[f"alibi{n}__bias" if kind == "plain" else f"alibi{n}__{kind}_bias"]
    torch.testing.assert_close(bias, stored, rtol=1e-6, atol=0)
