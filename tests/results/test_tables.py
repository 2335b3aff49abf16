"""The published numbers: how many there are, some read off by hand, and what is known to hold in them."""

import csv
import subprocess
import sys
from importlib import resources

import pytest

from dape.positional.catalogue import RANDOMIZED, encodings
from dape.results.paper import TITLES, Published, load
from dape.results.statistics import base_pairs

PERMUTATION_INVARIANT = {"parity_check", "cycle_navigation", "bucket_sort"}


def one(name: str, **wanted) -> Published:
    found = [row for row in load(name) if all(getattr(row, key) == value for key, value in wanted.items())]
    assert len(found) == 1, found
    return found[0]


def accuracies() -> dict[str, dict[str, float]]:
    """Task -> method without its prefix -> accuracy in percent, for table A2."""
    tasks: dict[str, dict[str, float]] = {}
    for row in load("A2"):
        tasks.setdefault(row.dataset, {})[row.method.removeprefix(RANDOMIZED)] = row.value
    return tasks


@pytest.mark.parametrize(
    ("name", "rows", "total"),
    # Totals of the transcribed tables, added up by another program than the one that made the files; prose by hand.
    [
        ("A1", 36, 8197.9959),
        ("A2", 140, 7783.17),
        ("A3", 40, 2091.1023),
        ("A4", 21, 688.93),
        ("A5", 15, 318.0),
        ("A6", 20, 619.2),
        ("A7", 15, 325.53),
        ("prose", 32, 30721.076),
    ],
)
def test_nothing_is_missing(name, rows, total):
    assert len(load(name)) == rows
    assert sum(row.value for row in load(name)) == pytest.approx(total, abs=1e-6)


def test_every_file_has_a_title_and_is_read():
    files = {f.name for f in resources.files("dape.results.paper").joinpath("tables").iterdir()}
    assert files == {f"{name}.csv" for name in TITLES} | {"README.md"}
    for name in TITLES:
        text = resources.files("dape.results.paper").joinpath("tables", f"{name}.csv").read_text()
        assert tuple(next(csv.reader(text.splitlines()))) == tuple(Published.__dataclass_fields__)


@pytest.mark.parametrize("name", TITLES)
def test_methods_are_those_of_the_catalogue_and_rows_are_distinct(name):
    known = encodings()
    for row in load(name):
        assert row.method.removeprefix(RANDOMIZED) in known
        assert row.source in ("table", "prose")
        assert row.id == name if row.source == "table" else row.id.startswith("P")
    keys = [(r.id, r.dataset, r.model, r.train_len, r.eval_len, r.method, r.variant, r.metric) for r in load(name)]
    quoted_without_length = 1 if name == "prose" else 0
    assert len(keys) - len(set(keys)) == quoted_without_length


def test_rows_read_off_by_hand():
    row = one("A3", method="t5", eval_len=4096)
    assert (row.value, row.std, row.n_seeds, row.dataset, row.model) == (163.9289, 136.8294, 3, "arxiv", "125M")
    assert one("A4", method="cope", eval_len=2048).value == 33.80
    assert one("A5", variant="bias_only", eval_len=8192).value == 23.49
    assert one("A6", method="kerple", eval_len=4096).value == 27.21
    assert one("A7", method="dape-kerple", eval_len=2048).value == 19.83
    assert one("A1", method="fire", model="2.7B", metric="milliseconds").value == 432.63
    assert one("A2", method="dape-kerple", dataset="cycle_navigation").value == 34.53
    assert one("A2", method="randomized-transformer-xl", dataset="solve_equation").value == 22.93
    assert one("prose", id="P5", variant="add_residual", train_len=128).value == 5.17
    assert one("prose", id="P6", method="alibi", eval_len=8192).value == 5.85


def test_contradictions_are_noted():
    assert "160.50" in one("A6", method="rope", eval_len=4096).note
    assert "3.70" in one("A3", method="dape-kerple", eval_len=8192).note
    for row in load("prose"):
        told = [f"{r.value}" for r in load("A3") if (r.method, r.eval_len) == (row.method, row.eval_len)]
        if (
            row.id in ("P4", "P5")
            and row.train_len == 512
            and row.model != "350M"
            and row.variant in ("", "concat_residual")
        ):
            assert told[0] in row.note
    assert all("not stated" in row.note for name in ("A6", "A7") for row in load(name))


def test_text_and_tables_agree_where_they_should():
    for method in ("kerple", "dape-kerple"):
        in_table = [r for r in load("A5") if r.method == method and r.eval_len == 8192 and r.variant != "bias_only"]
        assert one("prose", id="P2", method=method).value == in_table[0].value


def test_times_and_their_ratios_agree():
    def time(method: str, model: str) -> float:
        return one("A1", method=method, model=model, metric="milliseconds").value

    for row in load("A1"):
        if row.metric != "milliseconds":
            assert row.value == pytest.approx(
                time(row.method, row.model) / time("dape-kerple", row.model), abs=1e-4
            )  # printed: cut off
    for row in load("prose"):
        if row.id == "P8":
            assert row.value == pytest.approx(time("dape-kerple", row.model) / time("kerple", row.model), abs=6e-4)


def test_dape_is_below_its_base_at_every_length_of_table_a3():
    means = {(row.method, row.eval_len): row.value for row in load("A3")}
    pairs = base_pairs({row.method: None for row in load("A3")})
    assert len(pairs) == 3
    assert all(means[dape, n] < means[base, n] for dape, base in pairs for n in (512, 1024, 2048, 4096, 8192))


def test_claims_about_the_chomsky_tasks():
    tasks = accuracies()
    variant = {task: row for task, row in tasks.items() if task not in PERMUTATION_INVARIANT}
    assert (len(tasks), len(variant)) == (14, 11)
    assert sum(row["fire"] > row["kerple"] for row in tasks.values()) == 9
    assert sum(row["kerple"] > row["alibi"] for row in tasks.values()) == 11
    best = {task: max(row, key=row.__getitem__) for task, row in variant.items()}
    assert [task for task, method in best.items() if not method.startswith("dape-")] == ["solve_equation"]
    for base, wins in (("alibi", 11), ("fire", 11), ("kerple", 10)):
        assert sum(row[f"dape-{base}"] > row[base] for row in variant.values()) == wins
    assert variant["reverse_string"]["dape-kerple"] < variant["reverse_string"]["kerple"]


def test_unknown_table_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'A9' here\. Known: A1, A2"):
        load("A9")
    assert load("a3") == load("A3")


def test_loading_needs_no_heavy_package():
    heavy = "{'torch', 'numpy', 'pandas'}"
    code = f"import sys; from dape.results.paper import load; load('A3'); print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
