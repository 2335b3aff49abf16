"""Positions of tokens in padded and packed batches, where they are not 0, 1, 2, ... in every row."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dape.positional.base import PositionalEncoding, ScoreForm, any_form
from dape.positional.grid import Grid
from dape.positional.positions import as_positions, hold_int64


@dataclass(frozen=True, kw_only=True)
class Places:
    """Positions, padding and documents of all keys, those of a cache included. The new tokens are the last keys."""

    positions: Int[Tensor, "b k"]
    """The first token of a text or document is at 0, even with padding in front of it."""
    padding: Bool[Tensor, "b k"] | None = None
    """True at padding."""
    documents: Int[Tensor, "b k"] | None = None
    """Numbers of documents: tokens see only tokens of the same document."""
    unbroken: bool = False
    """Whether the tokens of each text are contiguous: differences of positions are then differences of indices."""

    def __post_init__(self) -> None:
        hold_int64(self, "positions", "documents")

    @staticmethod
    def beside(padding: Bool[Tensor, "b k"]) -> "Places":
        """Count positions over the tokens that are not padding."""
        text = ~padding
        positions = (text.long().cumsum(1) - 1).clamp(min=0)
        return Places(positions=positions, padding=padding, unbroken=_one_run(text))

    @staticmethod
    def packed(positions: Int[Tensor, "b k"], padding: Bool[Tensor, "b k"] | None = None) -> "Places":
        """With given positions. A new document begins wherever a position is not the previous one plus 1."""
        positions = as_positions("positions", positions)
        starts = positions.diff(dim=1, prepend=positions[:, :1] - 1) != 1
        return Places(positions=positions, padding=padding, documents=starts.long().cumsum(1), unbroken=True)

    def last(self, keys: int) -> "Places":
        """Of the last ``keys`` only: a cache may have dropped the others."""
        return self.of_keys(self.positions.shape[1] - keys, self.positions.shape[1])

    def of_keys(self, begin: int, end: int) -> "Places":
        """Of the keys from index ``begin`` to before ``end``."""
        if (begin, end) == (0, self.positions.shape[1]):
            return self
        given = {name: getattr(self, name) for name in ("positions", "padding", "documents")}
        return replace(self, **{name: x if x is None else x[:, begin:end] for name, x in given.items()})

    def of_last(self, tokens: int) -> Int[Tensor, "b t"]:
        """Positions of the last ``tokens``."""
        return self.positions[:, -tokens:]

    def grid_of_new(self, queries: int, keys: int, *, causal: bool) -> Grid:
        """The grid of the new tokens among themselves."""
        return Grid.at(self.of_last(queries), self.of_last(keys), causal=causal)

    def for_attention(self, pe: PositionalEncoding, queries: int) -> dict[str, Any]:
        """Arguments of :func:`dape.attention`. Positions are left out, which is faster, where distances suffice."""
        given: dict[str, Any] = {"key_padding_mask": self.padding}
        if self.documents is not None:
            given |= {"q_document": self.documents[:, -queries:], "k_document": self.documents}
        if not (self.unbroken and reads_distances_only(pe)):
            given |= {"q_pos": self.of_last(queries), "k_pos": self.positions}
        return given


def reads_distances_only(pe: PositionalEncoding) -> bool:
    """Whether attention with this encoding stays the same when all positions are shifted."""
    form = None if pe.absolute else any_form(pe)
    if not isinstance(form, ScoreForm):
        return pe.rotates_once and form is not None
    return pe.rotates_once and (form.source is None or form.source.at is not None)


def _one_run(text: Bool[Tensor, "b k"]) -> bool:
    """Whether each row is padding, text, padding, the first and the last possibly empty."""
    if torch.compiler.is_compiling():  # the check reads values, which would break the graph
        return False
    starts = text[:, 1:] & ~text[:, :-1]
    return bool((starts.sum(1) + text[:, 0] <= 1).all())
