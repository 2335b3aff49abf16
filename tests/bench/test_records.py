"""The one kind of record, its file, and the runner that all benchmarks share."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from dape.bench import attention, che, decode, kernels, memory_by_length, train
from dape.bench.records import Column, Results, Spread, count, make_table, spread
from dape.bench.runner import Begins, Once, Plan, Telling, Timed, measure

FILES = sorted((Path(__file__).parents[2] / "results" / "bench").glob("*.json"))
TABLES = {"attention": attention.tables, "train": train.tables, "che": che.tables}
TABLES |= {"decode": decode.tables, "kernels": kernels.tables, "memory": memory_by_length.tables}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_committed_files_are_read_shown_and_written_again(path, tmp_path):
    results = Results.read(path)
    (table,) = TABLES[path.stem.split("-")[0]](results)
    beside = len(results.settings["lengths"]) if path.stem == "memory" else 1  # records in a row of the table
    assert results.records and table.row_count == -(-len(results.records) // beside)
    results.write(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(path.read_text())


def test_a_spread_takes_three_names_even_if_there_is_none():
    record = {**spread("ms", Spread(2.0, 1.0, 4.0)), **spread("ratio", None)}
    assert record == {"ms": 2.0, "ms_q1": 1.0, "ms_q3": 4.0, "ratio": None, "ratio_q1": None, "ratio_q3": None}
    assert Spread.found_in(record, "ms") == Spread(2.0, 1.0, 4.0) and Spread.found_in(record, "ratio") is None


def test_notes_get_a_column_and_groups_a_gap():
    records = [{"length": length, "note": note} for length, note in ((8, ""), (8, "odd"), (16, ""))]
    table = make_table("", "", records, [count("length"), Column("twice", lambda r: str(2 * r["length"]))], ["length"])
    assert [column.header for column in table.columns] == ["length", "twice", "note"]
    assert [row.end_section for row in table.rows] == [False, True, False]


@dataclass
class Options:
    """No option for threads: such a benchmark does not load torch."""


def run(*parts) -> tuple[Results, list[str]]:
    told: list[str] = []
    return measure(Options(), lambda threads: Plan(parts=parts, steps=0), Telling(told.append)), told


def test_an_interruption_keeps_the_samples_of_the_round_it_falls_into():
    calls = []

    def call() -> None:
        calls.append(1)
        if len(calls) == 6:  # warm-up, then the third call of a
            raise KeyboardInterrupt

    def records(samples) -> list:
        return [{"name": name, "count": len(seconds)} for name, seconds in samples.items()]

    timed = Timed(what="timed", calls={"a": call, "b": call}, repeats=9, records=records)
    results, told = run(Begins("weights"), Once(do=lambda: [{"first": 1}]), timed, Once(what="never", do=list))
    assert results.records[0] == {"first": 1} and sum(r["count"] for r in results.records[1:]) == 3
    assert not results.complete and told == ["weights", "timed"]


def test_a_deadline_ends_after_a_whole_round():
    samples = {}
    timed = Timed(
        calls={"a": list, "b": list}, repeats=9, deadline=0.0, records=lambda found: samples.update(found) or []
    )
    results, _ = run(timed)
    assert results.complete and {name: len(seconds) for name, seconds in samples.items()} == {"a": 1, "b": 1}
