"""Cut windows from a stream of tokens: in random order for training, with given ends for evaluation.

Both are functions of their arguments alone. So a resumed run gets the batches it would have had, and all methods and
lengths are scored on the same tokens.
"""

from dataclasses import dataclass

import numpy as np

from dape.data.store import TokenStream
from dape.errors import UsageError

# Training ------------------------------------------------------------------------------------------------------------


class TrainingWindows:
    """Windows of ``length + 1`` tokens (inputs, and targets shifted by one), epoch after epoch.

    In every epoch the documents, which end in end-of-document marks, are shuffled and joined. The result is cut every
    ``length`` tokens: neighbouring windows share one token, and every token but the first is predicted once. The
    windows are shuffled. The tokens after the last whole window are left out, different ones in each epoch.
    """

    def __init__(self, stream: TokenStream, *, length: int, seed: int) -> None:
        if length < 1:
            raise UsageError(f"a training length of {length} is impossible; it must be at least 1")
        if seed < 0:
            raise UsageError(f"the seed must not be negative, got {seed}")
        if len(stream) < length + 1:
            raise UsageError(
                f"the training text has {len(stream)} tokens, too few for length {length}, which needs {length + 1}. "
                f"The longest possible training length is {max(len(stream) - 1, 0)}."
            )
        self.stream, self.length, self.seed = stream, length, seed
        self.windows_per_epoch = (len(stream) - 1) // length
        self._epoch: _Epoch | None = None  # cache: the epoch that was used last

    def batch(self, step: int, size: int) -> np.ndarray:
        """Windows ``step * size`` to ``(step + 1) * size - 1``, counted over all epochs: int64 [size, length + 1]."""
        if step < 0 or size < 1:
            raise ValueError(f"step {step}, size {size}: the step must be at least 0 and the size at least 1")
        number = np.arange(step * size, (step + 1) * size)
        epochs, within = np.divmod(number, self.windows_per_epoch)
        parts = [self._windows(epoch, within[epochs == epoch]) for epoch in range(epochs[0], epochs[-1] + 1)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _windows(self, epoch: int, within: np.ndarray) -> np.ndarray:
        current = self._epoch  # read once: another thread may replace it
        if current is None or current.number != epoch:
            current = self._epoch = _Epoch.draw(self, epoch)
        shuffled = current.windows[within, None] * self.length + np.arange(self.length + 1)
        document = np.searchsorted(current.ends, shuffled, side="right")
        return self.stream.gather(shuffled + current.shift[document])


@dataclass(frozen=True)
class _Epoch:
    """The order of documents and windows in one epoch."""

    number: int
    ends: np.ndarray
    """Where the documents end when joined in shuffled order."""
    shift: np.ndarray
    """Per document in shuffled order: its position in the stream minus its position in the shuffled text."""
    windows: np.ndarray
    """The shuffled numbers of the windows."""

    @classmethod
    def draw(cls, windows: TrainingWindows, number: int) -> "_Epoch":
        generator = np.random.default_rng([windows.seed, number])
        ends = np.asarray(windows.stream.document_ends)
        starts = np.concatenate(([0], ends[:-1]))
        order = generator.permutation(len(ends))
        lengths = (ends - starts)[order]
        shuffled_ends = np.cumsum(lengths)
        shift = starts[order] - (shuffled_ends - lengths)
        return cls(number, shuffled_ends, shift, generator.permutation(windows.windows_per_epoch))


# Evaluation ----------------------------------------------------------------------------------------------------------


GREATEST_REACH = 1 << 15
"""Greatest default of the tokens before the end of every evaluation window."""


def default_reach(stream: TokenStream, *, same_document: bool) -> int:
    """The default number of tokens before the end of every evaluation window. It depends on the text alone.

    It is the largest power of two up to half of the text. With ``same_document``, at least half of the text must be in
    documents that are longer.
    """
    lengths = np.diff(stream.document_ends, prepend=0) if same_document else np.array([len(stream)])
    for reach in (GREATEST_REACH >> n for n in range(GREATEST_REACH.bit_length())):
        room = lengths[lengths > reach].sum() if same_document else len(stream) - reach
        if 2 * room >= len(stream):
            return reach
    return 1


def evaluation_ends(
    stream: TokenStream, *, reach: int, k: int, windows: int, same_document: bool, seed: int = 0
) -> np.ndarray:
    """Where evaluation windows end: sorted, spread evenly over the stream with a seeded jitter.

    A window that ends at e has the scored tokens [e - k, e), and no token is scored twice. It begins at e - reach - 1
    or later, with ``same_document`` in the same document. There are fewer ends than ``windows`` if the text is too
    short for more.
    """
    if not 1 <= k <= reach:
        raise UsageError(f"cannot score {k} tokens of windows of at most {reach}; it must be between 1 and {reach}")
    if windows < 1:
        raise UsageError(f"at least 1 evaluation window is needed, got {windows}")
    stops = np.asarray(stream.document_ends) if same_document else np.array([len(stream)])
    starts = np.concatenate(([0], stops[:-1]))
    _check_room(stops - starts, reach, same_document)
    # The scored tokens of a document lie in [first, stop), which has room for `room` windows.
    fits = stops - starts > reach
    first, stop = (starts + reach + 1 - k)[fits], stops[fits]
    room = (stop - first) // k
    generator = np.random.default_rng(seed)
    shares = _spread(room, min(windows, int(room.sum())), generator)
    used = np.flatnonzero(shares)
    return np.concatenate([_jittered(first[i], stop[i], k, shares[i], generator) for i in used])


def evaluation_windows(stream: TokenStream, ends: np.ndarray, length: int) -> np.ndarray:
    """``[n, length + 1]`` int64: the tokens [e - length - 1, e) for every end e."""
    ends = np.asarray(ends, dtype=np.int64)
    if length < 1 or ends.min(initial=length + 1) < length + 1:
        raise ValueError(f"no window of {length} + 1 tokens ends at {ends.min(initial=length + 1)}")
    return stream.gather(ends[:, None] + np.arange(-length - 1, 0))


def _check_room(lengths: np.ndarray, longest: int, same_document: bool) -> None:
    available = int(lengths.max()) if len(lengths) else 0
    if available > longest:
        return
    what = "longest held-out document" if same_document else "held-out text"
    advice = " Windows across documents (packed) can be longer." if same_document else ""
    raise UsageError(
        f"the {what} has {available} tokens, too few for evaluation length {longest}, which needs {longest + 1}. "
        f"The longest evaluation length that works is {max(available - 1, 0)}.{advice}"
    )


def _spread(room: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """How many of ``count`` windows each document gets. The rooms of all documents are numbered, cut into ``count``
    equal stretches, and one is drawn from each."""
    borders = np.arange(count + 1) * int(room.sum()) // count
    chosen = generator.integers(borders[:-1], borders[1:])
    document = np.searchsorted(np.cumsum(room), chosen, side="right")
    return np.bincount(document, minlength=len(room))


def _jittered(first: int, stop: int, k: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """Ends of ``count`` spans of k tokens: [first, stop) is cut into equal stretches, with a span at random in each."""
    borders = first + np.arange(count + 1) * (stop - first) // count
    return borders[:-1] + k + generator.integers(0, borders[1:] - borders[:-1] - k + 1)
