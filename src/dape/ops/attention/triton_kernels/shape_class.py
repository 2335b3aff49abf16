"""Classes of calls that run the same compiled kernels, which the self-check checks once. Does not import triton."""

from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor

from dape.positional.base import ScoreForm
from dape.positional.grid import Grid

NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True, kw_only=True)
class ShapeClass:
    """The constants that kernels are compiled for (``run.Attention.constants``), and other facts that change the
    numbers.

    Kernels are not specialised on lengths and the batch size. Documents and given positions reach the kernels as -inf
    in terms per cell, which every check of such terms includes.
    """

    dtype: str
    heads: int
    group: int
    """Query heads that share a key head."""
    width: int
    values: int
    hidden: int
    """Hidden units of f; 0 without f."""
    tables: bool
    """Whether position terms are tables over lags or ramps, and not one entry per cell."""
    causal: bool
    static: bool
    """Whether there is a static term: a bias, or f of the position."""
    padding: bool
    kinks: int = 0
    """Kinks of the ramp; 0 without one."""
    tf32: bool = False
    """Whether PyTorch rounds float32 products to TF32, which f uses too."""

    def __str__(self) -> str:
        """The name in files and messages."""
        parts = [self.dtype, f"{self.heads} heads of {self.width}"]
        parts += [f"values of {self.values}"] if self.values != self.width else []
        parts += [f"{self.group} to a key head"] if self.group > 1 else []
        parts += [f"f of {self.hidden}"] if self.hidden else []
        parts += [f"ramps of {self.kinks} kinks" if self.kinks else "lag tables" if self.tables else "bias tiles"]
        parts += ["causal"] if self.causal else []
        parts += [] if self.static else ["no bias"]
        parts += ["padding"] if self.padding else []
        return ", ".join([*parts, "tf32"] if self.tf32 else parts)


def class_of(q: Tensor, k: Tensor, v: Tensor, grid: Grid, form: ScoreForm, *, tables: bool) -> dict[str, Any]:
    """The fields of the class of a call that the kernels can compute, as plain values for torch.compile."""
    mixes = form.mix is not None
    biased = (form.source is not None or form.separable is not None) and form.adds_bias
    ramp = None if not tables or form.source is None or form.source.at is not None else form.source.ramp
    masked = not tables and (grid.causal or grid.q_document is not None)
    return {
        "dtype": NAMES[q.dtype],
        # ``index`` makes numbers that the graph depends on from the symbols that torch.compile may trace.
        "heads": index(q.shape[1]),
        "group": index(q.shape[1] // k.shape[1]),
        "width": index(q.shape[3]),
        "values": index(v.shape[3]),
        "hidden": 0 if form.mix is None else len(form.mix.wa),
        "tables": tables,
        "causal": grid.causal and grid.offset is not None,
        "static": mixes or biased or masked or ramp is not None,
        "kinks": 0 if ramp is None else ramp.kinks,
        "padding": grid.key_padding_mask is not None,
        "tf32": mixes and q.device.type == "cuda" and _products_are_rounded(),
    }


@torch.compiler.assume_constant_result  # not traced
def _products_are_rounded() -> bool:
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # it was set through PyTorch's newer interface
        return getattr(torch.backends.cuda.matmul, "fp32_precision", "") == "tf32"
