"""Results as one HTML page that needs no network: sections of rows in, text out. No torch here.

``section`` holds the input, ``build`` makes the page. ``panels`` groups the rows that share a chart. ``curves``,
``tasks``, ``explorer`` and ``provenance`` make the parts of a section; their types are in ``blocks``. ``page.html``,
``page.css``, ``*.js`` and ``charts/*.json`` (Vega-Lite) are the page's template, style, scripts and charts.
"""

from dape.report.page.build import GENERATOR, build_page
from dape.report.page.section import TERMS, Claim, Maps, Section, Verdict

__all__ = ["GENERATOR", "TERMS", "Claim", "Maps", "Section", "Verdict", "build_page"]
