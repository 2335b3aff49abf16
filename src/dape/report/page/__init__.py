"""Results as one HTML page that needs no network: sections of rows in, text out. No torch here.

``section`` says what goes in, ``build`` puts the page together. ``blocks`` holds what a section is made of; ``curves``,
``tasks``, ``claims``, ``explorer`` and ``provenance`` each make some of that. ``page.html``, ``page.css``, ``*.js`` and
``charts/*.json`` (Vega-Lite) are what is seen.
"""

from dape.report.page.build import GENERATOR, build_page
from dape.report.page.section import TERMS, Claim, Maps, Section, Verdict

__all__ = ["GENERATOR", "TERMS", "Claim", "Maps", "Section", "Verdict", "build_page"]
