"""How numbers are written in tables, figures and sentences."""

import math
from collections.abc import Sequence

HIGHER_IS_BETTER = frozenset({"accuracy"})


def as_text(value: float, metric: str = "perplexity") -> str:
    """Four digits of a perplexity, whatever its size; accuracy in percent."""
    if not math.isfinite(value):
        return str(value)
    if metric == "accuracy":
        return f"{100 * value:.1f}%"
    if abs(value) >= 1e5:
        return f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.{decimals(value)}f}"


def decimals(value: float) -> int:
    """After the point, so that four digits are shown; ten is 10.00 also when it came from 9.9996."""
    size = abs(value)
    return 3 if size < 9.9995 else 2 if size < 99.995 else 1 if size < 999.95 else 0


def deviation(std: float, mean: float, metric: str = "perplexity") -> str:
    """To as many places as the mean it stands beside."""
    if metric == "accuracy" or abs(mean) >= 1e5:
        return as_text(std, metric)
    return f"{std:.{decimals(mean)}f}"


def percent(ratio: float) -> str:
    """By how much a ratio differs from one, without sign."""
    if math.isnan(ratio):
        return "an unknown amount"
    change = 100 * abs(ratio - 1)
    if math.isinf(change) or change >= 1e5:
        return "more than 100000%"
    if change >= 100:
        return f"{change:.0f}%"
    if change >= 0.1:
        return f"{change:.1f}%"
    return f"{change:.1g}%" if change >= 0.001 else "less than 0.001%"


def p_text(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def runs_of(lengths: Sequence[int], among: Sequence[int]) -> str:
    """Lengths as ranges of those measured: 64 to 512, 2048."""
    places = {length: place for place, length in enumerate(among)}
    groups: list[list[int]] = []
    for length in sorted(lengths):
        if groups and places[length] == places[groups[-1][-1]] + 1:
            groups[-1].append(length)
        else:
            groups.append([length])
    written = [_range(group) for group in groups]
    if len(written) == 1:
        return written[0]
    return f"{', '.join(written[:-1])} and {written[-1]}"


def _range(group: Sequence[int]) -> str:
    return str(group[0]) if len(group) == 1 else f"{group[0]} {'to' if len(group) > 2 else 'and'} {group[-1]}"


def count(number: float, what: str) -> str:
    """1 run, 2 runs, 10,000 runs, 1.5 runs."""
    ending = "" if number == 1 else "es" if what.endswith("ss") else "s"
    return f"{number:,} {what}{ending}" if isinstance(number, int) else f"{number:g} {what}{ending}"
