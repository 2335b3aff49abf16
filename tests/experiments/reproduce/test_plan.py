"""Experiments at every scale, as runs: sizes, names, what is shared between experiments."""

from dataclasses import replace
from pathlib import Path

import pytest

from dape.config.load import read_preset
from dape.errors import UsageError
from dape.experiments.job import ROWS, read_job
from dape.experiments.reproduce import scales
from dape.experiments.reproduce.catalogue import EXPERIMENTS, Arm, find
from dape.experiments.reproduce.cost import cost_of
from dape.experiments.reproduce.plan import Reproduction, Trial
from dape.experiments.reproduce.scales import CHE, SCALES
from dape.positional.catalogue import RANDOMIZED
from dape.positional.catalogue import find as find_encoding
from dape.results.records import Row

LANGUAGE = [e for e in EXPERIMENTS.values() if e.kind in ("language", "maps")]


def plan(out: Path, id: str = "bias-ablation", scale: str = "smoke", **more) -> Reproduction:
    settings = {"seeds": 1, "data": "/data", "data_name": "text", "data_hash": "abc", **more}
    return Reproduction(out=out, experiment=find(id), scale=scales.find(scale), **settings)


def finish(made: Reproduction, run: Trial, value: float = 5.0) -> None:
    folder = made.folder(run)
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "weights").write_text("w")
    one = Row(
        run=run.name,
        method=run.arm.method,
        variant=run.arm.variant,
        seed=run.seed,
        train_length=32,
        length=32,
        metric="perplexity",
        value=value,
        scored_tokens=10,
        protocol="last_k",
        data_hash="abc",
        extra={"model": run.size, "paper_train_length": run.train_length, "experiment": made.experiment.id},
    )
    (folder / ROWS).write_text(one.as_json() + "\n")


# The catalogue and the scales ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", LANGUAGE, ids=lambda e: e.id)
def test_every_arm_is_an_encoding(experiment):
    for arm in experiment.arms:
        assert find_encoding(arm.method.removeprefix(RANDOMIZED))


def test_the_index_of_the_paper():
    assert [len(EXPERIMENTS[id].arms) for id in ("baselines", "variants", "hidden-width", "seeds")] == [11, 4, 5, 8]
    assert EXPERIMENTS["seeds"].runs == 24 and EXPERIMENTS["che"].runs == 140
    assert EXPERIMENTS["baselines"].train_lengths == (128, 512) and EXPERIMENTS["6.7b"].longest == 2048


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("experiment", LANGUAGE, ids=lambda e: e.id)
def test_ratios_are_those_of_the_paper(experiment, scale):
    for length in experiment.train_lengths:
        evaluation = SCALES[scale].evaluation(experiment, length)
        evaluation.check()
        model = SCALES[scale].model(experiment.sizes[0], length)
        model.check()
        SCALES[scale].train(experiment.sizes[0], length).check()
        assert evaluation.lengths[0] == model.train_length
        reach = max(SCALES[scale].reach, experiment.longest // length)
        assert evaluation.lengths[-1] == reach * model.train_length
        assert evaluation.last_k == min(256 // SCALES[scale].divide, model.train_length)


def test_the_paper_scale_is_the_paper():
    scale = SCALES["paper"]
    for size in ("125m", "350m", "2.7b", "6.7b"):
        preset = read_preset(size)
        model, train = scale.model(size, 512), scale.train(size, 512)
        assert {name: getattr(model, name) for name in preset["model"]} == preset["model"]
        assert (train.steps, train.batch, train.lr) == (50_000, 256, preset["train"]["lr"])
    evaluation = scale.evaluation(find("seeds"), 512)
    assert evaluation.lengths == (512, 1024, 2048, 4096, 8192) and evaluation.last_k == 256
    assert scale.evaluation(find("baselines"), 128).last_k == 128
    assert scale.reductions(find("seeds")) == []


def test_every_step_reads_as_many_tokens_at_every_length():
    for scale in SCALES.values():
        counts = {scale.train("125m", n).batch * scale.length(n) for n in (128, 512, 1024)}
        assert len(counts) == 1


def test_reductions_are_told():
    words = " ".join(SCALES["cpu"].reductions(find("model-size")))
    assert "lengths divided by 4" in words and "350m: 8 layers of width 160, not 24 of 1024" in words
    assert "400 steps" in words
    assert "verdicts say nothing" in " ".join(SCALES["smoke"].reductions(find("seeds")))


@pytest.mark.parametrize("wrong", ["sedes", "nothing at all"])
def test_unknown_experiment(wrong):
    with pytest.raises(UsageError, match="There are: baselines"):
        find(wrong)
    with pytest.raises(UsageError, match="Did you mean 'smoke'"):
        scales.find("smok")


# Runs ----------------------------------------------------------------------------------------------------------------


def test_runs_of_an_experiment(tmp_path):
    made = plan(tmp_path, "variants", seeds=2)
    runs = made.runs()
    assert len(runs) == len({run.name for run in runs}) == 4 * 2 * 2
    assert runs[0].name.startswith("dape-kerple-add_residual-125m-train128-seed0-")
    job = made.job(runs[0], threads=3)
    assert job.run.model.encoding_options == {"variant": "add_residual"} and job.variant == "add_residual"
    assert job.run.train.seed == 0 and job.threads == 3
    assert job.extra == {
        "experiment": "variants", "scale": "smoke", "model": "125m", "paper_train_length": 128, "tokens": 512,
    }  # fmt: skip


def test_the_child_reads_what_was_written(tmp_path):
    made = plan(tmp_path)
    run = made.runs()[0]
    task = made.task(run)
    assert read_job(task.folder) == made.job(run, 1)


def test_a_name_says_everything_the_numbers_depend_on(tmp_path):
    first = plan(tmp_path).runs()[0]
    assert plan(tmp_path / "elsewhere").runs()[0] == first
    others = [
        plan(tmp_path, data_hash="other").runs()[0],
        plan(tmp_path, scale="cpu").runs()[0],
        replace(plan(tmp_path), scale=replace(SCALES["smoke"], windows=5)).runs()[0],
        replace(plan(tmp_path), scale=replace(SCALES["smoke"], lr=1e-3)).runs()[0],
        plan(tmp_path, seeds=2).runs()[-1],
    ]
    assert len({first.digest, *(run.digest for run in others)}) == 1 + len(others)


def test_the_default_by_name_is_the_same_run(tmp_path):
    """dape-kerple in one experiment, dape-kerple (concat_residual) or (hidden=32) in others."""
    named = {run.arm: run.digest for run in plan(tmp_path, "bias-ablation").runs()}
    plain = {run.arm: run.digest for run in plan(tmp_path, "seeds").runs()}
    (full,) = [digest for arm, digest in named.items() if arm.variant == "concat_residual"]
    assert full == plain[Arm("dape-kerple")] and named[Arm("kerple")] == plain[Arm("kerple")]
    (other,) = [digest for arm, digest in named.items() if arm.variant == "bias_only"]
    assert other not in plain.values()


def test_finished_runs_are_taken_over(tmp_path):
    source, target = plan(tmp_path / "seeds", "seeds"), plan(tmp_path / "ablation")
    for run in source.runs():
        if run.arm.method in ("kerple", "dape-kerple"):
            finish(source, run, value=7.0)
    assert target.reuse([tmp_path / "nothing", tmp_path / "seeds"]) == 2 and target.reuse([tmp_path / "seeds"]) == 0
    rows = target.collect()
    assert sorted(r.label for r in rows) == ["dape-kerple (concat_residual)", "kerple"]
    assert all(r.extra["experiment"] == "bias-ablation" and r.value == 7.0 for r in rows)
    assert {r.run for r in rows} <= {run.name for run in target.runs()}
    assert rows[0].extra["reused_from"] in {run.name for run in source.runs()}
    (full,) = [run for run in target.runs() if run.arm.variant == "concat_residual"]
    assert target.finished(full) and (target.folder(full) / "checkpoints" / "weights").exists()


def test_a_run_of_our_own_is_not_replaced(tmp_path):
    source, target = plan(tmp_path / "a", "seeds"), plan(tmp_path / "b")
    (there,) = [run for run in source.runs() if run.arm.method == "kerple"]
    (here,) = [run for run in target.runs() if run.arm.method == "kerple"]
    finish(source, there, value=7.0)
    finish(target, here, value=6.0)
    assert target.reuse([tmp_path / "a"]) == 0
    assert [r.value for r in target.collect()] == [6.0]


def test_other_text_is_refused(tmp_path):
    plan(tmp_path / "out").begin()
    plan(tmp_path / "out", seeds=3).begin()
    with pytest.raises(UsageError, match="data_hash was 'abc', now 'other'"):
        plan(tmp_path / "out", data_hash="other").begin()


# Cost ----------------------------------------------------------------------------------------------------------------


def test_cost_of_the_papers_main_table():
    """6 operations per parameter and token, and attention: 24 runs of 6.55 billion tokens with 124M active weights."""
    cost = cost_of(find("seeds"), SCALES["paper"], seeds=3)
    assert cost.runs == 24 and cost.parameters == pytest.approx(162.3e6, rel=0.01)
    dense = 24 * 50_000 * 256 * 512 * 6 * 123.7e6
    assert dense < cost.flops < 1.3 * dense
    assert any("GPU-hours" in line for line in cost.lines())
    assert cost_of(find("seeds"), SCALES["paper"], seeds=1).flops == pytest.approx(cost.flops / 3)


@pytest.mark.slow
def test_cost_of_small_scales_is_about_an_hour():
    for experiment in LANGUAGE:
        minutes = cost_of(experiment, SCALES["cpu"], seeds=experiment.seeds).flops / 50e9 / 60
        assert minutes < 90, experiment.id
    smoke = cost_of(find("model-size"), SCALES["smoke"], seeds=1)
    assert smoke.flops / 50e9 < 30


@pytest.mark.parametrize("scale", CHE)
def test_cost_of_tasks(scale):
    cost = cost_of(find("che"), SCALES[scale], seeds=1)
    assert cost.runs == len(CHE[scale].tasks) * len(CHE[scale].methods) * len(CHE[scale].rates) and cost.flops > 0
