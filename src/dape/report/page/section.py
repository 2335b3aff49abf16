"""The input of a page: sections, each of one result folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dape.results.paper import Published
from dape.results.records import Row

if TYPE_CHECKING:
    import numpy as np

Mode = Literal["ours", "paper", "both"]
VERDICTS = ("holds (significant)", "holds (not significant)", "fails", "not tested")
TERMS = ("scores", "bias", "f", "logits", "weights")
"""Arrays of a map: A, B, f, the logits that softmax takes, and the weights that it returns."""


@dataclass(frozen=True)
class Verdict:
    verdict: str
    """One of VERDICTS; anything else is shown as it is."""
    detail: str = ""


@dataclass(frozen=True)
class Claim:
    id: str
    statement: str
    source: str
    paper: Verdict
    """By the paper's own numbers."""
    ours: Verdict

    @classmethod
    def from_plain(cls, given: Any) -> "Claim":
        """From a JSON object. ValueError or TypeError if it is no claim."""
        if not isinstance(given, Mapping) or not given.get("statement"):
            raise ValueError("a claim is an object with a statement")
        sides = {side: given.get(side) or {"verdict": "not tested"} for side in ("paper", "ours")}
        verdicts = {name: Verdict(str(side["verdict"]), str(side.get("detail", ""))) for name, side in sides.items()}
        return cls(str(given.get("id", "")), str(given["statement"]), str(given.get("source", "")), **verdicts)


@dataclass(frozen=True, kw_only=True)
class Maps:
    """The terms of attention of one query, by sample, layer, head and key."""

    method: str
    length: int
    query: int
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    samples: tuple[tuple[str, str], ...]
    """Name and text."""
    lags: "np.ndarray"
    """Distance of each key from the query."""
    terms: Mapping[str, "np.ndarray"]
    """TERMS -> array [sample, layer, head, key]."""
    formulas: Mapping[str, str] = field(default_factory=dict)
    """Name of a term -> its formula."""
    heads_summary: Any = None
    """A list of objects is shown as a table; anything else is ignored."""


@dataclass(frozen=True)
class Section:
    """A result folder."""

    title: str
    about: Sequence[str] = ()
    """Paragraphs of plain text."""
    rows: Sequence[Row] = ()
    published: Sequence[Published] = ()
    """The paper's numbers to show beside ours."""
    claims: Sequence[Claim] = ()
    maps: Maps | None = None
    mode: Mode = "both"
    """Whose numbers are shown first: ours, the paper's, or both."""
    source: str = ""
    """Where it was read from."""
    warnings: Sequence[str] = ()
    """What could not be read."""
    ladder: Sequence[Row] = ()
    """Rows of several folders, for the registered tests of docs/evidence.md."""
