"""Where the tokens of a batch stand, where that is not 0, 1, 2, ... in every row: padding, packed documents."""

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
    """Of all keys, those of a cache included; the new tokens are the last of them."""

    positions: Int[Tensor, "b k"]
    """The first token of a text or document stands at 0, whatever padding is in front of it."""
    padding: Bool[Tensor, "b k"] | None = None
    """True at padding."""
    documents: Int[Tensor, "b k"] | None = None
    """Documents with different numbers do not see each other."""
    unbroken: bool = False
    """Within a text nothing is left out, so that the distance of two tokens is that of their places in the batch."""

    def __post_init__(self) -> None:
        hold_int64(self, "positions", "documents")

    @staticmethod
    def beside(padding: Bool[Tensor, "b k"]) -> "Places":
        """Tokens count where there is no padding."""
        text = ~padding
        positions = (text.long().cumsum(1) - 1).clamp(min=0)
        return Places(positions=positions, padding=padding, unbroken=_one_run(text))

    @staticmethod
    def packed(positions: Int[Tensor, "b k"], padding: Bool[Tensor, "b k"] | None = None) -> "Places":
        """Given positions; a new document begins wherever they do not go on by one."""
        positions = as_positions("positions", positions)
        starts = positions.diff(dim=1, prepend=positions[:, :1] - 1) != 1
        return Places(positions=positions, padding=padding, documents=starts.long().cumsum(1), unbroken=True)

    def last(self, keys: int) -> "Places":
        """Without the first keys, which a cache has let go."""
        return self.of_keys(self.positions.shape[1] - keys, self.positions.shape[1])

    def of_keys(self, begin: int, end: int) -> "Places":
        if (begin, end) == (0, self.positions.shape[1]):
            return self
        given = {name: getattr(self, name) for name in ("positions", "padding", "documents")}
        return replace(self, **{name: x if x is None else x[:, begin:end] for name, x in given.items()})

    def of_last(self, tokens: int) -> Int[Tensor, "b t"]:
        return self.positions[:, -tokens:]

    def among_new(self, queries: int, keys: int, *, causal: bool) -> Grid:
        """The new tokens among themselves."""
        return Grid.at(self.of_last(queries), self.of_last(keys), causal=causal)

    def for_attention(self, pe: PositionalEncoding, queries: int) -> dict[str, Any]:
        """Arguments of the operator. It is faster without positions, which an encoding of distances can do without."""
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
    if torch.compiler.is_compiling():  # it would read values
        return False
    starts = text[:, 1:] & ~text[:, :-1]
    return bool((starts.sum(1) + text[:, 0] <= 1).all())
