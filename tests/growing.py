"""Encodings whose rotations depend on how long a text is: what was computed earlier is not what a later pass finds."""

GROWING = ("pi", "yarn", "ntk", "dynamic", "longrope")


def stretch_grows(name: str) -> bool:
    return name.split("-")[-1] in GROWING
