"""How many cases a fuzz test draws: its share of FUZZ_CASES, which `make fuzz CASES=20000` sets."""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

DEFAULT_CASES = 2000
"""Of the default tier, over all fuzz tests together."""


def fuzzed(share: float) -> Callable[[Any], Any]:
    """Draw ``share`` of all cases in this test. Shares of all fuzz tests add up to 1.

    ``make test`` draws the same cases every time, ``make fuzz`` others; hypothesis minimises a failure and prints how
    to repeat it. A failure that was found becomes an ``@example`` or a test beside the code that was wrong."""
    cases = int(os.environ.get("FUZZ_CASES", DEFAULT_CASES))
    return settings(
        max_examples=max(1, round(share * cases)),
        derandomize="FUZZ_CASES" not in os.environ,
        print_blob=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
