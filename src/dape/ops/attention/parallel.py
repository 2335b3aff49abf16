"""Threads over tiles.

A tile's operations are too short to be split across cores efficiently (measured: two threads in an operation gain
little, two tiles in parallel gain 2x). On a CPU, each of torch's threads therefore computes whole tiles. The assignment
is fixed in advance: the same number of threads gives the same bits.
"""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from dape.modules import without_autocast

CPU = torch.device("cpu")
Job = TypeVar("Job")
Result = TypeVar("Result")


def run_shares(
    work: Callable[[Sequence[Job]], Result], shares: Sequence[Sequence[Job]], *, device: torch.device = CPU
) -> list[Result]:
    """Apply ``work`` to every share, each in its own single-threaded worker. Results are in the order of shares."""
    inference = torch.is_inference_mode_enabled()

    def task(share: Sequence[Job]) -> Result:
        # Modes are set per thread: inference mode as in the caller; no autocast, which would round.
        with torch.inference_mode(inference), torch.no_grad(), without_autocast(device):
            return work(share)

    if len(shares) == 1:
        return [task(shares[0])]
    futures = [_pool(torch.get_num_threads()).submit(task, share) for share in shares]
    return [future.result() for future in futures]


def balanced_shares(jobs: Sequence[Job], cost: Callable[[Job], float], workers: int) -> list[list[Job]]:
    """Assign jobs to workers, the longest first, each to the least loaded worker. Deterministic."""
    shares: list[list[Job]] = [[] for _ in range(max(1, min(workers, len(jobs))))]
    load = [0.0] * len(shares)
    for job in sorted(jobs, key=cost, reverse=True):
        lightest = load.index(min(load))
        shares[lightest].append(job)
        load[lightest] += cost(job)
    return shares


@functools.lru_cache(maxsize=1)
def _pool(workers: int) -> ThreadPoolExecutor:
    """Worker threads whose operations stay on one core."""
    started = threading.Barrier(workers + 1)

    def become_single_threaded() -> None:
        # Torch sets a thread's count when it is first asked for, which would undo the next line: ask now.
        torch.get_num_threads()
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(workers, thread_name_prefix="dape", initializer=become_single_threaded)
    for _ in range(workers):
        pool.submit(lambda: None)
    started.wait()
    # set_num_threads also sets the default for later threads: restore it.
    torch.set_num_threads(workers)
    return pool


if hasattr(os, "register_at_fork"):
    # A forked child inherits the pool object but none of its threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)
