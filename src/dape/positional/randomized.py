"""Any encoding with randomised positions: ``randomized-rope``, ``randomized-alibi``, ...

Only the positions change, so that one wrapper serves every encoding. Every call draws new positions from torch's
default generator, in training and in evaluation, unless :meth:`Randomized.draw` fixed a draw. Decoding with a cache
requires a fixed draw, and reproducible evaluation should use one.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.positional.around import Around
from dape.positional.base import AdditiveBias, PositionalEncoding, require_count
from dape.positional.dape import DapeWrapper
from dape.positional.grid import Grid
from dape.positional.positions import Draw, as_positions, draw_positions

POOL_PER_TRAIN_LENGTH = 4
"""Default pool in training lengths, as in the paper's language models. CHE uses 2048 positions."""
NEEDS_A_DRAW = (
    "a randomised encoding draws new positions at every call, which is wrong for a cache or for explicit positions. "
    "Fix one draw for all calls first: pe = pe.draw(max_length, generator)"
)


class Randomized(Around):
    """Any encoding, read at positions drawn at random from a larger pool (``dape.build("randomized-rope", ...)``)."""

    def __init__(
        self, base: PositionalEncoding, *, pool: int | None = None, both_sides: bool = False, draw: Draw | None = None
    ) -> None:
        super().__init__(base.dims, base)
        self.pool = None if pool is None else require_count("pool", pool)
        self.both_sides = both_sides
        self.fixed_draw = draw

    def draw(self, length: int, generator: torch.Generator | None = None) -> "Randomized":
        """The same encoding (parameters shared) with positions for up to ``length`` tokens fixed."""
        return self.with_draw(self._new_draw(length, generator))

    def with_draw(self, draw: Draw | None) -> "Randomized":
        """The same encoding with a given draw, for instance one that several layers share."""
        drawn = Randomized(self.base, pool=self.pool, both_sides=self.both_sides, draw=draw)
        drawn._precision = self._precision
        return drawn.train(self.training)

    def _new_draw(self, length: int, generator: torch.Generator | None = None) -> Draw:
        return draw_positions(length, pool=self.pool_for(length), generator=generator, both_sides=self.both_sides)

    def pool_for(self, length: int) -> int:
        """The given pool, else 4 training lengths or ``length`` if it is larger (positions are then 0, 1, 2, ...)."""
        return max(POOL_PER_TRAIN_LENGTH * self.dims.train_length, length) if self.pool is None else self.pool

    def settle(self, grid: Grid) -> tuple[PositionalEncoding, Grid]:
        if self.fixed_draw is not None:
            for positions in (grid.q_index, grid.k_index):
                self.fixed_draw.require_covered(positions)
            return self.base, grid.read_through(self.fixed_draw)
        if grid.offset != 0 or grid.q_index.shape != grid.k_index.shape:
            raise ValueError(NEEDS_A_DRAW)
        self._require_from_0(grid.k_index)
        return self.base, grid.read_through(self._new_draw(grid.k_index.shape[-1]))

    def embed(self, x: Float[Tensor, "*b t m"], positions: Int[Tensor, "*#b t"]) -> Float[Tensor, "*b t m"]:
        if not positions.numel():
            return x
        draw = self.fixed_draw
        if draw is None:
            positions = as_positions("positions", positions)
            self._require_from_0(positions)
            draw = self._new_draw(int(positions.max()) + 1)
        draw.require_covered(positions)
        return self.base.embed(x, draw.position(positions))

    def bias(
        self, q_pos: Int[Tensor, "*b q"], k_pos: Int[Tensor, "*b k"], *, causal: bool = True
    ) -> Float[Tensor, "*b h q k"]:
        """B at the positions of the fixed draw."""
        if not isinstance(self.base, AdditiveBias | DapeWrapper):
            raise TypeError(f"{type(self.base).__name__} has no additive bias")
        _, grid = self.settle(Grid.at(q_pos, k_pos, causal=causal))
        bias = self.base.bias_on(grid) if isinstance(self.base, AdditiveBias) else self.base.base_bias(grid)
        if bias is None:
            raise TypeError("this DAPE is A + f(A): its base has no additive bias")
        return bias

    @property
    def rotates_once(self) -> bool:
        """The next call may replace a position by another one."""
        return False

    def rotate(
        self, q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q d"], Float[Tensor, "*b g k d"]]:
        base, drawn = self.settle(grid)
        return base.rotate(q, k, drawn)

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        base, drawn = self.settle(grid)
        return base.logits(scores, q, k, drawn)

    @staticmethod
    def _require_from_0(positions: Int[Tensor, "*b t"]) -> None:
        # A compiled graph cannot read positions. There, only default positions get here, and they begin at 0.
        if not torch.compiler.is_compiling() and positions.numel() and int(positions.min()) != 0:
            raise ValueError(f"{NEEDS_A_DRAW}. These positions begin at {int(positions.min())}")
