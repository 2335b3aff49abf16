"""DAPE: data-adaptive positional encoding, and the encodings that it can be added to.

``import dape`` costs milliseconds: the names below are imported on first use, because torch takes seconds and
``dape --help`` does not need it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dape._version import __version__

if TYPE_CHECKING:  # For editors and type checkers; keep in step with _HOME, which a test compares.
    from dape import nn
    from dape.actions.compare import compare
    from dape.actions.draw import draw
    from dape.actions.evaluate import evaluate
    from dape.actions.extend import extend
    from dape.actions.prepare import prepare
    from dape.actions.reproduce import reproduce
    from dape.actions.train import train
    from dape.actions.verify import verify
    from dape.data.corpora import open_data
    from dape.models.config import DecoderConfig
    from dape.models.decoder import DecoderLM
    from dape.models.generate import Sampling, generate
    from dape.ops.attention import Choice, Intermediates, LagMemory, attention, intermediates
    from dape.ops.attention.operator import Impl
    from dape.positional.base import AdditiveBias, AttentionDims, PositionalEncoding, RelativeBias, ScoreForm
    from dape.positional.build import build
    from dape.positional.catalogue import Entry, encodings, register
    from dape.positional.dape import Dape, DapeV2
    from dape.positional.grid import Grid
    from dape.positional.positions import Draw, draw_positions
    from dape.positional.randomized import Randomized
    from dape.positional.rope_parameters import rotation_of

__all__ = [
    "AdditiveBias",
    "AttentionDims",
    "Choice",
    "Dape",
    "DapeV2",
    "DecoderConfig",
    "DecoderLM",
    "Draw",
    "Entry",
    "Grid",
    "Impl",
    "Intermediates",
    "LagMemory",
    "PositionalEncoding",
    "Randomized",
    "RelativeBias",
    "Sampling",
    "ScoreForm",
    "__version__",
    "attention",
    "build",
    "compare",
    "draw",
    "draw_positions",
    "encodings",
    "evaluate",
    "extend",
    "generate",
    "intermediates",
    "nn",
    "open_data",
    "prepare",
    "register",
    "reproduce",
    "rotation_of",
    "train",
    "verify",
]

_NAMES = {
    "actions.compare": ("compare",),
    "actions.draw": ("draw",),
    "actions.evaluate": ("evaluate",),
    "actions.extend": ("extend",),
    "actions.prepare": ("prepare",),
    "actions.reproduce": ("reproduce",),
    "actions.train": ("train",),
    "actions.verify": ("verify",),
    "data.corpora": ("open_data",),
    "models.config": ("DecoderConfig",),
    "models.decoder": ("DecoderLM",),
    "models.generate": ("Sampling", "generate"),
    "ops.attention": ("Choice", "Intermediates", "LagMemory", "attention", "intermediates"),
    "ops.attention.operator": ("Impl",),
    "positional.base": ("AdditiveBias", "AttentionDims", "PositionalEncoding", "RelativeBias", "ScoreForm"),
    "positional.build": ("build",),
    "positional.catalogue": ("Entry", "encodings", "register"),
    "positional.dape": ("Dape", "DapeV2"),
    "positional.grid": ("Grid",),
    "positional.positions": ("Draw", "draw_positions"),
    "positional.randomized": ("Randomized",),
    "positional.rope_parameters": ("rotation_of",),
}
_HOME = {name: f"dape.{module}" for module, names in _NAMES.items() for name in names} | {"nn": "dape"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'dape' has no attribute {name!r}")
    home = _HOME[name]
    value = import_module(f"dape.{name}") if home == "dape" else getattr(import_module(home), name)
    globals()[name] = value  # the next access is an ordinary one
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
