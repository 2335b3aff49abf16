"""Tables within the columns of a terminal: nothing is shortened, every column is there once."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from dape.fitting import fitted, to_terminal


def wide(padding: tuple[int, int, int, int] = (0, 2, 0, 0)) -> Table:
    table = Table(box=None, pad_edge=False, padding=padding, title="title", caption="caption")
    table.add_column("method", no_wrap=True)
    for length in range(12):
        table.add_column(f"length {length}", justify="right", no_wrap=True)
    for name in ("kerple", "dape-kerple"):
        table.add_row(name, *(f"{length}.{len(name):03}" for length in range(12)))
    return table


def shown(tables, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(*tables, sep="\n")
    return captured.get().splitlines()


@pytest.mark.parametrize("padding", [(0, 2, 0, 0), (0, 1, 0, 1), (0, 0, 0, 3)])
@pytest.mark.parametrize("width", [40, 61, 80])
def test_no_number_and_no_header_is_cut(width, padding):
    lines = shown(fitted(wide(padding), width), width)
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width and "…" not in text
    for length in range(12):
        assert text.count(f"length {length} ") + text.count(f"length {length}\n") <= 1
        assert f"{length}.006" in text.split() and f"{length}.011" in text.split()
    assert text.count("dape-kerple") == len(fitted(wide(padding), width)) > 1
    assert text.count("title") == text.count("caption") == 1


def test_a_table_that_fits_stays_one():
    table = wide()
    assert fitted(table, 200) == [table]


def test_a_line_of_facts_is_wrapped_where_a_width_is_known_and_whole_in_a_pipe(monkeypatch):
    line = "held out    the end of the text, 31,448 tokens (5.0%), as it has too few documents to hold out whole ones"
    monkeypatch.delenv("COLUMNS", raising=False)
    assert to_terminal(line) == line
    monkeypatch.setenv("COLUMNS", "60")
    first, *rest = to_terminal(line, indent=" " * 12).split("\n")
    assert first.startswith("held out    the end") and all(each.startswith(" " * 12) for each in rest)
    assert max(map(len, [first, *rest])) <= 60
    assert " ".join([first, *(each.strip() for each in rest)]) == line
