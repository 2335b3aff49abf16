"""``dape list``: the catalogue as a table or as JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import tyro
from rich.table import Table
from rich.text import Text

from dape.cli.console import ONE_LINE_PER_ROW, open_console
from dape.errors import UsageError, did_you_mean
from dape.positional.catalogue import Entry, encodings, find
from dape.positional.names import BIAS_ONLY, DAPE_V2, parse

LEGEND = """\
A  scaled scores q k / sqrt(d)      i, j, p  position of query, key, token
B  bias of the base encoding        h, d     number of heads, width of a head
f  DAPE's network over the heads    w, s     frequencies, scale of positions

Hook: what the encoding changes. embed: token embeddings; rotate: queries and
keys; bias: adds a matrix to A; logits: changes A in any other way.
Learns: parameters per layer. Mask: causal, or both causal and bidirectional.
Extrapolates: as published.

dape-v2-X      dape-X with a 1x3 convolution along the keys; --all lists them
logn-X         X with scores that grow with the logarithm of the length
sink-X         X with one more key, which has a learned logit and no value
randomized-X   X at randomised positions, such as randomized-rope"""


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True)
class ListEncodings:
    """List the positional encodings: equation, hook, parameters, masks, extrapolation.

    dape.build() and all commands that take an encoding accept these names.
    """

    filter: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[FILTER]")] = ""
    """List only names that contain this text, or encodings with this hook (embed, rotate, bias, logits)."""
    all: bool = False
    """Also list dape-v2-X. Not needed with FILTER, which searches all names."""
    json: bool = False
    """Print JSON instead of a table."""


def list_encodings(config: ListEncodings) -> int:
    entries = select(config.filter, everything=config.all)
    if config.json:
        print(json.dumps([as_record(entry) for entry in entries], indent=2))
        return 0
    console = open_console()
    table = as_table(entries)
    room_enough = console.options.update_width(ONE_LINE_PER_ROW)
    fits = console.measure(table, options=room_enough).maximum <= console.width
    console.print(table if fits else as_narrow_table(entries))
    console.print(Text("\n" + LEGEND, style="dim"), soft_wrap=True)
    return 0


def select(text: str, *, everything: bool) -> list[Entry]:
    known = list(encodings().values())
    if not text:
        return [e for e in known if everything or not e.name.startswith(DAPE_V2)]
    parsed = parse(text)
    prefix = str(replace(parsed, base="", wrapper=""))
    known = [replace(e, name=prefix + e.name) for e in known]
    if parsed.wrapper == BIAS_ONLY:
        try:
            known = [replace(find(text), name=text)]  # not in the list, which it would lengthen by half
        except ValueError as error:
            raise UsageError(str(error)) from None
    chosen = [e for e in known if text.lower() in e.name or text.lower() in e.hook.split(", ")]
    if not chosen:
        hint = did_you_mean(text, [e.name for e in known])
        raise UsageError(f"no encoding matches {text!r}.{hint} `dape list` shows them all.")
    return chosen


def as_record(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "equation": entry.equation,
        "hook": entry.hook,
        "learns": entry.learns,
        "causal": True,
        "bidirectional": entry.bidirectional,
        "extrapolates": entry.extrapolates,
    }


def as_table(entries: Sequence[Entry]) -> Table:
    table = _empty_table()
    for header in ("Name", "Equation", "Hook", "Learns", "Mask", "Extrapolates"):
        table.add_column(header, no_wrap=True)
    for e in entries:
        # As Text: in a str, rich would read "[u k + ...]" as markup.
        table.add_row(Text(e.name, "cyan"), *map(Text, (e.equation, *_properties(e))))
    return table


def as_narrow_table(entries: Sequence[Entry]) -> Table:
    """Two lines per encoding, for terminals too narrow for six columns."""
    table = _empty_table()
    # Users copy names: never break or shorten them.
    table.add_column("Name\n ", no_wrap=True, min_width=max(len(e.name) for e in entries))
    table.add_column("Equation\nHook; learns; mask; extrapolates", overflow="fold")
    for e in entries:
        details = Text.assemble(e.equation, "\n", ("; ".join(_properties(e)), "dim"))
        table.add_row(Text(e.name, "cyan"), details)
    return table


def _empty_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _properties(entry: Entry) -> tuple[str, str, str, str]:
    return entry.hook, entry.learns, "both" if entry.bidirectional else "causal", entry.extrapolates
