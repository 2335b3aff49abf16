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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dape.training.description import MODEL, checkpoints, find
from dape.training.run import read_metrics
from dape.training.shards import read_joined

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds children by /proc")]

STEPS = 12
SETTINGS = ["--layers", "2", "--width", "16", "--heads", "2", "--train-length", "8", "--batch", "4", "--threads", "1",
            "--log-every", "1", "--save-every", "2", "--steps", str(STEPS), "--encoding", "dape-fire"]  # fmt: skip
PATIENCE = 400
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
# Imported by every process first (sitecustomize): steps and saves that take long enough to be hit.
SLOW = """
import os
if "RANK" in os.environ:
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

    def run(
        folder: Path, *more: str, resume: bool = False, save: float = 0, by: Sequence[str] = (), **environment: str
    ) -> subprocess.Popen[str]:
        """``by``: words in front of `-m dape train`, in place of its own processes."""
        begin = ["--resume"] if resume else [*SETTINGS, "--data", str(text_file)]
        count = [] if by else ["--processes", "2"]
        words = [*(by or [sys.executable]), "-m", "dape", "train", "--out", str(folder), *count, *begin, *more]
        path = os.pathsep.join([str(slow), os.environ.get("PYTHONPATH", "")])
        environment = {"PYTHONPATH": path, "SLOW_SAVE": str(save), **environment}
        return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})

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


def test_torchrun_starts_again(start, tmp_path, undisturbed):
    folder = tmp_path / "run"
    child = start(folder, "--parallel", "fsdp", by=[*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "2"])
    until(lambda: reached(folder) >= 5, child)
    hit = reached(folder)
    os.kill(workers(child.pid)[1], signal.SIGKILL)
    said = ended(child)
    assert child.returncode == 0, said
    compare("SIGKILL of process 1 of 2 in a step, restarted by torchrun", folder, undisturbed, killed_after_step=hit)


def test_all_are_killed_in_a_checkpoint(start, tmp_path, undisturbed):
    folder = tmp_path / "run"
    child = start(folder, "--parallel", "fsdp", save=1.0)
    until(lambda: checkpoints(folder / "checkpoints"), child)
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


def test_the_newest_checkpoint_is_damaged(start, tmp_path, whole, undisturbed):
    """By a bit; for missing and shortened files see test_checkpoint.py."""
    folder = shutil.copytree(whole, tmp_path / "run")
    shard = find(folder) / "model-00002-of-00002.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    again = start(folder, "--parallel", "fsdp", resume=True)
    said = ended(again)
    assert again.returncode == 0 and f"going on from step-{STEPS - 2:08d}" in said, said
    compare("newest checkpoint flipped, the one before is taken", folder, undisturbed)


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
    if mode == "fsdp":  # with ddp, rounding differs from that of the undisturbed run
        again = start(folder, "--parallel", "fsdp", resume=True)
        said = ended(again)
        assert again.returncode == 0, said
        compare(f"SIGTERM, {mode}: exit code 143, then resumed", folder, undisturbed, saved_at_step=stopped,
                seconds_to_exit=seconds)  # fmt: skip


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"may not mount a small disk here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_the_disk_is_full(start, small_disk, undisturbed):
    """The run says so and stops; with room again it goes on from its last checkpoint."""
    folder, filler = small_disk / "run", small_disk / "filler"
    child = start(folder, "--parallel", "fsdp")
    until(lambda: checkpoints(folder / "checkpoints"), child)
    free = shutil.disk_usage(small_disk).free
    filler.write_bytes(b"0" * (free - 8192))
    said = ended(child)
    assert child.returncode == 1 and "No space left on device" in said, said
    there = [path.name for path in checkpoints(folder / "checkpoints")]
    assert there and not list((folder / "checkpoints").glob(".step-*")), "nothing is half-written"
    filler.unlink()
    again = start(folder, "--parallel", "fsdp", resume=True)
    said = ended(again)
    assert again.returncode == 0, said
    compare("disk full at a checkpoint: exit code 1, then resumed", folder, undisturbed, whole_checkpoints=there)


# Two hosts: network namespaces with a cable between them. -------------------------------------------------------------


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """Name and address of both."""
    names = {f"dape-{os.getpid()}-{letter}": f"10.231.7.{n}" for n, letter in ((1, "a"), (2, "b"))}
    (a, b), cable = names, ("dape-cable", "dape-cable")
    try:
        for name in names:
            ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces are not possible here: {getattr(error, 'stderr', '') or error}")
    try:
        ip("link", "add", cable[0], "netns", a, "type", "veth", "peer", "name", cable[1], "netns", b)
        for name, address in names.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", cable[0])
            for link in ("lo", cable[0]):
                ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def test_a_host_disappears_and_comes_back(start, hosts, tmp_path, undisturbed):
    folder, first = tmp_path / "run", next(iter(hosts.values()))
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    words += ["--rdzv-id", "dape", "--rdzv-endpoint", f"{first}:29400"]

    def host(name: str) -> subprocess.Popen[str]:
        # In a session of its own: all its processes go at once.
        by = ["setsid", "ip", "netns", "exec", name, *TORCHRUN, *words, "--local-addr", hosts[name]]
        by += ["--rdzv-conf", f"is_host={str(hosts[name] == first).lower()}"]
        environment = {"GLOO_SOCKET_IFNAME": "dape-cable", "DAPE_PATIENCE": "40"}
        return start(folder, "--parallel", "fsdp", by=by, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", **environment)

    a, b = hosts
    stays, goes = host(a), host(b)
    try:
        until(lambda: reached(folder) >= 5, stays)
        hit, gone = reached(folder), time.monotonic()
        ip("-n", b, "link", "set", "dape-cable", "down")
        os.killpg(goes.pid, signal.SIGKILL)
        goes.communicate()
        time.sleep(5)
        assert stays.poll() is None
        ip("-n", b, "link", "set", "dape-cable", "up")
        goes = host(b)
        said = [ended(child) for child in (stays, goes)]
        assert [stays.returncode, goes.returncode] == [0, 0], said
    finally:
        for child in (stays, goes):
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
    compare("one of two hosts disappears and comes back (network namespaces, torchrun c10d)", folder, undisturbed,
            lost_after_step=hit, seconds_until_done=round(time.monotonic() - gone))  # fmt: skip
