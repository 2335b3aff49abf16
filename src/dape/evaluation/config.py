"""Settings of measuring perplexity. No torch here: the command line reads it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dape.errors import UsageError, check_counts
from dape.tasks.recall.config import doublings

Protocol = Literal["last_k", "full", "nonoverlap", "per_position"]
Mode = Literal["packed", "same_document"]

ENOUGH_WINDOWS = 160
"""With fewer windows, a comparison depends on the choice of text."""
EARLY, LATE = range(8, 13), range(98, 103)
"""Positions around token 10 and token 100, between which the in-context gain is taken."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    lengths: tuple[int, ...]
    """Tokens of context to evaluate at."""
    protocol: Protocol = "last_k"
    """last_k: windows of every length end at the same tokens, the last k of which are scored. full: the same windows,
    all tokens scored. nonoverlap: the text cut into windows, all tokens scored. per_position: as full, by position."""
    last_k: int = 256
    """Scored tokens per window in the protocol last_k."""
    windows: int = 256
    """Windows to evaluate, the same number at every length."""
    mode: Mode = "packed"
    """packed: windows may run across documents, as in the paper. same_document: each lies within one document."""
    reach: int | None = None
    """Tokens before the end of every window, for any length: evaluations with the same reach score the same tokens. By
    default 32768, or about half of a shorter text."""

    def check(self) -> None:
        if not self.lengths:
            raise UsageError("`lengths` needs at least one length")
        if min(self.lengths) < 1:
            raise UsageError(f"`lengths` must be positive, got {min(self.lengths)}")
        check_counts(self, "last_k", "windows")
        if self.reach is not None and self.reach < max(self.lengths):
            raise UsageError(
                f"length {max(self.lengths)} is beyond `reach` {self.reach}, the tokens before the end of every window."
                f" Use `reach` {max(self.lengths)} or more, or leave the length out"
            )
        if self.protocol == "last_k" and min(self.lengths) < self.last_k:
            raise UsageError(
                f"length {min(self.lengths)} is shorter than the {self.last_k} tokens to score, and every length must "
                f"score the same tokens. Use `last_k` {min(self.lengths)}, or leave the length out"
            )
        if self.protocol == "nonoverlap" and self.mode == "same_document":
            raise UsageError("`protocol` nonoverlap cuts the whole text; it has no `mode` same_document")


def evaluation_of(train_length: int, lengths: Sequence[int], *, last_k: int | None, **more: Any) -> EvalConfig:
    """Settings with defaults: lengths are doublings of the training length; ``last_k`` is the shortest, at most 256."""
    chosen = tuple(sorted(set(lengths))) or doublings(train_length)
    return EvalConfig(lengths=chosen, last_k=last_k if last_k is not None else max(1, min(256, *chosen)), **more)
