"""``dape bench attention --encodings``, ``--append`` and ``dape bench compare``: what they report."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from dape.bench import compare, whole_catalogue
from dape.bench.attention import AttentionBench, run
from dape.bench.compare import CompareBench
from dape.bench.records import Results
from dape.errors import UsageError
from dape.positional.catalogue import encodings

TINY = {"lengths": (9,), "heads": 2, "head_dim": 4, "hidden": 8, "repeats": 2, "memory": False, "passes": ("forward",)}
ROOT = Path(__file__).parents[2]


def test_each_encoding_is_timed_beside_sdpa_and_results_are_appended(tmp_path, capsys):
    path = tmp_path / "bench.jsonl"
    config = AttentionBench(**TINY, encodings=("rope", "dape-fire"), append=path)
    assert run(config) == run(config) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["encoding"] for line in lines] == ["rope", "dape-fire"] * 2
    assert all(line["cpu"] and line["date"] and "commit" in line and line["threads"] for line in lines)
    assert lines[0]["impl"] == "sdpa" and lines[1]["kernel"] == "lag ramps"
    assert all(line["ms"] > 0 and line["vs_sdpa"] > 0 for line in lines)
    shown = capsys.readouterr().out
    assert "dape-fire" in shown and "lag ramps" in shown


def test_the_whole_catalogue_fits_80_columns():
    assert whole_catalogue.chosen(("all",)) == tuple(encodings())
    records = [
        {"encoding": name, "length": 2048, "pass": pass_, "impl": "fused", "kernel": "relative product"}
        | {"ms": 12345.6, "vs_sdpa": 17.77, "peak_mb": 1234.0, "note": ""}
        for name in encodings()
        for pass_ in ("forward", "forward_backward")
    ]
    settings = {"passes": ("forward", "forward_backward"), "batch": 1, "heads": 12, "head_dim": 64, "threads": 2}
    settings |= {"dtype": "float32", "causal": True, "memory": True, "clock": "wall"}
    (table,) = whole_catalogue.tables(Results(settings, records))
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    assert "…" not in captured.get() and max(map(len, lines)) <= 80
    assert sum("17.77" in line for line in lines) == len(encodings())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encodings": ("all", "rope")}, "give either all or names"),
        ({"encodings": ("ropes",)}, "`encodings`: unknown positional encoding"),
        ({"encodings": ("rope",), "clock": "cpu"}, "needs `encodings`, `threads` 1"),
        ({"encodings": ("rope",), "figure": Path("a.png")}, "leave one of them out"),
    ],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        run(AttentionBench(**TINY, **options))


# Two commits ---------------------------------------------------------------------------------------------------------


def test_times_are_relative_to_sdpa_in_the_same_process():
    """The second process of the old commit met a machine half as fast: its ratio is the same."""
    config = CompareBench(old="a", encodings=("kerple",), passes=("forward",))
    old = [{"forward": {"sdpa": [1.0, 2.0], "kerple": [3.0, 2.0]}}, {"forward": {"sdpa": [2.0], "kerple": [4.0]}}]
    new = [{"forward": {"sdpa": [1.0], "kerple": [1.0]}}] * 2
    (record,) = compare._records(config, {"old": old, "new": new})
    assert (record["old_vs_sdpa"], record["new_vs_sdpa"], record["new_vs_old"]) == (2.0, 1.0, 0.5)
    (table,) = compare.tables(Results({"commits": {"old": "1" * 40, "new": "2" * 40}}, [record]))
    assert "1111111111" in str(table.title)


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@needs_git
def test_what_cannot_be_compared_is_said(tmp_path):
    with pytest.raises(UsageError, match="not a git repository"):
        compare.run(CompareBench(old="HEAD", repository=tmp_path))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "nothing"], check=True)
    with pytest.raises(UsageError, match="git rev-parse"):
        compare.run(CompareBench(old="nowhere", repository=tmp_path))
    with pytest.raises(UsageError, match="has no src/dape"):
        compare.run(CompareBench(old="HEAD", repository=tmp_path))
    trees = subprocess.run([*git, "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert len(trees.splitlines()) == 1  # nothing is left behind


@needs_git
@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_two_commits_in_turns(tmp_path, capsys):
    path = tmp_path / "compare.json"
    small = {"length": 16, "heads": 2, "head_dim": 8, "turns": 2, "repeats": 1, "passes": ("forward",), "threads": 1}
    assert compare.run(CompareBench(old="HEAD", repository=ROOT, encodings=("alibi",), json=path, **small)) == 0
    (record,) = json.loads(path.read_text())["rows"]
    assert record["encoding"] == "alibi" and record["new_vs_old"] > 0
    assert "alibi" in capsys.readouterr().out
