"""Separable biases u_i + v_j, alone, inside f and beside other terms, in every engine, against the definition."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

import dape
from dape.ops.attention.engines.base import OfRowsAndKeys
from dape.ops.attention.fused.available import why_not_compiled
from dape.ops.attention.lag_tables import lag_attention
from dape.ops.attention.memory import LagMemory
from dape.positional.base import AdditiveBias, AttentionDims, Separable
from dape.positional.dape import Dape
from dape.positional.fire import Fire
from dape.positional.kerple import Kerple

HEADS, KV_HEADS, WIDTH = 4, 2, 8
DIMS = AttentionDims(num_heads=HEADS, head_dim=WIDTH, train_length=16, model_dim=HEADS * WIDTH)


class Gates(AdditiveBias):
    """rows_i + keys_j, beside another bias or alone. As content would, the numbers belong to a call."""

    def __init__(self, rows: Tensor, keys: Tensor, beside: AdditiveBias | None) -> None:
        super().__init__(DIMS)
        self.rows, self.keys = torch.nn.Parameter(rows), torch.nn.Parameter(keys)
        self.beside = beside

    def bias_on(self, grid):
        own = Separable(self.rows, self.keys).on_cells()
        if grid.q_index.shape[-1] != own.shape[2]:
            raise AssertionError("the memory-lean implementations do not evaluate this")
        return own if self.beside is None else own + self.beside.bias_on(grid)

    def score_form(self):
        form = dape.ScoreForm() if self.beside is None else self.beside.score_form()
        assert form is not None
        return replace(form, separable=Separable(self.rows, self.keys))


def make(queries: int, keys: int, *, batch: int, beside: str = "", f: str = "", large: float = 1.0) -> AdditiveBias:
    torch.manual_seed(0)
    rows, of_keys = torch.randn(batch, HEADS, queries), large + torch.randn(batch, HEADS, keys)
    base = Gates(rows - large, of_keys, {"": None, "kerple": Kerple(DIMS), "fire": Fire(DIMS)}[beside])
    return Dape(DIMS, base, hidden=7, variant=f) if f else base  # pyright: ignore[reportArgumentType,reportReturnType]


def draw(batch: int, queries: int, keys: int, kv_heads: int = KV_HEADS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(queries)
    shapes = [(HEADS, queries, WIDTH), (kv_heads, keys, WIDTH), (kv_heads, keys, 5)]
    return [torch.randn(batch, *shape, generator=generator).requires_grad_() for shape in shapes]


def results(inputs: list[Tensor], pe, **call) -> dict[str, Tensor]:
    out = dape.attention(*inputs, pe, **call)
    towards = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    names = ["q", "k", "v", *(name for name, _ in pe.named_parameters())]
    found = torch.autograd.grad(out, [*inputs, *pe.parameters()], towards, materialize_grads=True, allow_unused=True)
    return {"out": out.detach(), **dict(zip(names, found, strict=True))}


def assert_near(inputs: list[Tensor], pe, engine: str, **call) -> None:
    """1e-5 for the output, 1e-4 for gradients, each of the largest entry of its kind, against float64. Parameters are
    one kind: the gradients of some are 0, and what rounding leaves is beside those of others."""
    actual = results(inputs, pe, impl=engine, **call)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = results(exact, copy.deepcopy(pe).double(), impl="reference", **call)
    of_parameters = max(float(x.abs().max()) for name, x in expected.items() if name not in ("out", "q", "k", "v"))
    for name, x in expected.items():
        largest = float(x.abs().max()) if name in ("out", "q", "k", "v") else of_parameters
        allowed = (1e-5 if name == "out" else 1e-4) * max(largest, 0.25)
        torch.testing.assert_close(actual[name].double(), x, rtol=0, atol=allowed, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(params=["blocked", "fused"])
def engine(request) -> str:
    if request.param == "fused" and (reason := why_not_compiled(torch.empty(0))):
        pytest.skip(reason)
    return request.param


KINDS = [(beside, f) for beside in ("", "kerple", "fire") for f in ("", "concat_residual", "concat", "add_residual")]


@pytest.mark.parametrize(("beside", "f"), KINDS)
def test_every_kind(beside, f, engine):
    assert_near(draw(2, 41, 41), make(41, 41, batch=2, beside=beside, f=f), engine)


@settings(deadline=None, derandomize=True, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_call(engine, data):
    queries, more, batch = data.draw(st.integers(1, 80)), data.draw(st.integers(0, 70)), data.draw(st.integers(1, 9))
    keys, (beside, f) = queries + more, data.draw(st.sampled_from(KINDS))
    inputs = draw(batch, queries, keys, data.draw(st.sampled_from([KV_HEADS, HEADS])))
    shared = data.draw(st.booleans())
    pe = make(queries, keys, batch=1 if shared else batch, beside=beside, f=f)
    call: dict[str, object] = {"causal": data.draw(st.booleans())}
    if data.draw(st.booleans()):
        call["key_padding_mask"] = torch.rand(batch, keys) < 0.2
    assert_near(inputs, pe, engine, **call)


@pytest.mark.parametrize("f", ["", "concat_residual"])
def test_items_that_share_it_in_one_tile(f, engine):
    """With padding of their own."""
    mask = torch.zeros(4, 9, dtype=torch.bool)
    mask[1, :3] = True
    assert_near(draw(4, 9, 9, HEADS), make(9, 9, batch=1, f=f), engine, key_padding_mask=mask)


@pytest.mark.parametrize("f", ["", "concat_residual"])
@pytest.mark.parametrize("beside", ["", "kerple"])
def test_documents(beside, f, engine):
    """Terms on cells: in blocks of rows, or tiles."""
    document = torch.tensor([[0] * 20 + [1] * 21, [0] * 30 + [1] * 11])
    pe = make(41, 41, batch=2, beside=beside, f=f)
    out, choice = dape.attention(
        *draw(2, 41, 41), pe, q_document=document, k_document=document, impl=engine, explain=True
    )
    assert choice.kernel == "bias tiles"
    assert_rows_of_documents(out, pe, document)


def assert_rows_of_documents(out: Tensor, pe, document: Tensor) -> None:
    q, k, v = draw(2, 41, 41)
    expected = dape.attention(q, k, v, pe, q_document=document, k_document=document, impl="reference")
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    towards = torch.linspace(-1, 1, out.numel()).view(out.shape)
    grads = [torch.autograd.grad(x, list(pe.parameters()), towards, allow_unused=True) for x in (out, expected)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("f", ["", "concat_residual"])
def test_large_numbers_that_cancel(f, engine):
    """Gates of a long text add up to thousands; only their differences count."""
    assert_near(draw(1, 41, 41), make(41, 41, batch=1, f=f, large=4096.0), engine)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_gradcheck(causal, shared, three_workers, tile_bytes):
    tile_bytes(512)
    generator, queries, keys, hidden = torch.Generator().manual_seed(0), 7, 9, 5
    shapes = [(2, HEADS, queries, 3), (2, KV_HEADS, keys, 3), (2, KV_HEADS, keys, 3), (hidden, HEADS), (HEADS, hidden)]
    shapes += [(hidden, queries + keys - 1)]
    shapes += [(1 if shared else 2, HEADS + hidden, count) for count in (queries, keys)]
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]

    def attention(q, k, v, wa, w2, pre, rows, of_keys) -> Tensor:
        given = {"static": None, "wa": wa, "w2": w2, "pre": pre, "separable": OfRowsAndKeys(rows, of_keys)}
        return lag_attention(q, k, v, **given, offset=2, causal=causal, key_padding_mask=None)

    assert gradcheck(attention, inputs, fast_mode=True, nondet_tol=0.0)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("large", [0.0, 4096.0])
@pytest.mark.parametrize("f", ["", "concat_residual"])
def test_decoding(f, large, queries, engine):
    """The last queries against all keys so far, with tables kept beside the cache."""
    q, k, v = (x.detach() for x in draw(1, 70, 70))
    whole, memory = make(70, 70, batch=1, f=f, large=large), LagMemory()
    gates = whole.base if isinstance(whole, Dape) else whole
    with torch.no_grad():
        exact = (x.double() for x in (q, k, v))
        expected = dape.attention(*exact, copy.deepcopy(whole).double(), impl="reference").float()
        rows, keys = gates.rows.clone(), gates.keys.clone()
        for t in (3, 5, 64, 70):
            part = slice(t - queries, t)
            gates.rows.data, gates.keys.data = rows[..., part], keys[..., :t]
            out = dape.attention(q[:, :, part], k[:, :, :t], v[:, :, :t], whole, memory=memory, impl=engine)
            torch.testing.assert_close(out, expected[:, :, part], rtol=1e-5, atol=1e-5)


def test_explained_and_refused():
    pe, inputs = make(9, 9, batch=2), draw(2, 9, 9)
    _, choice = dape.attention(*inputs, pe, impl="blocked", explain=True)
    assert choice.kernel == "lag tables" and "number of the query plus one of the key" in choice.reason
    with pytest.raises(ValueError, match=r"rows of a separable bias must be .* = \[2, 4, 9\].* got \[2, 4, 8\]"):
        dape.attention(*inputs, make(8, 9, batch=2), impl="blocked")
    with pytest.raises(ValueError, match="do not change the logits"):
        dape.attention(*inputs, pe, impl="sdpa")
