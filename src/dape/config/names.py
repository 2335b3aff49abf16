"""All names of the sizes of a model: ours, those of ``dape.build`` and those of Hugging Face.

A class decorated with :func:`takes_other_names` takes all of them; files of settings are read with the same table. No
torch here.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

NAMES = (
    ("layers", "num_layers", "num_hidden_layers"),
    ("width", "model_dim", "hidden_size"),
    ("heads", "num_heads", "num_attention_heads"),
    ("vocabulary", "vocab_size"),
    ("train_length", "max_position_embeddings"),
)
"""One size per line: its name in our settings and on the command line, in ``dape.build``, in a ``config.json``."""


def other_names(own: Iterable[str]) -> dict[str, str]:
    """The other names of the sizes in ``own``, each with the own name of that size."""
    own = set(own)
    groups = [(names, own.intersection(names)) for names in NAMES]
    return {name: next(iter(mine)) for names, mine in groups for name in names if len(mine) == 1 and name not in own}


def own_names(given: Mapping[str, Any], others: Mapping[str, str]) -> dict[str, Any]:
    """``given`` with our names. ValueError if one size is given under two names, even with the same value."""
    found: dict[str, str] = {}
    for name in given:
        own = others.get(name, name)
        if own in found:
            raise ValueError(f"`{found[own]}` and `{name}` are two names of one size; give one of them")
        found[own] = name
    return {own: given[name] for own, name in found.items()}


class OtherNames:
    """A class whose arguments may be given under other names, once :func:`takes_other_names` decorates it."""

    other_names: ClassVar[dict[str, str]] = {}
    """The argument that each other name stands for."""

    def written_as(self, name: str) -> str:
        """The name under which an argument was given, for error messages."""
        return vars(self).get("_written", {}).get(name, name)


T = TypeVar("T", bound=OtherNames)


def takes_other_names(kind: type[T]) -> type[T]:
    """A decorator of classes: ``__init__`` also takes the other names of its arguments."""
    init: Callable[..., None] = kind.__init__
    others = other_names(inspect.signature(init).parameters)

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **given: Any) -> None:
        object.__setattr__(self, "_written", {others[name]: name for name in given if name in others})
        init(self, *args, **own_names(given, others))

    kind.__init__ = __init__
    kind.other_names = others
    return kind
