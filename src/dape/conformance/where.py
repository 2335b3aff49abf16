"""Where an implementation is off, in sentences: cell, heads, lags, lengths, gradients."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dape.conformance.compare import Compared

SHOWN_LAGS = 5


def places(compared: Sequence[Compared]) -> list[str]:
    ran = [each for each in compared if not each.skipped]
    wrong = [each for each in ran if each.off > each.tolerance]
    lines = [_worst(max(wrong, key=lambda each: each.off))] if wrong else []
    if wrong and wrong[0].case.x is None:
        lines += [_depends_on(ran, wrong), *(_heads_and_lags(each) for each in wrong)]
    for each in ran:
        lines += _others(each)
    return [line for line in lines if line]


def _worst(each: Compared) -> str:
    error, case = each.error, each.case
    at = [int(n) for n in torch.unravel_index(error.argmax(), error.shape)]
    assert each.found is not None
    values = f"it gives {each.found[tuple(at)]:.6g}, right is {each.expected[tuple(at)]:.6g}"
    if case.x is not None:
        return f"off: in the case {case.name}, most at position {int(case.q_pos[at[0]])}, channel {at[1]}: {values}"
    head, row, column = at
    i, j = int(case.q_pos[row]), int(case.k_pos[column])
    return f"off: in the case {case.name}, most at head {head}, query {i}, key {j} (lag {i - j}): {values}"


def _depends_on(ran: Sequence[Compared], wrong: Sequence[Compared]) -> str:
    """What all cases with errors have in common and no other case has."""
    off, right = {each.case.name for each in wrong}, {each.case.name for each in ran} - {e.case.name for e in wrong}
    if off == {"heads"}:
        return "Heads: right at 2 and 4 heads, off at 12, which is no power of two."
    if off <= {"long", "far"} and "short" in right:
        return "Lengths: right within the training length, off beyond it."
    if off == {"both"}:
        return "Mask: right with the causal mask, off without."
    if off == {"clamp"}:
        return "Parameters: right within their range, off where they are outside of it."
    return ""


def _heads_and_lags(each: Compared) -> str:
    off, case = each.error > each.tolerance, each.case
    heads = off.flatten(1).any(1).nonzero().flatten().tolist()
    cells = off.any(0)
    lags = sorted(set(case.lag[cells].tolist()))
    seen = sorted(set(case.lag[case.visible].tolist()))
    return (
        f"{case.name}: {_of('head', heads, range(case.dims.num_heads))}; {_of('lag', lags, seen)}{_growth(each, lags)}"
    )


def _of(what: str, some: Sequence[int], every: Iterable[int]) -> str:
    every = list(every)
    right = [n for n in every if n not in some]
    if not right:
        return f"all {what}s"
    if len(some) == 1:
        return f"{what} {some[0]} only"
    if len(right) == 1:
        return f"all {what}s but {right[0]}"
    if some == [n for n in every if n >= some[0]]:
        return f"{what}s from {some[0]} on"
    return f"{what}s {', '.join(map(str, some[:12]))}{' ...' if len(some) > 12 else ''}"


def _growth(each: Compared, lags: Sequence[int]) -> str:
    """The error at a few lags."""
    chosen = (
        lags if len(lags) <= SHOWN_LAGS else [lags[n * (len(lags) - 1) // (SHOWN_LAGS - 1)] for n in range(SHOWN_LAGS)]
    )
    by_lag = [f"{lag}: {_largest(each.error, each.case.lag == lag):.1e}" for lag in chosen]
    return f" (off by, at lag {', '.join(by_lag)})" if len(chosen) > 1 else ""


def _largest(error: Tensor, cells: Tensor) -> float:
    return error[:, cells].max().item()


def _others(each: Compared) -> list[str]:
    lines = []
    if each.hidden is not None:
        lines += [
            f"{each.case.name}: hidden cells hold values that no mask leaves (NaN, or above 1000): they would win"
        ]
    if each.leaks:
        lines += [f"{each.case.name}: changing the last key moves earlier rows by {each.leak:.1e}: the future leaks in"]
    if each.off <= each.tolerance and each.wrong_gradients:
        names = ", ".join(f"{n} by {off:.1e}" for n, off in each.wrong_gradients.items())
        lines += [f"{each.case.name}: the values are right and gradients are off: {names}"]
    return lines
