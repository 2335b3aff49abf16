"""Whether a layer may be computed from its weights, without calling it.

Some of our code reads a layer's weights instead of calling the layer, because that is faster. Hooks, LoRA, pruning and
quantisation act only when the layer is called, so such code asks here first. A parametrised weight
(``torch.nn.utils.parametrize``) may be read: the attribute is the weight in use.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations


def has_hooks(module: nn.Module) -> bool:
    """Whether the module has forward or backward hooks. Pruning and ``weight_norm`` are such hooks."""
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)


def must_be_called(module: nn.Module) -> bool:
    """Whether a call does more than the class says: hooks, or a ``forward`` of the instance, as accelerate sets one."""
    return has_hooks(module) or "forward" in vars(module)


def is_plain(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether the module is exactly of one of these classes, with plain weights and nothing added to its call."""
    if must_be_called(module) or (type(module) not in kinds and type_before_parametrizations(module) not in kinds):
        return False
    return all(type(p) in (nn.Parameter, Tensor) for p in module._parameters.values() if p is not None)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Turn autocast off: positions, sums along a text and softmax need float32."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
