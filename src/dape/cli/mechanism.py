"""``dape mechanism``: whether f of a trained model uses content, and where. Imports torch only when it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dape.actions.mechanism import MechanismOptions, mechanism, perplexity
from dape.cli.console import open_console

if TYPE_CHECKING:
    from dape.evaluation.mechanism import Dissected, Gain


@dataclass(frozen=True, kw_only=True)
class Mechanism(MechanismOptions):
    """Does f use content? Give it other scores and measure what that costs.

    Measures perplexity on the same tokens three times: f reads its own scores, the scores of another text (swapped),
    or the mean score at each lag (frozen). Also prints the share of f's variance due to the text rather than the lag,
    by layer and head. With --against, shows which groups of tokens this model predicts better than another model, such
    as tokens that repeat a rare token.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]


def run(config: Mechanism) -> int:
    found, gained = mechanism(config)
    _print(found, gained, config)
    if config.json is not None:
        print(f"wrote {config.json}")
    return 0


def _print(found: "Dissected", gained: "list[Gain]", config: Mechanism) -> None:
    from rich.table import Table

    console = open_console()
    table = Table(box=None, pad_edge=False)
    for header in ("what f reads", "perplexity", "cost in nats", "95% interval"):
        table.add_column(header, justify="left" if header == "what f reads" else "right", no_wrap=True)
    for name, words in (("usual", "its own scores"), ("swapped", "another text's"), ("frozen", "mean at each lag")):
        value = perplexity(getattr(found, name))
        mean, low, high = found.cost(name)
        cost = ("", "") if name == "usual" else (f"{mean:+.4f}", f"{low:+.4f} to {high:+.4f}")
        table.add_row(words, f"{value:.4f}", *cost)
    console.print(table)
    print("\nshare of f's variance due to the text (the rest is due to the lag), by head:")
    for number, layer in enumerate(found.layers, 1):
        print(f"  layer {number}: " + " ".join(f"{share:.2f}" for share in layer.share()))
    if gained:
        print(f"\nnats per token gained over {config.against}, by group of tokens:")
        for gain in gained:
            print(
                f"  {gain.group:24} {gain.nats:+.4f} ({gain.low:+.4f} to {gain.high:+.4f}), {gain.tokens} tokens, "
                f"{100 * gain.total_share:.0f}% of the whole"
            )
