"""The catalogue of tasks: one line each. This module imports no numpy: the command line imports it."""

import difflib
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dape.errors import UsageError

if TYPE_CHECKING:
    from dape.tasks.chomsky.base import Task

Compat = Literal["", "deepmind"]
"""``deepmind`` reproduces DeepMind's programs where they differ from their description."""
Level = Literal["regular", "context-free", "context-sensitive"]


@dataclass(frozen=True)
class Entry:
    name: str
    target: str
    """``module:Class`` within dape.tasks.chomsky."""
    level: Level
    title: str
    """The name in the paper's table."""
    chance: float
    """Accuracy of guessing, as the papers print it (nominal where three classes are possible)."""
    unordered: bool = False
    """Whether the answer is independent of the order of the input."""
    in_paper: bool = True

    def load(self, compat: Compat = "") -> "Task":
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(f"dape.tasks.chomsky.{module}"), name)(compat=compat)


_LINES = [
    Entry("even_pairs", "even_pairs:EvenPairs", "regular", "Even Pairs", 0.5),
    Entry("modular_arithmetic", "modular_arithmetic:ModularArithmetic", "regular", "Modular Arithmetic (Simple)", 0.2),
    Entry("parity_check", "parity_check:ParityCheck", "regular", "Parity Check", 0.5, unordered=True),
    Entry("cycle_navigation", "cycle_navigation:CycleNavigation", "regular", "Cycle Navigation", 0.2, unordered=True),
    Entry("stack_manipulation", "stack_manipulation:StackManipulation", "context-free", "Stack Manipulation", 0.5),
    Entry("reverse_string", "reverse_string:ReverseString", "context-free", "Reverse String", 0.5),
    Entry("modular_arithmetic_brackets", "brackets:Brackets", "context-free", "Modular Arithmetic", 0.2),
    Entry("solve_equation", "solve_equation:SolveEquation", "context-free", "Solve Equation", 0.2),
    Entry("duplicate_string", "duplicate_string:DuplicateString", "context-sensitive", "Duplicate String", 0.5),
    Entry("missing_duplicate_string", "missing_duplicate:MissingDuplicate", "context-sensitive", "Missing Duplicate", 0.5),
    Entry("odds_first", "odds_first:OddsFirst", "context-sensitive", "Odds First", 0.5),
    Entry("binary_addition", "binary_addition:BinaryAddition", "context-sensitive", "Binary Addition", 0.5),
    Entry("binary_multiplication", "binary_multiplication:BinaryMultiplication", "context-sensitive", "Binary Multiplication", 0.5, in_paper=False),
    Entry("compute_sqrt", "compute_sqrt:ComputeSqrt", "context-sensitive", "Compute Sqrt", 0.5),
    Entry("bucket_sort", "bucket_sort:BucketSort", "context-sensitive", "Bucket Sort", 0.2, unordered=True),
]  # fmt: skip

TASKS: dict[str, Entry] = {entry.name: entry for entry in _LINES}
PAPER_TASKS = tuple(name for name, entry in TASKS.items() if entry.in_paper)


def find(name: str) -> Entry:
    """The task of that name, or the only one whose name begins with it. Raises UsageError, which suggests a name."""
    if name in TASKS:
        return TASKS[name]
    start = name.lower().replace("-", "_")
    begun = [entry for known, entry in TASKS.items() if start and known.startswith(start)]
    if len(begun) == 1:
        return begun[0]
    near = [entry.name for entry in begun] or difflib.get_close_matches(name.lower(), TASKS, n=1)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UsageError(f"{name!r} is not a task.{hint} There are: {', '.join(TASKS)}")


def load(name: str, compat: Compat = "") -> "Task":
    return find(name).load(compat)
