"""Does f use content? What a trained DAPE model loses when f is fed something else, and where f's variance comes from.

swapped   f reads the scores of another text: logits A + B + f(A', B), A' the scores of the next window of the batch.
frozen    f reads the mean score at each lag, taken over all texts: its content columns carry no content any more.
share     the part of f's variance at a fixed lag (over texts and queries) in all of its variance, per layer and head.
gains     which tokens one model predicts better than another: tokens that repeat a rare one of their window, or others.
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
"""Windows that are swapped with each other."""
RARE = 1e-4
"""A token is rare if it is a smaller share of the training text."""

Source = Callable[[Tensor, Grid], Tensor]
"""From the scores of a block of rows to those that f reads."""


class Fed(Around):
    """A trained DAPE whose f reads other scores than attention does."""

    def __init__(self, dape: DapeWrapper, source: Source) -> None:
        super().__init__(dape.dims, dape)
        self.dape, self.source = dape, source

    @property
    def rotates_once(self) -> bool:
        return False

    def logits(
        self,
        scores: Float[Tensor, "*b h q k"],
        q: Float[Tensor, "*b h q d"],
        k: Float[Tensor, "*b g k d"],
        grid: Grid,
    ) -> Float[Tensor, "*b h q k"]:
        usual = self.dape.logits(scores, q, k, grid)
        return usual - self.dape.mixed(scores, grid) + self.dape.mixed(self.source(scores, grid), grid)


def swapped(scores: Tensor, grid: Grid) -> Tensor:
    """Those of the next text of the batch."""
    return scores.roll(1, dims=0)


class ByLag:
    """Mean and variance of scores and of f at every lag, per head: sums over texts and queries, in float64."""

    def __init__(self, dape: DapeWrapper) -> None:
        self._dape = dape
        heads = dape.dims.num_heads
        self._count = torch.zeros(0, dtype=torch.float64)
        self._sums = {name: torch.zeros(heads, 0, dtype=torch.float64) for name in ("A", "A2", "f", "f2")}

    def record(self, scores: Tensor, grid: Grid) -> Tensor:
        """A :data:`Source` that changes nothing."""
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
        more = lags - len(self._count)
        if more > 0:
            self._count = torch.nn.functional.pad(self._count, (0, more))
            self._sums = {name: torch.nn.functional.pad(x, (0, more)) for name, x in self._sums.items()}

    def frozen(self, scores: Tensor, grid: Grid) -> Tensor:
        """A :data:`Source`: the mean score at each lag instead of the score."""
        means = (self._sums["A"] / self._count).to(scores)
        lag = grid.lag().clamp(min=0, max=means.shape[1] - 1)
        return means[:, lag].expand_as(scores)

    def variance(self, name: str) -> Float[np.ndarray, "h n"]:
        """Over texts and queries, at every lag."""
        mean = self._sums[name] / self._count
        return (self._sums[f"{name}2"] / self._count - mean.square()).clamp(min=0).numpy()

    def share(self) -> Float[np.ndarray, " h"]:
        """Of f's variance, the part at fixed lags. Every lag counts equally, as near lags have most of the cells."""
        within = self.variance("f").mean(axis=1)
        between = (self._sums["f"] / self._count).numpy().var(axis=1)
        total = within + between
        return np.divide(within, total, out=np.zeros_like(total), where=total > 0)

    def content_share(self) -> Float[np.ndarray, "h n"]:
        """Variance of f over variance of scores, at every lag: how much of the content in the logits comes by f."""
        f, scores = self.variance("f"), self.variance("A")
        return np.divide(f, f + scores, out=np.zeros_like(f), where=f + scores > 0)


@dataclass(frozen=True)
class Dissected:
    """Of one model at one length, on the same tokens: nats [window, token] with f as it is, and with other inputs."""

    length: int
    usual: np.ndarray
    swapped: np.ndarray
    frozen: np.ndarray
    layers: tuple[ByLag, ...]

    def cost(self, name: str) -> tuple[float, float, float]:
        """Nats per token that the other input costs, and its 95% interval over windows."""
        return mean_interval((getattr(self, name) - self.usual).mean(axis=1))


PASSES = ("usual", "swapped", "frozen")


def dissect(
    model: DecoderLM,
    windows: Int[np.ndarray, "n t"],
    scored: int,
    *,
    watch: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Dissected:
    """``windows`` hold length + 1 tokens each; the last ``scored`` of each are scored. ``watch`` hears which of
    :data:`PASSES` has done how many of how many windows."""
    encodings = [pe for pe in model.encodings if isinstance(pe, DapeWrapper)]
    if not encodings or len(encodings) < len(model.encodings):
        raise ValueError(f"{model.config.encoding} has no f; models with dape-X can be taken apart")
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
    # No batch of one: it would be swapped with itself.
    parts = np.array_split(windows, max(1, len(windows) // BATCH))
    found: list[np.ndarray] = []
    for part in parts:
        found.append(window_nll(fed, torch.from_numpy(part).to(device), scored).cpu().numpy())
        watch(sum(map(len, found)), len(windows))
    return np.concatenate(found)


class _Model:
    """The model with other encodings, as :func:`window_nll` reads it."""

    def __init__(self, model: DecoderLM, encodings: list[Fed]) -> None:
        self.embedding, self.head, self.config, self.encodings = model.embedding, model.head, model.config, encodings
        self.hidden = model.hidden

    def drawn_encodings(self, length: int, generator: torch.Generator | None = None) -> list[Fed]:
        return self.encodings


# Tokens --------------------------------------------------------------------------------------------------------------


def token_groups(
    windows: Int[np.ndarray, "n t"], scored: int, frequency: Float[np.ndarray, " v"]
) -> dict[str, np.ndarray]:
    """For each scored token, to which group it belongs: [window, token] of truth values."""
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
    """Of the whole gain, how much these tokens make."""


def gains(first: Measured, second: Measured, groups: dict[str, np.ndarray]) -> list[Gain]:
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
