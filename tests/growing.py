"""Encodings whose rotations depend on how long a text is: what was computed earlier is not what a later pass finds."""

from dape.positional.names import parse

GROWING = {name: {"scale": 4.0} for name in ("pi", "yarn", "ntk", "dynamic")}
GROWING |= {"longrope": {"long_factor": (1.0,) * 4}, "self-extend": {"group": 3}}
"""With options that stop it, for heads of eight channels."""


def stretch_grows(name: str) -> bool:
    return parse(name).base in GROWING
