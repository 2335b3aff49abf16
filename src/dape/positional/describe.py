"""Catalogue entries from encoding classes, to register encodings of other packages and to test the catalogue."""

import inspect

from dape.positional.base import AdditiveBias, PositionalEncoding
from dape.positional.catalogue import Entry


def describe_class(name: str, encoding: type[PositionalEncoding], *, equation: str, extrapolates: str) -> Entry:
    if not (isinstance(encoding, type) and issubclass(encoding, PositionalEncoding)):
        raise TypeError(f"register() takes a subclass of dape.PositionalEncoding, got {encoding!r}")
    if inspect.isabstract(encoding):
        missing = ", ".join(sorted(getattr(encoding, "__abstractmethods__", ())))
        raise TypeError(f"{encoding.__name__} is abstract: implement {missing}")
    return Entry(
        name=name,
        target=encoding,
        hook=hook_of(encoding),
        equation=equation or (inspect.getdoc(encoding) or "").partition("\n")[0],
        learns="see its documentation",
        extrapolates=extrapolates,
        bidirectional=encoding.supports_bidirectional,
        dape=encoding.allows_dape(),
    )


def hook_of(encoding: type[PositionalEncoding]) -> str:
    if issubclass(encoding, AdditiveBias):
        return "bias"
    hooks = [h for h in ("embed", "rotate", "logits") if getattr(encoding, h) is not getattr(PositionalEncoding, h)]
    return ", ".join(hooks) or "none"
