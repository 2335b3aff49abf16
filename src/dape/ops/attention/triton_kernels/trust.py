"""Whether the Triton kernels may be used for a call: on first use of a class they are compared with the definition.

A check runs in a new thread. Grad mode, inference mode, autocast, the default device, dispatch modes and hooks on saved
tensors belong to the calling thread, so that they do not affect the check, and the check does not change them.
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
from dape.ops.attention.triton_kernels.remembered import Machine, Outcome, machine_of, read_outcomes, write_outcome
from dape.ops.attention.triton_kernels.shape_class import ShapeClass
from dape.ops.switch import SWITCH, WHY_OFF, kernels_mode

T = TypeVar("T")
ADVICE = "`dape doctor --gpu` writes a report to send with a bug report"


class _Memory:
    """The outcomes that this process knows. Read without a lock, written with one."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[torch.device, ShapeClass], Outcome] = {}
        self.files: dict[Machine, dict[str, Outcome]] = {}
        self.said: set[str] = set()
        self.writing = threading.Lock()


_memory = _Memory()
_asking = threading.local()


def verdict(shape: ShapeClass, device: torch.device, *, tracing: bool = False) -> Verdict:
    """Whether a call of that class may use the kernels.

    With the default of ``DAPE_KERNELS``, an unknown class is checked now, which takes as long as compiling its kernels.
    While ``tracing``, or while a CUDA graph is captured, nothing is checked or remembered, and the answer is no.
    """
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


@torch.compiler.assume_constant_result  # not traced
def judged(device: torch.device, tracing: bool, **fields: Any) -> tuple[bool, str]:
    """:func:`verdict` from and to plain values, for torch.compile."""
    found = verdict(ShapeClass(**fields), device, tracing=tracing)
    return found.ok, found.words


@contextlib.contextmanager
def only_remembered() -> Iterator[None]:
    """In this context, the thread's verdicts use only earlier checks, and there are no warnings."""
    before = getattr(_asking, "only_remembered", False)
    _asking.only_remembered = True
    try:
        yield
    finally:
        _asking.only_remembered = before


def forget() -> None:
    """Forget the outcomes of this process. Files stay."""
    global _memory
    _memory = _Memory()


def _why_not_now(device: torch.device, tracing: bool) -> str | None:
    if getattr(_asking, "only_remembered", False):
        return "no check is made now"
    if tracing:
        return "no check is made while torch.compile traces"
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "no check is made while a CUDA graph is captured"
    return None


def _not_now(shape: ShapeClass, busy: str) -> Verdict:
    words = f"the Triton kernels have not been checked on this GPU for {shape}, and {busy}"
    _say_once(f"{words}. Make such a call once before (forward is enough), or set {SWITCH}=trust")
    return Verdict(False, words)


def _say_once(message: str) -> None:
    if message not in _memory.said and not getattr(_asking, "only_remembered", False):
        _memory.said.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def _known_or_checked(shape: ShapeClass, device: torch.device, *, check: bool) -> Outcome | None:
    """The outcome of a class, or None if it is unknown and ``check`` is False. Other threads wait meanwhile."""
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
    """Check a class again, and remember the outcome."""
    with _memory.writing:
        outcome = _remembered(shape, machine_of(device), checked(shape, device))
        _memory.outcomes[device, shape] = outcome
        return outcome


def checked(shape: ShapeClass, device: torch.device) -> Outcome | Exception:
    """The outcome of a check, or the exception of compiling or launching."""

    def work() -> Outcome | Exception:
        from dape.ops.attention.triton_kernels.verify import findings

        try:
            with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                found = findings(shape, device)
        except Exception as error:  # compilers raise many kinds of errors, none of which may end the program
            return error
        worst = max(found, key=lambda each: each.error / each.bound)
        if all(each.ok for each in found):
            part = f"largest error {worst.error / worst.bound:.2g} of what is allowed"
            return Outcome(True, f"the Triton kernels were verified against the reference on this GPU ({part})")
        wrong = f"{worst}, and {sum(not each.ok for each in found)} of {len(found)} comparisons fail"
        return Outcome(False, f"the Triton kernels compute {shape} wrongly on this GPU: {wrong}")

    return _in_its_own_thread(work)


def _remembered(shape: ShapeClass, machine: Machine, outcome: Outcome | Exception) -> Outcome:
    """The outcome, written to the machine's file. Exceptions are not written: they may have other causes than versions,
    such as a missing compiler, a full disk or too little memory."""
    if isinstance(outcome, Exception):
        words = " ".join(f"{type(outcome).__name__}: {outcome}".split())[:500]
        return Outcome(False, f"the Triton kernels could not be compiled or launched for {shape} ({words})")
    try:
        write_outcome(machine, str(shape), outcome)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory for the cache
        return Outcome(outcome.ok, f"{outcome.words}; for this process only ({error})")
    return outcome


def _in_its_own_thread(work: Callable[[], T]) -> T:
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="dape-check") as pool:
        return pool.submit(work).result()
