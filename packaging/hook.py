"""Put the kernels that `packaging/kernels.py` compiled into the wheel, if DAPE_KERNELS_FROM names their folder.

One wheel (py3-none-any) serves all systems. The libraries are data that ctypes loads where they fit, and they use
neither Python's ABI nor torch's. Elsewhere the same wheel compiles its sources or computes in torch.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if folder := os.environ.get("DAPE_KERNELS_FROM"):
            if not Path(folder).is_dir():
                raise SystemExit(f"DAPE_KERNELS_FROM: there is no folder {folder}; packaging/kernels.py makes it")
            build_data["force_include"][folder] = "dape/ops/compiled"
