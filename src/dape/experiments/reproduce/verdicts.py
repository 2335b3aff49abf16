"""The checks of claims, which make verdicts from evidence. No torch here."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from dape.experiments.reproduce.evidence import Cell, Evidence, Side
from dape.results.numbers import p_text, percent
from dape.results.statistics import Comparison, holm, in_words

SIGNIFICANT = 0.05
Verdict = Literal["holds (significant)", "holds (not significant)", "fails", "not tested"]


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    detail: str
    """Has n, effect and interval beside every p, and where the claim does not hold, and by how much."""


def not_tested(why: str) -> Judgement:
    return Judgement("not tested", why)


# Perplexity ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Below:
    """The first of each pair has the lower perplexity, at all lengths from ``first`` to ``last`` training lengths."""

    pairs: tuple[tuple[Side, Side], ...]
    first: int = 1
    last: int = 1 << 30
    longest: bool = False
    """Only the greatest length."""
    sizes: tuple[str, ...] = ()
    """Only these model sizes."""

    def judge(self, evidence: Evidence) -> Judgement:
        cells, missing = self._cells(evidence)
        if missing or not cells:
            return not_tested(f"{evidence.lacking}: {in_words(missing)}" if missing else "nothing was measured yet")
        adjusted = holm([cell.found.p for cell in cells])
        cells = [replace(cell, found=replace(cell.found, p_holm=p)) for cell, p in zip(cells, adjusted, strict=True)]
        if not all(_lower(cell.found) for cell in cells):
            return Judgement("fails", in_detail(cells))
        sure = all(cell.found.p_holm is not None and cell.found.p_holm < SIGNIFICANT for cell in cells)
        return Judgement("holds (significant)" if sure else "holds (not significant)", in_detail(cells))

    def _cells(self, evidence: Evidence) -> tuple[list[Cell], list[str]]:
        """All comparisons, and the pairs without any."""
        cells, missing = list[Cell](), list[str]()
        panels = [panel for panel in evidence.panels if not self.sizes or panel.size in self.sizes]
        for low, high in self.pairs:
            found = [
                cell
                for panel in panels
                for ratio in self._ratios(evidence.ratios(panel))
                if (cell := evidence.compare(panel, low, high, ratio))
            ]
            cells += found
            if not found:
                missing.append(f"{low.label} against {high.label}")
        return cells, missing

    def _ratios(self, measured: Sequence[int]) -> list[int]:
        chosen = [ratio for ratio in measured if self.first <= ratio <= self.last]
        return chosen[-1:] if self.longest else chosen


def _lower(found: Comparison) -> bool:
    return found.gap_nll < 0  # False for NaN


def in_detail(cells: Sequence[Cell]) -> str:
    """For each pair and panel: at how many lengths the first is lower, by how much, and how certain that is."""
    groups: dict[tuple[object, str, str], list[Cell]] = {}
    several = len({cell.panel for cell in cells}) > 1
    for cell in cells:
        groups.setdefault((cell.panel, cell.found.method, cell.found.base), []).append(cell)
    parts = []
    for group in groups.values():
        panel, found = group[0].panel, group[0].found
        where = f" (trained at {panel.train_length} in the paper, {panel.size})" if several else ""
        parts.append(f"{found.method} against {found.base}{where}: {_pair(group)}")
    return "; ".join(parts)


def _pair(group: Sequence[Cell]) -> str:
    lower = [cell for cell in group if _lower(cell.found)]
    words = [f"lower at {len(lower)} of {len(group)} lengths"]
    if lower:
        words.append(f"by {_range(sorted((cell.found.ratio for cell in lower), reverse=True))}")
    if others := [cell for cell in group if not _lower(cell.found)]:
        words.append("not at " + ", ".join(f"{cell.ratio}x ({_against(cell.found)})" for cell in others))
    return ", ".join([*words, _certainty([cell.found for cell in group])])


def _against(found: Comparison) -> str:
    return "not a number" if math.isnan(found.gap_nll) else f"{percent(found.ratio)} higher"


def _range(ratios: Sequence[float]) -> str:
    least, most = percent(ratios[0]), percent(ratios[-1])
    return least if least == most else f"{least} to {most}"


def _certainty(found: Sequence[Comparison]) -> str:
    tested = [each for each in found if each.p_holm is not None]
    if not tested:
        return f"n = {found[0].n}, no test possible{_intervals(found)}"
    worst = max(tested, key=lambda each: each.p_holm or 0.0)
    low, high = (100 * (math.exp(bound) - 1) for bound in worst.ci or (math.nan, math.nan))
    test = f"{worst.test}, n = {worst.n}, Holm-corrected {p_text(worst.p_holm or 0.0)} at worst"
    return f"{test} (change there {low:+.1f} to {high:+.1f}%, 95% interval)"


def _intervals(found: Sequence[Comparison]) -> str:
    """For one seed, at how many lengths the bootstrap interval over windows is below 0."""
    resampled = [each for each in found if each.test == "bootstrap" and each.ci]
    clear = [each for each in resampled if each.ci and each.ci[1] < 0]
    return f", windows of the one seed agree at {len(clear)} of {len(resampled)} lengths" if resampled else ""


# Tasks ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CountAbove:
    """``method`` has a higher accuracy than ``base`` on at least ``at_least`` of the tasks."""

    method: str
    base: str
    tasks: tuple[str, ...]
    at_least: int

    def judge(self, scores: Mapping[tuple[str, str], float]) -> Judgement:
        known = [t for t in self.tasks if (t, self.method) in scores and (t, self.base) in scores]
        above = [t for t in known if scores[t, self.method] > scores[t, self.base]]
        return _count(known, above, self.tasks, self.at_least, f"{self.method} above {self.base}")


@dataclass(frozen=True, kw_only=True)
class BestOn:
    """One of ``methods`` has the highest accuracy of all on at least ``at_least`` of the tasks."""

    methods: tuple[str, ...]
    against: tuple[str, ...]
    tasks: tuple[str, ...]
    at_least: int

    def judge(self, scores: Mapping[tuple[str, str], float]) -> Judgement:
        def best(task: str, names: Sequence[str]) -> float:
            return max(scores[task, name] for name in names)

        known = [t for t in self.tasks if all((t, name) in scores for name in (*self.methods, *self.against))]
        ahead = [t for t in known if best(t, self.methods) > best(t, self.against)]
        return _count(known, ahead, self.tasks, self.at_least, "a DAPE encoding is best")


def _count(known: Sequence[str], true: Sequence[str], tasks: Sequence[str], needed: int, what: str) -> Judgement:
    if len(known) < len(tasks):
        share = f" ({what} on {len(true)} of these)" if known else ""
        return not_tested(f"{len(known)} of {len(tasks)} tasks measured{share}")
    p = sign_test(len(true), len(known))
    others = sorted(set(known) - set(true))
    detail = f"{what} on {len(true)} of {len(known)} tasks{', not on ' + in_words(others) if others else ''}"
    detail += f"; sign test over tasks, n = {len(known)}, {p_text(p)}"
    if len(true) < needed:
        return Judgement("fails", detail)
    return Judgement("holds (significant)" if p < SIGNIFICANT else "holds (not significant)", detail)


def sign_test(successes: int, n: int) -> float:
    """The two-sided p of a sign test."""
    tail = sum(math.comb(n, k) for k in range(max(successes, n - successes), n + 1)) / 2**n
    return min(1.0, 2 * tail)


# Time ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TimeRatio(ABC):
    """A claim on the time of ``method`` divided by that of ``base``, at several model sizes."""

    method: str
    base: str
    sizes: tuple[str, ...]

    def judge(self, milliseconds: Mapping[tuple[str, str], float]) -> Judgement:
        if any((size, name) not in milliseconds for size in self.sizes for name in (self.method, self.base)):
            return not_tested(f"needs the times of {self.method} and {self.base} at {in_words(self.sizes)}")
        ratios = [milliseconds[size, self.method] / milliseconds[size, self.base] for size in self.sizes]
        values = ", ".join(f"{ratio:.3f} ({size})" for ratio, size in zip(ratios, self.sizes, strict=True))
        detail = f"time of {self.method} / time of {self.base}: {values}; no test possible"
        return Judgement("holds (not significant)" if self.holds(ratios) else "fails", detail)

    @abstractmethod
    def holds(self, ratios: Sequence[float]) -> bool: ...


class RatioFalls(TimeRatio):
    """The ratio falls from each model size to the next."""

    def holds(self, ratios: Sequence[float]) -> bool:
        return all(a > b for a, b in pairwise(ratios))


class Faster(TimeRatio):
    """``method`` takes less time than ``base`` at every model size."""

    def holds(self, ratios: Sequence[float]) -> bool:
        return max(ratios) < 1


# Heads ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Heads:
    """There is at least one head of each of these kinds."""

    kinds: tuple[str, ...]
    others: tuple[str, ...]
    """The other kinds, which are counted too."""
    said: str
    """A description of the kinds."""

    def judge(self, counts: Mapping[str, int]) -> Judgement:
        if not counts:
            return not_tested("no bias maps")
        detail = f"{self.said}: " + ", ".join(f"{counts.get(kind, 0)} {kind}" for kind in (*self.kinds, *self.others))
        enough = all(counts.get(kind, 0) > 0 for kind in self.kinds)
        return Judgement("holds (not significant)" if enough else "fails", detail)


Check = Below | CountAbove | BestOn | RatioFalls | Faster | Heads
