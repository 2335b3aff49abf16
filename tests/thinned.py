"""Products of parameters that would take minutes: a share of them in the fast tier, the others in the slow one."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def few(count: int, values: Iterable[Any]) -> list[Any]:
    """Values, or rows of them, of which ``count`` from all over the list are not slow."""
    every = list(values)
    fast = {place * len(every) // count for place in range(count)}
    rows = (value if isinstance(value, tuple) else (value,) for value in every)
    return [pytest.param(*row, marks=() if n in fast else pytest.mark.slow) for n, row in enumerate(rows)]


def thinned(share: int, *columns: Sequence[Any]) -> list[Any]:
    """Rows for ``pytest.mark.parametrize``: all combinations, of which one in ``share`` is not slow. Those are on
    diagonals, so that every value of every column is among them. Tuples in a column are several parameters."""
    rows, fast = [], set()
    for chosen in itertools.product(*(list(enumerate(column)) for column in columns)):
        places = [place for place, _ in chosen]
        values = [x for _, value in chosen for x in (value if isinstance(value, tuple) else (value,))]
        if is_fast := sum(places) % share == 0:
            fast.update(enumerate(places))
        rows.append(pytest.param(*values, marks=() if is_fast else pytest.mark.slow))
    missing = {(n, place) for n, column in enumerate(columns) for place in range(len(column))} - fast
    if missing:
        raise ValueError(f"one in {share} leaves out values altogether (column, place): {sorted(missing)}")
    return rows
