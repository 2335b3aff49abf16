"""``dape report``: show result folders on one page for the browser. No torch here."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dape.errors import UsageError
from dape.files import check_writable_file, write_text
from dape.reading import parse_json
from dape.results.statistics import COORDINATES

if TYPE_CHECKING:
    from dape.evaluation.map_files import BiasMaps
    from dape.report.page import Claim, Maps, Section
    from dape.results.paper import Published
    from dape.results.records import Row

RESULTS, CLAIMS, MAPS = "results.jsonl", "claims.json", ("maps.npz", "maps.json")
DEEPEST = 3
"""Levels of subfolders to search."""
MOST_WARNINGS = 5
"""Warnings to show about one file."""


def report(folder: Path, out: Path, *, warn: Callable[[str], None], paper: bool = False) -> "list[Section]":
    """Write the page of a folder and of its subfolders; returns its sections.

    Args:
        folder: results of one command, or a folder with such folders.
        out: file to write. A file that is not a report is not overwritten.
        warn: called with a message about each result that cannot be read.
        paper: show the paper's numbers when the page opens, of all its methods and also beside results on other text.
    """
    if not folder.is_dir():
        missing = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {missing}; `dape report` reads a folder with {RESULTS}")
    check_may_replace(out)
    found = list(result_folders(folder))
    if not found:
        raise UsageError(
            f"{folder}: there is no {RESULTS}, {CLAIMS} or {MAPS[0]} in it or up to {DEEPEST} levels below. "
            f"`dape compare --out DIR`, `dape che --out DIR` and `dape probe --train --out DIR` each write one"
        )
    sections = [section_of(each, folder, paper=paper) for each in found]
    for section in sections:
        for warning in section.warnings:
            warn(f"{section.source}: {warning}")
    if not any(section.rows or section.claims or section.maps for section in sections):
        raise ValueError(f"{folder}: nothing of {len(found)} result folders could be read, so there is no report")
    from dape.report.page import build_page

    write_text(out, build_page(sections, folder.resolve().name or "Results"))
    return sections


def check_may_replace(out: Path) -> None:
    """Refuse to overwrite a file that is not a report."""
    check_writable_file(out, "`out`")
    if not out.exists():
        return
    from dape.report.page import GENERATOR

    with out.open("rb") as file:
        if f'content="{GENERATOR}"'.encode() not in file.read(4096) and out.stat().st_size:
            raise UsageError(f"`out` {out}: exists and is not a report of dape; choose another name or remove it")


# Folders -------------------------------------------------------------------------------------------------------------


def result_folders(top: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """Folders with results, by name. Subfolders of a result folder belong to it and are not searched."""
    if any((top / name).is_file() for name in (RESULTS, CLAIMS, MAPS[0])):
        yield top
        return
    if depth == 0:
        return
    for inner in sorted(_subfolders(top)):
        yield from result_folders(inner, depth - 1)


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith(".")]
    except PermissionError:
        return []


def section_of(folder: Path, top: Path, *, paper: bool = False) -> "Section":
    from dape.report.page import Section

    rows, warnings = rows_of(folder / RESULTS)
    claims, about_claims = claims_of(folder / CLAIMS)
    maps, about_maps = maps_of(folder)
    title, about = described(folder)
    return Section(
        title=title or (folder.resolve().name if folder == top else str(folder.relative_to(top))),
        about=about,
        rows=rows,
        published=published_for(folder) if paper or repeats_the_paper(folder) else _of_methods(folder, rows),
        mode="both" if paper or repeats_the_paper(folder) else "ours",
        claims=claims,
        maps=maps,
        source=str(folder),
        warnings=[*warnings, *about_claims, *about_maps],
    )


def described(folder: Path) -> tuple[str, list[str]]:
    """Title and first paragraph of the folder's README.md, without the words that lead to a command."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return "", []
    title = text.removeprefix("# ").partition("\n")[0].strip() if text.startswith("# ") else ""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip() and not part.startswith("#")]
    first = paragraphs[0] if paragraphs else ""
    prose = first and first[0] not in "|!<-*"
    return title, [first.replace("`", "").removesuffix(" Made by")] if prose else []


def repeats_the_paper(folder: Path) -> bool:
    """Whether `dape reproduce` wrote the folder. Only then the paper's numbers can be compared with these."""
    from dape.experiments.grid import saved_settings
    from dape.experiments.reproduce.plan import SETTINGS

    return bool(saved_settings(folder, SETTINGS))


def _of_methods(folder: Path, rows: "list[Row]") -> "list[Published]":
    """The paper's numbers for the methods that were measured here."""
    measured = {row.method for row in rows}
    return [row for row in published_for(folder) if row.method in measured]


def published_for(folder: Path) -> "list[Published]":
    """The paper's numbers to show beside a folder's."""
    from dape.experiments.grid import saved_settings
    from dape.experiments.reproduce.catalogue import EXPERIMENTS
    from dape.experiments.reproduce.judge import published
    from dape.experiments.reproduce.plan import SETTINGS
    from dape.results.paper import load

    experiment = EXPERIMENTS.get(saved_settings(folder, SETTINGS).get("experiment", ""))
    if experiment is not None:
        return published(experiment)
    first = _first_row(folder / RESULTS)
    if first is None:
        return []
    if first.protocol == "che":
        return load("A2")
    return load("A3") if first.metric == "perplexity" else []


def _first_row(path: Path) -> "Row | None":
    from dape.results.records import Row

    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                return checked(Row.from_json(line))
            except (ValueError, TypeError):
                continue
    return None


# Files ---------------------------------------------------------------------------------------------------------------


def rows_of(path: Path) -> "tuple[list[Row], list[str]]":
    """All readable rows, and warnings about the others: one broken line must not hide the rest."""
    from dape.results.records import read_rows

    if not path.is_file():
        return [], []
    bad: list[str] = []
    rows = []
    for row in read_rows(path, warn=bad.append):
        try:
            rows.append(checked(row))
        except ValueError as error:
            bad.append(f"the row of {row.run} at length {row.length} ({error})")
    more = [f"{len(bad) - MOST_WARNINGS} more lines are left out"] if len(bad) > MOST_WARNINGS else []
    warnings = [f"{path.name} is left out in part: {text}" for text in [*bad[:MOST_WARNINGS], *more]]
    return rows, warnings


EXTRA_KINDS = {"task": str, "lr": int | float, **dict.fromkeys(COORDINATES, int | float)}


def checked(row: "Row") -> "Row":
    """Return the row if it can be drawn, else raise ValueError: a file may have been edited by hand."""
    for name, kind in EXTRA_KINDS.items():
        if name in row.extra and not isinstance(row.extra[name], kind):
            raise ValueError(f"{name} is {row.extra[name]!r}")
    if row.train_length < 1 or row.length < 1:
        raise ValueError("a length is at least 1")
    if row.metric == "perplexity" and row.value <= 0:
        raise ValueError(f"perplexity {row.value:g}")
    return row


def claims_of(path: Path) -> "tuple[list[Claim], list[str]]":
    from dape.report.page import Claim

    if not path.is_file():
        return [], []
    try:
        given = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        return [], [f"{path.name} is left out: {error}"]
    if not isinstance(given, list):
        return [], [f"{path.name} is left out: it is not a list of claims"]
    claims, warnings = [], []
    for number, each in enumerate(given, 1):
        try:
            claims.append(Claim.from_plain(each))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            warnings.append(f"{path.name}: claim {number} is left out ({error})")
    return claims, warnings


def maps_of(folder: Path) -> "tuple[Maps | None, list[str]]":
    """The maps that `dape visualize` wrote into the folder or into its subfolder maps."""
    from dape.evaluation.map_files import read_maps

    for inner in (folder, folder / "maps"):
        if not all((inner / name).is_file() for name in MAPS):
            continue
        try:
            return _maps(read_maps(inner)), []
        except (OSError, ValueError) as error:
            return None, [f"{MAPS[0]} is left out: {error}"]
    return None, []


def _maps(found: "BiasMaps") -> "Maps":
    from dape.report.page import Maps

    given = found.facts
    if not found.rows["scores"].size:
        raise ValueError("there is nothing in it")
    return Maps(
        method=given.get("method", ""),
        length=given["length"],
        query=given.get("query", given["length"]),
        layers=tuple(given["layers"]),
        heads=tuple(given["heads"]),
        samples=tuple((str(sample.get("id")), str(sample.get("text", ""))) for sample in given["samples"]),
        lags=found.lags,
        terms=found.rows,
        formulas=given.get("terms", {}),
        heads_summary=given.get("heads_summary"),
    )
