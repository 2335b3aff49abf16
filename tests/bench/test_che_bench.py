"""``dape bench che``. Shapes are tiny: these tests are about what is reported, not about speed."""

import json

import pytest

from dape.bench import che
from dape.bench.che import CheBench, cases, checked, measure_case, run
from dape.bench.records import Results
from dape.cli import main
from dape.errors import UsageError

TINY = {"layers": 1, "width": 16, "heads": 2, "batch": 4, "repeats": 1, "lengths": (3,)}


def test_rows_and_file(tmp_path, capsys):
    path = tmp_path / "che.json"
    assert run(CheBench(**TINY, tasks=("odds", "solve_equation"), step_tasks=("odds_first",), json=path)) == 0
    report = json.loads(path.read_text())
    places = [(row["task"], row["method"]) for row in report["rows"]]
    methods = ("randomized-alibi", "randomized-rope", "dape-kerple")
    assert places == [*(("odds_first", method) for method in methods), ("solve_equation", "randomized-alibi")]
    assert report["config"]["complete"] and report["config"]["batch"] == 4 and "cpu" in report["config"]
    assert "odds_first" in capsys.readouterr().out


def test_numbers_belong_together():
    row = measure_case(CheBench(**TINY), "duplicate_string", 5, "alibi")
    assert row["tokens"] == 15
    assert row["samples_per_second"] == pytest.approx(4e3 / row["draw_ms"])
    assert row["steps_per_second"] == pytest.approx(1e3 / (row["draw_ms"] + row["step_ms"]))
    assert row["draw_share"] == pytest.approx(row["draw_ms"] / (row["draw_ms"] + row["step_ms"]))
    settings = {"batch": 4, "layers": 1, "width": 16, "heads": 2, "threads": 1}
    (table,) = che.tables(Results(settings, [row]))
    assert "15" in [cell for column in table.columns for cell in column.cells]


def test_every_task_is_measured_by_default():
    config = checked(CheBench())
    assert len(cases(config)) == 15 * 2 + 2 * 2 * 2
    assert len(cases(checked(CheBench(quick=True)))) == 3 + 2 * 2


def test_interruption_keeps_what_was_measured(monkeypatch, capsys):
    done = []

    def measure(*case):
        if done:
            raise KeyboardInterrupt
        done.append(measure_case(*case))
        return done[0]

    monkeypatch.setattr(che, "measure_case", measure)
    assert run(CheBench(**TINY, tasks=("odds_first", "even_pairs"))) == 130
    shown = capsys.readouterr()
    assert "odds_first" in shown.out and "interrupted" in shown.err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tasks": ("evenpairs",)}, "Did you mean even_pairs"),
        ({"tasks": ()}, "`tasks` needs"),
        ({"methods": ("ropee",)}, "Did you mean 'rope'"),
        ({"lengths": (0,)}, "`lengths` must be positive"),
        ({"width": 30, "heads": 8}, "`width` 30"),
        ({"repeats": 0}, "`repeats` must be at least 1"),
    ],
)
def test_wrong_input(changes, words):
    with pytest.raises(UsageError, match=words):
        checked(CheBench(**{**TINY, **changes}))


def test_wrong_input_is_exit_code_2(capsys):
    assert main(["bench", "che", "--tasks", "evenpairs"]) == 2
    assert "Did you mean even_pairs" in capsys.readouterr().err
