"""The terms of attention of one query as the page needs them: arrays as text, with fewer keys if there are many."""

import base64
from collections.abc import Mapping
from typing import Any

from dape.report.page.blocks import Cell, Table, sortable
from dape.report.page.section import TERMS, Maps

MOST_VALUES = 600_000
"""At most so many values of all terms together, about 3 MB of the page."""
FEWEST_KEYS = 48
NEAR = 32
"""The nearest keys, which matter most, are all kept: so many, but at most half of the keys kept."""


def explorer_of(maps: Maps) -> dict[str, Any]:
    import numpy as np

    samples, layers, heads, keys = maps.terms["scores"].shape
    most = max(FEWEST_KEYS, MOST_VALUES // (samples * layers * heads * len(TERMS)))
    kept = kept_keys(maps.lags, most)
    terms = {name: _as_text(np.asarray(maps.terms[name])[..., kept]) for name in TERMS if name in maps.terms}
    return {
        "method": maps.method,
        "length": maps.length,
        "query": maps.query,
        "layers": list(maps.layers),
        "heads": list(maps.heads),
        "samples": [{"id": name, "text": text} for name, text in maps.samples],
        "lags": [int(lag) for lag in maps.lags[kept]],
        "all_keys": keys,
        "terms": terms,
        "formula": maps.formulas.get("logits", ""),
        "summary": summary_table(maps.heads_summary),
    }


def kept_keys(lags: Any, most: int) -> Any:
    """Indices of at most ``most`` keys: the nearest ones, and others at even steps."""
    import numpy as np

    if len(lags) <= most:
        return np.arange(len(lags))
    order = np.argsort(lags, kind="stable")
    near = min(NEAR, most // 2)
    far = np.linspace(near, len(lags) - 1, most - near).round().astype(int)
    return np.sort(order[np.concatenate([np.arange(near), far])])


def _as_text(values: Any) -> str:
    """Little-endian float32 in base64."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")


def summary_table(given: Any) -> Table | None:
    """A table with a column for each name in a list of objects; None for anything else."""
    if not isinstance(given, list) or not given or not all(isinstance(line, Mapping) for line in given):
        return None
    names = list(dict.fromkeys(str(name) for line in given for name in line))
    lines = [[_cell(line.get(name)) for name in names] for line in given]
    return Table("Heads in numbers", [name.replace("_", " ") for name in names], lines)


def _cell(value: object) -> Cell:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell("-" if value is None else str(value), None if value is None else str(value))
    return Cell(f"{value:.4g}" if isinstance(value, float) else str(value), sortable(value))
