"""Wheels: the kernels that `packaging/kernels.py` compiled go along, if DAPE_KERNELS_FROM names their folder.

The wheel stays one for all systems (py3-none-any): the libraries are data that ctypes loads where they fit, they know
neither Python's ABI nor torch's, and everywhere else the same wheel compiles its sources or computes in torch.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if folder := os.environ.get("DAPE_KERNELS_FROM"):
            if not Path(folder).is_dir():
                raise SystemExit(f"DAPE_KERNELS_FROM is {folder}, which does not exist: packaging/kernels.py makes it")
            build_data["force_include"][folder] = "dape/ops/compiled"
