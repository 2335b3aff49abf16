"""Numbers and lists as text, for tables, figures and sentences."""

import math
from collections.abc import Sequence

HIGHER_IS_BETTER = frozenset({"accuracy"})


def as_text(value: float, metric: str = "perplexity") -> str:
    """A perplexity with four digits; accuracy in percent."""
    if not math.isfinite(value):
        return str(value)
    if metric == "accuracy":
        return f"{100 * value:.1f}%"
    if abs(value) >= 1e5:
        return f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.{decimals(value)}f}"


def decimals(value: float) -> int:
    """Decimals with which four digits are shown: 9.9996 has two, as it is written 10.00."""
    size = abs(value)
    return 3 if size < 9.9995 else 2 if size < 99.995 else 1 if size < 999.95 else 0


def deviation(std: float, mean: float, metric: str = "perplexity") -> str:
    """A standard deviation, with as many decimals as its mean."""
    if metric == "accuracy" or abs(mean) >= 1e5:
        return as_text(std, metric)
    return f"{std:.{decimals(mean)}f}"


def percent(ratio: float) -> str:
    """The difference of a ratio from one, in percent and without sign."""
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
    """``lengths`` as ranges of those measured, ``among``: 64 to 512 and 2048."""
    index = {length: number for number, length in enumerate(among)}
    groups: list[list[int]] = []
    for length in sorted(lengths):
        if groups and index[length] == index[groups[-1][-1]] + 1:
            groups[-1].append(length)
        else:
            groups.append([length])
    return in_words([_range(group) for group in groups])


def in_words(items: Sequence[object]) -> str:
    """a, b and c"""
    names = [str(item) for item in items]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def _range(group: Sequence[int]) -> str:
    return str(group[0]) if len(group) == 1 else f"{group[0]} {'to' if len(group) > 2 else 'and'} {group[-1]}"


def count(number: float, what: str) -> str:
    """1 run, 2 runs, 10,000 runs, 1.5 runs."""
    ending = "" if number == 1 else "es" if what.endswith("ss") else "s"
    return f"{number:,} {what}{ending}" if isinstance(number, int) else f"{number:g} {what}{ending}"
