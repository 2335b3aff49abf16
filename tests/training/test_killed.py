"""``dape train`` in a process of its own, stopped by signals of all kinds and continued: the weights do not show it."""

import itertools
import json
import multiprocessing
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dape.training.description import checkpoints, describe, find
from dape.training.run import read_metrics

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

SETTINGS = shlex.split("--layers 2 --width 16 --heads 2 --train-length 8 --batch 4 --log-every 1")
PATIENCE = 120

# What a child does. Importing torch takes seconds, so children are forked from a server that has done it.
CHILD = """
import os, sys, time
log = os.open({log!r}, os.O_WRONLY | os.O_APPEND)
os.dup2(log, 1)
os.dup2(log, 2)
{before}
from dape.cli import main
sys.exit(main({argv!r}))
"""
PRELOADED = ["dape.cli", "dape.data.corpora", "dape.training.language_model", "rich.progress", "torch._dynamo"]
# A step of its own for every signal to hit: each takes a little longer.
SLOW_STEPS = """
from dape.training.trainer import Trainer
taken = Trainer.take_step
def slowly(self):
    time.sleep({seconds})
    return taken(self)
Trainer.take_step = slowly
"""
SLOW_SAVES = """
from dape.training import checkpoint
digest = checkpoint.sha256
def slowly(path):
    time.sleep(0.2)
    return digest(path)
checkpoint.sha256 = slowly
"""

Start = Callable[..., Any]


@pytest.fixture(scope="session")
def server():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@pytest.fixture
def start(server, tmp_path, text_file) -> Iterator[Start]:
    """Begin ``dape train`` in a folder of ``tmp_path``; ``before`` is code that the child runs first."""
    children = []

    def run(folder: str, *argv: str, before: str = "", resume: bool = False):
        begin = ["--resume"] if resume else [*SETTINGS, "--data", str(text_file)]
        words = ["train", "--threads", "1", "--out", str(tmp_path / folder), *begin, *argv]
        log = tmp_path / f"{folder}.log"
        log.touch()
        code = CHILD.format(log=str(log), before=before, argv=words)
        child = server.Process(target=exec, args=(code, {}))
        child.start()
        children.append(child)
        return child

    yield run
    for child in children:
        child.kill()
        child.join()


def wait_for(condition: Callable[[], object], child) -> None:
    """Until it holds, or the child has ended."""
    deadline = time.monotonic() + PATIENCE
    while child.is_alive() and not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def ended(child) -> int:
    child.join(PATIENCE)
    assert child.exitcode is not None
    return child.exitcode


def steps_taken(folder: Path) -> int:
    return max((line["step"] for line in read_metrics(folder)), default=0)


def temporary_folders(folder: Path) -> list[Path]:
    return list((folder / "checkpoints").glob(".step-*.tmp"))


@pytest.fixture
def unbroken(start, tmp_path, request) -> Path:
    """The folder of a run that nobody has disturbed."""
    argv = request.param
    assert ended(start("unbroken", *argv)) == 0
    return tmp_path / "unbroken"


SIX_STEPS = ("--encoding", "dape-kerple", "--steps", "6", "--save-every", "2")


@pytest.mark.slow
@pytest.mark.parametrize("unbroken", [SIX_STEPS], indirect=True)
def test_killed_during_steps_and_saves(start, unbroken, tmp_path, saved, same_bits):
    """Twice: in the middle of a save, then between saves."""
    folder = tmp_path / "killed"
    child = start("killed", *SIX_STEPS, before=SLOW_SAVES)
    wait_for(lambda: temporary_folders(folder), child)
    os.kill(child.pid, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert temporary_folders(folder) and not checkpoints(folder / "checkpoints")

    child = start("killed", resume=True, before=SLOW_STEPS.format(seconds=0.1))
    wait_for(lambda: steps_taken(folder) == 5, child)
    os.kill(child.pid, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert find(folder).name == "step-00000004" and steps_taken(folder) == 5

    assert ended(start("killed", resume=True)) == 0
    assert not temporary_folders(folder)
    same_bits(saved(find(folder)), saved(find(unbroken)))
    lines = [line["step"] for line in read_metrics(folder) if "loss" in line]
    assert lines == [1, 2, 3, 4, 5, 6]
    assert (folder / "config.yaml").read_text() == (unbroken / "config.yaml").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
@pytest.mark.parametrize("unbroken", [(*SIX_STEPS, "--encoding", "rope")], indirect=True)
def test_asked_to_stop(start, unbroken, tmp_path, saved, same_bits, number, code):
    folder = tmp_path / "stopped"
    argv = (*SIX_STEPS, "--encoding", "rope", "--save-every", "0")
    child = start("stopped", *argv, before=SLOW_STEPS.format(seconds=0.6))
    wait_for(lambda: steps_taken(folder) == 3, child)
    os.kill(child.pid, number)
    assert ended(child) == code
    reached = describe(find(folder)).step
    assert 3 <= reached < 6
    said = (tmp_path / "stopped.log").read_text()
    assert "stopping after this step and saving" in said and "Traceback" not in said
    assert f"stopped and saved at step {reached}; continue with: dape train --resume --out {folder}" in said

    assert ended(start("stopped", resume=True)) == 0
    assert f"continuing after step {reached}: rope" in (tmp_path / "stopped.log").read_text()
    same_bits(saved(find(folder)), saved(find(unbroken)))
    assert [line["step"] for line in read_metrics(folder) if "loss" in line] == [1, 2, 3, 4, 5, 6]


def test_a_second_signal_stops_at_once(start, tmp_path):
    folder = tmp_path / "hurry"
    child = start("hurry", *SIX_STEPS, "--save-every", "1", before=SLOW_STEPS.format(seconds=30))
    wait_for(lambda: "training:" in (tmp_path / "hurry.log").read_text(), child)
    time.sleep(0.3)
    begin = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    wait_for(lambda: "once more" in (tmp_path / "hurry.log").read_text(), child)
    os.kill(child.pid, signal.SIGINT)
    assert ended(child) == 130 and time.monotonic() - begin < 25
    assert "dape: interrupted" in (tmp_path / "hurry.log").read_text() and steps_taken(folder) == 0


# In the slow tier: killed at random -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("--encoding", "dape-kerple"),
        ("--encoding", "randomized-dape-fire", "--accumulate", "2"),
        ("--encoding", "t5", "--precision", "fp16"),
    ],
    ids=lambda words: words[1],
)
def test_killed_again_and_again(start, tmp_path, saved, same_bits, settings):
    """Every life ends a little after its first steps, most often during a save, as every step is saved."""
    argv = [*settings, "--steps", "20", "--save-every", "1"]
    assert ended(start("whole", *argv)) == 0
    folder, deaths = tmp_path / "killed", 0
    for life in itertools.count():
        before = steps_taken(folder)
        child = start("killed", resume=True) if life else start("killed", *argv)
        wait_for(lambda before=before: steps_taken(folder) > before + 2, child)
        time.sleep(0.013 * life)
        child.kill()
        if (code := ended(child)) != -signal.SIGKILL:
            assert code == 0, (tmp_path / "killed.log").read_text()
            break
        deaths += 1
        for path in checkpoints(folder / "checkpoints"):
            describe(path)  # whole, whatever the moment was
    assert deaths >= 3
    same_bits(saved(find(folder)), saved(find(tmp_path / "whole")))
    scaler = [json.loads((find(run) / "checkpoint.json").read_text())["scaler"] for run in (folder, tmp_path / "whole")]
    assert scaler[0] == scaler[1]
    assert [line["step"] for line in read_metrics(folder) if "loss" in line] == list(range(1, 21))
