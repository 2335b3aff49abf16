"""The commands as functions: the same folders, the same numbers, the same resumption."""

import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import dape
from dape.cli import main
from dape.results import read_rows

SMALL = {"layers": 1, "width": 16, "heads": 2, "train_length": 8, "batch": 2, "steps": 4}
FLAGS = ["--layers", "1", "--width", "16", "--heads", "2", "--train-length", "8", "--batch", "2", "--steps", "4"]


@pytest.fixture
def text(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "words.txt"
    path.write_text(" ".join(f"word{n % 7} and {n % 13}" for n in range(3000)))
    return path


def test_train_is_the_command(text):
    run = dape.train("words.txt", encoding="kerple", out="mine", threads=1, **SMALL)
    assert run.finished and run.step == run.taken == 4 and run.folder == Path("mine")
    assert (
        main(["train", "--data", "words.txt", "--encoding", "kerple", "--out", "theirs", "--threads", "1", *FLAGS]) == 0
    )
    (ours,), (theirs,) = ([*Path(name, "checkpoints").glob("*/model.safetensors")][-1:] for name in ("mine", "theirs"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert run.metrics()[-1]["step"] == 4 and run.model().config.encoding == "kerple"


def test_training_goes_on(text):
    data = dape.open_data("words.txt", out=Path("data"))
    first = dape.train(data, out="run", **SMALL)
    again = dape.train(data, out="run", **SMALL)
    assert first.taken == 4 and again.taken == 0 and again.finished
    with pytest.raises(ValueError, match="already holds a run; add `resume`"):
        dape.train(data, out="run", resume=False, **SMALL)
    with pytest.raises(ValueError, match=r"lr was 0\.002, now 0\.5"):
        dape.train(data, out="run", lr=0.5, **SMALL)


def test_evaluate_takes_what_train_returns(text):
    run = dape.train("words.txt", out="run", **SMALL)
    found = dape.evaluate(run, lengths=(8, 16), last_k=4, windows=3, json="rows.jsonl")
    assert [row.length for row in found.rows] == [8, 16] and found.rows == read_rows(Path("rows.jsonl"))
    assert "| 16" in found.table() or "16 |" in found.table()
    assert (
        main(["eval", "run", "--lengths", "8", "16", "--last-k", "4", "--windows", "3", "--json", "theirs.jsonl"]) == 0
    )
    assert [row.value for row in read_rows(Path("theirs.jsonl"))] == [row.value for row in found.rows]


def test_compare_table_frame_and_figure(text, here, capsys):
    found = dape.compare("words.txt", methods=("rope", "alibi", "rope"), lengths=(8, 16), windows=3, out="out", **SMALL)
    assert here == ["rope-seed0", "alibi-seed0"] and not found.failures
    assert {(row.method, row.length) for row in found.rows} == {(m, n) for m in ("rope", "alibi") for n in (8, 16)}
    assert found.table() == Path("out/table.md").read_text() == found._repr_markdown_()
    assert len(found.figure().axes) >= 1 and Path("out/curves.png").is_file()
    pandas = pytest.importorskip("pandas")
    frame = found.frame()
    assert isinstance(frame, pandas.DataFrame) and sorted(frame["value"]) == sorted(row.value for row in found.rows)
    again = dape.compare("words.txt", methods=("rope", "alibi"), lengths=(8, 16), windows=3, out="out", **SMALL)
    assert len(here) == 2 and again.rows == found.rows
    assert "2 of them already finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dape.compare("words.txt", methods=("ropes",)), "`methods`: .*ropes"),
        (lambda: dape.compare("words.txt", methods=()), "`methods` needs at least one encoding"),
        (lambda: dape.compare("words.txt", seeds=0), "`seeds` must be at least 1, got 0"),
        (lambda: dape.compare("words.txt", setps=3), "setps is not a setting. Did you mean 'steps'"),
        (lambda: dape.train("nowhere.txt", out="run"), "nowhere.txt: no such file"),
        (lambda: dape.train("words.txt", preset="smal"), "`preset` smal: no such preset. Did you mean 'small'"),
        (lambda: dape.evaluate("nowhere"), "nowhere: there is no such checkpoint or run"),
        (lambda: dape.reproduce("bias-ablatoin"), "bias-ablation"),
    ],
)
def test_mistakes_name_arguments(text, call, words):
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        call()
    assert "--" not in str(caught.value)


def test_reproduce_has_claims(text, here, monkeypatch):
    from dataclasses import replace

    from dape.experiments.reproduce import scales

    small = replace(scales.SCALES["smoke"], steps=2)
    monkeypatch.setitem(scales.SCALES, "smoke", small)
    found = dape.reproduce("bias-ablation", scale="smoke", seeds=1, out="out", data="words.txt")
    assert (
        len(here) == 3 and {each.ours.verdict for each in found.claims} and found.table().startswith("# bias-ablation")
    )


def test_a_notebook_shows_figures(monkeypatch):
    """IPython by itself shows pictures of pyplot's figures only, and ours are made without pyplot."""
    from types import SimpleNamespace

    from dape.actions.found import shown_in_notebooks

    class Pictures(dict):
        for_type = dict.__setitem__

    pictures = Pictures()
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"image/png": pictures}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0)))
    figure = shown_in_notebooks(Figure(figsize=(2, 1)))
    assert pictures[Figure](figure).startswith(b"\x89PNG")
    pictures[Figure] = "the user's own"
    shown_in_notebooks(figure)
    assert pictures[Figure] == "the user's own"
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert shown_in_notebooks(figure) is figure


@pytest.mark.parametrize(("widgets", "drawn"), [(True, True), (False, False)])
def test_a_notebook_without_widgets_gets_lines(monkeypatch, capsys, widgets, drawn):
    """There rich would draw nothing, and warn."""
    from rich import console as rich_console

    from dape.actions import progress

    monkeypatch.setattr(rich_console, "_is_jupyter", lambda: True)
    monkeypatch.setattr(progress, "find_spec", lambda name: object() if widgets else None)
    console, can_draw = progress.progress_console()
    assert can_draw is drawn and console.is_jupyter is drawn
    if not drawn:
        console.print("step 1/2")
        assert capsys.readouterr().err == "step 1/2\n"
