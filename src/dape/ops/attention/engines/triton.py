"""The engine of the Triton kernels in ``triton_kernels``: GPU, float32. Imports triton when a call runs."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.engines.base import NO_ROW_KERNEL, Call, KernelEngine, RampTerms, RowBlock, Tables, Verdict
from dape.ops.attention.tiles import LOG2_E, TileTerms
from dape.ops.attention.triton_kernels.available import serves, why_not_triton
from dape.ops.attention.triton_kernels.plan import padded
from dape.ops.attention.triton_kernels.shape_class import class_of
from dape.ops.attention.triton_kernels.trust import judged
from dape.positional.base import ScoreForm
from dape.positional.grid import Grid
from dape.positional.row_forms import RowForm

if TYPE_CHECKING:
    from dape.ops.attention.triton_kernels.run import Attention, Terms


class Triton(KernelEngine):
    name = "triton"
    heads_beside, gradient_heads_beside = True, False
    block_bytes = 256 << 20
    fewest_rows = 16  # the rows of a tile
    gradients_by_item = True
    takes_ramps = True
    takes_sinks = False

    def serves(self, device: torch.device) -> bool:
        return serves(device)

    def judge(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: ScoreForm, *, tables: bool) -> Verdict:
        if why_not := why_not_triton(q, k, v, form):
            return Verdict(False, why_not)
        fields = class_of(q, k, v, grid, form, tables=tables)
        return Verdict(*judged(q.device, torch.compiler.is_compiling(), **fields))

    def judge_rows(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: RowForm) -> Verdict:
        return Verdict(False, NO_ROW_KERNEL)

    def attention(self, call: Call) -> "Attention":
        from dape.ops.attention.triton_kernels.run import Attention

        padding = call.key_padding_mask
        return Attention(
            call.q, call.k, call.v, call.wa, call.w2, causal_offset=call.causal_offset, key_padding_mask=padding
        )

    def tables(self, attention: "Attention", call: Call, terms: Tables) -> "Terms":
        from dape.ops.attention.triton_kernels.run import Terms

        if isinstance(terms, RampTerms):
            return _ramp(attention, call, terms)
        static, pre = None if terms.static is None else terms.static.float(), terms.pre
        if pre is not None:
            of_position = attention.of_position(pre.float())
            static = of_position if static is None else static + of_position
            pre = torch.nn.functional.pad(pre.float(), (0, 0, 0, padded(len(pre)) - len(pre))).t().contiguous()
        if static is not None:
            static = (static * LOG2_E).contiguous()
        return Terms(tables=True, static=static, pre=pre, start=call.queries - 1)

    def cells(self, attention: "Attention", call: Call, terms: TileTerms, block: RowBlock) -> "Terms":
        from dape.ops.attention.triton_kernels.run import Terms

        def by_item(x: Float[Tensor, "c #i #r #k"], channels: int) -> Float[Tensor, "#i c r k"]:
            x = x.float().expand(channels, -1, block.rows, block.keys).transpose(0, 1)
            return x if x.stride(-1) == 1 else x.contiguous()

        static, pre = terms.static, None
        if terms.pre is not None:
            of_position = attention.of_position(terms.pre.float()) * LOG2_E
            static = of_position if static is None else static + of_position
            pre = by_item(terms.pre, attention.sizes.hidden)
        return Terms(tables=False, static=None if static is None else by_item(static, attention.sizes.heads), pre=pre)


def _ramp(attention: "Attention", call: Call, terms: RampTerms) -> "Terms":
    from dape.ops.attention.triton_kernels.run import Ramp, Terms

    def by_piece(x: Float[Tensor, "2 p c"], channels: int) -> Float[Tensor, "m 2 c"]:
        pieces = x.shape[1]
        room = (0, channels - x.shape[2], 0, 0, 0, padded(pieces) - pieces)
        return torch.nn.functional.pad(x.float().transpose(0, 1), room).contiguous()

    sizes = attention.sizes
    pre = None if terms.pre is None else by_piece(terms.pre, sizes.dp)
    ramp = Ramp(*(x.float().contiguous() for x in (terms.table, terms.rows, terms.kinks)))
    static = by_piece(terms.static, sizes.hp) * LOG2_E
    return Terms(tables=True, static=static, pre=pre, start=call.queries - 1, ramp=ramp)
