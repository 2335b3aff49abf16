"""Learned sinks: one more column per head, with a learned logit and no value, which takes weight away from the keys.

A sink changes only the sum that a row is divided by. Engines compute attention without it, and their sums are completed
here. Their backward pass is correct for the completed sums: it subtracts d_out . out, to which a column without a value
adds nothing.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from dape.ops.attention.tiles import LOG2_E


def with_sinks(
    out: Float[Tensor, "b h q e"], softmax: Float[Tensor, "b h q 2"], sinks: Float[Tensor, " h"] | None
) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h q 2"]]:
    """Output and softmax of an engine (``engines/base.py``) with sinks. The output is changed in place."""
    if sinks is None:
        return out, softmax
    (top, total), sink = softmax.unbind(-1), _in_base_2(sinks, softmax)
    largest = torch.maximum(top, sink)
    kept = total * (top - largest).exp2()
    whole = kept + (sink - largest).exp2()
    return out.mul_((kept / whole).unsqueeze(-1)), torch.stack([largest, whole], dim=-1)


def gradient_of_sinks(
    grad: Float[Tensor, "b h q e"], out: Tensor, softmax: Float[Tensor, "b h q 2"], sinks: Float[Tensor, " h"]
) -> Float[Tensor, " h"]:
    weight = under_largest(sinks, softmax) / softmax[..., 1]
    return -(weight * (grad.to(out.dtype) * out).sum(-1)).sum((0, 2)).to(sinks.dtype)


def under_largest(sinks: Float[Tensor, " h"], softmax: Float[Tensor, "b h q 2"]) -> Float[Tensor, "b h q"]:
    """The sinks' weights in each row, before division by its sum."""
    return (_in_base_2(sinks, softmax) - softmax[..., 0]).exp2()


def _in_base_2(sinks: Float[Tensor, " h"], softmax: Tensor) -> Float[Tensor, "h 1"]:
    return (sinks.to(softmax.dtype) * LOG2_E).unsqueeze(-1)
