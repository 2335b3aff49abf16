"""Loss and accuracy against DeepMind's, training that goes on where it was, tests that fit into memory."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from dape.errors import UsageError
from dape.evaluation.chomsky import as_rows, data_hash, measure_at, predict
from dape.experiments import worker
from dape.experiments.chomsky import ChomskyJob
from dape.experiments.job import ROWS, TESTED, read_job, write_job
from dape.experiments.worker import STOPPED
from dape.reading import as_record
from dape.results.records import read_rows
from dape.tasks.chomsky.base import Sample
from dape.tasks.chomsky.catalogue import load
from dape.tasks.chomsky.config import CheConfig, Subject
from dape.tasks.chomsky.learn import count_correct, mean_loss, training_batch
from dape.tasks.chomsky.model import encoder_for
from dape.training.chomsky import ChomskyTrainer, train_config
from dape.training.optim import learning_rate
from dape.training.run import read_metrics

TINY = CheConfig(
    scale="cpu", width=16, layers=2, heads=2, hidden=4, pool=256, steps=6, batch=8, samples=70, lengths=(1, 7, 40, 45)
)
CPU = torch.device("cpu")


def subject(task: str = "even_pairs", method: str = "randomized-alibi", seed: int = 0) -> Subject:
    return Subject(task=task, method=method, seed=seed, lr=1e-3)


# Loss and accuracy ---------------------------------------------------------------------------------------------------


def test_loss_and_accuracy_are_those_of_the_original(original, golden):
    targets, mask, logits = (golden[f"{original}__L8__{what}"] for what in ("out", "mask", "logits"))
    shape = (len(targets), -1)
    targets, mask = targets.reshape(shape).astype(np.int64), mask.reshape(shape).astype(bool)
    logits = torch.from_numpy(logits.reshape(*targets.shape, -1))
    loss = mean_loss(logits, torch.from_numpy(targets))
    assert loss.item() == pytest.approx(float(golden[f"{original}__L8__loss"]), rel=1e-5)
    right, counted = count_correct(logits, Sample(targets, targets, mask))
    assert right / counted == pytest.approx(float(golden[f"{original}__L8__acc"]), rel=1e-6)


# Batches -------------------------------------------------------------------------------------------------------------


def test_batches_are_a_function_of_seed_and_step():
    one, two, step, seed = (
        training_batch(TINY, load("reverse_string"), seed=s, step=t) for s, t in ((3, 9), (3, 9), (3, 10), (4, 9))
    )
    np.testing.assert_array_equal(one.inputs, two.inputs)
    for other in (step, seed):
        assert one.inputs.shape != other.inputs.shape or not np.array_equal(one.inputs, other.inputs)


def test_every_length_is_trained_on():
    lengths = [training_batch(TINY, load("even_pairs"), seed=0, step=step).inputs.shape[1] for step in range(600)]
    assert set(lengths) == set(range(1, 41))
    assert max(lengths.count(n) for n in range(1, 41)) < 40  # 15 expected


def test_adam_at_a_constant_rate():
    config = train_config(dataclasses.replace(TINY, steps=1000), subject())
    assert {learning_rate(step, config) for step in (0, 1, 500, 999)} == {1e-3}
    assert (config.beta1, config.beta2, config.eps, config.weight_decay, config.clip) == (0.9, 0.999, 1e-8, 0, 1)


# Training ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["randomized-kerple", "dape-fire", "randomized-learned"])
def test_interrupted_training_ends_with_the_same_weights(tmp_path, method):
    whole = ChomskyTrainer(tmp_path / "whole", TINY, subject(method=method), CPU)
    assert whole.run(stop=lambda: False)
    first = ChomskyTrainer(tmp_path / "parts", TINY, subject(method=method), CPU)
    assert not first.run(stop=lambda: first.step == 2)
    torch.manual_seed(99)  # nothing may depend on the state of a process
    second = ChomskyTrainer(tmp_path / "parts", TINY, subject(method=method), CPU)
    assert second.step == 2 and second.run(stop=lambda: False)
    for (name, a), b in zip(whole.model.named_parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert read_metrics(tmp_path / "parts") == read_metrics(tmp_path / "whole")


def test_a_task_is_learned(tmp_path):
    """Short strings are sorted without error after two hundred steps; a bug in targets or layout would show."""
    config = dataclasses.replace(TINY, width=32, steps=200, batch=64, train_length=4, dropout=0.0, lengths=(3, 4, 5))
    trainer = ChomskyTrainer(tmp_path, config, Subject(task="bucket_sort", method="sinusoidal", seed=0, lr=3e-3), CPU)
    assert trainer.run(stop=lambda: False)
    assert measure_at(trainer.model, config, trainer.task.examples, 4).accuracy > 0.95


def test_diverging_training_says_so(tmp_path):
    trainer = ChomskyTrainer(tmp_path, TINY, subject(), CPU)
    with torch.no_grad():
        trainer.model.head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"the loss is nan.*a lower `lr` \(now 0\.001\)"):
        trainer.run(stop=lambda: False)


# Tests ---------------------------------------------------------------------------------------------------------------


def model_for(method: str = "randomized-alibi", task: str = "binary_addition"):
    torch.manual_seed(0)
    return encoder_for(TINY, load(task), method), load(task)


def test_accuracy_by_hand(monkeypatch):
    """An oracle in the model's place that errs on purpose: all zeros are right where the target is zero and counts."""
    model, task = model_for()

    def zeros(model, sample, config, task, encodings, noise):
        return torch.nn.functional.one_hot(torch.zeros(sample.targets.shape, dtype=torch.long), 3).float()

    monkeypatch.setattr("dape.evaluation.chomsky.predict", zeros)
    measured = measure_at(model, TINY, task, 12)
    samples = [task.sample(np.random.default_rng([1, 12, group]), size, 12) for group, size in ((0, 64), (1, 6))]
    right = [int(((s.targets == 0) & s.mask).sum()) for s in samples]
    counted = [int(s.mask.sum()) for s in samples]
    assert measured.accuracy == sum(right) / sum(counted) and measured.counted == sum(counted)
    compat = measure_at(model, dataclasses.replace(TINY, compat="deepmind"), task, 12)
    assert compat.accuracy == pytest.approx(np.mean([r / c for r, c in zip(right, counted, strict=True)]))
    assert compat.accuracy != measured.accuracy


def test_tests_repeat_and_leave_the_global_state_alone():
    model, task = model_for()
    state = torch.get_rng_state()
    assert measure_at(model, TINY, task, 9) == measure_at(model, TINY, task, 9)
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_only_where_deepmind_is_imitated(monkeypatch):
    model, task = model_for()
    drops = []
    monkeypatch.setattr("dape.models.encoder.drop", lambda x, p, noise: (noise and drops.append(p), x)[1])
    measure_at(model, TINY, task, 3)
    assert not drops
    measure_at(model, dataclasses.replace(TINY, compat="deepmind"), task, 3)
    assert drops


def test_parts_give_what_the_whole_gives(monkeypatch):
    model, task = model_for()
    sample = task.sample(np.random.default_rng(0), 20, 30)
    encodings = model.drawn_encodings(61, torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = predict(model, sample, TINY, task, encodings, None)
        monkeypatch.setattr("dape.evaluation.chomsky.TOKENS_AT_ONCE", 200)
        torch.testing.assert_close(predict(model, sample, TINY, task, encodings, None), whole)


def test_rows():
    config, who = TINY, subject("binary_addition")
    model, task = model_for()
    inside, outside = (
        as_rows(measure_at(model, config, task, n), config, who, step=6, extra={"x": 1}) for n in (40, 45)
    )
    assert [row.metric for row in inside] == ["accuracy", "nll"] and [row.metric for row in outside] == ["accuracy"]
    row = outside[0]
    assert (row.run, row.method, row.seed) == ("binary_addition-randomized-alibi-lr0.001-seed0", "randomized-alibi", 0)
    assert (row.length, row.train_length, row.windows, row.step, row.protocol) == (45, 40, 70, 6, "che")
    assert row.extra["scale"] == "cpu" and row.extra["width"] == 16 and row.extra["task"] == "binary_addition"
    assert row.data_hash == data_hash(config, "binary_addition") != data_hash(config, "odds_first")


@pytest.mark.slow
def test_the_longest_test_fits_into_two_gigabytes():
    """In a child, so that nothing else counts. Twelve examples are more than are computed at once."""
    import subprocess
    import sys

    code = (
        "import resource, torch; torch.set_num_threads(1); "
        "from dape.tasks.chomsky.config import CheConfig; from dape.tasks.chomsky.model import encoder_for; "
        "from dape.evaluation.chomsky import measure_at; from dape.tasks.chomsky.catalogue import load; "
        "task = load('duplicate_string'); config = CheConfig(samples=12)\n"
        "for method in ('randomized-rope', 'dape-kerple', 'dape-fire', 'randomized-transformer-xl'):\n"
        "    measure_at(encoder_for(config, task, method), config, task, 500)\n"
        "    print(method, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(child.stdout.split()[-1]) < 2.0, child.stdout


# A run as a process --------------------------------------------------------------------------------------------------


def job(folder, **changes) -> ChomskyJob:
    given = dict(config=TINY, task="even_pairs", method="randomized-alibi", seed=0, lr=1e-3, device="cpu", threads=1)
    made = ChomskyJob(**{**given, **changes})
    write_job(folder, made)
    return made


def test_job_survives_the_round_trip(tmp_path):
    made = job(tmp_path / "run", lr=3e-4)
    assert read_job(tmp_path / "run") == made


def test_worker_writes_all_rows(tmp_path):
    folder = tmp_path / subject().name
    job(folder)
    assert worker.main(folder) == 0
    rows = read_rows(folder / ROWS)
    assert [row.length for row in rows if row.metric == "accuracy"] == [1, 7, 40, 45]
    assert [row.length for row in rows if row.metric == "nll"] == [1, 7, 40]
    assert not (folder / TESTED).exists() and "torch" in rows[0].extra


def test_tests_go_on_where_they_were(tmp_path, monkeypatch):
    folder = tmp_path / subject().name
    made = job(folder)
    trainer = ChomskyTrainer(folder, TINY, subject(), CPU)
    trainer.run(stop=lambda: False)
    with pytest.raises(SystemExit) as stopped:
        worker.test(made, trainer, folder, lambda: (folder / TESTED).exists())
    assert stopped.value.code == STOPPED and not (folder / ROWS).exists()
    tested = read_rows(folder / TESTED)
    assert {row.length for row in tested} == {1}
    asked = []
    monkeypatch.setattr("dape.evaluation.chomsky.measure_at", lambda *args: asked.append(args[-1]) or measure_at(*args))
    assert worker.main(folder) == 0
    assert asked == [7, 40, 45]
    monkeypatch.undo()
    other = tmp_path / "other" / subject().name
    job(other)
    assert worker.main(other) == 0
    values = [[(row.length, row.metric, row.value) for row in read_rows(f / ROWS)] for f in (folder, other)]
    assert values[0] == values[1]


# Settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lengths": (0, 50)}, "at least 1, got 0"),
        ({"lengths": (10,)}, "from 41 on"),
        ({"lengths": (50,)}, "up to 40"),
        ({"width": 12, "heads": 8}, "`width` 12"),
        ({"dropout": 1.0}, "`dropout`"),
        ({"steps": 0}, "`steps`"),
        ({"compat": "google"}, "deepmind"),
    ],
)
def test_settings_that_cannot_be_meant(changes, words):
    with pytest.raises(UsageError, match=words):
        dataclasses.replace(TINY, **changes).check()


def test_score_begins_after_training(constants):
    assert CheConfig().scored_lengths == tuple(range(41, 501))
    compat = CheConfig(compat="deepmind", lengths=tuple(range(1, 101)))
    assert compat.first_scored == constants["score_first_length"]
    assert np.mean(compat.scored_lengths) == constants["score_of_identity"]


def test_settings_survive_json():
    assert as_record(CheConfig, json.loads(json.dumps(dataclasses.asdict(TINY)))) == TINY
