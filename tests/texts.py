"""A text for tests that train."""

import random


def random_words(lines: int) -> str:
    """The same lines at every call, of six words each, out of five."""
    draw = random.Random(0)
    return "\n".join(" ".join(draw.choices(["the", "cat", "sat", "on", "mats"], k=6)) for _ in range(lines))
