"""One look per method. Its base encoding decides colour and marker; DAPE or randomised positions decide the stroke."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dape.positional.names import BIAS_ONLY, DAPE_V2, parse

# The palette of Okabe and Ito, which people with common colour deficiencies can tell apart. Method names are written in
# these colours, so pale ones are darkened and yellow is left out.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#B5578F"
BLACK, SKY, ORANGE, GREY, BROWN = "#222222", "#3FA0DC", "#D98F00", "#808080", "#7A4B1E"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, BLACK, SKY, ORANGE, GREY, BROWN)
MARKERS = "osDPvhd<>"
"""Without "^", which marks values that are off the chart."""

USUAL = {
    "kerple": BLUE,
    "alibi": VERMILION,
    "fire": GREEN,
    "t5": PURPLE,
    "rope": BLACK,
    "yarn": SKY,
    "sandwich": ORANGE,
    "nope": GREY,
    "cope": BROWN,
}
"""Fixed, so that a method has the same colour in every figure."""

SOLID, DASHED, DASH_DOTTED, DOTTED = "-", (0, (4, 1.6)), (0, (6, 1.2, 1.2, 1.2)), (0, (1, 1.2))
LONG_DASHED = (0, (8, 1.6))


@dataclass(frozen=True)
class Look:
    colour: str
    marker: str
    stroke: Any
    adapted: bool
    """Whether the method uses DAPE: filled markers, thicker line, bold name."""

    def line(self) -> dict[str, Any]:
        """Arguments of matplotlib's ``plot``."""
        return {
            "color": self.colour,
            "linestyle": self.stroke,
            "linewidth": 1.8 if self.adapted else 1.4,
            "marker": self.marker,
            "markersize": 4.5,
            "markerfacecolor": self.colour if self.adapted and self.stroke != LONG_DASHED else "white",
            "markeredgewidth": 1.1,
        }

    def stroke_only(self) -> dict[str, Any]:
        """The same without markers, for lines of hundreds of points."""
        return {name: value for name, value in self.line().items() if not name.startswith("marker")}


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """The look of each method. Methods with the same base encoding share a colour; with DAPE solid, without dashed."""
    families = {method: _family(method) for method in methods}
    pairs = _colours_and_markers(dict.fromkeys(families.values()))
    return {
        method: Look(*pairs[family], stroke=_stroke(method), adapted=bool(parse(method).wrapper))
        for method, family in families.items()
    }


def _colours_and_markers(families: Iterable[str]) -> dict[str, tuple[str, str]]:
    """``USUAL`` colours first. Other families take the free ones, then colours repeat with another marker."""
    chosen = {family: COLOURS.index(USUAL[family]) for family in families if family in USUAL}
    free = [number for number in range(len(COLOURS)) if number not in chosen.values()]
    others = [family for family in families if family not in USUAL]
    chosen |= dict(zip(others, [*free, *range(len(COLOURS), len(COLOURS) + len(others))], strict=False))
    rounds = {family: divmod(number, len(COLOURS)) for family, number in chosen.items()}
    return {
        family: (COLOURS[colour], MARKERS[(colour + repeat) % len(MARKERS)])
        for family, (repeat, colour) in rounds.items()
    }


def _family(method: str) -> str:
    """The method's name without DAPE and randomised positions, which the stroke shows."""
    name = parse(method)
    return "".join(name.modifiers) + name.base


def _stroke(method: str) -> Any:
    name = parse(method)
    if name.randomized:
        return DOTTED
    if name.wrapper == DAPE_V2:
        return DASH_DOTTED
    if name.wrapper == BIAS_ONLY:
        return LONG_DASHED
    return SOLID if name.wrapper else DASHED
