"""What ``dape reproduce`` writes about language models: tables beside the paper's, figures, claims. No torch here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dape.experiments.reproduce.catalogue import PaperExperiment
from dape.experiments.reproduce.evidence import Panel
from dape.experiments.reproduce.judge import Judged, milliseconds, published
from dape.files import write_text
from dape.report.tables import markdown_table
from dape.results.numbers import as_text
from dape.results.paper import Published
from dape.results.records import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLAIMS_JSON, CLAIMS_MD, TABLES = "claims.json", "claims.md", "tables.md"


def labelled(rows: Sequence[Row]) -> list[Row]:
    """Variants as methods of their own, as tables and figures know methods only."""
    return [replace(row, method=row.label, variant="") for row in rows]


def by_panel(rows: Sequence[Row]) -> dict[Panel, list[Row]]:
    found: dict[Panel, list[Row]] = {}
    for row in labelled(rows):
        found.setdefault(Panel(row.extra["model"], row.extra["paper_train_length"]), []).append(row)
    return dict(sorted(found.items()))


def title(panel: Panel) -> str:
    return f"{panel.size}, trained at {panel.train_length} in the paper"


def file_name(stem: str, panel: Panel, panels: int) -> str:
    """``stem`` alone where there is one panel only."""
    return stem if panels == 1 else f"{stem}-{panel.size}-train{panel.train_length}"


# Tables --------------------------------------------------------------------------------------------------------------


def write_tables(out: Path, experiment: PaperExperiment, rows: Sequence[Row], reduced: Sequence[str]) -> list[Path]:
    write_text(out / TABLES, tables(experiment, rows, reduced))
    return [out / TABLES]


def tables(experiment: PaperExperiment, rows: Sequence[Row], reduced: Sequence[str]) -> str:
    """Ours, and below each the paper's."""
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
    lines = [["in the paper", *map(str, lengths)], ["---", *("---:" for _ in lengths)]]
    lines += [[label, *(_printed(cells.get((label, length))) for length in lengths)] for label in labels]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
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
    """Time over that of dape-kerple, ours beside the paper's; a whole training step, at full depth."""
    ours, paper = milliseconds(rows), milliseconds([p.as_row() for p in published(experiment)])
    sizes = [size for size in experiment.sizes if any(key[0] == size for key in ours)]
    head = [f"{size}: ms" for size in sizes]
    columns = [name for pair in zip(head, ["ratio"] * len(sizes), ["paper"] * len(sizes), strict=True) for name in pair]
    lines = [["method", *columns], ["---", *("---:" for _ in columns)]]
    for arm in experiment.arms:
        cells = [cell for size in sizes for cell in _time_cells(size, arm.method, ours, paper)]
        lines.append([arm.method, *cells])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = (
        "ratio: time of a training step / that of dape-kerple; paper: the same on an A800, forward or step not stated."
    )
    return f"# {experiment.id}: {experiment.title} ({experiment.where})\n\n{text}\n\n{notes}\n"


def _time_cells(
    size: str, method: str, ours: Mapping[tuple[str, str], float], paper: Mapping[tuple[str, str], float]
) -> list[str]:
    here, there, unit = ours.get((size, method)), paper.get((size, method)), "dape-kerple"
    if here is None:
        return ["-", "-", "-" if there is None else f"{there / paper[size, unit]:.3f}"]
    ratio = f"{here / ours[size, unit]:.3f}" if (size, unit) in ours else "-"
    return [f"{here:.0f}", ratio, "-" if there is None else f"{there / paper[size, unit]:.3f}"]


# Figures -------------------------------------------------------------------------------------------------------------


def first_figure(experiment: PaperExperiment, rows: Sequence[Row]) -> "Figure":
    """Of the smallest model at the shortest training length."""
    from dape.report.figures import perplexity_figure

    return perplexity_figure(next(iter(by_panel(rows).values())), methods=[arm.label for arm in experiment.arms])


def write_figures(out: Path, experiment: PaperExperiment, rows: Sequence[Row]) -> list[Path]:
    from dape.report.figures import perplexity_figure, save_figure

    panels, written = by_panel(rows), list[Path]()
    labels = [arm.label for arm in experiment.arms]
    for panel, of_panel in panels.items():
        stem = out / file_name("curves", panel, len(panels))
        save_figure(perplexity_figure(of_panel, methods=labels), stem)
        written += [stem.with_suffix(".png"), stem.with_suffix(".svg")]
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
    lines = ["| claim | in the paper's numbers | here |", "| --- | --- | --- |"]
    lines += [f"| {each.claim.statement} | {each.paper.verdict} | **{each.ours.verdict}** |" for each in judged]
    return "\n".join(lines)


def _details(each: Judged) -> str:
    claim = each.claim
    sides = [f"- {side}\n{_bullets(found.detail)}" for side, found in (("here", each.ours), ("paper", each.paper))]
    return "\n\n".join([f"**{claim.statement}** ({claim.source})", "\n".join(sides)])


def _bullets(detail: str) -> str:
    """One for each pair of methods."""
    return "\n".join(f"  - {part}" for part in detail.split("; "))
