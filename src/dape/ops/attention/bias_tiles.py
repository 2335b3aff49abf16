"""Attention whose bias is evaluated tile by tile: FIRE, positions that are not consecutive, packed documents, ...

B of a tile is computed with the tile, and shared by its batch items where possible. The backward pass computes it
again, and autograd carries its gradient to the encoding's parameters. Memory stays linear in the length.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dape.ops.attention.check import check_bias_shape
from dape.ops.attention.engines.base import Call, OfRowsAndKeys, RowBlock
from dape.ops.attention.engines.catalogue import ENGINES
from dape.ops.attention.sinks import gradient_of_sinks, with_sinks
from dape.ops.attention.tiles import LOG2_E, TermSums, TileTerms
from dape.ops.attention.tiling import Tile
from dape.positional.base import ScoreForm, accumulation_dtype
from dape.positional.grid import Grid


def bias_tile_attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    form: ScoreForm,
    grid: Grid,
    *,
    separable: OfRowsAndKeys | None = None,
    sinks: Float[Tensor, " h"] | None = None,
    engine: str = "blocked",
) -> Float[Tensor, "b h q e"]:
    """``engine`` is a name of ``engines/catalogue.py``; ``separable`` is the part of static and pre that
    ``form.separable`` adds."""
    mix = form.mix
    weights = (None,) * 5 if mix is None else (mix.wa, mix.wb, mix.b1, mix.w2, mix.b2)
    parameters = () if form.source is None else tuple(form.source.module.parameters())
    tensors = (q, k, v, *(separable or (None, None)), sinks, *weights, *parameters)
    return _apply(form, grid, engine, *tensors).to(q.dtype)


class _BiasTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, form: ScoreForm, grid: Grid, engine: str, *tensors):
        q, k, v, of_rows, of_keys, sinks, wa, wb, b1, w2, b2, *parameters = tensors
        source, _ = _leaf_copy(form, parameters)
        terms = _BiasTerms(q.shape[1], accumulation_dtype(q.dtype), form, grid, wb, b1, b2, source, ())
        out, softmax = ENGINES[engine].forward(_call(grid, q, k, v, of_rows, of_keys, wa, w2), terms)
        out, softmax = with_sinks(out, softmax, sinks)
        ctx.form, ctx.grid, ctx.engine = form, grid, engine
        ctx.save_for_backward(out, softmax, *tensors)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        out, softmax, *inputs = ctx.saved_tensors
        q, k, v, of_rows, of_keys, sinks, wa, wb, b1, w2, b2, *parameters = inputs
        copy, leaves = _leaf_copy(ctx.form, parameters)
        dtype = accumulation_dtype(q.dtype)
        terms = _BiasTerms(q.shape[1], dtype, ctx.form, ctx.grid, wb, b1, b2, copy, leaves)
        call = _call(ctx.grid, q, k, v, of_rows, of_keys, wa, w2)._replace(sinks=sinks)
        found = ENGINES[ctx.engine].backward(call, terms, grad, out, softmax)
        own, separable = found.terms, found.separable or (None, None)
        d_sinks = None if sinks is None else gradient_of_sinks(grad, out, softmax, sinks)
        found = (*found[:3], *separable, d_sinks, found.wa, own.wb, own.b1, found.w2, own.b2, *own.parameters)
        grads = (None if x is None or g is None else g.to(x.dtype) for g, x in zip(found, inputs, strict=True))
        return (None, None, None, *grads)


def _call(grid: Grid, q, k, v, of_rows: Tensor | None, of_keys: Tensor | None, wa, w2) -> Call:
    separable = None if of_rows is None or of_keys is None else OfRowsAndKeys(of_rows, of_keys)
    return Call(q, k, v, wa, w2, grid.key_padding_mask, grid.offset if grid.causal else None, separable)


# Not compiled: torch.compile would unroll the loop over tiles for every length.
_apply = cast(Callable[..., Tensor], torch.compiler.disable(_BiasTiles.apply))


def _leaf_copy(form: ScoreForm, saved: Sequence[Tensor]) -> tuple[nn.Module | None, list[Tensor]]:
    """A copy of the module that computes B, with the parameters of the forward pass as new leaves.

    Differentiating the module itself would run the users' gradient hooks once per tile, and would use wrong values if
    parameters were swapped for the forward pass (``torch.func.functional_call``). Half-precision parameters are float32
    here, so that only the sum of their gradients is rounded, not each tile's part.
    """
    if form.source is None:
        return None, []
    leaves = [p.detach().to(accumulation_dtype(p.dtype)).requires_grad_(p.requires_grad) for p in saved]
    stand_ins = {id(live): leaf for live, leaf in zip(form.source.module.parameters(), leaves, strict=True)}
    return deepcopy(form.source.module, stand_ins), leaves


@dataclass
class _BiasTerms:
    heads: int
    dtype: torch.dtype
    form: ScoreForm
    grid: Grid
    wb: Float[Tensor, "D h"] | None
    b1: Float[Tensor, " D"] | None
    b2: Float[Tensor, " h"] | None
    module: nn.Module | None
    parameters: Sequence[Tensor]

    @property
    def shared_by_items(self) -> bool:
        return self.grid.same_for_all_items

    def on(self, tile: Tile, *, backward: bool = False) -> TileTerms:
        reversed_rows = torch.arange(tile.i1 - 1, tile.i0 - 1, -1, device=self.grid.q_index.device)
        grid = self.grid.items(tile.b0, tile.b1).rows(reversed_rows).first_keys(tile.keys)
        return self._on(grid, grid.visible(), backward)

    @property
    def differ_by_item(self) -> bool:
        return not replace(self.grid, key_padding_mask=None).same_for_all_items

    def on_rows(self, block: RowBlock, *, backward: bool = False) -> TileTerms:
        grid = self.grid.rows(block.part).first_keys(block.keys)
        return self._on(grid, replace(grid, key_padding_mask=None).visible(), backward)

    def _on(self, grid: Grid, visible: Tensor | None, backward: bool) -> TileTerms:
        bias = self._bias(grid, backward)
        return TileTerms(static=self._static(bias, visible), pre=self._pre(bias), bias=bias)

    def _bias(self, grid: Grid, backward: bool) -> Float[Tensor, "h #i r k"] | None:
        if self.form.source is None:
            return None
        with torch.set_grad_enabled(backward):
            bias = self.form.source.on(self.module, grid).to(self.dtype)
            check_bias_shape(bias, (self.heads, grid.q_index.shape[-1], grid.k_index.shape[-1]))
            return bias.unsqueeze(1) if bias.dim() == 3 else bias.transpose(0, 1)

    def _static(self, bias: Tensor | None, visible: Tensor | None) -> Tensor | None:
        static = None if bias is None or not self.form.adds_bias else bias.detach()
        if self.b2 is not None:
            b2 = self.b2.to(self.dtype).view(-1, 1, 1, 1)
            static = b2 if static is None else static + b2
        static = None if static is None else static * LOG2_E
        if visible is None:
            return static
        if static is None:
            static = torch.zeros(1, 1, 1, 1, dtype=self.dtype, device=self.grid.q_index.device)
        return torch.where(visible, static, -torch.inf)

    def _pre(self, bias: Tensor | None) -> Tensor | None:
        if self.b1 is None:
            return None
        b1 = self.b1.to(self.dtype).view(-1, 1, 1, 1)
        if bias is None or self.wb is None:
            return b1
        return (self.wb.to(self.dtype) @ bias.detach().flatten(1)).unflatten(1, bias.shape[1:]).add_(b1)

    def sums(self) -> "_BiasSums":
        return _BiasSums(self)


class _BiasSums:
    def __init__(self, terms: _BiasTerms) -> None:
        self._terms = terms

        def zeros(x: Tensor) -> Tensor:
            return torch.zeros(x.shape, dtype=terms.dtype, device=x.device)

        self.wb, self.b1, self.b2 = (None if x is None else zeros(x) for x in (terms.wb, terms.b1, terms.b2))
        self.parameters = [zeros(p) for p in terms.parameters]

    def add_tile(self, tile: Tile, terms: TileTerms, d_logits: Tensor, d_hidden: Tensor | None) -> None:
        self.add(terms, d_logits, d_hidden)

    def add(self, terms: TileTerms, d_logits: Tensor, d_hidden: Tensor | None) -> None:
        bias = terms.bias
        if bias is None or bias.shape[1] == 1:
            # If the items of a tile share B, they share its gradient.
            d_logits, d_hidden = _sum_items(d_logits), None if d_hidden is None else _sum_items(d_hidden)
        if self.b2 is not None:
            self.b2.add_(d_logits.sum((1, 2, 3)))
        if self.b1 is not None and d_hidden is not None:
            self.b1.add_(d_hidden.sum((1, 2, 3)))
        if bias is None:
            return
        # B may differ by item while the other terms are shared; then they do not contain B.
        d_bias = d_logits if self._terms.form.adds_bias else torch.zeros_like(bias)
        wb = self._terms.wb
        if self.wb is not None and wb is not None and d_hidden is not None:
            flat = d_hidden.flatten(1)
            self.wb.addmm_(flat, bias.detach().flatten(1).t())
            d_bias = d_bias + (wb.to(d_bias.dtype).t() @ flat).view(d_bias.shape)
        self._to_parameters(bias, d_bias)

    def _to_parameters(self, bias: Tensor, d_bias: Tensor) -> None:
        if not bias.requires_grad:
            return
        learnable = [
            (p, total) for p, total in zip(self._terms.parameters, self.parameters, strict=True) if p.requires_grad
        ]
        grads = torch.autograd.grad(bias, [p for p, _ in learnable], d_bias, allow_unused=True)
        for (_, total), grad in zip(learnable, grads, strict=True):
            if grad is not None:
                total.add_(grad)

    def add_(self, other: TermSums) -> None:
        assert isinstance(other, _BiasSums)
        mine = (self.wb, self.b1, self.b2, *self.parameters)
        theirs = (other.wb, other.b1, other.b2, *other.parameters)
        for a, b in zip(mine, theirs, strict=True):
            if a is not None and b is not None:
                a.add_(b)


def _sum_items(x: Float[Tensor, "c i r k"]) -> Float[Tensor, "c 1 r k"]:
    return x if x.shape[1] == 1 else x.sum(1, keepdim=True)
