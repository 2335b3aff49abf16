"""Timing several candidates fairly on a machine that other work shares."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

Name = TypeVar("Name")


def interleaved(
    candidates: Mapping[Name, Callable[[], object]],
    repeats: int,
    *,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[Name, float]]:
    """Yield (name, seconds) for ``repeats`` timed calls of every candidate.

    Every round calls each candidate once and starts one candidate further, so that noise, heat and what the previous
    call left in the caches hit all alike. Untimed rounds come first. Results come one by one: whoever stops early
    keeps what was measured.
    """
    names = list(candidates)
    for name in names * warm_up:
        candidates[name]()
    for round_ in range(repeats):
        first = round_ % max(len(names), 1)
        for name in names[first:] + names[:first]:
            start = clock()
            candidates[name]()
            yield name, clock() - start
