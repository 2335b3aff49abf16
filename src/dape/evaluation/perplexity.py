"""Perplexity against length, from the nats of every scored token.

``last_k`` (the paper's protocol, but with fixed targets): N ends e in held-out text. At every length L the model reads
tokens e-L-1 ... e-2 and is scored on its predictions of e-k ... e-1. All lengths score the same tokens, so a difference
between lengths is the effect of more context.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dape.data.store import TokenStream
from dape.data.windows import default_reach, evaluation_ends, evaluation_windows
from dape.errors import UsageError
from dape.evaluation.config import EARLY, LATE, EvalConfig
from dape.models.readable import Readable
from dape.ops.linear import linear
from dape.positional.randomized import Randomized
from dape.results.records import Row
from dape.training.cost import window_bytes
from dape.training.device import free_memory

RANDOM_BATCH = 8
"""Windows that share one draw of randomised positions. It is fixed, so that results do not depend on memory."""
TOKENS_AT_ONCE = 1 << 15
"""Tokens per batch, enough to keep a processor busy."""
LOGITS_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Measured:
    length: int
    nll: np.ndarray
    """Nats of every scored token: [window, token]."""
    first: int
    """Position of the first scored token in its window."""
    reach: int
    """Tokens before the end of every window, see :class:`EvalConfig`."""

    @property
    def mean(self) -> float:
        return float(self.nll.mean(dtype=np.float64))

    @property
    def perplexity(self) -> float:
        return math.inf if self.mean >= 700 else math.exp(self.mean)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The model that is measured, and the data, as rows describe them."""

    run: str
    method: str
    seed: int
    train_length: int
    step: int
    data_hash: str
    tokenizer: str
    variant: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


def as_rows(measured: Measured, subject: Subject, config: EvalConfig) -> list[Row]:
    """A row of perplexity; for the protocol per_position, a row of nats per doubling of the position."""
    common: dict[str, Any] = {
        **vars(subject),
        "length": measured.length,
        "protocol": config.protocol,
        "k": config.last_k if config.protocol == "last_k" else None,
        "windows": len(measured.nll),
        "mode": config.mode,
        "reach": measured.reach,
    }
    if config.protocol == "per_position":
        return [_bucket_row(measured, common, *bucket) for bucket in _doublings(measured.length)]
    per_window = tuple(round(float(x), 5) for x in measured.nll.mean(axis=1, dtype=np.float64))
    row = Row(
        metric="perplexity", value=measured.perplexity, scored_tokens=measured.nll.size, window_nll=per_window, **common
    )
    return [row]


def _bucket_row(measured: Measured, common: dict[str, Any], first: int, last: int) -> Row:
    part = measured.nll[:, first : last + 1]
    extra = {**common["extra"], "first_position": first, "last_position": last}
    value = float(part.mean(dtype=np.float64))
    return Row(metric="nll", value=value, scored_tokens=part.size, **{**common, "extra": extra})


def _doublings(length: int) -> list[tuple[int, int]]:
    """0, 1, 2-3, 4-7, ... up to the last position."""
    starts = [0, *(1 << bit for bit in range((length - 1).bit_length()))]
    return list(zip(starts, [start - 1 for start in starts[1:]] + [length - 1], strict=True))


def measure(
    model: Readable,
    stream: TokenStream,
    config: EvalConfig,
    *,
    watch: Callable[[int, int, int], None] = lambda length, done, total: None,
    reader: "Reader | None" = None,
) -> Iterator[Measured]:
    """Yield a :class:`Measured` per length, shortest first.

    Where windows end depends on the reach alone, so a measurement does not depend on the other lengths.

    Args:
        model: any model with the methods of :class:`Readable`.
        stream: the held-out text.
        config: lengths, protocol and windows.
        watch: called with a length, and how many of how many windows have been read.
        reader: how windows become nats, for instance in several processes.

    Raises:
        UsageError: settings that are invalid, or too long for the text.
    """
    config = with_reach(config, stream)
    assert config.reach is not None
    ends = None if config.protocol == "nonoverlap" else ends_of(stream, config)
    for length in sorted(set(config.lengths)):
        if ends is None:
            windows = _consecutive_windows(stream, length, config.reach, config.windows)
        else:
            windows = evaluation_windows(stream, ends, length)
        scored = config.last_k if config.protocol == "last_k" else length
        yield Measured(length, _nll(model, windows, scored, watch, reader or Reader()), length - scored, config.reach)


def in_context_row(model: Readable, stream: TokenStream, subject: Subject, windows: int) -> Row:
    """The in-context gain: mean nats of a token after about 10 tokens of context minus after about 100, at the training
    length. A model that does not use its context gains nothing. Each mean is over five positions, to reduce noise."""
    length = subject.train_length
    if length <= max(LATE):
        raise UsageError(f"the in-context gain needs a training length above {max(LATE)}, got {length}")
    config = EvalConfig(lengths=(length,), protocol="per_position", windows=windows, last_k=length, reach=length)
    (measured,) = measure(model, stream, config)
    nll = measured.nll.astype(np.float64)
    early, late = nll[:, list(EARLY)], nll[:, list(LATE)]
    (row, *_) = as_rows(measured, subject, config)
    extra = {**subject.extra, "nll_at_10": float(early.mean()), "nll_at_100": float(late.mean())}
    gain = float(early.mean() - late.mean())
    return replace(row, metric="in_context_gain", value=gain, scored_tokens=early.size + late.size, extra=extra)


def with_reach(config: EvalConfig, stream: TokenStream) -> EvalConfig:
    """Check the settings, and add the default reach of the text if none was given."""
    config.check()
    if config.reach is not None:
        return config
    reach, longest = default_reach(stream, same_document=config.mode == "same_document"), max(config.lengths)
    if longest > reach:
        raise UsageError(_beyond(stream, config, longest, reach))
    return replace(config, reach=reach)


def _beyond(stream: TokenStream, config: EvalConfig, longest: int, reach: int) -> str:
    """An error message: why a length does not fit, and which does."""
    documents = np.diff(stream.document_ends, prepend=0)
    available = int(documents.max(initial=0)) if config.mode == "same_document" else len(stream)
    what = "longest held-out document" if config.mode == "same_document" else "held-out text"
    advice = " Windows across documents (packed) can be longer." if config.mode == "same_document" else ""
    if longest >= available:
        return (
            f"the {what} has {available} tokens, too few for evaluation length {longest}, which needs {longest + 1}. "
            f"The longest evaluation length that works is {max(available - 1, 0)}, with `reach`.{advice}"
        )
    return (
        f"length {longest}: the windows of this text reach back {reach} tokens by default, as the {what} has "
        f"{available}. Use `reach` {longest}: other tokens are then scored, at every length, than without it.{advice}"
    )


def ends_of(stream: TokenStream, config: EvalConfig) -> np.ndarray:
    """Where the windows end. In other protocols than last_k too, ends are at least ``last_k`` tokens apart."""
    config = with_reach(config, stream)
    assert config.reach is not None
    k = min(config.last_k, config.reach)
    return evaluation_ends(
        stream, reach=config.reach, k=k, windows=config.windows, same_document=config.mode == "same_document"
    )


def _consecutive_windows(stream: TokenStream, length: int, reach: int, windows: int) -> np.ndarray:
    """Cut the beginning of the text into windows that share one token. Every length covers the same text."""
    room = len(stream) - 1
    covered = min(room // reach, windows) * reach
    if covered == 0:
        raise UsageError(
            f"the held-out text has {room + 1} tokens, too few for length {reach}; at most {room} is possible"
        )
    starts = range(0, covered - length + 1, length)
    return np.stack([stream.read(start, start + length + 1) for start in starts])


class Reader:
    """Computes the nats of windows."""

    def size(self, model: Readable, length: int) -> int:
        """Windows at a time."""
        return batch_size(model, length)

    def nll(self, model: Any, tokens: Tensor, scored: int, *, seed: int) -> Tensor:
        """See :func:`window_nll`."""
        return window_nll(model, tokens, scored, seed=seed)


def _nll(
    model: Readable, windows: np.ndarray, scored: int, watch: Callable[[int, int, int], None], reader: Reader
) -> np.ndarray:
    """Nats of the last ``scored`` tokens of every window: [window, scored]."""
    length = windows.shape[1] - 1
    device = model.embedding.weight.device
    size = reader.size(model, length)
    parts = []
    for first in range(0, len(windows), size):
        tokens = torch.from_numpy(windows[first : first + size]).to(device)
        parts.append(reader.nll(model, tokens, scored, seed=first).cpu().numpy())
        watch(length, min(first + size, len(windows)), len(windows))
    return np.concatenate(parts)


def window_nll(model: Readable, tokens: Tensor, scored: int, *, seed: int = 0) -> Tensor:
    """From tokens [b, length + 1] to nats [b, scored]. Logits are computed for scored tokens only."""
    with torch.inference_mode():
        encodings = model.drawn_encodings(tokens.shape[1] - 1, torch.Generator().manual_seed(seed))
        hidden = model.hidden(tokens[:, :-1], encodings=encodings, last=scored)
        return nats(model, hidden, tokens[:, -scored:])


def nats(model: Readable, hidden: Tensor, targets: Tensor) -> Tensor:
    """From final states [b, r, m] and targets [b, r] to nats [b, r]."""
    # In pieces: the logits of a long window with a large vocabulary would be the largest tensor of all.
    step = max(1, LOGITS_AT_ONCE // model.config.vocabulary)
    pieces = zip(hidden.split(step, 1), targets.split(step, 1), strict=True)
    return torch.cat([_nats(linear(model.head, h), wanted) for h, wanted in pieces], dim=1)


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return flat.view_as(targets)


def batch_size(model: Readable, length: int) -> int:
    """Windows per batch: enough to keep the processor busy, and no more than memory allows."""
    if any(isinstance(pe, Randomized) for pe in model.encodings):
        return RANDOM_BATCH
    room = 0.25 * free_memory(model.embedding.weight.device)
    return max(1, int(min(TOKENS_AT_ONCE / length, room / window_bytes(model.config.width, length))))
