"""The page as text: sections become views, views become HTML. The template escapes all text that comes from data."""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from dape._version import __version__
from dape.errors import UsageError
from dape.extras import install_command
from dape.report.page.blocks import Block, Claims, View
from dape.report.page.curves import curve_block
from dape.report.page.explorer import explorer_of
from dape.report.page.ladder import evidence_of, ladder_block
from dape.report.page.panels import CHE, split
from dape.report.page.provenance import facts_of, reduced_of
from dape.report.page.section import VERDICTS, Claim, Section
from dape.report.page.tasks import task_block
from dape.report.page.vega import vega
from dape.results.records import Row
from dape.results.statistics import in_words

GENERATOR = "dape report"
"""The page says so of itself, and `dape report` overwrites only such files."""
SCRIPTS = ("page.js", "charts.js", "explorer.js")
CHARTS = ("curves", "map", "terms", "weights")
MARKERS = {
    "circle": "M16.4 6a3.4 3.4 0 1 1-6.8 0a3.4 3.4 0 1 1 6.8 0z",
    "square": "M10 3h6v6h-6z",
    "diamond": "M13 1.9l3.2 4.1l-3.2 4.1l-3.2-4.1z",
    "cross": "M11.8 2.2h2.4v2.6h2.6v2.4h-2.6v2.6h-2.4v-2.6h-2.6v-2.4h2.6z",
    "triangle-down": "M9.4 3h7.2l-3.6 6.4z",
    "triangle-left": "M16 2.4v7.2l-6.4-3.6z",
    "triangle-right": "M10 2.4v7.2l6.4-3.6z",
}
"""Vega's shapes as SVG paths in the middle of a swatch."""


def build_page(sections: Sequence[Section], title: str, *, live: bool = False) -> str:
    """One HTML page that loads nothing from elsewhere. Needs the extra ``report``.

    ``live``: the page shows progress, which a script asks of the server that sent the page.
    """
    views = [view_of(section, f"s{number}") for number, section in enumerate([*evidence_of(sections), *sections], 1)]
    scripts = [
        re.sub("</(?=script)", r"<\\/", script, flags=re.IGNORECASE)
        for script in (vega(), *map(_read, [*SCRIPTS, *(["live.js"] if live else [])]))
    ]
    specs = {name: json.loads(_read(f"charts/{name}.json")) for name in CHARTS}
    text = _template().render(
        title=title,
        views=views,
        rows=sum(len(section.rows) for section in sections),
        css=_read("page.css"),
        scripts=scripts,
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in scripts),
        specs=specs,
        verdicts=VERDICTS,
        generator=GENERATOR,
        markers=MARKERS,
        live=live,
        version=__version__,
    )
    return text.lstrip()


def _read(name: str) -> str:
    return resources.files("dape.report.page").joinpath(*name.split("/")).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """The hash by which the page's security policy allows a script. A script that data smuggled in has none."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _template() -> Any:
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise UsageError(f"a report needs the library jinja2; {install_command('report')}") from None

    def as_json(value: object) -> Markup:
        """For <script type="application/json">. Without "<" no text can end that element."""
        return Markup(json.dumps(value, allow_nan=False, ensure_ascii=False).replace("<", "\\u003c"))

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters["as_json"] = as_json
    return environment.from_string(_read("page.html"))


# Views ---------------------------------------------------------------------------------------------------------------


def view_of(section: Section, name: str) -> View:
    blocks = [ladder_block(section.ladder)] if section.ladder else []
    for panel in split(section.rows):
        make = task_block if panel.kind == CHE else curve_block
        blocks.append(replace(make(panel, section.published), mode=section.mode))
    claims = _claims(section.claims)
    return View(
        id=name,
        title=section.title,
        about=section.about,
        source=section.source,
        badges=_badges(section.rows),
        warnings=section.warnings,
        reduced=reduced_of(section.rows),
        claims=claims,
        blocks=blocks,
        explorer=explorer_of(section.maps) if section.maps else None,
        facts=facts_of(section.rows),
        headline=_headline(section, blocks, claims),
    )


def _badges(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    counts = {
        "row": len(rows),
        "method": len({row.label for row in rows}),
        "seed": len({row.seed for row in rows}),
        "length": len({row.length for row in rows}),
        "task": len({str(row.extra["task"]) for row in rows if "task" in row.extra}),
    }
    trained = sorted({row.train_length for row in rows})
    return [f"{n} {name}{'s' * (n > 1)}" for name, n in counts.items() if n] + [f"trained at {in_words(trained)}"]


def _claims(claims: Sequence[Claim]) -> Claims | None:
    if not claims:
        return None
    counts = Counter(claim.ours.verdict for claim in claims)
    order = [*VERDICTS, *sorted(set(counts) - set(VERDICTS))]
    return Claims(claims, {verdict: counts[verdict] for verdict in order if counts[verdict]})


def _headline(section: Section, blocks: Sequence[Block], claims: Claims | None) -> str:
    if claims:
        return "Claims of the paper, here: " + ", ".join(f"{n} {verdict}" for verdict, n in claims.counts.items()) + "."
    attention = f"What attention of {section.maps.method} is made of." if section.maps else ""
    return next((words[0] for block in blocks if (words := block.words)), attention)
