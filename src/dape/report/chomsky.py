"""Tables and figures of the Chomsky-hierarchy benchmark, functions of cells. Loads rich or matplotlib when called."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dape.evaluation.chomsky_scores import Cell
from dape.experiments.grid import in_short
from dape.report.tables import markdown_lines
from dape.tasks.chomsky.catalogue import TASKS
from dape.tasks.chomsky.config import PAPER_STEPS, WIDTHS, CheConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

    from dape.report.looks import Look

LEARNED = 0.2
"""A task counts as learned above this share of the way from guessing to perfect accuracy."""

# In inches.
CELL_WIDTH, CELL_HEIGHT = 0.52, 0.32
LETTER = 0.05  # width and height of a letter of a name written at 45 degrees
PANEL_WIDTH, PANEL_HEIGHT, GAP, ACROSS = 2.4, 1.7, 0.4, 3


# Tables --------------------------------------------------------------------------------------------------------------


def cell_texts(cell: Cell) -> tuple[str, ...]:
    """Texts under ``headers``."""
    numbers = (cell.familiar, cell.mean, cell.std, cell.best, cell.paper)
    percents = ("-" if value is None else f"{100 * value:.2f}" for value in numbers)
    return (cell.task, cell.method, f"{cell.lr:g}", *percents, f"{100 * cell.chance:.0f}")


def headers(config: CheConfig) -> list[str]:
    return ["task", "method", "lr", f"1-{config.train_length}", "mean", "std", "max", "paper", "chance"]


def terminal_table(cells: Sequence[Cell], config: CheConfig) -> "Table":
    """One line per task and method, the best mean of a task in bold."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column, header in enumerate(headers(config)):
        table.add_column(header, justify="left" if column < 2 else "right", no_wrap=True)
    best = best_of(cells)
    previous = None
    for cell in cells:
        if previous not in (None, cell.task):
            table.add_section()
        task, *rest = cell_texts(cell)
        style = "bold" if cell.mean == best[cell.task] else ""
        table.add_row("" if previous == cell.task else task, *(Text(text, style) for text in rest))
        previous = cell.task
    return table


def markdown(cells: Sequence[Cell], config: CheConfig, *, seeds: int, reduced: Sequence[str]) -> str:
    best, lines = best_of(cells), []
    for cell in cells:
        texts = list(cell_texts(cell))
        if cell.mean == best[cell.task]:
            texts[4] = f"**{texts[4]}**"
        lines.append(texts)
    sentences = [*conditions(config, seeds=seeds, reduced=reduced), *not_learned(cells)]
    words = "\n".join(f"- {sentence}" for sentence in sentences)
    return f"{markdown_lines(headers(config), lines, words=2)}\n\n{words}\n"


def best_of(cells: Sequence[Cell]) -> dict[str, float]:
    return {task: max(cell.mean for cell in cells if cell.task == task) for task in {cell.task for cell in cells}}


def conditions(config: CheConfig, *, seeds: int, reduced: Sequence[str]) -> list[str]:
    """How models were trained and tested, in sentences."""
    trained, several = config.train_length, "s" if seeds > 1 else ""
    sentences = [
        f"Accuracy in percent. Trained for {config.steps} steps of {config.batch} examples of 1 to {trained} tokens; "
        f"{config.layers} layers, width {config.width}, {config.heads} heads (scale {config.scale}).",
        f"mean, std, max: over {seeds} seed{several}, of the mean accuracy at lengths "
        f"{in_short(config.scored_lengths)}, {config.samples} examples each.",
        f"lr was chosen by accuracy at lengths 1 to {trained}, shown in the column 1-{trained}.",
        f"paper: width {WIDTHS['paper']}, {PAPER_STEPS} steps, lengths 41 to 500; it does not say whether these are "
        "means or maxima over seeds.",
    ]
    if config.compat:
        sentences.append("As DeepMind's program: dropout in tests, score from length 42 on, its order in odds_first.")
    return sentences + [f"Reduced: {text}." for text in reduced]


def not_learned(cells: Sequence[Cell]) -> list[str]:
    """A sentence for each task that some method hardly solves even at the lengths it was trained at."""
    poor: dict[str, list[str]] = {}
    for cell in cells:
        if cell.familiar - cell.chance < LEARNED * (1 - cell.chance):
            poor.setdefault(cell.task, []).append(cell.method)
    return [
        f"{task} was hardly learned by {', '.join(methods)}: little more than guessing even in distribution. What they "
        "do at greater lengths says nothing about their encodings; train with more steps."
        for task, methods in poor.items()
    ]


# Figures -------------------------------------------------------------------------------------------------------------


def score_map(cells: Sequence[Cell], config: CheConfig, *, reduced: Sequence[str] = ()) -> "Figure":
    """Tasks by methods: mean accuracy beyond the training length, coloured from guessing to perfect."""
    from matplotlib.figure import Figure

    from dape.report.drawing import CAPTION_LINE, caption_lines, draw_cell, our_style, write_caption

    tasks, methods = (list(dict.fromkeys(names)) for names in zip(*((c.task, c.method) for c in cells), strict=True))
    slant = LETTER * max(map(len, methods))  # of the longest name, which starts above its column and leans to the right
    left, right, above = 1.9, max(0.3, slant - CELL_WIDTH / 2), slant + 0.3
    width = max(left + right + CELL_WIDTH * len(methods), 5.0)
    lines = caption_lines(_map_caption(config, reduced), width)
    below = 0.2 + CAPTION_LINE * len(lines)
    height = above + below + CELL_HEIGHT * len(tasks)
    with our_style():
        figure = Figure(figsize=(width, height))
        box = (CELL_WIDTH * len(methods) / width, CELL_HEIGHT * len(tasks) / height)
        panel = figure.add_axes((left / width, below / height, *box))
        _label_map(panel, tasks, methods)
        for cell in cells:
            x, y = methods.index(cell.method), tasks.index(cell.task)
            shade = max(0.0, (cell.mean - cell.chance) / (1 - cell.chance))
            draw_cell(panel, x, y, shade, f"{100 * cell.mean:.1f}", fontsize=7)
        write_caption(figure, lines)
    return figure


def _label_map(panel: "Axes", tasks: Sequence[str], methods: Sequence[str]) -> None:
    panel.set_xticks(range(len(methods)), labels=methods, rotation=45, ha="left", rotation_mode="anchor")
    panel.set_yticks(range(len(tasks)), labels=[TASKS[task].title for task in tasks])
    panel.xaxis.tick_top()
    panel.tick_params(length=0)
    panel.set_xlim(-0.5, len(methods) - 0.5)
    panel.set_ylim(len(tasks) - 0.5, -0.5)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _map_caption(config: CheConfig, reduced: Sequence[str]) -> str:
    text = (
        f"Accuracy in percent at lengths {in_short(config.scored_lengths)}, trained up to {config.train_length}: "
        "mean over seeds. Dark: guessing, light: perfect."
    )
    return text + (f" Reduced: {'; '.join(reduced)}." if reduced else "")


def length_figure(cells: Sequence[Cell], config: CheConfig, *, reduced: Sequence[str] = ()) -> "Figure":
    """One panel per task: accuracy against length, a line per method."""
    from matplotlib.figure import Figure

    from dape.report.drawing import CAPTION_LINE, caption_lines, legend, our_style, write_caption
    from dape.report.looks import looks

    tasks, methods = (list(dict.fromkeys(names)) for names in zip(*((c.task, c.method) for c in cells), strict=True))
    across, styles = min(ACROSS, len(tasks)), looks(methods)
    down = math.ceil(len(tasks) / across)
    width = 0.5 + across * (PANEL_WIDTH + GAP) + 1.9
    lines = caption_lines(_length_caption(config, reduced), width)
    below = 0.25 + CAPTION_LINE * len(lines)
    height = below + down * (PANEL_HEIGHT + 0.65)
    with our_style():
        figure = Figure(figsize=(width, height))
        for number, task in enumerate(tasks):
            row, column = divmod(number, across)
            at = (0.5 + column * (PANEL_WIDTH + GAP), below + (down - 1 - row) * (PANEL_HEIGHT + 0.65) + 0.35)
            panel = figure.add_axes((at[0] / width, at[1] / height, PANEL_WIDTH / width, PANEL_HEIGHT / height))
            _draw_task(panel, task, [cell for cell in cells if cell.task == task], styles, config)
            if number + across >= len(tasks):
                panel.set_xlabel("length")
        legend(figure, {method: styles[method].stroke_only() for method in methods})
        write_caption(figure, lines)
    return figure


def _draw_task(panel: "Axes", task: str, cells: Sequence[Cell], styles: "dict[str, Look]", config: CheConfig) -> None:
    panel.set_title(TASKS[task].title, loc="left", fontsize=8.5)
    panel.axhline(100 * TASKS[task].chance, color="#AAAAAA", linewidth=0.8, linestyle=(0, (1, 2)))
    panel.axvline(config.train_length, color="#888888", linewidth=0.9, linestyle=(0, (2, 2)))
    for cell in cells:
        lengths, values = zip(*cell.curve.items(), strict=True)
        panel.plot(lengths, [100 * value for value in values], **styles[cell.method].stroke_only())
    lowest = min(value for cell in cells for value in (cell.chance, *cell.curve.values()))
    panel.set_ylim(100 * lowest - 5, 102)
    panel.set_xlim(0, max(config.lengths) * 1.02)


def _length_caption(config: CheConfig, reduced: Sequence[str]) -> str:
    text = (
        f"Accuracy in percent by length of the input, mean over seeds; dashed upright: longest in training "
        f"({config.train_length}); dotted across: guessing."
    )
    return text + (f" Reduced: {'; '.join(reduced)}." if reduced else "")
