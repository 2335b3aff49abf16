# pyright: reportOperatorIssue=false
"""The intermediates are those of the operator, row by row."""

import math

import pytest
import torch

import dape
from dape.positional.grid import Grid

HEADS, WIDTH, LENGTH = 4, 8, 11
NAMES = ["nope", "rope", "kerple", "fire", "cope", "transformer-xl", "dape-kerple", "dape-rope", "dape-v2-alibi"]


def make(name: str, **options):
    torch.manual_seed(0)
    return dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=8, **options).double()


def draw(queries: int = LENGTH, keys: int = LENGTH, kv_heads: int = HEADS):
    generator = torch.Generator().manual_seed(1)
    shapes = (2, HEADS, queries, WIDTH), (2, kv_heads, keys, WIDTH), (2, kv_heads, keys, WIDTH)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def assert_near(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_weights_times_values_is_attention(name, causal):
    if name == "cope" and not causal:
        return
    pe, (q, k, v) = make(name), draw()
    mask = torch.zeros(2, LENGTH, dtype=torch.bool)
    mask[1, 2:4] = True
    seen = dape.intermediates(q, k, pe, causal=causal, key_padding_mask=mask)
    assert_near(seen.weights @ v, dape.attention(q, k, v, pe, causal=causal, key_padding_mask=mask))
    assert_near(seen.weights.sum(-1), torch.ones(2, HEADS, LENGTH, dtype=torch.float64))
    assert (seen.weights[~seen.visible.unsqueeze(1).expand_as(seen.weights)] == 0).all()


@pytest.mark.parametrize("rows", [[0], [3, 9, 4], [-1, -3], slice(2, 7, 2), range(5)])
@pytest.mark.parametrize("name", NAMES)
def test_chosen_rows_are_those_of_the_whole(name, rows):
    pe, (q, k, _) = make(name), draw()
    index = list(range(LENGTH))[rows] if isinstance(rows, slice) else [r % LENGTH for r in rows]
    whole, part = dape.intermediates(q, k, pe), dape.intermediates(q, k, pe, rows=rows)
    assert part.rows.tolist() == index
    for stage in ("scores", "bias", "f", "logits", "weights", "visible"):
        full = getattr(whole, stage)
        assert_near(getattr(part, stage), full if full is None else full[..., index, :])


def test_stages_of_an_additive_bias():
    pe, (q, k, _) = make("kerple"), draw(3, 9)
    seen = dape.intermediates(q, k, pe)
    assert_near(seen.scores, q @ k.mT / math.sqrt(WIDTH))
    assert_near(seen.bias, pe.bias(torch.arange(6, 9), torch.arange(9)))
    assert_near(seen.logits, seen.scores + seen.bias)
    assert seen.f is None


def test_stages_of_dape_by_hand():
    pe, (q, k, _) = make("dape-kerple", hidden=5), draw(kv_heads=2)
    seen = dape.intermediates(q, k, pe, rows=[4, 10])
    first, second = pe.f.first, pe.f.second
    a, b = seen.scores, seen.bias.expand_as(seen.scores)
    assert_near(a, (q @ k.repeat_interleave(2, dim=1).mT / math.sqrt(WIDTH))[:, :, [4, 10]])
    assert_near(seen.bias, pe.base.bias(torch.tensor([4, 10]), torch.arange(LENGTH)))
    stacked = torch.cat([a, b], dim=1).movedim(1, -1)  # heads last, as the layers want them
    z = stacked @ first.weight.T + first.bias
    f = (torch.where(z > 0, z, 0.01 * z) @ second.weight.T + second.bias).movedim(-1, 1)
    assert_near(seen.f, f)
    assert_near(seen.logits, a + b + f)
    hidden = torch.arange(LENGTH) > torch.tensor([4, 10]).unsqueeze(-1)
    assert_near(seen.weights, seen.logits.masked_fill(hidden, -math.inf).softmax(-1))


def test_scores_of_rotary_positions_are_rotated():
    pe, (q, k, _) = make("dape-rope"), draw()
    seen = dape.intermediates(q, k, pe, rows=[7])
    turned_q, turned_k = pe.rotate(q, k, Grid.of_length(LENGTH, LENGTH, causal=True))
    assert_near(seen.scores, (turned_q @ turned_k.mT / math.sqrt(WIDTH))[:, :, [7]])
    assert seen.bias is None and seen.f is not None
    assert_near(seen.logits, seen.scores + seen.f)


def test_randomised_positions():
    pe, (q, k, v) = make("randomized-dape-kerple", pool=200), draw()
    fixed = pe.draw(LENGTH, torch.Generator().manual_seed(3))
    seen = dape.intermediates(q, k, fixed, rows=[-1])
    assert_near(seen.weights @ v, dape.attention(q, k, v, fixed)[:, :, -1:])
    lags = fixed.fixed_draw.past[torch.arange(LENGTH - 1, -1, -1)]
    assert_near(seen.bias[:, 0], pe.base.base.bias_at(lags, causal=True))
    assert not torch.allclose(
        seen.bias[:, 0], pe.base.base.bias(torch.tensor([LENGTH - 1]), torch.arange(LENGTH))[:, 0]
    )


def test_explicit_positions():
    pe, (q, k, v) = make("dape-fire"), draw()
    positions = torch.stack([torch.arange(LENGTH), torch.arange(LENGTH) * 2])
    seen = dape.intermediates(q, k, pe, rows=[1, 8], q_pos=positions, k_pos=positions)
    assert seen.bias.shape == (2, HEADS, 2, LENGTH)
    assert_near(seen.weights @ v, dape.attention(q, k, v, pe, q_pos=positions, k_pos=positions)[:, :, [1, 8]])


@pytest.mark.parametrize("rows", [[LENGTH], [0, -LENGTH - 1, 2]])
def test_rows_that_do_not_exist(rows):
    q, k, _ = draw()
    with pytest.raises(ValueError, match=rf"do not exist: there are {LENGTH} query rows"):
        dape.intermediates(q, k, make("kerple"), rows=rows)


def test_refuses_what_attention_refuses():
    q, k, _ = draw()
    with pytest.raises(ValueError, match="causal attention only"):
        dape.intermediates(q, k, make("cope"), causal=False)
    with pytest.raises(TypeError, match="same floating dtype"):
        dape.intermediates(q.float(), k, make("kerple"))
