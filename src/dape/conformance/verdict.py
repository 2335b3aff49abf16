"""The result of a comparison: the error of every case, its location, and the known mistakes that explain it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dape.conformance.compare import Compared
from dape.conformance.make import hide, softmax
from dape.conformance.mistakes import Mistake, Setting, mistakes_of
from dape.conformance.recipes import reference
from dape.conformance.where import places

MOSTLY = 0.1
"""If no mistake explains the whole difference, one that leaves less than this part of it is named."""


@dataclass(frozen=True)
class Likely:
    mistake: Mistake
    left: float
    """The error that the mistake does not explain, divided by the largest entry."""
    whole: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of :func:`dape.verify`. ``print`` describes it in words; in a condition it is ``right``."""

    target: str
    encoding: str
    source: str
    """The source of the expected values."""
    tolerance: float
    compared: list[Compared] = field(default_factory=list)
    raised: str | None = None
    """What the implementation raised, and where."""
    likely: list[Likely] = field(default_factory=list)

    @property
    def right(self) -> bool:
        ran = [each for each in self.compared if not each.skipped]
        return self.raised is None and bool(ran) and all(each.right for each in ran)

    def __bool__(self) -> bool:
        return self.right

    @property
    def off(self) -> float:
        """The largest error of all cases, divided by the largest entry."""
        return max((each.off for each in self.compared), default=0.0)

    def __str__(self) -> str:
        lines = [f"{self.target} as {self.encoding}, against {self.source}", ""]
        if self.compared:
            lines += [*_table(self.compared), ""]
        if self.raised is not None:
            lines += [f"While {self.raised}"]
        elif self.right:
            lines += [f"right: off by at most {_number(self.off)} of the largest entry (allowed {self.tolerance:g})"]
            if self._without_gradients:
                lines += ["gradients were not compared"]
        else:
            lines += [*places(self.compared), *self._looks()]
        return "\n".join(lines)

    @property
    def _without_gradients(self) -> bool:
        return any(not each.gradients and each.case.gradients for each in self.compared if not each.skipped)

    def _looks(self) -> list[str]:
        if not self.likely:
            return ["It looks like none of the known mistakes."]
        return [
            f"It looks like this: {each.mistake.says}."
            + (f" That explains all of it, to {_number(each.left)}." if each.whole else " That explains most of it.")
            for each in self.likely
        ]

    def as_record(self) -> dict[str, Any]:
        """The verdict as plain data, for JSON."""
        return {
            "target": self.target,
            "encoding": self.encoding,
            "source": self.source,
            "right": self.right,
            "tolerance": self.tolerance,
            "off": _finite(self.off),
            "raised": self.raised,
            "mistakes": [
                {
                    "name": each.mistake.name,
                    "says": each.mistake.says,
                    "left": _finite(each.left),
                    "explains_all": each.whole,
                }
                for each in self.likely
            ],
            "cases": [_record(each) for each in self.compared],
        }


def _record(each: Compared) -> dict[str, Any]:
    facts = {"case": each.case.name, "heads": each.case.dims.num_heads, "length": each.case.length}
    if each.skipped:
        return facts | {"skipped": each.skipped}
    gradients = {name: _finite(off) for name, off in each.gradients.items()}
    measured = {"off": _finite(each.off), "gradients": gradients, "leak": _finite(each.leak)}
    return facts | {"kind": each.kind, "right": each.right} | measured


def _finite(value: float) -> float | None:
    """``value``, or None for infinity and NaN, which JSON does not have."""
    return value if math.isfinite(value) else None


def _table(compared: Sequence[Compared]) -> list[str]:
    rows = [("case", "length", "trained", "heads", "off by", "gradients off by", "")]
    for each in compared:
        case = each.case
        facts = (case.name, str(case.length), str(case.dims.train_length), str(case.dims.num_heads))
        if each.skipped:
            rows.append((*facts, "-", "-", f"left out: {each.skipped}"))
        else:
            gradients = _number(max(each.gradients.values())) if each.gradients else "-"
            rows.append((*facts, _number(each.off), gradients, "" if each.right else "OFF"))
    widths = [max(len(row[n]) for row in rows) for n in range(6)]
    return ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[6]]).rstrip() for row in rows]


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


# Which mistake -------------------------------------------------------------------------------------------------------


def likely_mistakes(name: str, compared: Sequence[Compared], tolerance: float) -> list[Likely]:
    """The mistakes that explain every case. If there is none, the best one, unless it leaves too much unexplained."""
    wrong = [each for each in compared if not each.skipped]
    settings = {each.case.name: Setting(each.case, reference(name, each.case)) for each in wrong}
    judged = []
    for mistake in mistakes_of(name):
        with torch.no_grad():
            left = [_left(mistake, each, settings[each.case.name]) for each in wrong]
        if any(x is not None for x in left):
            judged.append((max(_or_own(x, each) for x, each in zip(left, wrong, strict=True)), mistake))
    judged.sort(key=lambda pair: pair[0])
    whole = {m.says: Likely(m, left, True) for left, m in judged if left <= tolerance}
    if whole:
        return list(whole.values())
    off = max(each.off for each in wrong)
    return [Likely(m, left, False) for left, m in judged[:1] if left <= MOSTLY * off < torch.inf]


def _or_own(left: float | None, each: Compared) -> float:
    """The part of a case's error that the mistake does not explain: all of it if the mistake cannot happen there."""
    return each.off if left is None else left


def _left(mistake: Mistake, each: Compared, setting: Setting) -> float | None:
    """The distance of the values found from those of the mistake, divided by the largest entry."""
    wrong = mistake.output(setting)
    found = each.found
    if wrong is None or found is None:
        return None
    if each.gives_weights:
        wrong = softmax(wrong, each.case) if mistake.masks else wrong.softmax(-1)
    elif each.case.x is None and mistake.masks:
        if each.hidden is not None:
            return torch.inf
        wrong, found = hide(wrong, each.case), hide(found, each.case)
    return _distance(found, wrong, each)


def _distance(found: Tensor, wrong: Tensor, each: Compared) -> float:
    """Divided by each entry itself if hidden cells have huge values. NaN equals NaN."""
    same = (found == wrong) | (found.isnan() & wrong.isnan())
    scale = wrong.abs().clamp(min=each.scale) if each.hidden is not None else each.scale
    return (
        torch.where(same, 0.0, (found - wrong).abs() / scale).nan_to_num(nan=torch.inf, posinf=torch.inf).max().item()
    )
