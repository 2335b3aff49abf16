"""``dape draw``: pictures of encodings without training. Imports torch only when it runs."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import tyro

from dape.actions.draw import check_draw, draw
from dape.cli.fields import KEY_VALUES


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Pictures of encodings, without training: by distance, as a matrix, through randomised positions.

    One row per encoding, and all of them together above. Shown is what position alone does to the logits of attention:
    B of an additive encoding, B + f(A, B) of DAPE, and for rotations how much less similar a token is to itself from
    afar. Parameters are as initialised; `dape visualize RUN` draws what a trained model has made of them.
    """

    encodings: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ENCODING...")]
    """Names from `dape list`."""
    out: Path = Path("encodings.png")
    """The picture: .png or .svg, without ending both."""
    length: int | None = None
    """Tokens; by default 4 training lengths, or the training length where an encoding ends there."""
    train_length: int = 64
    """Training length, for the encodings that depend on it."""
    heads: int = 8
    """Attention heads."""
    head_dim: int = 32
    """Width of a head."""
    draws: int = 4
    """How often randomised positions are drawn."""
    seed: int = 0
    """Seed of parameters, tokens and draws."""
    options: Annotated[dict[str, Any], KEY_VALUES] = field(default_factory=dict)
    """Options of the encodings, such as hidden=16, or dape-kerple.hidden=16 for one of them."""


def run(config: Draw) -> int:
    given = {each.name: getattr(config, each.name) for each in fields(config) if each.name != "encodings"}
    counts = {name: given[name] for name in ("length", "train_length", "heads", "head_dim", "draws")}
    check_draw(config.encodings, **counts)
    figure = draw(*config.encodings, **given)
    width, height = figure.get_size_inches() * 150
    written = config.out if config.out.suffix else f"{config.out}.png and {config.out}.svg"
    print(f"wrote {written}: {', '.join(config.encodings)}, {width:.0f} x {height:.0f} dots")
    return 0
