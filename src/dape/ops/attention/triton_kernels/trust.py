"""Whether the Triton kernels may be used for a call: on first use of a class they are compared with the definition.

A check runs in a thread of its own. Whether gradients are wanted, inference mode, autocast, the default device,
dispatch modes and hooks on saved tensors belong to the thread that calls: none of them reaches it, and it changes none.
"""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from dape.ops.attention.engines.base import Verdict
from dape.ops.attention.triton_kernels.interpreted import INTERPRETED
from dape.ops.attention.triton_kernels.remembered import (
    Machine,
    Outcome,
    machine_of,
    read_outcomes,
    write_outcome,
)
from dape.ops.attention.triton_kernels.shape_class import ShapeClass
from dape.ops.switch import SWITCH, WHY_OFF, kernels_mode

T = TypeVar("T")
ADVICE = "`dape doctor --gpu` writes a report to send with a bug report"


class _Memory:
    """What this process knows. Read without a lock, written under one."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[torch.device, ShapeClass], Outcome] = {}
        self.files: dict[Machine, dict[str, Outcome]] = {}
        self.said: set[str] = set()
        self.writing = threading.Lock()


_memory = _Memory()
_asking = threading.local()


def verdict(shape: ShapeClass, device: torch.device, *, tracing: bool = False) -> Verdict:
    """For a call of that class. Unless ``DAPE_KERNELS`` says otherwise a class that is not known yet is checked now,
    which takes as long as compiling its kernels. Not while ``tracing``, nor while a CUDA graph is captured: then the
    answer is no, nothing is remembered, and a later call asks again."""
    mode = kernels_mode()
    if mode == "off":
        return Verdict(False, WHY_OFF)
    if mode == "trust":
        return Verdict(True, f"the Triton kernels are trusted unchecked ({SWITCH}=trust)")
    if INTERPRETED:
        return Verdict(True, "the Triton kernels are interpreted, which is for tests")
    outcome = _memory.outcomes.get((device, shape))
    if outcome is None:
        busy = _why_not_now(device, tracing)
        outcome = _known_or_checked(shape, device, check=busy is None)
        if outcome is None:
            return _not_now(shape, str(busy))
    if not outcome.ok:
        _say_once(f"dape's Triton kernels are not used, attention will be slower: {outcome.words}. {ADVICE}")
        return Verdict(False, outcome.words)
    return Verdict(True, outcome.words)


@torch.compiler.assume_constant_result  # and traced no further
def judged(device: torch.device, tracing: bool, **fields: Any) -> tuple[bool, str]:
    """:func:`verdict` for the fields of a class, in plain values."""
    found = verdict(ShapeClass(**fields), device, tracing=tracing)
    return found.ok, found.words


@contextlib.contextmanager
def only_remembered() -> Iterator[None]:
    """Within, this thread's verdicts rest on earlier checks alone, and nothing is warned about."""
    before = getattr(_asking, "only_remembered", False)
    _asking.only_remembered = True
    try:
        yield
    finally:
        _asking.only_remembered = before


def forget() -> None:
    """As in a process that has checked nothing. Files stay."""
    global _memory
    _memory = _Memory()


def _why_not_now(device: torch.device, tracing: bool) -> str | None:
    if getattr(_asking, "only_remembered", False):
        return "none is made now"
    if tracing:
        return "no check is made while torch.compile traces"
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "no check is made while a CUDA graph is captured"
    return None


def _not_now(shape: ShapeClass, busy: str) -> Verdict:
    words = f"the Triton kernels have not been checked on this GPU for {shape}, and {busy}"
    _say_once(f"{words}. Make such a call once before that (forward is enough), or set {SWITCH}=trust")
    return Verdict(False, words)


def _say_once(message: str) -> None:
    if message not in _memory.said and not getattr(_asking, "only_remembered", False):
        _memory.said.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def _known_or_checked(shape: ShapeClass, device: torch.device, *, check: bool) -> Outcome | None:
    """None if nothing is known and nothing may be checked. Others who ask meanwhile wait."""
    memory = _memory
    with memory.writing:
        outcome = memory.outcomes.get((device, shape))
        if outcome is not None:
            return outcome
        machine = machine_of(device)
        if machine not in memory.files:
            memory.files[machine] = {}
            memory.files[machine] |= read_outcomes(machine)
        outcome = memory.files[machine].get(str(shape))
        if outcome is None and check:
            outcome = _remembered(shape, machine, checked(shape, device))
        if outcome is not None:
            memory.outcomes[device, shape] = outcome
        return outcome


def recheck(shape: ShapeClass, device: torch.device) -> Outcome:
    """Check a class whatever is known of it, and remember the outcome."""
    with _memory.writing:
        outcome = _remembered(shape, machine_of(device), checked(shape, device))
        _memory.outcomes[device, shape] = outcome
        return outcome


def checked(shape: ShapeClass, device: torch.device) -> Outcome | Exception:
    """The outcome, or what compiling or launching raised."""

    def work() -> Outcome | Exception:
        from dape.ops.attention.triton_kernels.verify import findings

        try:
            with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                found = findings(shape, device)
        except Exception as error:  # a compiler has errors of many kinds, and none of them may end the program
            return error
        worst = max(found, key=lambda each: each.error / each.bound)
        if all(each.ok for each in found):
            part = f"largest error {worst.error / worst.bound:.2g} of what is allowed"
            return Outcome(True, f"the Triton kernels were verified against the reference on this GPU ({part})")
        wrong = f"{worst}, and {sum(not each.ok for each in found)} of {len(found)} comparisons fail"
        return Outcome(False, f"the Triton kernels compute {shape} wrongly on this GPU: {wrong}")

    return _in_its_own_thread(work)


def _remembered(shape: ShapeClass, machine: Machine, outcome: Outcome | Exception) -> Outcome:
    """Exceptions stay in the process: a missing compiler, a full disk or too little memory is nothing that versions
    tell."""
    if isinstance(outcome, Exception):
        words = " ".join(f"{type(outcome).__name__}: {outcome}".split())[:500]
        return Outcome(False, f"the Triton kernels could not be compiled or launched for {shape} ({words})")
    try:
        write_outcome(machine, str(shape), outcome)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home for the cache
        return Outcome(outcome.ok, f"{outcome.words}; for this process only ({error})")
    return outcome


def _in_its_own_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="dape-check") as pool:
        return pool.submit(work).result()
