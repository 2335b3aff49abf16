"""One look per method: the colour and marker of its base encoding, the stroke of what was put on top of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dape.positional.names import DAPE_V2, parse

# After Okabe and Ito: told apart by people with any of the common colour deficiencies. Pale ones are darkened, as names
# are written in them, and yellow is left out.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#B5578F"
BLACK, SKY, ORANGE, GREY, BROWN = "#222222", "#3FA0DC", "#D98F00", "#808080", "#7A4B1E"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, BLACK, SKY, ORANGE, GREY, BROWN)
MARKERS = "osDPvhd<>"
"""No triangle that points up: it stands for what is off the chart."""

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
"""So that a method looks the same in every figure."""

SOLID, DASHED, DASH_DOTTED, DOTTED = "-", (0, (4, 1.6)), (0, (6, 1.2, 1.2, 1.2)), (0, (1, 1.2))


@dataclass(frozen=True)
class Look:
    colour: str
    marker: str
    stroke: Any
    adapted: bool
    """With DAPE: filled markers, bold name."""

    def line(self) -> dict[str, Any]:
        """Arguments for matplotlib."""
        return {
            "color": self.colour,
            "linestyle": self.stroke,
            "linewidth": 1.8 if self.adapted else 1.4,
            "marker": self.marker,
            "markersize": 4.5,
            "markerfacecolor": self.colour if self.adapted else "white",
            "markeredgewidth": 1.1,
        }


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Solid is with DAPE, dashed without, in one colour if the base encoding is the same."""
    names = list(methods)
    painted = _painted(dict.fromkeys(_family(method) for method in names))
    return {
        method: Look(*painted[_family(method)], stroke=_stroke(method), adapted=bool(parse(method).wrapper))
        for method in names
    }


def _painted(families: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker: the usual ones; other encodings take those left, and then colours again with other markers."""
    chosen = {family: COLOURS.index(USUAL[family]) for family in families if family in USUAL}
    free = [place for place in range(len(COLOURS)) if place not in chosen.values()]
    others = [family for family in families if family not in USUAL]
    chosen |= dict(zip(others, [*free, *range(len(COLOURS), len(COLOURS) + len(others))], strict=False))
    return {family: _paint(place) for family, place in chosen.items()}


def _paint(place: int) -> tuple[str, str]:
    again, colour = divmod(place, len(COLOURS))
    return COLOURS[colour], MARKERS[(colour + again) % len(MARKERS)]


def _family(method: str) -> str:
    """Without DAPE and randomised positions, which the stroke tells."""
    name = parse(method)
    return "".join(name.modifiers) + name.base


def _stroke(method: str) -> Any:
    name = parse(method)
    if name.randomized:
        return DOTTED
    if name.wrapper == DAPE_V2:
        return DASH_DOTTED
    return SOLID if name.wrapper else DASHED
