"""The parts of an encoding's name: ``randomized-dape-v2-kerple`` is DAPE v2 of Kerple with randomised positions,
``logn-rope`` is rope with scores that grow with the logarithm of the length, ``sink-rope`` has a sink in every head,
``bias-only-dape-kerple`` is DAPE whose f reads B without the scores.

The order of prefixes is ``randomized-``, the modifiers, DAPE. This module does not import torch, and does not check
whether an encoding exists: the catalogue does."""

from dataclasses import dataclass, replace

DAPE, DAPE_V2, BIAS_ONLY = "dape-", "dape-v2-", "bias-only-dape-"
RANDOMIZED, SINK, LOGN = "randomized-", "sink-", "logn-"
MODIFIERS = (SINK, LOGN)
"""Each may stand in front of any name, in this order."""


@dataclass(frozen=True)
class Name:
    base: str
    wrapper: str = ""
    """DAPE, DAPE_V2, BIAS_ONLY or nothing."""
    randomized: bool = False
    modifiers: tuple[str, ...] = ()
    """Of MODIFIERS."""

    def __str__(self) -> str:
        return RANDOMIZED * self.randomized + "".join(self.modifiers) + self.inner

    @property
    def inner(self) -> str:
        """Without randomised positions and modifiers: a name of the catalogue."""
        return self.wrapper + self.base

    @property
    def without_dape(self) -> str | None:
        """The encoding inside DAPE; None without DAPE."""
        return str(replace(self, wrapper="")) if self.wrapper else None


def base_of(name: str) -> str | None:
    """The encoding inside DAPE: kerple for dape-kerple and dape-v2-kerple; None without DAPE."""
    return parse(name).without_dape


def parse(name: str) -> Name:
    """
    Examples:
        >>> parse("randomized-dape-v2-kerple")
        Name(base='kerple', wrapper='dape-v2-', randomized=True, modifiers=())
    """
    inner, modifiers = name.removeprefix(RANDOMIZED), []
    randomized = inner != name
    for modifier in MODIFIERS:
        if inner.startswith(modifier):
            modifiers.append(modifier)
            inner = inner.removeprefix(modifier)
    wrapper = next((prefix for prefix in (DAPE_V2, DAPE, BIAS_ONLY) if inner.startswith(prefix)), "")
    return Name(inner.removeprefix(wrapper), wrapper, randomized, tuple(modifiers))
