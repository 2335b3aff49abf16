"""The parts of a batch side by side, a thread for each.

Two threads that take their own examples through the whole model are faster than two that share every operation: a small
model's operations are too small to share.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

T = TypeVar("T")


class SideBySide:
    """Calls a function on as many threads as torch has at the time. They compute at once: torch lets go of Python."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._workers = 0

    def __call__(self, work: Callable[[int], T], count: int) -> list[T]:
        """``[work(0), ..., work(count - 1)]``"""
        allowed = torch.get_num_threads()
        workers = min(allowed, count)
        if workers <= 1:
            return [work(index) for index in range(count)]

        def alone(index: int) -> T:
            torch.set_num_threads(allowed // workers)
            return work(index)

        started = [self._threads(workers).submit(alone, index) for index in range(count)]
        wait(started)  # for all of them, whatever happened: each sets the number of threads
        torch.set_num_threads(allowed)
        return [each.result() for each in started]

    def _threads(self, workers: int) -> ThreadPoolExecutor:
        """Kept from step to step."""
        if self._pool is None or self._workers != workers:
            self._pool, self._workers = ThreadPoolExecutor(workers), workers
        return self._pool
