"""Tables over lags that are kept between calls: each decoded token needs those of the token before and one lag more."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.ops.attention.engines.cpp import Prepared, laid_out
from dape.ops.attention.fused.run import Mixer, Ramps
from dape.positional.base import PositionalEncoding, ScoreForm
from dape.positional.grid import Grid

FEW_QUERIES = 8
"""With more queries the tables cost little beside the rest, and none are kept."""
LEAST_ROOM = 256
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class LagTables:
    """The part of the logits that does not depend on content, for each lag, largest first."""

    static: Float[Tensor, "h n"] | Float[Tensor, "2 p h"] | None
    pre: Float[Tensor, "D n"] | Float[Tensor, "2 p D"] | None
    table: Float[Tensor, " n"] | None = None
    """The table of :class:`~dape.ops.attention.engines.base.RampTerms`; its ``rows`` differ between calls."""
    kinks: Float[Tensor, " w"] | None = None

    def part(self, first: int, count: int) -> "LagTables":
        if self.table is not None:
            return replace(self, table=self.table[first : first + count])
        static, pre = (None if t is None else t[:, first : first + count] for t in (self.static, self.pre))
        return LagTables(static, pre)


class LagMemory:
    """Tables made for earlier tokens of a text, one object for each layer's cache.

    Used in causal decoding without gradients; other calls ignore it. Tables are made again if an optimizer,
    ``load_state_dict`` or another in-place operation changes parameters. PyTorch does not count changes through
    ``.data`` and of tensors made under ``inference_mode``: use a new cache after these.
    """

    def __init__(self) -> None:
        self._of: Any = None
        self._room = 0
        self._tables: Any = None
        self._prepared: Prepared | None = None

    @staticmethod
    def serves(grid: Grid, queries: int, keys: int) -> bool:
        """Whether the call is causal decoding: queries are the last keys, positions are not drawn, no gradients."""
        return (
            grid.causal
            and grid.draw is None
            and grid.offset == keys - queries
            and queries <= FEW_QUERIES
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
        )

    def tables(
        self, pe: PositionalEncoding, keys: int, device: torch.device, make: Callable[[Int[Tensor, " n"]], Kept]
    ) -> tuple[Kept, int]:
        """Tables down to lag -(FEW_QUERIES - 1), and the index of lag ``keys - 1`` in them."""
        state = _state(pe)
        if self._tables is None or keys > self._room or state != self._of:
            self._room, self._of, self._prepared = max(LEAST_ROOM, 1 << (keys - 1).bit_length()), state, None
            self._tables = make(torch.arange(self._room - 1, -FEW_QUERIES, -1, device=device))
        return self._tables, self._room - keys

    def prepared(self, form: ScoreForm, heads: int) -> Prepared:
        """The last tables in the layout of the compiled kernel."""
        if self._prepared is None:
            kept = self._tables
            assert isinstance(kept, LagTables)
            if kept.table is None:
                terms = laid_out(kept.static, kept.pre, heads, self._room + FEW_QUERIES - 1, self._room)
            else:
                assert kept.kinks is not None and kept.static is not None
                terms = Ramps.of(kept.table, kept.kinks, kept.static, kept.pre)
            self._prepared = Prepared(terms, None if form.mix is None else Mixer(form.mix.wa, form.mix.w2))
        return self._prepared


def _state(pe: PositionalEncoding) -> tuple[Any, ...]:
    """Changes whenever anything changes that the tables are made from."""
    tensors = [*pe.parameters(), *pe.buffers()]
    return (id(pe), *((t.data_ptr(), None if t.is_inference() else t._version) for t in tensors))
