"""Error bounds of implementations against the definition in float64. docs/numerics.md has the derivation."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

SUM_UNIT = 2.0**-24
"""Half a unit in the last place of 1 in float32, in which all implementations sum."""
DOUBLE_SUM_UNIT = 2.0**-52
"""For float64 inputs, summed in float64: twice its unit, because the definition rounds as much."""
OPERAND_UNIT = {torch.float64: 0.0, torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""The same for the type that operands of products are rounded to."""
TF32_UNIT = 2.0**-11
LEAST = 1e-3
"""Errors are relative to the largest entry of their tensor, but at least to this fraction of the largest entry of all
tensors."""


@dataclass(frozen=True)
class Bounds:
    """Bounds relative to the largest entry."""

    output: float
    gradient: float

    def of(self, name: str) -> float:
        return self.output if name == "output" else self.gradient


def bounds(operands: torch.dtype, terms: int, *, tf32: bool = False, in_logits: int = 0) -> Bounds:
    """Bounds for products with operands in the dtype ``operands``, and for ``terms`` terms in all consecutive sums.

    With ``tf32``, PyTorch's float32 products are rounded too. ``in_logits`` is the number of intermediate results of a
    logit that are rounded to ``operands``: 0 in our implementations, but not in dense listings of attention.
    """
    rounding = OPERAND_UNIT[operands] + (TF32_UNIT if tf32 else 0.0)
    sums = terms * (DOUBLE_SUM_UNIT if operands == torch.float64 else SUM_UNIT)
    return Bounds(output=4 * (1 + in_logits) * rounding + sums, gradient=(8 + 4 * in_logits) * rounding + 8 * sums)


def relative_errors(found: dict[str, Tensor], exact: dict[str, Tensor], *, least: float = LEAST) -> dict[str, float]:
    """Errors by name, relative to the tensor's largest entry, or to ``least`` times the largest of all tensors. NaN
    counts as infinite."""
    largest = max(value.abs().max().item() for value in exact.values())
    errors = {}
    for name, value in exact.items():
        error = (found[name].double() - value).abs().max().item()
        error /= max(value.abs().max().item(), least * largest)
        errors[name] = error if error == error else float("inf")
    return errors


def steady_rows(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b h k d"],
    wa: Float[Tensor, "D h"],
    pre: Float[Tensor, "*b D q k"],
    *,
    operands: torch.dtype,
    terms: int,
) -> Bool[Tensor, "b 1 q 1"]:
    """The rows in which no hidden unit of f is so near 0 that rounding decides its slope. In other rows gradients jump,
    and correct implementations differ. q and k are rotated, in float64; q is scaled."""
    scores, sizes = q @ k.transpose(-1, -2), q.abs() @ k.abs().transpose(-1, -2)
    z = torch.einsum("Dh,bhqk->bDqk", wa, scores) + pre
    reach = torch.einsum("Dh,bhqk->bDqk", wa.abs(), sizes)
    # In half precision, operands of f are split into two parts. Three rounding errors of the smaller parts remain.
    slack = 3 * OPERAND_UNIT[operands] ** 2 * reach + terms * SUM_UNIT * (reach + pre.abs())
    return ~(z.abs() <= slack).any(1).any(-1)[:, None, :, None]
