"""What ``dape reproduce`` writes about language models: tables with the paper's, figures, claims. No torch here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dape.experiments.reproduce.catalogue import PaperExperiment
from dape.experiments.reproduce.evidence import Panel
from dape.experiments.reproduce.judge import Judged, milliseconds, published
from dape.files import write_text
from dape.report.tables import markdown_lines, markdown_table
from dape.results.numbers import as_text
from dape.results.paper import Published
from dape.results.records import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIMS_JSON, CLAIMS_MD, TABLES = "claims.json", "claims.md", "tables.md"


def labelled(rows: Sequence[Row]) -> list[Row]:
    """The rows with their variant as part of the method's name: tables and figures know methods only."""
    return [replace(row, method=row.label, variant="") for row in rows]


def by_panel(rows: Sequence[Row]) -> dict[Panel, list[Row]]:
    found: dict[Panel, list[Row]] = {}
    for row in labelled(rows):
        found.setdefault(Panel(row.extra["model"], row.extra["paper_train_length"]), []).append(row)
    return dict(sorted(found.items()))


def title(panel: Panel) -> str:
    return f"{panel.size}, trained at {panel.train_length} in the paper"


def file_name(stem: str, panel: Panel, panels: int) -> str:
    """A file of one panel. The panel is named only if there are several."""
    return stem if panels == 1 else f"{stem}-{panel.size}-train{panel.train_length}"


# Tables --------------------------------------------------------------------------------------------------------------


def write_tables(out: Path, experiment: PaperExperiment, rows: Sequence[Row], reduced: Sequence[str]) -> list[Path]:
    write_text(out / TABLES, tables(experiment, rows, reduced))
    return [out / TABLES]


def tables(experiment: PaperExperiment, rows: Sequence[Row], reduced: Sequence[str]) -> str:
    """A table of our results for each panel, and below it the paper's."""
    labels = [arm.label for arm in experiment.arms]
    parts = [f"# {experiment.id}: {experiment.title} ({experiment.where})", in_short(experiment, reduced)]
    for panel, of_panel in by_panel(rows).items():
        parts += [
            f"## {title(panel)}",
            markdown_table(of_panel, methods=labels).strip(),
            paper_table(experiment, panel),
        ]
    return "\n\n".join(filter(None, parts)) + "\n"


def in_short(experiment: PaperExperiment, reduced: Sequence[str]) -> str:
    lines = [f"- reduced: {words}" for words in reduced]
    lines += [f"- the paper used {experiment.data}"] if reduced else []
    lines += [f"- not known: {experiment.unknown}"] if experiment.unknown else []
    return "\n".join(lines)


def paper_table(experiment: PaperExperiment, panel: Panel) -> str:
    """The paper's perplexities for the panel, or that there are none."""
    found = [row for row in published(experiment) if _belongs(row, experiment, panel)]
    if not found:
        return "The paper prints no numbers for this (a figure only)."
    lengths = sorted({row.eval_len for row in found if row.eval_len})
    cells = {(row.as_row().label, row.eval_len): row for row in reversed(found)}
    labels = list(dict.fromkeys(row.as_row().label for row in found))
    body = [[label, *(_printed(cells.get((label, length))) for length in lengths)] for label in labels]
    text = markdown_lines(["in the paper", *map(str, lengths)], body)
    notes = list(dict.fromkeys(f"{row.id}: {row.note}" for row in found if row.note))
    return "\n\n".join([text, *([f"Notes: {'; '.join(notes)}."] if notes else [])])


def _belongs(row: Published, experiment: PaperExperiment, panel: Panel) -> bool:
    size = row.model.lower() or experiment.sizes[0]
    return row.metric == "perplexity" and (size, row.train_len) == (panel.size, panel.train_length)


def _printed(row: Published | None) -> str:
    if row is None:
        return "-"
    return f"{row.value:g}" if row.std is None else f"{as_text(row.value)} ± {row.std:.2g}"


def time_table(rows: Sequence[Row], experiment: PaperExperiment) -> str:
    """Time of a whole training step at full depth, relative to dape-kerple, with the paper's ratios."""
    ours, paper = milliseconds(rows), milliseconds([p.as_row() for p in published(experiment)])
    sizes = [size for size in experiment.sizes if any(key[0] == size for key in ours)]
    columns = [name for size in sizes for name in (f"{size}: ms", "ratio", "paper")]
    body = [
        [arm.method, *(cell for size in sizes for cell in _time_cells(size, arm.method, ours, paper))]
        for arm in experiment.arms
    ]
    text = markdown_lines(["method", *columns], body)
    notes = (
        "ratio: time of a training step / that of dape-kerple; paper: the same on an A800, forward or step not stated."
    )
    return f"# {experiment.id}: {experiment.title} ({experiment.where})\n\n{text}\n\n{notes}\n"


def _time_cells(
    size: str, method: str, ours: Mapping[tuple[str, str], float], paper: Mapping[tuple[str, str], float]
) -> list[str]:
    """Milliseconds here, their ratio to dape-kerple, and the paper's ratio; "-" if unknown."""

    def ratio(times: Mapping[tuple[str, str], float]) -> str:
        mine, unit = times.get((size, method)), times.get((size, "dape-kerple"))
        return "-" if mine is None or unit is None else f"{mine / unit:.3f}"

    here = ours.get((size, method))
    return ["-" if here is None else f"{here:.0f}", ratio(ours), ratio(paper)]


# Figures -------------------------------------------------------------------------------------------------------------


def first_figure(experiment: PaperExperiment, rows: Sequence[Row]) -> "Figure":
    """The curves of the smallest model at the shortest training length."""
    from dape.report.figures import perplexity_figure

    return perplexity_figure(next(iter(by_panel(rows).values())), methods=[arm.label for arm in experiment.arms])


def write_figures(out: Path, experiment: PaperExperiment, rows: Sequence[Row]) -> list[Path]:
    from dape.report.figures import perplexity_figure, save_figure

    panels, written = by_panel(rows), list[Path]()
    labels = [arm.label for arm in experiment.arms]
    for panel, of_panel in panels.items():
        written += save_figure(
            perplexity_figure(of_panel, methods=labels), out / file_name("curves", panel, len(panels))
        )
    return written


# Claims --------------------------------------------------------------------------------------------------------------


def write_claims(
    out: Path, experiment: PaperExperiment, judged: Sequence[Judged], reduced: Sequence[str]
) -> list[Path]:
    write_text(out / CLAIMS_JSON, json.dumps([each.as_plain() for each in judged], indent=2) + "\n")
    head = [f"# What became of the claims: {experiment.id} ({experiment.where})", in_short(experiment, reduced)]
    write_text(out / CLAIMS_MD, "\n\n".join(filter(None, [*head, claims_table(judged), *map(_details, judged)])) + "\n")
    return [out / CLAIMS_MD, out / CLAIMS_JSON]


def claims_table(judged: Sequence[Judged]) -> str:
    body = [[each.claim.statement, each.paper.verdict, f"**{each.ours.verdict}**"] for each in judged]
    return markdown_lines(["claim", "in the paper's numbers", "here"], body, words=3)


def _details(each: Judged) -> str:
    claim = each.claim
    sides = [f"- {side}\n{_bullets(found.detail)}" for side, found in (("here", each.ours), ("paper", each.paper))]
    return "\n\n".join([f"**{claim.statement}** ({claim.source})", "\n".join(sides)])


def _bullets(detail: str) -> str:
    """One bullet for each pair of methods."""
    return "\n".join(f"  - {part}" for part in detail.split("; "))
