"""Perplexity or accuracy against length: chart, table, tests against the base, the paper's numbers."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from dape.report.page.blocks import (
    NOTHING,
    Block,
    Cell,
    Chart,
    Table,
    finite,
    in_order,
    series_of,
    sortable,
    spread_cell,
    text_cells,
)
from dape.report.page.panels import Panel
from dape.report.summary import SIGNIFICANT, beyond_training, caveats, lowest, p_number
from dape.report.tables import TRAINED_HERE, UNKNOWN, footer, grid, one_line_heads
from dape.results.numbers import HIGHER_IS_BETTER, as_text, p_text
from dape.results.paper import TITLES, Published
from dape.results.records import Row
from dape.results.statistics import COORDINATES, Comparison, Results, Spread, arrange, compare, in_words, latest, spread

FAR = 1e4
"""Values beyond this factor of the lowest are not drawn but marked at the edge of the chart."""
MOST_ROWS = 400
"""At most so many rows are listed one by one."""
NAMES = {"perplexity": "Perplexity", "accuracy": "Accuracy", "nll": "Nats per token"}


def curve_block(panel: Panel, published: Sequence[Published]) -> Block:
    rows = panel.rows
    if all(_placed(row) for row in rows):
        rows = (*rows, *over_depths(rows))
    results = arrange(rows, metric=panel.kind, methods=in_order(row.method for row in rows))
    if not results:
        return list_block(panel)
    tests = tests_of(results, panel)
    groups = published_groups(published, panel)
    labels = in_order([*results.methods, *(row.as_row().label for group in groups.values() for row in group)])
    chart = Chart(
        "curves",
        f"{_name(panel.kind)} against context length, one line per method. The table below has the same numbers.",
        {
            "metric": panel.kind,
            "train": results.train_length,
            "ours": our_points(results, panel.kind),
            "paper": [point for name, group in groups.items() for point in paper_points(group, name, len(groups))],
            "papers": "; ".join(groups),
        },
    )
    perplexity = panel.kind == "perplexity"
    return Block(
        title=_titled(panel),
        words=[*lowest(results), *beyond_training(results)] if perplexity else most_accurate(results, panel.kind),
        series=series_of(labels),
        charts=[*([chart] if _is_curve(chart) else []), *place_maps(panel)],
        tables=[values_table(results, panel, tests)],
        paper=[paper_table(name, group) for name, group in groups.items()],
        details=[("Every test: method against the same encoding without DAPE", tests_table(tests))] if tests else [],
        caveats=caveats(results, tests) if perplexity else [f"{why}." for why in results.left_out],
    )


def _is_curve(chart: Chart) -> bool:
    """Whether there are at least two lengths."""
    return any(len({point["x"] for point in chart.data[side]}) > 1 for side in ("ours", "paper"))


def _name(metric: str) -> str:
    return NAMES.get(metric, metric.replace("_", " ").capitalize())


def _titled(panel: Panel) -> str:
    protocol = "" if panel.kind == "perplexity" else f" ({panel.rows[0].protocol})"
    return panel.titled(f"{_name(panel.kind)}{protocol} against length")


# Rows ----------------------------------------------------------------------------------------------------------------


def _placed(row: Row) -> bool:
    """Whether the row is of a part of the input, such as one depth."""
    return any(name in row.extra for name in COORDINATES)


def over_depths(rows: Sequence[Row]) -> list[Row]:
    """The means over depths, which the command prints too, for results that have rows of single depths only."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in latest(rows):
        if "depth" in row.extra:
            groups.setdefault((row.run, row.method, row.seed, row.length), []).append(row)
    return [
        replace(
            group[0],
            value=fmean(row.value for row in group),
            scored_tokens=sum(row.scored_tokens for row in group),
            extra={name: value for name, value in group[0].extra.items() if name not in COORDINATES},
        )
        for group in groups.values()
    ]


def our_points(results: Results, metric: str) -> list[dict[str, Any]]:
    found = {(m, n): at for m in results.methods for n in results.lengths if (at := results.spread(m, n))}
    limit = _limit([at.mean for at in found.values()], metric)
    return [
        _point(method, length, results.train_length, at, metric, limit, seeds=f"{at.n} seed{'s' * (at.n > 1)}")
        for (method, length), at in found.items()
    ]


def _limit(means: Sequence[float], metric: str) -> float:
    if metric in HIGHER_IS_BETTER:
        return math.inf
    return FAR * min((mean for mean in means if math.isfinite(mean)), default=1.0)


def _point(
    name: str, length: int, train: int | None, at: Spread, metric: str, limit: float, *, seeds: str
) -> dict[str, Any]:
    drawn = math.isfinite(at.mean) and at.mean <= limit
    factor = 100 if metric == "accuracy" else 1
    cell = spread_cell({}, at, metric)
    return {
        "s": name,
        "x": length,
        "m": length / train if train else None,
        "y": at.mean * factor if drawn else None,
        "lo": at.low * factor if drawn and at.n > 1 and math.isfinite(at.low) else None,
        "hi": at.high * factor if drawn and at.n > 1 and math.isfinite(at.high) else None,
        "text": " ".join(filter(None, [cell.text, cell.spread])),
        "n": seeds,
        "odd": None if drawn else "NaN" if math.isnan(at.mean) else "∞" if math.isinf(at.mean) else "↑",
    }


def most_accurate(results: Results, metric: str) -> list[str]:
    """The best and the worst method at the training length and at the longest, if higher values are better."""
    if metric not in HIGHER_IS_BETTER:
        return []
    words = []
    for length in dict.fromkeys((results.train_length, results.lengths[-1])):
        means = {m: at.mean for m in results.methods if length and (at := results.spread(m, length))}
        known = {method: as_text(mean, metric) for method, mean in means.items() if math.isfinite(mean)}
        if len(known) < 2:
            continue
        best = known[max(known, key=means.__getitem__)]
        worst = min(known, key=means.__getitem__)
        names = in_words([method for method, text in known.items() if text == best])
        words.append(f"At {length} tokens best: {names} with {best}; lowest: {worst} with {known[worst]}.")
    return words


# Tables --------------------------------------------------------------------------------------------------------------


def tests_of(results: Results, panel: Panel) -> list[Comparison]:
    if panel.kind not in ("perplexity", "nll"):
        return []
    return compare(results, [(label, base) for label, base in panel.bases.items() if label in results.methods])


def values_table(results: Results, panel: Panel, tests: Sequence[Comparison]) -> Table:
    """Means and deviations over seeds. The best of each length and significant differences are marked."""
    metric = panel.kind
    by_cell = {(test.method, test.length): test for test in tests}
    lines, table = [], grid(results, metric)
    for method, cells in table.lines:
        counts = sorted({len(at) for n in results.lengths if (at := results.at(method, n))})
        line = [*text_cells(method), Cell("-".join(map(str, counts)), counts[-1] if counts else None)]
        for length, cell in zip(results.lengths, cells, strict=False):  # the other cells are costs
            found, test = results.spread(method, length), by_cell.get((method, length))
            values = {seed: row.value for seed, row in results.at(method, length).items()}
            marks = {"mark": mark_of(test), "title": in_short(test) if test else "", "best": cell.best}
            line.append(spread_cell(values, found, metric, **marks) if found else NOTHING)
        costs = [cell.mean for cell in cells[len(results.lengths) :]]
        line += [Cell(cost, float(cost.replace(",", ""))) if cost not in ("", UNKNOWN) else NOTHING for cost in costs]
        lines.append(line)
    return Table(
        f"{_name(metric)} by method and length: ours",
        ["method", "seeds", *one_line_heads(table)],
        lines,
        notes=[footer(results, metric), *_how_tested(results, panel, tests)],
        swatches=True,
    )


def mark_of(test: Comparison | None) -> str:
    return "*" if test and test.p_holm is not None and test.p_holm < SIGNIFICANT else ""


def in_short(test: Comparison) -> str:
    tested = f"{p_text(test.p)}, after Holm {p_number(test.p_holm)}" if test.p is not None else ""
    words = tested or f"no test possible ({test.note})"
    return f"against {test.base}: {effect(test)}, 95% interval {interval(test)}, n = {test.n}, {words}"


def effect(test: Comparison) -> str:
    return f"{100 * (test.ratio - 1):+.1f}%" if math.isfinite(test.ratio) else "-"


def interval(test: Comparison) -> str:
    if test.ci is None:
        return "-"
    low, high = (100 * math.expm1(min(bound, 700.0)) for bound in test.ci)
    return f"{low:+.1f}% to {high:+.1f}%"


def _how_tested(results: Results, panel: Panel, tests: Sequence[Comparison]) -> list[str]:
    if len(results.seeds) == 1 and not tests:
        return ["One seed: no test possible."]
    if not tests:
        return ["Differences of accuracy are not tested."] if panel.kind == "accuracy" else []
    if not any(test.p is not None for test in tests):
        reasons = ", ".join(dict.fromkeys(test.note for test in tests if test.note))
        return [f"Against the base: no test possible ({reasons})."]
    count = sum(test.p is not None for test in tests)
    return [
        f"* differs from the same encoding without DAPE, p < {SIGNIFICANT:g} in a two-sided paired t-test over seeds, "
        f"corrected after Holm for {count} tests. Point at a number for effect, interval and n, or open the list below."
    ]


def tests_table(tests: Sequence[Comparison]) -> Table:
    lines = [
        [
            *text_cells(test.method, test.base),
            Cell(str(test.length), test.length),
            Cell(str(test.n), test.n),
            Cell(effect(test), sortable(test.ratio)),
            Cell(interval(test), test.ci[0] if test.ci else None),
            Cell(p_number(test.p), test.p),
            Cell(p_number(test.p_holm), test.p_holm, mark=mark_of(test)),
            *text_cells(f"{test.test}{f': {test.note}' if test.note else ''}" if test.test != "none" else test.note),
        ]
        for test in tests
    ]
    headers = ["method", "base", "length", "n", "effect", "95% interval", "p", "p (Holm)", "test"]
    notes = ["Effect: change of perplexity against the base, geometric mean over the seeds that both have."]
    if any(test.test == "bootstrap" for test in tests):
        notes.append(
            "One seed: no test possible. The interval is over windows of text and tells nothing of other seeds."
        )
    return Table("Tests against the base", headers, lines, words=2, notes=notes)


# The paper's numbers -------------------------------------------------------------------------------------------------


def published_groups(published: Sequence[Published], panel: Panel) -> dict[str, list[Published]]:
    """The paper's numbers of this metric by table and conditions. If some have our training length, only those."""
    wanted = [row for row in published if row.metric == panel.kind and row.train_len and row.eval_len]
    wanted = [row for row in wanted if row.train_len == panel.train_length] or wanted
    groups: dict[str, list[Published]] = {}
    for row in wanted:
        parts = [row.id, row.dataset, row.model, f"trained at {row.train_len}"]
        groups.setdefault(", ".join(part for part in parts if part), []).append(row)
    return groups


def _published_spread(row: Published) -> Spread:
    return replace(spread([row.value]), std=row.std, n=row.n_seeds or 1)


def paper_points(group: Sequence[Published], name: str, groups: int) -> list[dict[str, Any]]:
    limit = _limit([row.value for row in group], group[0].metric)
    points = []
    for row in group:
        at = replace(_published_spread(row), n=1)  # a band from lowest to highest seed is not published
        seeds = f"{row.n_seeds} seeds" if row.n_seeds else "seeds not stated"
        point = _point(row.as_row().label, row.eval_len or 0, row.train_len, at, row.metric, limit, seeds=seeds)
        points.append({**point, "group": name if groups > 1 else ""})
    return points


def paper_table(name: str, group: Sequence[Published]) -> Table:
    metric = group[0].metric
    lengths = sorted({row.eval_len for row in group if row.eval_len})
    values = {(row.as_row().label, row.eval_len): row for row in group}
    best = {n: min(row.value for row in group if row.eval_len == n) for n in lengths}
    lines = []
    for label in in_order(label for label, _ in values):
        line = text_cells(label)
        for length in lengths:
            row = values.get((label, length))
            line.append(_published_cell(row, metric, best=row.value == best[length]) if row else NOTHING)
        lines.append(line)
    headers = ["method", *(f"{n} {TRAINED_HERE}" if n == group[0].train_len else str(n) for n in lengths)]
    seeds = f"mean ± deviation over {group[0].n_seeds} seeds" if group[0].n_seeds else "seeds not stated"
    title = TITLES.get(group[0].id, name)
    notes = [f"Table {group[0].id} of the paper ({title}); {seeds}.", *_remarks(group)]
    return Table(f"{_name(metric)} by method and length: the paper, {name}", headers, lines, notes=notes, swatches=True)


def _published_cell(row: Published, metric: str, *, best: bool) -> Cell:
    return replace(spread_cell({}, _published_spread(row), metric), best=best, title=row.note)


def _remarks(group: Sequence[Published]) -> list[str]:
    """The note that all numbers share, if there is one. Notes on single numbers are titles of their cells."""
    notes = {row.note for row in group}
    return [f"{note}." for note in notes if note and len(notes) == 1]


# What is not a curve -------------------------------------------------------------------------------------------------


def place_maps(panel: Panel) -> list[Chart]:
    """A small map for each method: accuracy by length and depth, or by length and number of pairs."""
    if panel.kind != "accuracy":
        return []
    charts = []
    for axis, name in (("depth", "depth of what is asked for (0 first, 1 last)"), ("pairs", "number of pairs")):
        rows = [row for row in latest(panel.rows) if isinstance(row.extra.get(axis), int | float)]
        for method in in_order(row.method for row in rows):
            cells = _mean_cells([row for row in rows if row.method == method], axis)
            label = f"{method}: accuracy by length and {name}"
            data = {"cells": cells, "axis": axis, "series": method}
            charts.append(Chart("places", label, data, method, f"Accuracy by {name}"))
    return charts


def _mean_cells(rows: Sequence[Row], axis: str) -> list[dict[str, Any]]:
    """Means over seeds, by length and place on the axis."""
    seen: dict[tuple[int, float], list[float]] = {}
    for row in rows:
        seen.setdefault((row.length, row.extra[axis]), []).append(row.value)
    means = {at: fmean(values) for at, values in sorted(seen.items())}
    return [
        {
            "c": str(length),
            "r": f"{at:g}",
            "v": finite(mean),
            "text": f"{100 * mean:.0f}" if math.isfinite(mean) else "nan",
            "exact": as_text(mean, "accuracy"),
        }
        for (length, at), mean in means.items()
    ]


def list_block(panel: Panel) -> Block:
    """Rows that no chart can show, listed one by one."""
    places = [name for name in COORDINATES if any(name in row.extra for row in panel.rows)]
    lines = []
    for row in panel.rows[:MOST_ROWS]:
        cells = [*text_cells(row.method), Cell(str(row.seed), row.seed), Cell(str(row.length), row.length)]
        cells += [Cell(str(row.extra.get(name, "-")), _number(row.extra.get(name))) for name in places]
        lines.append([*cells, Cell(as_text(row.value, panel.kind), sortable(row.value)), *text_cells(row.note)])
    headers = ["method", "seed", "length", *(name.replace("_", " ") for name in places), panel.kind, "note"]
    left = len(panel.rows) - len(lines)
    notes = [f"{left} more rows are in the file."] if left else []
    return Block(title=_titled(panel), tables=[Table(f"{_name(panel.kind)}, row by row", headers, lines, notes=notes)])


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
