"""``dape train``: what it writes, what it says, what it refuses. Signals are in tests/training/test_killed.py."""

import json
import math
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.texts import random_words

from dape.cli import main
from dape.extras import install_command
from dape.files import locked
from dape.tasks.base import Loss
from dape.tasks.text import TextTask
from dape.training import tensors
from dape.training.description import find
from dape.training.trainer import Trainer

SIZES = ["--layers", "1", "--width", "16", "--heads", "2", "--train-length", "8"]
TINY = [*SIZES, "--batch", "2", "--steps", "4", "--log-every", "1", "--threads", "1"]


@pytest.fixture(autouse=True)
def elsewhere(isolated, tmp_path, monkeypatch):
    """In an empty folder with a text in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text(random_words(100))


def train(*argv: str, expect: int = 0) -> None:
    assert main(["train", "--data", "words.txt", *TINY, *argv]) == expect


def resume(*argv: str, expect: int = 0) -> None:
    assert main(["train", "--resume", *argv]) == expect


def weights(run: str) -> dict[str, torch.Tensor]:
    return load_file(find(Path(run)) / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


# What it does --------------------------------------------------------------------------------------------------------


def test_a_run(capsys, tmp_path):
    train("--encoding", "rope", "--seed", "3")
    shown = capsys.readouterr()
    run = tmp_path / "runs" / "rope-8-seed3"
    names = sorted(path.name for path in run.iterdir() if path.name != ".lock")
    assert names == ["checkpoints", "config.yaml", "data", "metrics.jsonl"]
    begun, done, following = re.split(r"\n(?=done: |next: )", shown.out)
    assert begun.startswith("training: rope, 0.0")
    assert "4 steps of 2 x 8 tokens of words" in " ".join(begun.split())
    assert "on cpu, into runs/rope-8-seed3" in " ".join(begun.split())
    loss = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["validation_loss"]
    assert done == f"done: runs/rope-8-seed3, {loss:.4f} nats per token on held-out text"
    assert "dape eval runs/rope-8-seed3" in following and "dape generate runs/rope-8-seed3" in following
    assert "step 4/4  loss" in shown.err


def test_its_settings_repeat_it(tmp_path):
    train("--out", "a", "--encoding", "dape-kerple", "--encoding-options", "hidden=3", "--lr", "1e-2", "--seed", "5")
    assert main(["train", "--config", "a/config.yaml", "--out", "b"]) == 0
    assert same(weights("a"), weights("b"))
    assert (tmp_path / "a/config.yaml").read_text() == (tmp_path / "b/config.yaml").read_text()
    settings = yaml.safe_load((tmp_path / "a/config.yaml").read_text())
    assert settings["model"]["encoding_options"] == {"hidden": 3} and settings["train"]["lr"] == 0.01
    assert settings["threads"] == 1
    assert main(["train", "--config", "a/config.yaml", "--out", "c", "--seed", "6"]) == 0
    assert not same(weights("a"), weights("c"))


def test_a_finished_run_is_left_alone(capsys):
    train("--out", "a")
    before = weights("a")
    capsys.readouterr()
    resume("--out", "a")
    assert capsys.readouterr().out == "a has already reached its last step, 4\n"
    assert same(weights("a"), before)


def test_the_folder_can_be_moved_and_continued(capsys, monkeypatch, tmp_path):
    """Killed, as the process was, before step 3; then moved together with the text."""
    train("--out", "whole")
    with monkeypatch.context() as patch:
        real = Trainer.take_step
        patch.setattr(Trainer, "take_step", lambda self: real(self) if self.step < 2 else pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            train("--out", "a", "--save-every", "1")
    (tmp_path / "new place").mkdir()
    for name in ("a", "words.txt"):
        shutil.move(name, tmp_path / "new place" / name)
    monkeypatch.chdir("new place")
    capsys.readouterr()
    resume("--out", "a")
    assert capsys.readouterr().out.startswith("continuing after step 2: dape-kerple")
    assert same(weights("a"), weights(str(tmp_path / "whole")))


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    train("--out", "a", "--tensorboard")
    (events,) = (tmp_path / "a/tensorboard").iterdir()
    content = events.read_bytes()
    assert all(name in content for name in (b"loss", b"gradient_norm", b"validation_loss", b"lr"))


def test_too_little_text_to_validate(capsys, tmp_path):
    (tmp_path / "short.txt").write_text("a short text of some words\n" * 2)
    argv = ["train", "--data", "short.txt", "--out", "a", *TINY, "--train-length", "30"]
    assert main(argv) == 0
    assert "held-out text too short to measure" in capsys.readouterr().out
    assert "validation_loss" not in (tmp_path / "a/metrics.jsonl").read_text()


# What it refuses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--layers 0", "--layers must be at least 1, got 0"),
        ("--heads 0", "--heads must be at least 1"),
        ("--width 0", "--width must be at least 1"),
        ("--width -8", "--width must be at least 1"),
        ("--heads 3", "--width 16 cannot be divided into --heads 3"),
        ("--encoding rope --heads 16", "head_dim must be even, got 1 (--width 16 --heads 16)"),
        ("--train-length 0", "--train-length must be at least 1"),
        ("--train-length 99999", "The longest possible training length is"),
        ("--steps 0", "--steps must be at least 1"),
        ("--beta1 1", "--beta1 must be at least 0 and below 1"),
        ("--seed -1", "--seed must lie between"),
        ("--seed 99999999999999999999", "--seed must lie between"),
        ("--accumulate 3", "--batch 2 cannot be split into --accumulate 3"),
        ("--encoding kerpel", "Did you mean 'kerple'?"),
        ("--encoding dape-cope", "dape cannot be put on 'cope'"),
        ("--encoding rope --encoding-options hidden=3", "--encoding-options hidden=3"),
        ("--encoding-options hidden=0", "hidden must be a positive whole number"),
        ("--encoding-options hidden", "hidden: not NAME=VALUE"),
        ("--data nowhere", "nowhere: no such file or folder"),
        ("--data /dev/null", "/dev/null can be read only once"),
        ("--device cuda:77", "--device cuda:77: cannot be used here"),
        ("--device meta", "--device meta: cannot be used here"),
        ("--threads 0", "--threads must be at least 1"),
        ("--out words.txt", "words.txt is a file, not a folder"),
        ("--stpes 3", "--steps"),
        ("--precision fp8", "fp8"),
        ("--vocabulary 300", "--vocabulary"),
        ("--preset tyny", "Did you mean 'tiny'?"),
        ("--config nowhere.yaml", "--config nowhere.yaml: cannot be read"),
        ("five", "five"),
    ],
)
def test_wrong_arguments(capsys, argv, words, tmp_path):
    train("--out", "a", *argv.split(), expect=2)
    shown = capsys.readouterr()
    assert words in shown.err and "Traceback" not in shown.err and shown.out == ""
    assert not (tmp_path / "a" / "config.yaml").exists()
    if "--train-length" in argv:  # corrected, it goes
        train("--out", "a")


def test_a_missing_package_leaves_no_run(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    train("--out", "a", "--wandb", "project", expect=2)
    assert install_command("wandb") in capsys.readouterr().err
    train("--out", "a")


def test_an_existing_run(capsys):
    train("--out", "a")
    before = weights("a")
    train("--out", "a", expect=2)
    assert "a already holds a run; add --resume to continue it, or choose another --out" in capsys.readouterr().err
    assert same(weights("a"), before)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--encoding rope", "encoding was 'dape-kerple', now 'rope'"),
        ("--steps 8", "steps was 4, now 8"),
        ("--lr 1 --seed 2", "lr was 0.002, now 1.0; seed was 0, now 2"),
        ("--data other.txt", "data was 'words.txt', now 'other.txt'"),
        ("--preset small", "--preset cannot be used with --resume"),
        ("--config a/config.yaml", "--config cannot be used with --resume"),
    ],
)
def test_continuing_with_other_settings(capsys, argv, words, tmp_path):
    train("--out", "a")
    (tmp_path / "other.txt").write_text("other words\n" * 100)
    resume("--out", "a", *argv.split(), expect=2)
    assert words in capsys.readouterr().err
    resume("--out", "a", "--log-every", "5", "--keep", "7", "--save-every", "3", "--validate-every", "1")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("clip: 1.0", "clip: 9.0", "clip was 1.0, now 9.0"),
        ("beta2: 0.95", "beta2: 0.5", "beta2 was 0.95, now 0.5"),
        ("encoding: dape-kerple", "encoding: kerple", "encoding was 'dape-kerple', now 'kerple'"),
        ("steps: 4", "steps: 5", "steps was 4, now 5"),
    ],
)
def test_settings_that_were_edited(capsys, tmp_path, old, new, words):
    """A run goes on with what its checkpoint was made with, whatever config.yaml says by now."""
    train("--out", "a")
    path = tmp_path / "a/config.yaml"
    before = weights("a")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    resume("--out", "a", expect=2)
    shown = capsys.readouterr().err
    assert words in shown and "step-00000004 was made with other settings" in shown
    assert same(weights("a"), before)
    path.write_text(path.read_text().replace(new, old))
    resume("--out", "a")


def test_threads_that_were_edited_are_mentioned(capsys, tmp_path):
    train("--out", "a")
    path = tmp_path / "a/config.yaml"
    path.write_text(path.read_text().replace("threads: 1", "threads: 2"))
    capsys.readouterr()
    resume("--out", "a")
    assert "started with 1 threads, now 2: the last bits may differ" in capsys.readouterr().out


def test_text_that_has_changed(capsys, tmp_path):
    train("--out", "a")
    (tmp_path / "words.txt").write_text("other words\n" * 100)
    resume("--out", "a", expect=2)
    assert "changed" in capsys.readouterr().err


def test_one_process_at_a_time(capsys):
    train("--out", "a")
    with locked(Path("a")):
        resume("--out", "a", expect=2)
        train("--out", "a", expect=2)
    assert re.search(r"a is in use by another dape process.*\n.*a already holds", capsys.readouterr().err)


def test_nothing_to_continue(capsys):
    resume(expect=2)
    assert "--resume needs --out" in capsys.readouterr().err
    resume("--out", "nowhere", expect=2)
    assert "there is no run to continue" in capsys.readouterr().err


def test_another_number_of_threads_is_mentioned(capsys):
    train("--out", "a")
    capsys.readouterr()
    resume("--out", "a", "--threads", "2")
    assert "started with 1 threads, now 2: the last bits may differ" in capsys.readouterr().out


# What goes wrong -----------------------------------------------------------------------------------------------------


def test_divergence(capsys, monkeypatch, tmp_path):
    real = TextTask.batch

    def diverge(self, model, step):
        batch = real(self, model, step)
        return replace(batch, loss=lambda part: Loss(batch.loss(part).mean * (math.nan if step == 3 else 1), 1))

    monkeypatch.setattr(TextTask, "batch", diverge)
    train("--out", "a", "--save-every", "2", "--clip", "0", expect=1)
    shown = capsys.readouterr().err
    for words in (
        "step 4: the loss is nan (batch 3 of seed 0, which begins with '",
        "The last checkpoint is step-00000002.",
        "a lower --lr (now 0.002)",
        "--warmup-share",
        "--clip 1 (now 0)",
    ):
        assert words in shown
    assert "Traceback" not in shown and "--precision" not in shown
    assert [path.name for path in (tmp_path / "a/checkpoints").iterdir()] == ["step-00000002"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    resume("--out", "a")


def test_a_full_disk(capsys, monkeypatch, tmp_path):
    def full(given, path, metadata):
        raise tensors.SafetensorError("I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(tensors, "save_file", full)
        train("--out", "a", expect=1)
    shown = capsys.readouterr().err
    assert "No space left on device" in shown and "Traceback" not in shown
    assert list((tmp_path / "a/checkpoints").iterdir()) == []
    resume("--out", "a")


def test_a_damaged_checkpoint(capsys, tmp_path):
    train("--out", "a", "--save-every", "2")
    newest = tmp_path / "a/checkpoints/step-00000004"
    (newest / "optimizer.safetensors").write_bytes(b"?")
    resume("--out", "a")
    shown = capsys.readouterr().err
    assert "step-00000004/optimizer.safetensors: damaged, it is not what was written" in shown
    assert "going on from step-00000002" in shown and newest.is_dir()
