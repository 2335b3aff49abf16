"""Metrics for TensorBoard and Weights & Biases, whose packages are optional."""

import re
import sys
import types

import pytest

from dape.errors import UsageError
from dape.extras import install_command
from dape.training.trackers import TensorBoard, WandB

LINE = {"step": 3, "loss": 2.5, "lr": 1e-3}


def test_missing_packages(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(UsageError, match=re.escape(f"`wandb` needs a package: {install_command('wandb')}")):
        WandB(tmp_path, "project", {})
    with pytest.raises(UsageError, match=re.escape(f"`tensorboard` needs a package: {install_command('tensorboard')}")):
        TensorBoard(tmp_path)


def test_wandb(tmp_path, monkeypatch):
    happened = []

    class Run:
        def log(self, values, step):
            happened.append((values, step))

        def finish(self):
            happened.append("finished")

    def init(**settings):
        happened.append(settings)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    tracker = WandB(tmp_path / "rope-seed0", "project", {"lr": 1})
    tracker.add(LINE)
    tracker.close()
    settings, logged, finished = happened
    assert settings["project"] == "project" and settings["id"] == settings["name"] == "rope-seed0"
    assert settings["resume"] == "allow" and settings["config"] == {"lr": 1}
    assert logged == ({"loss": 2.5, "lr": 1e-3}, 3) and finished == "finished"


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoard(tmp_path)
    tracker.add(LINE)
    tracker.add({"step": 4, "loss": 2.25, "validation_loss": 3.0})
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(3, 2.5), (4, 2.25)]
    assert set(events.Tags()["scalars"]) == {"loss", "lr", "validation_loss"}


def test_a_trainer_tells_its_trackers(make_trainer, train):
    lines = []

    class Tracker:
        def add(self, line):
            lines.append(dict(line))

        def close(self):
            pass

    trainer = make_trainer(steps=2)
    trainer.trackers = [Tracker()]
    train(trainer)
    assert [(line["step"], "loss" in line) for line in lines] == [(1, True), (2, True), (2, False)]
