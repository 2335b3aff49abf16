"""Whether kernels are interpreted on the CPU instead of compiled: triton's own switch, fixed once they are imported."""

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")
