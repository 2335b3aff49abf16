"""Products of parameters that would take minutes: a share of them in the fast tier, the others in the slow one."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


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
