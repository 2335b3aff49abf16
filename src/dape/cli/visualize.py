"""``dape visualize``: bias maps of a trained model. Imports torch only when it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dape.actions.visualize import VisualizeOptions, visualize


@dataclass(frozen=True, kw_only=True)
class Visualize(VisualizeOptions):
    """Draw bias maps of a trained model: content scores, bias, f(A, B), logits and weights.

    Looks at the last query of windows of held-out text. Writes the arrays (maps.npz, images.npz), the paper's pictures
    per layer and head, which heads prefer near or far keys, and the share of f's variance due to the text (maps.json,
    summary.md).
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]


def run(config: Visualize) -> int:
    visualize(config)
    return 0
