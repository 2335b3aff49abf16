"""The layers inside encodings: f of DAPE, FIRE's perceptron, the convolutions of DAPE-v2, the matrix of Transformer-XL.

They compute in the precision of their input, not of their weights. An :class:`Affine` has the parameters of an
``nn.Linear`` but is not one, so that programs that adapt or quantise linear layers leave it alone: they mean layers
that are applied to tokens, and these small layers are applied to pairs of tokens. A fast kernel reads their weights
unless a hook or wrapper needs them to be called.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dape.modules import is_plain
from dape.positional.base import accurate


class Affine(nn.Module):
    """``x W' + b``, with the parameters, names and initialisation of ``nn.Linear``."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        started = nn.Linear(in_features, out_features, bias=bias)
        self.weight = started.weight
        self.register_parameter("bias", started.bias)

    def forward(self, x: Float[Tensor, "*s i"]) -> Float[Tensor, "*s o"]:
        return nn.functional.linear(x, *_in_precision_of(x, self.weight, self.bias))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class RowConvolution(nn.Conv2d):
    """A convolution over an odd number of neighbouring keys of the same query, padded to keep the number of keys."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, (1, kernel), padding=(0, kernel // 2))

    def forward(self, input: Float[Tensor, "n i q k"]) -> Float[Tensor, "n o q k"]:
        return self._conv_forward(input, *_in_precision_of(input, self.weight, self.bias))


def _in_precision_of(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return accurate(weight).to(x.dtype), None if bias is None else accurate(bias).to(x.dtype)


def across_heads(layer: nn.Module, *inputs: Float[Tensor, "..."]) -> Float[Tensor, "*b o q k"]:
    """The layer applied to [x; y; ...] along the head axis, the third from the end, at every (i, j).

    A plain layer is not called: each input is multiplied by its columns of the weight. This needs no concatenation, and
    no transposed copies, because the heads stay in front of (q, k).
    """
    if not (is_plain(layer, Affine) and isinstance(layer, Affine) and layer.bias is not None):
        batch = torch.broadcast_shapes(*(x.shape[:-3] for x in inputs))
        x = torch.cat([x.expand(*batch, *x.shape[-3:]).movedim(-3, -1) for x in inputs], dim=-1)
        return layer(x).movedim(-1, -3)
    weight, out = (accurate(p).to(inputs[0].dtype) for p in (layer.weight, layer.bias.view(-1, 1, 1)))
    for w, x in zip(weight.split([x.shape[-3] for x in inputs], dim=1), inputs, strict=True):
        out = out + (w @ x.flatten(-2)).unflatten(-1, x.shape[-2:])
    return out
