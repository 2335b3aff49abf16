"""Which runs there are, what is chosen from them, and what fits into a budget."""

import dataclasses

import pytest

from dape.errors import UsageError
from dape.evaluation.chomsky_scores import published, summarise
from dape.experiments import chomsky_budget as budget
from dape.experiments.chomsky import Chomsky
from dape.experiments.chomsky_budget import Speed, evenly, planned
from dape.experiments.grid import RESULTS, in_short
from dape.experiments.job import ROWS
from dape.report import chomsky
from dape.results.records import Row, append_rows, read_rows
from dape.tasks.chomsky.catalogue import TASKS, load
from dape.tasks.chomsky.config import PAPER_METHODS, CheConfig, Subject, reductions

CONFIG = CheConfig(scale="cpu", width=64, lengths=(10, 40, 41, 100), steps=5, samples=4)


def row(subject: Subject, length: int, value: float, metric: str = "accuracy") -> Row:
    return Row(
        run=subject.name,
        method=subject.method,
        seed=subject.seed,
        train_length=40,
        length=length,
        metric=metric,
        value=value,
        scored_tokens=4,
        protocol="che",
        data_hash="x",
        extra={"task": subject.task, "lr": subject.lr},
    )


def rows_of(subject: Subject, inside: float, beyond: tuple[float, float], nll: float = 1.0) -> list[Row]:
    values = {10: inside, 40: inside, 41: beyond[0], 100: beyond[1]}
    return [
        *(row(subject, length, value) for length, value in values.items()),
        *(row(subject, length, nll, "nll") for length in (10, 40)),
    ]


def subject(lr: float = 1e-3, seed: int = 0, task: str = "even_pairs", method: str = "dape-alibi") -> Subject:
    return Subject(task=task, method=method, seed=seed, lr=lr)


def cells_of(rows: list[Row], **given):
    axes = {"tasks": ["even_pairs"], "methods": ["dape-alibi"], "rates": [1e-4, 1e-3]}
    return summarise(rows, CONFIG, **{**axes, **given})


# What is chosen ------------------------------------------------------------------------------------------------------


def test_rate_is_chosen_where_training_was():
    """Not by the score: the rate that is worse in distribution would win there."""
    rows = [*rows_of(subject(1e-4), 0.9, (0.6, 0.6)), *rows_of(subject(1e-3), 0.8, (0.99, 0.99))]
    (cell,) = cells_of(rows)
    assert (cell.lr, cell.familiar, cell.mean, cell.rates) == (1e-4, pytest.approx(0.9), pytest.approx(0.6), 2)


def test_equal_accuracy_is_decided_by_the_loss():
    rows = [*rows_of(subject(1e-4), 1.0, (0.6, 0.6), nll=0.1), *rows_of(subject(1e-3), 1.0, (0.5, 0.5), nll=0.01)]
    (cell,) = cells_of(rows)
    assert cell.lr == 1e-3


def test_mean_deviation_and_maximum_over_seeds():
    rows = [x for seed, beyond in enumerate((0.5, 0.7, 0.9)) for x in rows_of(subject(seed=seed), 1, (beyond, beyond))]
    (cell,) = cells_of(rows)
    assert (cell.mean, cell.std, cell.best) == (pytest.approx(0.7), pytest.approx(0.2), pytest.approx(0.9))
    assert cell.curve[100] == pytest.approx(0.7) and cell.curve[10] == 1 and cell.paper == pytest.approx(0.9999)
    assert chomsky.cell_texts(cell)[3:] == ("100.00", "70.00", "20.00", "90.00", "99.99", "50")


def test_score_of_deepmind_begins_at_42():
    rows = [*rows_of(subject(), 1, (0.0, 1.0)), row(subject(), 42, 0.5)]
    compat = dataclasses.replace(CONFIG, compat="deepmind", lengths=(10, 40, 41, 42, 100))
    (cell,) = summarise(rows, compat, tasks=["even_pairs"], methods=["dape-alibi"], rates=[1e-3])
    assert cell.mean == pytest.approx(0.75)


def test_unfinished_runs_do_not_count():
    rows = rows_of(subject(), 1, (1.0, 1.0))
    assert not cells_of([r for r in rows if r.length != 100])


def test_the_papers_table_has_every_task_and_method():
    table = published()
    assert set(table) == {(t.name, m) for t in TASKS.values() if t.in_paper for m in PAPER_METHODS}
    assert table["missing_duplicate_string", "dape-fire"] == pytest.approx(0.8917)


# Reports -------------------------------------------------------------------------------------------------------------


def some_cells():
    rows = []
    for task in ("even_pairs", "bucket_sort"):
        for method in ("dape-alibi", "randomized-rope"):
            for seed in (0, 1):
                who = subject(task=task, method=method, seed=seed)
                rows += rows_of(who, 1, (0.5 + 0.2 * (method == "dape-alibi"), 0.6))
    return cells_of(rows, tasks=["even_pairs", "bucket_sort"], methods=["dape-alibi", "randomized-rope"])


def test_markdown_names_conditions_and_marks_the_best():
    reduced = reductions(CONFIG, seeds=2, rates=[1e-3], all_rates=3)
    text = chomsky.markdown(some_cells(), CONFIG, seeds=2, reduced=reduced)
    assert text.count("**65.00**") == 2 and "| even_pairs | dape-alibi | 0.001 |" in text
    for words in ("width 64 instead of 256", "5 training steps instead of 200000", "2 test lengths instead of 460"):
        assert f"Reduced: {words}" in text
    assert "4 test examples per length instead of 512" in text and "2 seeds instead of at least 3" in text
    assert "0.001 instead of the best of 3" in text


def test_what_was_not_learned_is_named():
    rows = rows_of(subject(), 0.55, (0.9, 0.9)) + rows_of(subject(method="alibi"), 0.8, (0.5, 0.5))
    cells = cells_of(rows, methods=["dape-alibi", "alibi"])
    (sentence,) = chomsky.not_learned(cells)
    assert sentence.startswith("even_pairs was hardly learned by dape-alibi: ")
    assert sentence in chomsky.markdown(cells, CONFIG, seeds=1, reduced=[])
    assert not chomsky.not_learned(cells[1:])


def test_a_smaller_batch_or_mixer_is_named():
    found = reductions(CheConfig(batch=32, hidden=16, layers=2), seeds=3, rates=[1, 2, 3], all_rates=3)
    names = ("2 layers instead of 5", "16 hidden units of f instead of 64", "32 examples a step instead of 128")
    assert found == list(names)


def test_nothing_is_reduced_in_the_papers_settings():
    assert reductions(CheConfig(), seeds=3, rates=[1, 2, 3], all_rates=3) == []


def test_figures_show_every_task_and_method():
    lengths, scores = (draw(some_cells(), CONFIG) for draw in (chomsky.length_figure, chomsky.score_map))
    assert [panel.get_title(loc="left") for panel in lengths.axes] == ["Even Pairs", "Bucket Sort"]
    # Two methods, guessing, the training length; the first panel also holds the two lines of the legend.
    assert [len(panel.lines) for panel in lengths.axes] == [6, 4]
    assert [t.get_text() for t in scores.axes[0].get_yticklabels()] == ["Even Pairs", "Bucket Sort"]
    assert sorted(t.get_text() for t in scores.axes[0].texts) == ["55.0", "55.0", "65.0", "65.0"]


@pytest.mark.parametrize(("lengths", "text"), [((3, 4), "3, 4"), (tuple(range(41, 51)), "41, 42 ... 50 (10 lengths)")])
def test_lengths_in_short(lengths, text):
    assert in_short(lengths) == text


# The folder ----------------------------------------------------------------------------------------------------------


def plan(out, **given) -> Chomsky:
    axes = {"tasks": ("even_pairs",), "methods": ("alibi", "dape-alibi"), "rates": (1e-3,), "seeds": 2}
    return Chomsky(out=out, config=CONFIG, **{**axes, **given})


def finish(made: Chomsky, run: Subject) -> None:
    append_rows(made.folder(run) / ROWS, rows_of(run, 1, (1.0, 0.5)))


def test_runs_are_the_grid(tmp_path):
    runs = plan(tmp_path, tasks=("even_pairs", "odds_first"), rates=(1e-4, 1e-3)).runs()
    assert len(runs) == len({run.name for run in runs}) == 2 * 2 * 2 * 2
    assert runs[0] == Subject(task="even_pairs", method="dape-alibi", seed=0, lr=1e-4)
    assert [run.seed for run in runs] == [0] * 8 + [1] * 8


def test_finished_runs_are_collected_once(tmp_path):
    made = plan(tmp_path)
    made.begin()
    first = made.runs()[0]
    finish(made, first)
    assert made.finished(first) and not made.finished(made.runs()[1])
    assert len(made.collect()) == len(made.collect()) == len(read_rows(tmp_path / RESULTS)) == 6
    assert made.share_done(first) == 1 and made.share_done(made.runs()[1]) == 0


def test_methods_may_be_added_and_settings_not_changed(tmp_path):
    plan(tmp_path).begin()
    plan(tmp_path, methods=("fire",), seeds=3).begin()
    changed = dataclasses.replace(plan(tmp_path), config=dataclasses.replace(CONFIG, steps=6))
    with pytest.raises(UsageError, match="steps was 5, now 6"):
        changed.begin()


def test_a_foreign_folder_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="not empty"):
        plan(tmp_path).begin()


# Budget --------------------------------------------------------------------------------------------------------------

FULL = CheConfig(scale="cpu", width=64)
SPEEDS = {
    "alibi": Speed((1e-3, 1e-3, 0.0), (0.0, 1e-5, 0.0)),
    "dape-alibi": Speed((0.0, 2e-3, 0.0), (1e-5, 2e-5, 1e-8)),
}


def seconds_of(config: CheConfig, tasks, repeats: int) -> float:
    """By the definition: every run trains, tests, and starts."""
    total = 0.0
    for task in map(load, tasks):
        for speed in SPEEDS.values():
            tests = config.samples * speed.testing(config, task, config.lengths)
            total += repeats * (budget.START_SECONDS + config.steps * speed.step(config, task) + tests)
    return total


@pytest.mark.parametrize("minutes", [2, 5, 60])
@pytest.mark.parametrize("tasks", [["even_pairs"], ["even_pairs", "duplicate_string"]])
def test_plan_fills_the_budget_without_exceeding_it(minutes, tasks):
    config = planned(minutes, FULL, SPEEDS, tasks=tasks, repeats=1, jobs=2)
    spent = seconds_of(config, tasks, 1)
    assert 0.7 * 60 * minutes * 2 * budget.SIDE_BY_SIDE < spent <= 60 * minutes * 2 * budget.SIDE_BY_SIDE
    assert config.scored_lengths[0] == 41 and config.scored_lengths[-1] == 500
    assert config.familiar_lengths and config.samples in budget.SAMPLES


def test_more_time_means_more_of_everything():
    short, long = (planned(m, FULL, SPEEDS, tasks=["even_pairs"], repeats=1, jobs=1) for m in (2, 200))
    assert long.steps > short.steps and len(long.lengths) > len(short.lengths)


def test_the_papers_steps_are_enough():
    assert planned(1e6, FULL, SPEEDS, tasks=["even_pairs"], repeats=1, jobs=1).steps == 200_000


def test_a_budget_too_small_says_what_is_needed():
    with pytest.raises(UsageError, match=r"28 runs would take at least .* minutes"):
        planned(0.2, FULL, SPEEDS, tasks=[t.name for t in TASKS.values() if t.in_paper], repeats=1, jobs=2)


def test_speed_is_fitted_through_the_measurements():
    fixed, linear, square = budget._fit(3.0, (24, 3 + 24 * 0.5 + 24**2 * 0.1), (80, 3 + 80 * 0.5 + 80**2 * 0.1))
    assert (fixed, linear, square) == (3.0, pytest.approx(0.5), pytest.approx(0.1))
    # Faster per token when long: as if it were linear.
    assert budget._fit(0.0, (10, 2.0), (20, 3.0)) == (0.0, pytest.approx(0.15), 0.0)


def test_evenly():
    assert evenly(range(41, 501), 4) == (41, 194, 347, 500)
    assert evenly((1, 2), 5) == (1, 2)


def test_methods_are_timed():
    tiny = dataclasses.replace(FULL, width=16, layers=1, heads=2, hidden=4, batch=2)
    speed = budget.time_method(tiny, "randomized-alibi")
    assert speed.step(tiny, load("even_pairs")) > 0 and speed.testing(tiny, load("even_pairs"), (41,)) > 0
