"""``dape draw``: pictures of encodings without training. Imports torch only when it runs."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import tyro

from dape.actions.draw import check_draw, draw
from dape.cli.fields import KEY_VALUES


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Draw encodings without training: by distance, as a matrix, and at randomised positions.

    One row per encoding, below one picture with all of them. The values are what position alone adds to the logits of
    attention: B of an additive encoding, B + f(A, B) of DAPE; for a rotation, how much the similarity of a token to
    itself falls with distance. Parameters are as initialised; `dape visualize RUN` draws those of a trained model.
    """

    encodings: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ENCODING...")]
    """Names from `dape list`."""
    out: Path = Path("encodings.png")
    """File to write: .png or .svg; a name without ending writes both."""
    length: int | None = None
    """Tokens; by default 4 training lengths, or one if the encoding supports no more."""
    train_length: int = 64
    """Training length, for encodings that depend on it."""
    heads: int = 8
    """Attention heads."""
    head_dim: int = 32
    """Width of a head."""
    draws: int = 4
    """Number of draws of randomised positions."""
    seed: int = 0
    """Seed of parameters, tokens and draws."""
    options: Annotated[dict[str, Any], KEY_VALUES] = field(default_factory=dict)
    """Options of all encodings, such as hidden=16, or of one: dape-kerple.hidden=16."""


def run(config: Draw) -> int:
    given = {each.name: getattr(config, each.name) for each in fields(config) if each.name != "encodings"}
    counts = {name: given[name] for name in ("length", "train_length", "heads", "head_dim", "draws")}
    check_draw(config.encodings, **counts)
    figure = draw(*config.encodings, **given)
    width, height = figure.get_size_inches() * 150
    written = config.out if config.out.suffix else f"{config.out}.png and {config.out}.svg"
    print(f"wrote {written}: {', '.join(config.encodings)}, {width:.0f} x {height:.0f} dots")
    return 0
