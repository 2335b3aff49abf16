"""Whether kernels run in Triton's interpreter on the CPU. Triton reads this variable when the kernels are imported."""

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on")
