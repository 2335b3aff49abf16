"""Does f use content? The loss of a trained DAPE model when f reads other scores, and the sources of f's variance.

swapped   f reads the scores of another text: logits A + B + f(A', B), A' the scores of the next window of the batch.
frozen    f reads the mean score at each lag over all texts, so that its input has no content.
share     share of f's variance due to the text rather than the lag (over texts and queries), per layer and head.
gains     which tokens one model predicts better than another: those that repeat a rare token of the window, or others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.evaluation.perplexity import Measured, window_nll
from dape.models.decoder import DecoderLM
from dape.positional.around import Around
from dape.positional.dape import DapeWrapper
from dape.positional.grid import Grid
from dape.results.statistics import paired_t

BATCH = 4
"""Windows per batch, within which scores are swapped."""
RARE = 1e-4
"""A token is rare if its share of the training text is smaller."""

Source = Callable[[Tensor, Grid], Tensor]
"""From the scores of a block of rows to the scores that f reads."""


class Fed(Around):
    """A trained DAPE whose f reads other scores than attention does."""

    def __init__(self, dape: DapeWrapper, source: Source) -> None:
        super().__init__(dape.dims, dape)
        self.dape, self.source = dape, source

    @property
    def rotates_once(self) -> bool:
        return False

    def logits(
        self, scores: Float[Tensor, "*b h q k"], q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> Float[Tensor, "*b h q k"]:
        usual = self.dape.logits(scores, q, k, grid)
        return usual - self.dape.mixed(scores, grid) + self.dape.mixed(self.source(scores, grid), grid)


def swapped(scores: Tensor, grid: Grid) -> Tensor:
    """A :data:`Source`: the scores of the next text of the batch."""
    return scores.roll(1, dims=0)


class ByLag:
    """Collects mean and variance of scores and of f at every lag, per head, over texts and queries, in float64."""

    def __init__(self, dape: DapeWrapper) -> None:
        self._dape = dape
        heads = dape.dims.num_heads
        self._count = torch.zeros(0, dtype=torch.float64)
        self._sums = {name: torch.zeros(heads, 0, dtype=torch.float64) for name in ("A", "A2", "f", "f2")}

    def record(self, scores: Tensor, grid: Grid) -> Tensor:
        """A :data:`Source` that returns the scores unchanged, and collects them."""
        lag, visible = grid.lag(), grid.visible()
        assert lag.dim() == 2 and visible is not None and visible.dim() == 2, "plain causal batches only"
        self._grow(int(lag.max()) + 1)
        where = lag[visible]
        self._count.index_add_(0, where, torch.full(where.shape, float(len(scores)), dtype=torch.float64))
        f = self._dape.mixed(scores, grid).detach().expand_as(scores)
        for name, x in (("A", scores.detach()), ("f", f)):
            values = x.double()[..., visible]  # [b, h, cells]
            self._sums[name].index_add_(1, where, values.sum(0))
            self._sums[f"{name}2"].index_add_(1, where, values.square().sum(0))
        return scores

    def _grow(self, lags: int) -> None:
        """Make room for lags below ``lags``."""
        more = lags - len(self._count)
        if more > 0:
            self._count = torch.nn.functional.pad(self._count, (0, more))
            self._sums = {name: torch.nn.functional.pad(x, (0, more)) for name, x in self._sums.items()}

    def frozen(self, scores: Tensor, grid: Grid) -> Tensor:
        """A :data:`Source`: the mean score at each lag."""
        means = (self._sums["A"] / self._count).to(scores)
        lag = grid.lag().clamp(min=0, max=means.shape[1] - 1)
        return means[:, lag].expand_as(scores)

    def variance(self, name: str) -> Float[np.ndarray, "h n"]:
        """Variance of ``name`` (A or f) over texts and queries, at every lag."""
        mean = self._sums[name] / self._count
        return (self._sums[f"{name}2"] / self._count - mean.square()).clamp(min=0).numpy()

    def share(self) -> Float[np.ndarray, " h"]:
        """Share of f's variance that is at fixed lags. All lags have equal weight, though near ones have more cells."""
        within = self.variance("f").mean(axis=1)
        between = (self._sums["f"] / self._count).numpy().var(axis=1)
        total = within + between
        return np.divide(within, total, out=np.zeros_like(total), where=total > 0)

    def content_share(self) -> Float[np.ndarray, "h n"]:
        """Variance of f relative to that of f and scores, at every lag: f's share of the content in the logits."""
        f, scores = self.variance("f"), self.variance("A")
        return np.divide(f, f + scores, out=np.zeros_like(f), where=f + scores > 0)


@dataclass(frozen=True)
class Dissected:
    """Nats [window, token] of one model at one length: with f as trained, and with other inputs of f."""

    length: int
    usual: np.ndarray
    swapped: np.ndarray
    frozen: np.ndarray
    layers: tuple[ByLag, ...]

    def cost(self, name: str) -> tuple[float, float, float]:
        """Increase of nats per token by another input (swapped or frozen), and its 95% interval over windows."""
        return mean_interval((getattr(self, name) - self.usual).mean(axis=1))


PASSES = ("usual", "swapped", "frozen")


def dissect(
    model: DecoderLM,
    windows: Int[np.ndarray, "n t"],
    scored: int,
    *,
    watch: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Dissected:
    """Evaluate a model with f as trained, and with other inputs of f.

    Args:
        model: with a DAPE encoding in every layer.
        windows: at least two, of length + 1 tokens each.
        scored: how many of the last tokens of each window are scored.
        watch: called with the name of a pass (of :data:`PASSES`), and how many of how many windows it has done.

    Raises:
        ValueError: an encoding without f, or fewer than two windows.
    """
    encodings = [pe for pe in model.encodings if isinstance(pe, DapeWrapper)]
    if not encodings or len(encodings) < len(model.encodings):
        raise ValueError(f"{model.config.encoding} has no f; this needs a model with dape-X")
    if len(windows) < 2:
        raise ValueError(f"swapping needs at least 2 windows, got {len(windows)}")
    layers = tuple(ByLag(pe) for pe in encodings)
    sources = ([layer.record for layer in layers], [swapped] * len(layers), [layer.frozen for layer in layers])
    usual, swap, freeze = (
        _nll(model, windows, scored, each, partial(watch, what)) for what, each in zip(PASSES, sources, strict=True)
    )
    return Dissected(windows.shape[1] - 1, usual, swap, freeze, layers)


def _nll(
    model: DecoderLM, windows: np.ndarray, scored: int, sources: Sequence[Source], watch: Callable[[int, int], None]
) -> np.ndarray:
    dapes = [pe for pe in model.encodings if isinstance(pe, DapeWrapper)]
    fed = _Model(model, [Fed(pe, source) for pe, source in zip(dapes, sources, strict=True)])
    device = model.embedding.weight.device
    # At least two windows in each batch: a single one would be swapped with itself.
    parts = np.array_split(windows, max(1, len(windows) // BATCH))
    found: list[np.ndarray] = []
    for part in parts:
        found.append(window_nll(fed, torch.from_numpy(part).to(device), scored).cpu().numpy())
        watch(sum(map(len, found)), len(windows))
    return np.concatenate(found)


class _Model:
    """A model with other encodings, for :func:`window_nll`."""

    def __init__(self, model: DecoderLM, encodings: list[Fed]) -> None:
        self.embedding, self.head, self.config, self.encodings = model.embedding, model.head, model.config, encodings
        self.hidden = model.hidden

    def drawn_encodings(self, length: int, generator: torch.Generator | None = None) -> list[Fed]:
        return self.encodings


# Tokens --------------------------------------------------------------------------------------------------------------


def token_groups(
    windows: Int[np.ndarray, "n t"], scored: int, frequency: Float[np.ndarray, " v"]
) -> dict[str, np.ndarray]:
    """For each group of scored tokens its members: bool [window, token]."""
    repeats = np.zeros((len(windows), scored), bool)
    for row, window in enumerate(windows):
        first = {}
        for place, token in enumerate(window.tolist()):
            if token in first and place >= len(window) - scored:
                repeats[row, place - len(window) + scored] = True
            first.setdefault(token, place)
    rare = frequency[windows[:, -scored:]] < RARE
    return {
        "repeats a rare token": repeats & rare,
        "repeats a common token": repeats & ~rare,
        "rare, first time": ~repeats & rare,
        "common, first time": ~repeats & ~rare,
    }


@dataclass(frozen=True)
class Gain:
    group: str
    tokens: int
    nats: float
    """Mean loss of the second model minus that of the first: positive where the first is better."""
    low: float
    high: float
    """95% interval over windows."""
    total_share: float
    """Share of the whole gain that is due to these tokens."""


def gains(first: Measured, second: Measured, groups: dict[str, np.ndarray]) -> list[Gain]:
    """The gain of the first model over the second in every group that has tokens."""
    difference = second.nll.astype(np.float64) - first.nll
    whole = difference.sum()
    found = []
    for name, member in groups.items():
        if not member.any():
            continue
        per_window = [difference[i, row].mean() for i, row in enumerate(member) if row.any()]
        _, low, high = mean_interval(np.array(per_window))
        nats = float(difference[member].mean())
        share = float(difference[member].sum() / whole) if whole else math.nan
        found.append(Gain(name, int(member.sum()), nats, low, high, share))
    return found


def mean_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95% t interval."""
    found = paired_t(values.tolist())
    return float(values.mean()), *((math.nan, math.nan) if found is None else (found.low, found.high))
