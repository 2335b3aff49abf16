"""Generated tests through ``dape probe``: trained, tested, resumed, refused; and as questions of the harness."""

import pytest

from dape.cli import main
from dape.errors import UsageError
from dape.hf.harness.generated import generated_questions, word
from dape.report import abilities as report
from dape.results.records import read_rows
from dape.tasks.abilities.catalogue import ABILITIES

TINY = ["--layers=1", "--width=16", "--heads=2", "--steps=3", "--batch=2", "--train-length=32", "--samples=3"]
TINY += ["--threads=1", "--lengths", "32", "70"]


def probe(*words: str) -> int:
    return main(["probe", "--train", *words, *TINY])


def test_a_model_for_every_test_and_method(here, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert probe("--tests", "copying", "power-gaps", "--methods", "rope", "kerple", "--out", out) == 0
    rows = read_rows(tmp_path / "out" / "results.jsonl")
    assert {(r.protocol, r.method, r.length) for r in rows} == {
        (t, m, n) for t in ("copying", "power-gaps") for m in ("rope", "kerple") for n in (32, 70)
    }
    assert all(r.extra["train_tokens"] == 3 * 2 * 32 and 0 <= r.value <= 1 for r in rows)
    assert {r.scored_tokens for r in rows if r.protocol == "copying"} == {3 * 16, 3 * 35}
    assert {r.scored_tokens for r in rows if r.protocol == "power-gaps"} == {3 * 3, 3 * 8}  # all along the sequence
    assert len({r.data_hash for r in rows}) == 2
    text = (tmp_path / "out" / "table.md").read_text()
    assert "left out" not in text and "| 32 (train) | 70 |" in text
    assert "| tokens seen |" in text and "| 192 |" in text and ABILITIES["copying"].isolates in text
    assert (tmp_path / "out" / "tests.png").read_bytes().startswith(b"\x89PNG")
    panels = [axes for axes in report.tests_figure(rows).axes if axes.get_title()]
    drawn = {(p.get_title(), line.get_label()): list(line.get_ydata()) for p in panels for line in p.lines[:2]}
    assert set(drawn) == {(t, m) for t in ("copying", "power-gaps") for m in ("rope", "kerple")}
    values = {(r.protocol, r.method, r.length): r.value for r in rows}
    assert all(ys == [values[t, m, 32], values[t, m, 70]] for (t, m), ys in drawn.items())
    assert "has not learned the test" in capsys.readouterr().out

    here.clear()
    assert probe("--tests", "copying", "addition", "--methods", "rope", "--out", out) == 0
    assert here == ["addition-rope-seed0"]  # the rest was finished


@pytest.mark.parametrize(
    "words, says",
    [
        (["--tests", "coping"], "Did you mean 'copying'"),
        (["--tests", "copying", "--depths", "0.5"], "--depths is for recall"),
        (["--tests", "copying", "--methods", "nothing"], "unknown positional encoding"),
        (["--tests", "all", "--out", "here"], "--train-length 20 is too short for variables"),
    ],
)
def test_arguments_that_do_not_fit(capsys, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    short = ["--train-length", "20"] if "all" in words else []
    assert main(["probe", "--train", *words, *short]) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_questions_in_words_have_their_answer_among_the_choices():
    assert len({word(n) for n in range(96)}) == 96
    found = generated_questions(["needle", "counting"], [64], 12)
    assert [q.name for q in found] == ["needle-64", "counting-64"] and all(len(q.items) == 12 for q in found)
    for item in found[0].items:
        words, answer = item["question"].split(), item["choices"][item["answer"]]
        assert len(words) == 64 and len(set(item["choices"])) == 4
        # The needle stands twice; the last token of the first is the answer.
        name = words[-4:]
        at = next(i for i in range(60) if words[i : i + 4] == name)
        assert words[at + 4] == answer
    for item in found[1].items:
        words, answer = item["question"].split(), item["choices"][item["answer"]]
        symbol = next(n for n in range(8) if word(24 + n) == words[-1])
        assert word(32 + words[:61].count(word(symbol))) == answer
    with pytest.raises(UsageError, match="too short for needle"):
        generated_questions(["needle"], [4], 3)
