"""Peak memory of one call, measured in a fresh process.

A process keeps memory that its libraries, thread pools and earlier calls allocated. Each measurement therefore runs in
a child process. A megabyte is 10^6 bytes here.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dape.machine import peak_bytes

MB = 10**6


class MeasurementError(RuntimeError):
    """The child process failed."""


def peak_extra_mb(target: str, **arguments: Any) -> float:
    """The most memory that one call held beyond what existed before it, in MB. Raises MeasurementError.

    ``target`` is ``"module:function"``. In a child process the function receives ``arguments`` (through JSON), creates
    the inputs, warms up what should not be counted, and returns the call to measure.
    """
    child = subprocess.run(
        [sys.executable, "-m", "dape.bench.memory", target],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        # The child finds modules where the parent does, also when dape is run from a source tree.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )
    if child.returncode < 0:
        raise MeasurementError(f"killed by signal {-child.returncode} (out of memory?)")
    if child.returncode > 0:
        last_words = child.stderr.strip().splitlines()[-1:] or ["no message"]
        raise MeasurementError(last_words[0])
    return float(child.stdout.strip().splitlines()[-1])


def extra_bytes(call: Callable[[], object]) -> int:
    """Peak memory of this process during ``call``, beyond what it held before."""
    _release_unused()
    _reset_peak()
    before = peak_bytes()
    call()
    return max(peak_bytes() - before, 0)


def _release_unused() -> None:
    """Give freed memory back to the system. Otherwise the call would reuse it, and the peak would not show that."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # only the GNU C library has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> None:
    with contextlib.suppress(OSError):  # not Linux, or not permitted: the peak then includes earlier calls
        Path("/proc/self/clear_refs").write_text("5")


def _child(target: str) -> None:
    module, _, name = target.partition(":")
    call = getattr(importlib.import_module(module), name)(**json.loads(sys.stdin.read()))
    # A call on a GPU brings its own measure.
    measure = getattr(call, "extra_bytes", None) or (lambda: extra_bytes(call))
    print(measure() / MB)


if __name__ == "__main__":
    _child(sys.argv[1])
