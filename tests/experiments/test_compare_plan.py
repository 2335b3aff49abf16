"""The plan of a comparison: which runs, in which order, what is done, and that its settings stay the same."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dape.errors import UsageError
from dape.evaluation.config import ENOUGH_WINDOWS, EvalConfig
from dape.experiments.compare import Comparison, Run, windows_in
from dape.experiments.job import read_job, write_job
from dape.models.config import DecoderConfig
from dape.results.records import Row, append_rows, read_rows
from dape.training.config import TrainConfig


@pytest.fixture
def plan(tmp_path) -> Comparison:
    return Comparison(
        out=tmp_path / "out",
        methods=("rope", "dape-kerple", "kerple"),
        seeds=2,
        model=DecoderConfig(train_length=8),
        train=TrainConfig(steps=10, batch=4),
        evaluation=EvalConfig(lengths=(8, 16), last_k=4, windows=5),
        data="/data",
        data_name="words",
        data_hash="abc",
        device="cpu",
        threads=1,
    )


def row(run: str, length: int = 8, value: float = 2.0) -> Row:
    method, _, seed = run.rpartition("-seed")
    return Row(
        run=run, method=method, seed=int(seed), train_length=8, length=length, metric="perplexity", value=value,
        scored_tokens=20, protocol="last_k", data_hash="abc",
    )  # fmt: skip


def finish(plan: Comparison, run: Run, *rows: Row) -> None:
    plan.folder(run).mkdir(parents=True, exist_ok=True)
    append_rows(plan.folder(run) / "rows.jsonl", rows or [row(run.name)])


def test_runs_seed_by_seed_and_slow_ones_first(plan):
    names = [run.name for run in plan.runs()]
    assert names == [f"{method}-seed{seed}" for seed in (0, 1) for method in ("dape-kerple", "rope", "kerple")]


def test_a_task_is_all_that_the_child_needs(plan):
    task = plan.task(Run("rope", 1))
    folder = plan.folder(Run("rope", 1))
    assert task.name == "rope-seed1" and task.folder == folder
    job = read_job(folder)
    assert job.run.model == replace(plan.model, encoding="rope") and job.run.train == replace(plan.train, seed=1)
    assert job.evaluation == plan.evaluation and job.run.data == "/data" and job.run.threads == 1
    assert (job.device, job.data_hash) == ("cpu", "abc")


def test_a_run_that_has_begun_keeps_its_threads(plan):
    run = Run("rope", 0)
    replace(plan, threads=3).task(run)
    (plan.folder(run) / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    plan.task(run)
    assert read_job(plan.folder(run)).run.threads == 3


def test_a_run_that_has_only_been_planned_takes_the_new_threads(plan):
    replace(plan, threads=3).task(Run("rope", 0))
    plan.task(Run("rope", 0))
    assert read_job(plan.folder(Run("rope", 0))).threads == 1


def test_rows_are_collected_once(plan):
    finish(plan, Run("rope", 0), row("rope-seed0", 8), row("rope-seed0", 16))
    assert len(plan.collect()) == 2 and len(plan.collect()) == 2
    finish(plan, Run("kerple", 1))
    assert [r.run for r in plan.collect()] == ["rope-seed0", "rope-seed0", "kerple-seed1"]
    assert len(read_rows(plan.out / "results.jsonl")) == 3
    (plan.out / "results.jsonl").unlink()
    assert len(plan.collect()) == 3


def test_rows_that_were_cut_off(plan):
    """Of a run they are refused; of all runs they are collected again, as the runs have them."""
    run = Run("rope", 0)
    finish(plan, run, row(run.name, 8), row(run.name, 16))
    whole = plan.collect()
    for path in (plan.out / "results.jsonl", plan.folder(run) / "rows.jsonl"):
        first = path.read_text().splitlines()[0]
        path.write_text(first + "\n")
        if path.name == "results.jsonl":
            assert plan.collect() == whole and read_rows(path) == whole
    (plan.out / "results.jsonl").unlink()
    with pytest.raises(ValueError, match=r"rope-seed0/rows.jsonl, line 1: says 2 rows and has 1: cut off. Copy it"):
        plan.collect()
    (plan.folder(run) / "rows.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"rope-seed0/rows.jsonl, which holds no rows"):
        plan.collect()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"length": 7, "done": 1, "total": 5}', '{"length": "x"}', '{"length": 8, "total": 0}', "[" * 9999],
)
def test_progress_that_is_nonsense_is_not_shown(plan, text):
    run = plan.runs()[0]
    plan.folder(run).mkdir(parents=True)
    (plan.folder(run) / "progress.json").write_text(text)
    assert plan.share_done(run) == 0


def test_other_methods_and_seeds_of_the_folder_are_left_out(plan):
    for run in plan.runs():
        finish(plan, run)
    plan.collect()
    fewer = replace(plan, methods=("rope",), seeds=1)
    assert [r.run for r in fewer.collect()] == ["rope-seed0"]
    assert len(plan.collect()) == 6


def test_share_done(plan):
    run = plan.runs()[0]
    assert plan.share_done(run) == 0
    folder = plan.folder(run)
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 5, "loss": 1.0}\n{"step": 6, "lo')
    # Training weighs 3 x 10 x 4 x 8 = 960 tokens, evaluation (8 + 16) x 5 = 120.
    assert plan.share_done(run) == pytest.approx(480 / 1080)
    (folder / "metrics.jsonl").write_text('{"step": 10, "loss": 1.0}\n')
    (folder / "progress.json").write_text(json.dumps({"length": 16, "done": 1, "total": 5}))
    assert plan.share_done(run) == pytest.approx((960 + 5 * (8 + 16 / 5)) / 1080)
    (folder / "progress.json").write_text("half of ")
    assert plan.share_done(run) == pytest.approx(960 / 1080)
    finish(plan, run)
    assert plan.share_done(run) == 1


# Settings ------------------------------------------------------------------------------------------------------------


def test_settings_are_kept(plan):
    plan.begin()
    saved = yaml.safe_load((plan.out / "compare.yaml").read_text())
    assert saved["methods"] == ["rope", "dape-kerple", "kerple"] and saved["seeds"] == 2 and saved["data"] == "/data"
    assert saved["shared"]["evaluation"]["lengths"] == [8, 16] and saved["shared"]["data_hash"] == "abc"
    assert "encoding" not in saved["shared"]["model"] and "seed" not in saved["shared"]["train"]


def test_methods_and_seeds_are_added(plan):
    plan.begin()
    replace(plan, methods=("alibi", "rope"), seeds=1).begin()
    saved = yaml.safe_load((plan.out / "compare.yaml").read_text())
    assert saved["methods"] == ["rope", "dape-kerple", "kerple", "alibi"] and saved["seeds"] == 2


@pytest.mark.parametrize(
    ("section", "change", "words"),
    [
        ("train", {"steps": 11}, "steps was 10, now 11"),
        ("train", {"lr": 0.5}, "lr was 0.002, now 0.5"),
        ("model", {"layers": 2}, "layers was 4, now 2"),
        ("model", {"encoding_options": {"hidden": 3}}, "hidden was None, now 3"),
        ("evaluation", {"lengths": (8,)}, r"lengths was \[8, 16\], now \[8\]"),
        ("evaluation", {"mode": "same_document"}, "mode was 'packed'"),
        (None, {"data_hash": "other"}, "data_hash was 'abc', now 'other'"),
    ],
)
def test_another_comparison_is_refused(plan, section, change, words):
    plan.begin()
    before = (plan.out / "compare.yaml").read_text()
    other = (
        replace(plan, **change)
        if section is None
        else replace(plan, **{section: replace(getattr(plan, section), **change)})
    )
    with pytest.raises(UsageError, match=words) as error:
        other.begin()
    assert "use another `out`" in str(error.value) and (plan.out / "compare.yaml").read_text() == before


def test_options_are_compared_method_by_method(plan):
    with_option = replace(plan.model, encoding_options={"dape-kerple.hidden": 8})
    plan = replace(plan, model=with_option)
    plan.begin()
    more = {"dape-kerple.hidden": 8, "dape-fire.hidden": 4}
    replace(plan, methods=("dape-fire",), model=replace(plan.model, encoding_options=more)).begin()
    saved = yaml.safe_load((plan.out / "compare.yaml").read_text())
    assert saved["encoding_options"] == more
    replace(plan, methods=("rope",), model=replace(plan.model, encoding_options={})).begin()
    for options in ({}, {"dape-kerple.hidden": 9}, {"dape-kerple.hidden": 8, "variant": "concat"}):
        with pytest.raises(UsageError, match="other settings"):
            replace(plan, model=replace(plan.model, encoding_options=options)).begin()


@pytest.mark.parametrize("finished", [True, False])
def test_settings_that_were_edited_behind_the_runs_are_refused(plan, finished):
    """The runs know what they were begun with; finished ones would stand in one table with others."""
    plan.begin()
    plan.task(Run("rope", 0))
    if finished:
        finish(plan, Run("rope", 0))
    path = plan.out / "compare.yaml"
    path.write_text(path.read_text().replace("clip: 1.0", "clip: 9.0"))
    edited = replace(plan, train=replace(plan.train, clip=9.0))  # as --resume reads it
    with pytest.raises(UsageError, match=r"rope-seed0: run.train.clip was 1.0, now 9.0"):
        edited.begin()
    replace(edited, methods=("kerple",)).begin()  # rope is not part of it
    path.write_text(path.read_text().replace("clip: 9.0", "clip: 1.0"))
    plan.begin()


def test_jobs_of_older_versions_are_compared_as_far_as_they_go(plan):
    plan.begin()
    plan.task(Run("rope", 0))
    path = plan.folder(Run("rope", 0)) / "job.json"
    job = json.loads(path.read_text())
    for name in ("checksum", "variant", "extra"):
        job.pop(name)
    job["run"]["train"].pop("clip")
    path.write_text(json.dumps(job))
    replace(plan, device="cuda", threads=9, data="/moved", train=replace(plan.train, save_every=7)).begin()
    with pytest.raises(UsageError, match=r"run.train.lr was 0.002, now 1"):
        replace(plan, train=replace(plan.train, lr=1.0)).check_jobs()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace('"clip": 1.0', '"clip": 9.0'), "its checksum differs"),
        (lambda text: text[: len(text) // 2], "is not what it should be"),
        (lambda text: "[" * 99999, "nested too deeply"),
        (lambda text: "{}", "threads: found None, expected a whole number"),
        (lambda text: '{"threads": 1, "kind": "language-model"}', "has no device, run, evaluation"),
        (lambda text: '{"threads": 1, "kind": "recal"}', "kind .recal. is not known. Did you mean .recall."),
        (lambda text: '{"threads": 1' + "0" * 400 + "}", "threads: found 1"),
    ],
)
def test_jobs_that_are_damaged(plan, change, words):
    plan.task(Run("rope", 0))
    path = plan.folder(Run("rope", 0)) / "job.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=rf"job.json: .*{words}"):
        read_job(path.parent)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("methods: rope", "methods: found 'rope', expected a list"),
        ("seeds: many", "seeds: found 'many', expected a whole number"),
        ("shared: 3", "shared: found 3, expected names and values"),
        ("[" * 5000, "is not YAML"),
    ],
)
def test_files_of_settings_that_are_damaged(plan, text, words):
    plan.begin()
    (plan.out / "compare.yaml").write_text(text)
    with pytest.raises(UsageError, match=rf"compare.yaml: .*{words}"):
        plan.begin()


@pytest.mark.parametrize("name", ["log_every", "validate_every", "save_every", "keep"])
def test_what_does_not_touch_results_may_change(plan, name):
    plan.begin()
    replace(plan, train=replace(plan.train, **{name: 7})).begin()
    assert yaml.safe_load((plan.out / "compare.yaml").read_text())["logging"][name] == 7


def test_a_folder_with_other_things_is_refused(plan):
    plan.out.mkdir()
    (plan.out / ".lock").touch()
    (plan.out / "data").mkdir()
    (plan.out / "letter.txt").touch()
    with pytest.raises(UsageError, match="is not empty and holds no comparison"):
        plan.begin()
    (plan.out / "letter.txt").unlink()
    plan.begin()


def test_jobs_come_back(plan, tmp_path):
    plan.task(Run("kerple", 0))
    folder: Path = plan.folder(Run("kerple", 0))
    job = read_job(folder)
    write_job(tmp_path / "copy", job)
    assert read_job(tmp_path / "copy") == job


def test_windows_are_those_of_the_folder_or_enough_not_to_be_warned_of(plan):
    assert windows_in(plan.out) == ENOUGH_WINDOWS
    plan.begin()
    assert windows_in(plan.out) == 5
