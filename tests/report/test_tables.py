"""Tables are parsed back and compared with what went in."""

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from dape.report.tables import markdown_table, terminal_table

THREE_SEEDS = {
    "kerple": {64: [4.5, 4.6, 4.7], 128: [4.1, 4.2, 4.3], 256: [4.2, 4.2, 4.2]},
    "dape-kerple": {64: [4.0, 4.1, 4.2], 128: [3.7, 3.7, 3.7], 256: [3.5, 3.6, 3.7]},
    "rope": {64: [4.2, 4.3, 4.4], 128: [3.8, 3.9, 4.0], 256: [47.0, 48.0, 490.0]},
}
MANY = (64, 128, 256, 512, 1024, 2048)
METHODS = ("rope", "alibi", "kerple", "fire", "dape-alibi", "dape-kerple", "dape-fire")


def cells(markdown: str) -> dict[str, dict[str, str]]:
    """Method -> header -> cell of a Markdown table."""
    lines = [line.strip("|").split("|") for line in markdown.splitlines() if line.startswith("|")]
    header, _, *body = [[cell.strip() for cell in line] for line in lines]
    return {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in body}


def shown(renderable, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(renderable)
    return console.file.getvalue().splitlines()


# Markdown ------------------------------------------------------------------------------------------------------------


def test_means_deviations_best_and_training_length(make_rows):
    table = cells(markdown_table(make_rows(THREE_SEEDS)))
    assert list(table) == ["kerple", "dape-kerple", "rope"]
    assert list(table["rope"]) == ["64", "128 (train)", "256"]
    assert table["kerple"] == {"64": "4.600 ± 0.100", "128 (train)": "4.200 ± 0.100", "256": "4.200 ± 0.000"}
    assert table["dape-kerple"]["64"] == "**4.100 ± 0.100**"
    assert table["rope"]["256"] == "195.0 ± 255.5"
    assert [m for m, line in table.items() for cell in line.values() if "**" in cell] == ["dape-kerple"] * 3


def test_one_seed_has_no_deviation_and_what_is_missing_is_a_dash(make_rows):
    table = cells(
        markdown_table(make_rows({"rope": {128: 4.0, 256: 9.0}, "alibi": {128: 4.1}}), methods=["alibi", "rope", "t5"])
    )
    assert table == {
        "alibi": {"128 (train)": "4.100", "256": "-"},
        "rope": {"128 (train)": "**4.000**", "256": "**9.000**"},
        "t5": {"128 (train)": "-", "256": "-"},
    }


def test_an_incomplete_cell_says_so(make_rows):
    table = cells(markdown_table(make_rows({"rope": {128: [4.0, 4.2], 256: 9.0}})))
    assert table["rope"]["256"] == "**9.000 (1/2 seeds)**"


def test_ties_are_all_bold_and_nan_never(make_rows):
    values = {"a": {64: 4.0, 128: math.inf}, "b": {64: 4.0, 128: math.nan}, "c": {64: math.nan, 128: math.inf}}
    table = cells(markdown_table(make_rows(values)))
    assert [table[m]["64"] for m in "abc"] == ["**4.000**", "**4.000**", "nan"]
    assert [table[m]["128 (train)"] for m in "abc"] == ["inf", "nan", "inf"]


def test_high_accuracy_is_best(make_rows):
    rows = make_rows({"rope": {128: 0.5}, "alibi": {128: 0.75}}, metric="accuracy")
    table = cells(markdown_table(rows, metric="accuracy"))
    assert (table["rope"]["128 (train)"], table["alibi"]["128 (train)"]) == ("50.0%", "**75.0%**")


def test_footer_tells_how_it_was_measured(make_rows):
    foot = markdown_table(make_rows(THREE_SEEDS)).splitlines()[-1]
    for fact in (
        "Perplexity, mean ± sample standard deviation over seeds 0, 1 and 2",
        "protocol last_k",
        "k 64",
        "windows 200",
        "mode packed",
        "scored tokens 12800",
        "data abcdef012345",
        "tokenizer byte",
        "steps 600",
    ):
        assert fact in foot
    rows = make_rows({"rope": {128: 4.0}})
    assert "Perplexity, seed 0; protocol" in markdown_table(rows)
    assert "steps 300 to 600" in markdown_table([*rows, *make_rows({"alibi": {128: 4.0}}, step=300)])


def test_what_runs_cost(make_rows):
    """Means over the seeds, of whatever rows tell; a table of rows that tell nothing has no such columns."""
    rows = make_rows({"rope": {64: [4.0, 4.2], 128: [4.0, 4.2]}, "t5": {64: [4.0, 5.0]}, "old": {64: 4.0}})
    told = {
        "rope-seed0": {"train_tokens": 409600, "encoding_parameters": 0, "step_ms": 20.4},
        "rope-seed1": {"train_tokens": 409600, "encoding_parameters": 0, "step_ms": 30.4},
        "t5-seed0": {"train_tokens": 409600, "encoding_parameters": 1280},
    }
    rows = [replace(row, extra=told.get(row.run, {})) for row in rows]
    table = cells(markdown_table(rows))
    assert table["rope"]["tokens seen"] == table["t5"]["tokens seen"] == "409,600"
    assert [table[m]["parameters added"] for m in ("rope", "t5", "old")] == ["0", "1,280", "-"]
    assert [table[m]["ms a step"] for m in ("rope", "t5", "old")] == ["25", "-", "-"]
    terminal = "\n".join(shown(terminal_table(rows, methods=("rope", "old", "coming"), width=120), 120))
    assert "parameters" in terminal
    # Old rows will never say it; of a method without rows it is still to come.
    assert [line.split()[-3:] for line in terminal.splitlines() if line.startswith(("old", "coming"))] == [
        ["-", "-", "-"],
        ["…", "…", "…"],
    ]


def test_rows_that_cannot_be_compared_are_named_not_shown(make_rows):
    rows = make_rows({"alibi": {128: 4.0}, "kerple": {128: 4.1}})
    text = markdown_table([*rows, *make_rows({"rope": {128: 1.0}}, data_hash="other")])
    assert cells(text)["rope"] == {"128 (train)": "-"}
    assert cells(text)["alibi"] == {"128 (train)": "**4.000**"}
    assert "rope-seed0 at 128: left out, data_hash other instead of abcdef0123456789." in text


# Terminal ------------------------------------------------------------------------------------------------------------


def full(make_rows, seeds: int = 3) -> list:
    return make_rows({m: {n: [4 + i / 2 + s / 100 for s in range(seeds)] for n in MANY} for i, m in enumerate(METHODS)})


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("width", [80, 120])
def test_seven_methods_and_six_lengths_fit(make_rows, seeds, width):
    lines = shown(terminal_table(full(make_rows, seeds), width=width), width)
    assert lines[0].split() == ["method", *map(str, MANY)]
    assert max(len(line.rstrip()) for line in lines) <= width
    assert not any("…" in line for line in lines)
    rope = next(line for line in lines if line.startswith("rope")).split()
    assert rope[1] == ("4.000" if seeds == 1 else "4.010")
    assert sum("±0.010" in line for line in lines) == (0 if seeds == 1 else 7)


def test_deviations_go_below_in_a_narrow_terminal_only(make_rows):
    rows = full(make_rows)
    heights = [len(shown(terminal_table(rows, width=width), width)) for width in (80, 120)]
    assert heights[0] >= heights[1] + 7


def test_lengths_that_do_not_fit_follow_in_a_second_table(make_rows):
    lines = shown(terminal_table(full(make_rows), width=40), 40)
    headers = [line.split()[1:] for line in lines if line.startswith("method")]
    assert len(headers) > 1
    assert [n for header in headers for n in header] == [str(n) for n in MANY]
    assert max(len(line.rstrip()) for line in lines) <= 40


def test_a_table_that_still_fills(make_rows):
    rows = make_rows({"rope": {128: [4.0, 4.2], 256: [9.0]}})
    expected = {"methods": ["rope", "dape-kerple"], "lengths": [128, 256, 512], "seeds": range(2), "train_length": 128}
    lines = shown(terminal_table(rows, **expected, width=80))
    assert lines[0].split() == ["method", "128", "256", "512"]
    assert lines[1].split() == ["(train)"]
    assert lines[2].split() == ["rope", "4.100", "±0.141", "9.000", "(1/2)", "…"]
    assert lines[3].split() == ["dape-kerple", "…", "…", "…"]


def test_a_table_without_any_row():
    lines = shown(terminal_table([], methods=["rope"], lengths=[128], seeds=[0], train_length=128, width=80))
    assert lines[1].split() == ["(train)"]
    assert lines[2].split() == ["rope", "…"]
    assert lines[-1].strip() == "No rows of perplexity yet."


def test_the_best_so_far_stands_out(make_rows):
    def styled(values) -> str:
        console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard", no_color=False)
        console.print(terminal_table(make_rows(values), methods=["rope", "alibi"], lengths=[128], width=80))
        return console.file.getvalue()

    green = r"\x1b\[1;32m *([\d.]+)"
    assert re.findall(green, styled({"rope": {128: 5.0}})) == ["5.000"]
    assert re.findall(green, styled({"rope": {128: 5.0}, "alibi": {128: 4.0}})) == ["4.000"]


def test_later_rows_replace_earlier_ones(make_rows):
    (old,) = make_rows({"rope": {128: 9.0}})
    assert cells(markdown_table([old, replace(old, value=4.0)]))["rope"] == {"128 (train)": "**4.000**"}
