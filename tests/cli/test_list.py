"""``dape list``: complete, readable at any width, and exact in JSON."""

import json

import pytest

import dape
from dape.cli import main
from dape.positional import catalogue

BASES = ["alibi", "fire", "kerple", "kerple-power", "nope", "rope", "sandwich", "t5"]
OTHERS = ["cope", "learned", "pi", "sinusoidal", "transformer-xl", "yarn"]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def output_of(capsys, *argv: str) -> str:
    assert main(["list", *argv]) == 0
    return capsys.readouterr().out


def names_in(capsys, *argv: str) -> list[str]:
    return [row["name"] for row in json.loads(output_of(capsys, "--json", *argv))]


def test_json_holds_the_catalogue(capsys):
    rows = json.loads(output_of(capsys, "--json", "--all"))
    assert {row["name"]: row["equation"] for row in rows} == {n: e.equation for n, e in dape.encodings().items()}
    cope = next(row for row in rows if row["name"] == "cope")
    assert cope["hook"] == "logits" and cope["causal"] and not cope["bidirectional"]
    assert all(set(row) == set(cope) and row["learns"] and row["extrapolates"] for row in rows)


def test_no_row_is_left_out(capsys):
    wrapped = [f"dape-{base}" for base in BASES]
    assert {*BASES, *OTHERS, *wrapped} <= set(names_in(capsys))
    assert {f"dape-v2-{base}" for base in BASES} <= set(names_in(capsys, "--all"))


def test_default_leaves_out_v2_and_says_so(capsys):
    assert names_in(capsys) == [name for name in dape.encodings() if not name.startswith("dape-v2-")]
    text = output_of(capsys)
    assert "dape-v2-X" in text and "--all" in text and "randomized-X" in text


def test_pipe_has_one_line_per_encoding(dape_process):
    lines = {line.split()[0]: line for line in dape_process("list", "--all").stdout.splitlines() if line}
    for name, entry in dape.encodings().items():
        # Brackets of an equation would vanish if rich took them for markup.
        for cell in (entry.equation, entry.hook, entry.learns, entry.extrapolates):
            assert cell in lines[name]


@pytest.mark.parametrize("columns", [20, 40, 80, 100, 140, 300])
def test_names_survive_every_width(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = output_of(capsys, "--all")
    first_column = {line.split()[0] for line in text.splitlines() if line and not line.startswith(" ")}
    assert set(dape.encodings()) <= first_column
    assert "…" not in text


def test_eighty_columns_are_enough(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = output_of(capsys, "--all")
    assert all(entry.equation in text for entry in dape.encodings().values())
    assert max(map(len, text.splitlines())) <= 80


def test_colour_only_where_wanted(capsys, monkeypatch):
    cyan = "\x1b[36m"
    assert "\x1b" not in output_of(capsys)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cyan in output_of(capsys)
    monkeypatch.setenv("NO_COLOR", "1")
    assert cyan not in output_of(capsys)


def test_ascii_terminal(dape_process):
    for argv in (["list"], ["--help"]):
        done = dape_process(*argv, PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dape-kerple", ["dape-kerple", "dape-kerple-power"]),
        ("KERPLE-POWER", ["kerple-power", "dape-kerple-power", "dape-v2-kerple-power"]),
        ("embed", ["sinusoidal", "learned"]),
        ("randomized-cope", ["randomized-cope"]),
    ],
)
def test_filter(capsys, text, expected):
    assert names_in(capsys, text) == expected


def test_filter_without_a_match_suggests(capsys):
    assert main(["list", "kerpel"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "no encoding matches 'kerpel'. Did you mean 'kerple'?" in shown.err


def test_new_line_of_the_catalogue_is_listed(capsys, monkeypatch):
    mine = dape.Entry("mine", "mine:Mine", "bias", "A + mine", "nothing", "unknown", dape=True)
    monkeypatch.setitem(catalogue.ENTRIES, "mine", mine)
    assert names_in(capsys, "mine") == ["mine", "dape-mine", "dape-v2-mine"]


def test_the_sets_of_methods_are_names_of_the_catalogue():
    from dape.actions.compare import SETS
    from dape.positional.catalogue import find

    for names in SETS.values():
        assert len(set(names)) == len(names) and all(find(name) for name in names)
