"""The class of mistakes, and the parts of the reference that they replace."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.conformance.case import Case
from dape.conformance.make import INPUTS, content, featured, reference_output
from dape.ops.attention.reference import scaled_scores
from dape.positional.base import AdditiveBias, AttentionDims, PositionalEncoding
from dape.positional.catalogue import find
from dape.positional.dape import DapeWrapper
from dape.positional.grid import Grid
from dape.positional.names import parse

BiasOn = Callable[[Grid], Tensor]


class _Replaced(AdditiveBias):
    """A bias from any function of the grid, to replace that of an encoding."""

    def __init__(self, dims: AttentionDims, bias_on: BiasOn) -> None:
        super().__init__(dims)
        self._bias_on = bias_on
        self.double()

    def bias_on(self, grid: Grid) -> Tensor:
        return self._bias_on(grid)


@dataclass(frozen=True)
class Setting:
    """A case, and the reference encoding with its parameters."""

    case: Case
    pe: PositionalEncoding

    @cached_property
    def base(self) -> PositionalEncoding:
        return self.pe.base if isinstance(self.pe, DapeWrapper) else self.pe

    @cached_property
    def turned(self) -> tuple[Tensor, Tensor]:
        """q and k with a batch axis, rotated by the reference."""
        return self.pe.rotate(*self.raw, self.grid)

    @cached_property
    def grid(self) -> Grid:
        return self.featured(self.case.grid)

    def featured(self, grid: Grid) -> Grid:
        return featured(grid, self.pe, self.case.entering)

    @cached_property
    def raw(self) -> tuple[Tensor, Tensor]:
        return content(self.case, self.case.q, self.case.k)

    @cached_property
    def scores(self) -> Float[Tensor, "1 h q k"]:
        return scaled_scores(*self.turned)

    @cached_property
    def root(self) -> float:
        return self.case.dims.head_dim**0.5

    def bias(self, grid: Grid | None = None) -> Float[Tensor, "h q k"]:
        assert isinstance(self.base, AdditiveBias)
        return self.base.bias_on(self.grid if grid is None else self.featured(grid))

    def bias_at(self, lag: Int[Tensor, "q k"]) -> Float[Tensor, "h q k"]:
        """The bias of the same rows with other lags."""
        q_pos, causal = self.case.q_pos, self.case.causal
        rows = [Grid(q_index=i.view(1), k_index=i - row, causal=causal) for i, row in zip(q_pos, lag, strict=True)]
        return torch.cat([self.bias(row) for row in rows], dim=-2)

    def of_scores(self, scores: Tensor, pe: PositionalEncoding | None = None) -> Float[Tensor, "h q k"]:
        """The logits of the encoding for other scores."""
        return (pe or self.pe).logits(scores, *self.turned, self.grid).squeeze(0)

    def of_bias(self, bias: Tensor | BiasOn) -> Float[Tensor, "h q k"]:
        """The logits with another bias, DAPE on top included."""
        bias_on = bias if callable(bias) else lambda grid: bias
        wrong = _Replaced(self.case.dims, bias_on)
        return self.of_scores(self.scores, with_base(self.pe, wrong))

    def of_turned(self, q: Tensor, k: Tensor) -> Float[Tensor, "h q k"]:
        """The logits of queries and keys after another rotation."""
        return self.pe.logits(scaled_scores(q, k), q, k, self.grid).squeeze(0)

    def of_positions(self, q_pos: Tensor, k_pos: Tensor) -> Float[Tensor, "..."]:
        """The logits or embeddings with other positions and the same mask."""
        grid = self.featured(Grid(q_index=q_pos, k_index=k_pos, causal=self.case.causal))
        if self.case.x is not None:
            return self.pe.embed(self.case.x, q_pos)
        q, k = self.pe.rotate(*self.raw, grid)
        return self.pe.logits(scaled_scores(q, k), q, k, grid).squeeze(0)

    def right(self) -> Tensor:
        return reference_output(self.pe, self.case, **{n: getattr(self.case, n) for n in INPUTS})


def with_base(pe: PositionalEncoding, base: PositionalEncoding) -> PositionalEncoding:
    """The encoding with another base. Without DAPE, the base itself."""
    if not isinstance(pe, DapeWrapper):
        return base
    changed = copy.copy(pe)
    changed._modules = {**pe._modules, "base": base}
    return changed


@dataclass(frozen=True)
class Mistake:
    name: str
    says: str
    """What the implementation does, and what is right. The text follows "It looks like this:"."""
    output: Callable[[Setting], Tensor | None]
    """The wrong logits, including hidden cells, or embeddings; None if the mistake cannot happen in the case."""
    of: tuple[str, ...]
    """Bases, wrappers or hooks (such as "bias") in which it may happen."""
    masks: bool = True
    """Whether hidden cells are masked afterwards. If not, their values are compared too."""

    def concerns(self, name: str) -> bool:
        parsed, entry = parse(name), find(name)
        base = find(parsed.base)
        return bool({parsed.base, parsed.wrapper, base.hook, *entry.hook.split(", "), "any"} & set(self.of))


class Family(list[Mistake]):
    """A decorator that collects the mistakes of a file."""

    def __call__(
        self, *of: str, says: str, masks: bool = True
    ) -> Callable[[Callable[[Setting], Tensor | None]], Callable[[Setting], Tensor | None]]:
        def add(function: Callable[[Setting], Tensor | None]) -> Callable[[Setting], Tensor | None]:
            self.append(Mistake(function.__name__.replace("_", "-"), says, function, of, masks))
            return function

        return add


def per_head(values: Tensor) -> Float[Tensor, "h 1 1"]:
    return torch.as_tensor(values, dtype=torch.float64).view(-1, 1, 1)
