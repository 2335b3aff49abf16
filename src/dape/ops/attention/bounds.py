"""How far an implementation may be from the definition in float64. The derivation stands in docs/numerics.md."""

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
"""Errors count relative to the largest entry of their tensor, and of a tensor of tiny entries relative to this part of
the largest entry of all."""


@dataclass(frozen=True)
class Bounds:
    """Relative to the largest entry."""

    output: float
    gradient: float

    def of(self, name: str) -> float:
        return self.output if name == "output" else self.gradient


def bounds(operands: torch.dtype, terms: int, *, tf32: bool = False, in_logits: int = 0) -> Bounds:
    """For products whose operands are rounded to ``operands`` and sums of ``terms`` terms in all, one after the other;
    with ``tf32``, PyTorch's own products of float32 are rounded, too. ``in_logits`` results on the way to a logit are
    also kept in ``operands``: none in our implementations, but all of them where attention is written down densely."""
    rounding = OPERAND_UNIT[operands] + (TF32_UNIT if tf32 else 0.0)
    sums = terms * (DOUBLE_SUM_UNIT if operands == torch.float64 else SUM_UNIT)
    return Bounds(output=4 * (1 + in_logits) * rounding + sums, gradient=(8 + 4 * in_logits) * rounding + 8 * sums)


def relative_errors(found: dict[str, Tensor], exact: dict[str, Tensor], *, least: float = LEAST) -> dict[str, float]:
    """By name, of the largest entry, or of ``least`` times the largest of all. What is not a number is infinitely far
    off."""
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
    """Rows without a hidden unit of f so near to 0 that rounding decides its slope: there gradients jump, and differ
    between implementations that are both right. q and k are rotated, in float64; q is scaled."""
    scores, sizes = q @ k.transpose(-1, -2), q.abs() @ k.abs().transpose(-1, -2)
    z = torch.einsum("Dh,bhqk->bDqk", wa, scores) + pre
    reach = torch.einsum("Dh,bhqk->bDqk", wa.abs(), sizes)
    # In half precision f takes both operands in two parts: three roundings of the lesser ones are lost.
    slack = 3 * OPERAND_UNIT[operands] ** 2 * reach + terms * SUM_UNIT * (reach + pre.abs())
    return ~(z.abs() <= slack).any(1).any(-1)[:, None, :, None]
