"""The operator over tables of lags, called directly: its gradients and its registration with torch."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from dape.ops.attention.fused.available import why_not_compiled
from dape.ops.attention.lag_tables import lag_attention

HEADS, KV_HEADS, WIDTH, HIDDEN = 4, 2, 3, 5
NAMES = ("q", "k", "v", "static", "wa", "pre", "w2")
NO_RAMPS = (None,) * 6  # table and rows, numbers of rows and keys, sinks, kinks


def make_inputs(
    queries: int, keys: int, *, static: bool = True, mix: bool = True, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor | None]:
    generator, lags = torch.Generator().manual_seed(queries + keys), queries + keys - 1
    shapes = {
        "q": (2, HEADS, queries, WIDTH),
        "k": (2, KV_HEADS, keys, WIDTH),
        "v": (2, KV_HEADS, keys, WIDTH + 1),
        "static": (HEADS, lags) if static else None,
        "wa": (HIDDEN, HEADS) if mix else None,
        "pre": (HIDDEN, lags) if mix else None,
        "w2": (HEADS, HIDDEN) if mix else None,
    }
    return {
        name: None if shape is None else torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
        for name, shape in shapes.items()
    }


def run(
    inputs: dict[str, Tensor | None], *, offset: int = 0, causal: bool = True, mask: Tensor | None = None
) -> Tensor:
    return lag_attention(**inputs, offset=offset, causal=causal, key_padding_mask=mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("static", "mix", "padding"), [(0, 0, 0), (1, 0, 1), (0, 1, 0), (1, 1, 1)])
@pytest.mark.parametrize(("queries", "keys", "offset"), [(11, 11, 0), (3, 19, 16), (17, 6, 14), (17, 9, -5), (1, 1, 0)])
def test_gradcheck(queries, keys, offset, static, mix, causal, padding, three_workers, tile_bytes):
    tile_bytes(512)
    inputs = make_inputs(queries, keys, static=static, mix=mix)
    mask = torch.zeros(2, keys, dtype=torch.bool)
    mask[1, : 1 + keys // 2] = True

    def attention(*_: Tensor) -> Tensor:
        return run(inputs, offset=offset, causal=causal, mask=mask if padding else None)

    # It also runs the backward pass twice and insists on the same bits.
    assert gradcheck(attention, [x for x in inputs.values() if x is not None], fast_mode=True, nondet_tol=0.0)


@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck_entry_by_entry(causal):
    inputs = make_inputs(4, 5)
    assert gradcheck(lambda *_: run(inputs, offset=1, causal=causal), list(inputs.values()))


def test_gradient_of_one_input_alone():
    inputs = make_inputs(9, 9)
    out = run(inputs)
    towards = torch.randn_like(out)
    expected = torch.autograd.grad(out, list(inputs.values()), towards)
    for chosen, gradient in zip(NAMES, expected, strict=True):
        alone = {name: x.detach().requires_grad_(name == chosen) for name, x in inputs.items()}
        run(alone).backward(towards)
        torch.testing.assert_close(alone[chosen].grad, gradient)


def test_extreme_logits():
    """All weight is on the largest logit of a row, which is subtracted before the exponential: nothing overflows."""
    inputs = make_inputs(9, 9, dtype=torch.float32)
    inputs["static"] = (inputs["static"].detach() * 1e5).requires_grad_()
    out = run(inputs)
    lag = torch.arange(9)[:, None] - torch.arange(9)
    bias = inputs["static"].detach()[:, 8 - lag].masked_fill(lag < 0, -torch.inf)
    best = bias.argmax(-1)
    values = inputs["v"].detach().repeat_interleave(HEADS // KV_HEADS, dim=1)
    torch.testing.assert_close(out.detach(), torch.stack([values[:, h, best[h]] for h in range(HEADS)], dim=1))
    gradients = dict(zip(inputs, torch.autograd.grad(out.sum(), list(inputs.values())), strict=True))
    assert all(g.isfinite().all() for g in gradients.values())
    counts = torch.stack([best[h].bincount(minlength=9) for h in range(HEADS)]).view(KV_HEADS, -1, 9).sum(1)
    torch.testing.assert_close(gradients["v"], counts[None, :, :, None].expand(2, -1, -1, WIDTH + 1).float())


@pytest.mark.parametrize("layout", ["plain", "transposed"])
@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("table_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("engine", ["blocked", "fused"])
def test_fake_kernels_tell_the_truth(mix, layout, table_dtype, engine):
    """Shapes, dtypes and strides, which torch.compile relies on."""
    if engine == "fused" and (reason := why_not_compiled(torch.empty(0))):
        pytest.skip(reason)
    inputs = [None if x is None else x.detach() for x in make_inputs(9, 12, mix=mix, dtype=torch.float32).values()]
    if layout == "transposed":  # as models make them: [batch, token, head, width] with two axes swapped
        inputs[:3] = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs[:3]]
    inputs[3:] = [None if x is None else x.to(table_dtype) for x in inputs[3:]]
    inputs = [None if x is None else x.requires_grad_() for x in inputs]
    operators = torch.ops.dape
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(
        operators.lag_attention.default, (*inputs, *NO_RAMPS, None, 3, True, engine), test_utils=tests
    )
    with torch.no_grad():
        out, lse = operators.lag_attention(*inputs, *NO_RAMPS, None, 3, True, engine)
        tests = ("test_schema", "test_faketensor")
        for learns_static in (False, True):
            backward = (torch.ones_like(out), out, lse, *inputs, *NO_RAMPS, None, 3, True, engine, learns_static)
            torch.library.opcheck(operators.lag_attention_backward.default, backward, test_utils=tests)
