"""On PYTHONPATH of the commands that are killed: what is saved once a minute is saved many times a second, so that
kills fall before, into and after saves although the commands take seconds only."""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

SECONDS = 0.05
SETTINGS = {
    "dape.hf.tune": "SAVE_SECONDS",
    "dape.training.chomsky": "SAVE_SECONDS",
    "dape.data.job": "SECONDS_BETWEEN_SAVES",
}


class Often(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in SETTINGS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        spec.loader = OftenSaving(name, str(spec.origin))
        return spec


class OftenSaving(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        assert hasattr(module, SETTINGS[module.__name__])
        setattr(module, SETTINGS[module.__name__], SECONDS)


sys.meta_path.insert(0, Often())
