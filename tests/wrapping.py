"""Changes that other programs make to modules, with a known effect: outputs or parameters become 1.5 times larger."""

from torch import Tensor, nn

FACTOR = 1.5


class Times(nn.Module):
    """A parametrisation, or a layer around a layer."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = x if self.inner is None else self.inner(x)
        return FACTOR * inner


def larger(module: nn.Module, args: object, out: Tensor) -> Tensor:
    return FACTOR * out


def hook(module: nn.Module, name: str) -> None:
    module.get_submodule(name).register_forward_hook(larger)


def replace(module: nn.Module, name: str, other: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(parent), attribute, other)


def around(module: nn.Module, name: str) -> None:
    replace(module, name, Times(module.get_submodule(name)))
