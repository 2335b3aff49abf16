"""Compute the parts of a batch at once, in a thread for each.

Two threads with examples of their own are faster than two threads within every operation: the operations of a small
model are too small to divide.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

T = TypeVar("T")


class SideBySide:
    """Calls a function in as many threads as torch may use. They run in parallel, as torch releases Python's GIL."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._workers = 0

    def __call__(self, work: Callable[[int], T], count: int) -> list[T]:
        """``[work(0), ..., work(count - 1)]``"""
        allowed = torch.get_num_threads()
        workers = min(allowed, count)
        if workers <= 1:
            return [work(index) for index in range(count)]

        def with_own_threads(index: int) -> T:
            torch.set_num_threads(allowed // workers)
            return work(index)

        started = [self._threads(workers).submit(with_own_threads, index) for index in range(count)]
        wait(started)  # for all, even if one has failed: each sets the number of threads
        torch.set_num_threads(allowed)
        return [each.result() for each in started]

    def _threads(self, workers: int) -> ThreadPoolExecutor:
        """The pool, kept from step to step."""
        if self._pool is None or self._workers != workers:
            self._pool, self._workers = ThreadPoolExecutor(workers), workers
        return self._pool
