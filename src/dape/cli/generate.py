"""``dape generate``: generate text from a checkpoint. Imports torch only when it runs."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from dape.actions.generate import GenerateOptions, check, continuation


@dataclass(frozen=True, kw_only=True)
class Generate(GenerateOptions):
    """Continue a text with a trained model, also beyond its training length.

    Keys and values are cached, so each token costs one row of attention. The same seed gives the same text.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    prompt: str = "def "
    """Text to continue; - reads it from standard input."""
    cache: bool = True
    """Cache keys and values. `--no-cache` computes them again for each token: slower, with the same text, except for
    pi and yarn if their scale is not fixed (it then grows with the text)."""


def run(config: Generate) -> int:
    check(config)  # before waiting for standard input
    if config.prompt == "-":
        config = replace(config, prompt=sys.stdin.read())
    pieces = continuation(config)
    print(config.prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
    return 0
