"""Runs in several processes, killed, cut off and asked to stop: they end with the weights of an undisturbed one.

Each test adds its figures to the file that ``DAPE_FAULTS_LOG`` names (results/distributed/faults.jsonl), if any.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dape.training.checkpoint import MODEL, checkpoints, find
from dape.training.run import read_metrics
from dape.training.shards import read_joined

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds children by /proc")]

STEPS = 12
SETTINGS = ["--layers", "2", "--width", "16", "--heads", "2", "--train-length", "8", "--batch", "4", "--threads", "1",
            "--log-every", "1", "--save-every", "2", "--steps", str(STEPS), "--encoding", "dape-fire"]  # fmt: skip
PATIENCE = 240
# Imported by every process first (sitecustomize): steps and saves that take long enough to be hit.
SLOW = """
import os, sys
if "dape.cli.process train" in " ".join(sys.orig_argv):
    import time
    from dape.training import saving, trainer
    take, write = trainer.Trainer.take_step, saving.Saving._write
    def slowly(self):
        time.sleep(0.3)
        return take(self)
    def written(self, folder):
        found = write(self, folder)
        time.sleep(float(os.environ.get("SLOW_SAVE", "0")))
        return found
    trainer.Trainer.take_step, saving.Saving._write = slowly, written
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory, text_file) -> Any:
    slow = tmp_path_factory.mktemp("slow")
    (slow / "sitecustomize.py").write_text(SLOW)

    def run(folder: Path, *more: str, resume: bool = False, save: float = 0) -> subprocess.Popen[str]:
        begin = ["--resume"] if resume else [*SETTINGS, "--data", str(text_file)]
        words = ["-m", "dape", "train", "--out", str(folder), "--processes", "2", *begin, *more]
        path = os.pathsep.join([str(slow), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "PYTHONPATH": path, "SLOW_SAVE": str(save)})  # fmt: skip

    return run


def ended(child: subprocess.Popen[str]) -> str:
    said = child.communicate(timeout=PATIENCE)[1]
    return said


def until(condition: Callable[[], object], child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert child.poll() is None, ended(child)
        assert time.monotonic() < deadline
        time.sleep(0.01)


def reached(folder: Path) -> int:
    return max((line["step"] for line in read_metrics(folder)), default=0)


def workers(parent: int) -> dict[int, int]:
    """Process id of every rank."""
    found = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            status, environment = (each / "stat").read_text(), (each / "environ").read_bytes()
        except OSError:
            continue
        if int(status.rpartition(")")[2].split()[1]) == parent and b"\0RANK=" in b"\0" + environment:
            found[int(environment.partition(b"\0RANK=")[2].partition(b"\0")[0])] = int(each.name)
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_joined(find(folder), MODEL, "")


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory) -> Path:
    """The folder of a run that nobody has disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    child = start(folder, "--parallel", "fsdp")
    said = ended(child)
    assert child.returncode == 0, said
    return folder


@pytest.fixture(scope="module")
def undisturbed(whole) -> dict[str, torch.Tensor]:
    return weights(whole)


def compare(what: str, folder: Path, undisturbed: dict[str, torch.Tensor], **figures: Any) -> None:
    """The last weights against those of the undisturbed run; the figure goes into the log."""
    found = weights(folder)
    assert found.keys() == undisturbed.keys() and find(folder).name == f"step-{STEPS:08d}"
    distance = max((found[name] - undisturbed[name]).abs().max().item() for name in found)
    if log := os.environ.get("DAPE_FAULTS_LOG"):
        with Path(log).open("a") as file:
            file.write(json.dumps({"fault": what, "steps": STEPS, **figures, "largest_difference": distance}) + "\n")
    assert distance == 0


def test_one_of_two_is_killed_in_a_step(start, tmp_path, undisturbed):
    folder = tmp_path / "run"
    child = start(folder, "--parallel", "fsdp")
    until(lambda: reached(folder) >= 5, child)
    hit = reached(folder)
    os.kill(workers(child.pid)[1], signal.SIGKILL)
    said = ended(child)
    assert child.returncode == 0 and "process 1 of 2 was killed; starting again from the last checkpoint" in said, said
    compare("SIGKILL of process 1 of 2 in a step, restarted by itself", folder, undisturbed, killed_after_step=hit)


def test_all_are_killed_in_a_checkpoint(start, tmp_path, undisturbed):
    folder = tmp_path / "run"
    child = start(folder, "--parallel", "fsdp", save=1.0)
    until(lambda: reached(folder) >= 3, child)
    until(lambda: list((folder / "checkpoints").glob(".step-*.tmp/model-*")), child)
    for process in [child.pid, *workers(child.pid).values()]:
        os.kill(process, signal.SIGKILL)
    ended(child)
    there = [path.name for path in checkpoints(folder / "checkpoints")]
    again = start(folder, "--parallel", "fsdp", resume=True)
    said = ended(again)
    assert again.returncode == 0, said
    assert not list((folder / "checkpoints").glob(".step-*"))
    compare("SIGKILL of all while a checkpoint is written, resumed", folder, undisturbed, whole_checkpoints=there)


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_the_newest_checkpoint_is_damaged(start, tmp_path, whole, undisturbed, damage):
    folder = shutil.copytree(whole, tmp_path / "run")
    shard = find(folder) / "model-00002-of-00002.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content[: len(content) // 2] if damage == "truncated" else content)
    again = start(folder, "--parallel", "fsdp", resume=True)
    said = ended(again)
    assert again.returncode == 0 and f"going on from step-{STEPS - 2:08d}" in said, said
    compare(f"newest checkpoint {damage}, the one before is taken", folder, undisturbed)


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_sigterm_saves_and_asks_to_be_queued_again(start, tmp_path, undisturbed, mode):
    folder = tmp_path / "run"
    child = start(folder, "--parallel", mode)
    until(lambda: reached(folder) >= 3, child)
    begin = time.monotonic()
    child.send_signal(signal.SIGTERM)
    said = ended(child)
    seconds = round(time.monotonic() - begin, 2)
    assert child.returncode == 143, said
    stopped = int(find(folder).name.removeprefix("step-"))
    assert 3 <= stopped < STEPS
    again = start(folder, "--parallel", "fsdp", resume=True)
    said = ended(again)
    assert again.returncode == 0, said
    if mode == "fsdp":
        compare(f"SIGTERM, {mode}: exit code 143, then resumed", folder, undisturbed, saved_at_step=stopped,
                seconds_to_exit=seconds)  # fmt: skip
