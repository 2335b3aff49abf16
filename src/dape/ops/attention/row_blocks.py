"""Any encoding with memory linear in the length: the reference on one block of query rows at a time.

This is exact because hooks look only along rows. The backward pass recomputes each block instead of storing it.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dape.ops.attention.reference import reference_attention, zero_output
from dape.ops.attention.tiling import plan_tiles
from dape.positional.base import PositionalEncoding, accumulation_dtype
from dape.positional.grid import Grid

BLOCK_BYTES = 16 << 20
"""Bytes of a plane of all heads. Larger than a cache, because each block costs Python steps as well."""


def row_block_attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k e"],
    pe: PositionalEncoding,
    grid: Grid,
) -> Float[Tensor, "b h q e"]:
    cut_keys = grid.causal and grid.offset is not None and not pe.reads_hidden_columns
    blocks = plan_tiles(
        batch=1,
        queries=q.shape[2],
        keys=k.shape[2],
        offset=grid.offset if cut_keys else None,
        planes=max(1, q.shape[0]) * q.shape[1],
        itemsize=accumulation_dtype(q.dtype).itemsize,
        budget=BLOCK_BYTES,
    )
    attend = None
    if torch.is_grad_enabled():
        attend = _with_current_weights(pe)
        # Every block adds to the gradients of k and v. In half precision the sum would soon round the parts away.
        k, v = (x.to(accumulation_dtype(x.dtype)) for x in (k, v))
        if grid.k_features is not None:
            grid = replace(grid, k_features=grid.k_features.to(accumulation_dtype(grid.k_features.dtype)))
    outputs = []
    for block in reversed(blocks):
        rows, keys = slice(block.i0, block.i1), block.keys
        if keys == 0:
            outputs.append(zero_output(q[:, :, rows], v))
            continue
        part = grid.rows(rows).first_keys(keys) if cut_keys else grid.rows(rows)
        args = (q[:, :, rows], k[:, :, :keys], v[:, :, :keys])
        if attend is not None:
            outputs.append(checkpoint(attend, *args, part, use_reentrant=False))
        else:
            outputs.append(reference_attention(*args, pe, part))
    return torch.cat(outputs, dim=2)


class _Rows(nn.Module):
    def __init__(self, pe: PositionalEncoding) -> None:
        super().__init__()
        self.pe = pe

    def forward(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
        return reference_attention(q, k, v, self.pe, grid)


def _with_current_weights(pe: PositionalEncoding) -> Callable[..., Tensor]:
    """The reference with the present weights, which the backward pass needs again: ``torch.func.functional_call``
    swaps weights for the forward pass only. Gradients of half-precision weights are summed in float32."""
    rows = _Rows(pe)
    dtypes = {name: p.dtype for name, p in rows.named_parameters()}
    now = {name: p.to(accumulation_dtype(p.dtype)) for name, p in rows.named_parameters()}

    def attend(q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
        k, v = k.to(q.dtype), v.to(q.dtype)  # hooks see keys in the model's dtype
        if all(now[name] is parameter for name, parameter in rows.named_parameters()):
            return reference_attention(q, k, v, pe, grid)
        weights = {name: weight.to(dtypes[name]) for name, weight in now.items()}
        return torch.func.functional_call(rows, weights, (q, k, v, grid))

    return attend
