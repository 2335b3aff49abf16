"""Several processes give the losses of one, whatever the encoding, and their checkpoints continue on any number."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import processes

from dape.errors import UsageError
from dape.positional.catalogue import ENTRIES, encodings
from dape.positional.names import parse
from dape.training.checkpoint import load_model, merge
from dape.training.config import TrainConfig
from dape.training.description import describe, files_of, find
from dape.training.launch import check_processes, patience, run_processes
from dape.training.parallel import Group

SCRIPT = Path(processes.__file__)
FEW = ["dape-fire", "dape-kerple", "randomized-rope"]
Run = Callable[[list[dict[str, Any]], int], dict[str, list[float]]]


@pytest.fixture(scope="session")
def data(corpus) -> str:
    return str(corpus.folder)


@pytest.fixture(scope="session")
def run_cases(tmp_path_factory, data) -> Run:
    def run(cases: list[dict[str, Any]], count: int) -> dict[str, list[float]]:
        out = tmp_path_factory.mktemp("processes")
        text = json.dumps({"cases": cases, "out": str(out), "data": data})
        assert run_processes([str(SCRIPT), text], count, restarts=0) == 0
        return json.loads((out / "found.json").read_text()) | {"out": out}  # pyright: ignore

    return run


def case(mode: str, name: str, **settings: Any) -> dict[str, Any]:
    return {"mode": mode, "name": f"{mode} {name} {len(settings)}", "settings": {"encoding": name, **settings}}


CASES = [case(mode, name) for mode in ("ddp", "fsdp") for name in FEW]
CASES += [case(mode, "dape-kerple", accumulate=2, checkpoint_activations=True) for mode in ("ddp", "fsdp")]
SAVED = [
    {"mode": mode, "name": f"saved {mode}", "save_after": 2, "settings": {"encoding": "dape-fire"}}
    for mode in ("ddp", "fsdp")
]
WINDOWS = [
    {"mode": "ddp", "name": f"window {name}", "window": 35, "settings": {"encoding": name}}
    for name in ("rope", "dape-fire", "transformer-xl")
]


@pytest.fixture(scope="module")
def found(run_cases) -> dict[str, Any]:
    """One pair of processes for all tests of this tier: starting them takes longer than what they do."""
    return run_cases([*CASES, *SAVED, *WINDOWS], 2)


@pytest.mark.parametrize("given", CASES, ids=lambda given: given["name"])
def test_two_processes_give_the_losses_of_one(found, tmp_path, data, given):
    expected = processes.alone(tmp_path / "run", data, given["settings"])
    assert found[given["name"]] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("given", WINDOWS, ids=lambda given: given["name"])
def test_two_processes_share_a_window(found, given):
    assert found[given["name"]] == pytest.approx(processes.window(given), abs=1e-5)


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_what_two_processes_saved_continues_on_two_and_on_one(found, tmp_path, data, mode):
    settings = {"encoding": "dape-fire"}
    undisturbed = processes.alone(tmp_path / "run", data, settings, 4)[4:]
    assert found[f"saved {mode}"] == pytest.approx(undisturbed, abs=1e-5)
    on_one = processes.alone(found["out"] / f"saved {mode}", data, settings, 2)
    assert on_one == pytest.approx(undisturbed, abs=1e-5)


def test_shards_are_files_without_code_and_become_one_file(found, tmp_path):
    checkpoint = find(found["out"] / "saved fsdp")
    assert {path.suffix for path in checkpoint.iterdir()} == {".safetensors", ".json"}
    assert len(files_of("model.safetensors", [path.name for path in checkpoint.iterdir()])) == 2
    merged = merge(checkpoint, tmp_path / "merged")
    assert (merged / "model.safetensors").is_file()
    models = [load_model(path, describe(path), torch.device("cpu")).state_dict() for path in (checkpoint, merged)]
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_damaged_shard_is_noticed(found, tmp_path, damage):
    copied = shutil.copytree(find(found["out"] / "saved fsdp"), tmp_path / "step-00000002")
    shard = copied / "model-00002-of-00002.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.unlink() if damage == "missing" else shard.write_bytes(content)
    with pytest.raises(ValueError, match="model-00002-of-00002"):
        describe(copied)


# Bad input -----------------------------------------------------------------------------------------------------------


def test_a_batch_that_cannot_be_divided():
    with pytest.raises(UsageError, match="`batch` 16 in `accumulate` 8 parts of 2 cannot be divided among 4 processes"):
        Group("ddp", 0, 4).check(TrainConfig(batch=16, accumulate=8))


def test_a_loss_scaler_on_shards():
    with pytest.raises(UsageError, match=r"fp16.*use bf16"):
        Group("fsdp", 0, 2).check(TrainConfig(precision="fp16"))


@pytest.mark.parametrize("count", [0, 65])
def test_a_senseless_number_of_processes(count):
    with pytest.raises(UsageError, match=f"`processes` must lie between 1 and 64 on one machine, got {count}"):
        check_processes(count)


@pytest.mark.slow
def test_processes_with_other_settings_all_stop_with_one_message(tmp_path, text_file):
    """As torchrun would run them, each with a command line of its own."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "dape", "train", "--data", str(text_file), "--out", str(tmp_path / "run"),
             "--seed", str(rank), "--batch", "4", "--steps", "2"],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "DAPE_STORE": str(tmp_path / "store")},
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [child.communicate(timeout=120)[1] for child in children]
    assert [child.returncode for child in children] == [2, 2]
    assert "process 1 was given other settings than process 0: train.seed 1 instead of 0" in said[0]
    assert said[1] == ""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_answers(tmp_path, text_file, rank):
    """Neither the first process nor the other waits without end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # nobody has it when the server is gone
    alone = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = subprocess.run(
        [sys.executable, "-m", "dape", "train", "--data", str(text_file), "--out", str(tmp_path / "run")],
        env={**os.environ, **alone, "DAPE_PATIENCE": "3"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"process {rank} of 2 does not find the others at 127.0.0.1:{port}" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_senseless_patience(monkeypatch):
    monkeypatch.setenv("DAPE_PATIENCE", "soon")
    with pytest.raises(UsageError, match="DAPE_PATIENCE must be a number of seconds from 1 to 1000000, got 'soon'"):
        patience()


@pytest.mark.slow
def test_a_checkpoint_of_another_number_of_layers(tmp_path, text_file):
    """All processes stop, and one says why."""
    words = [sys.executable, "-m", "dape", "train", "--data", str(text_file), "--out", str(tmp_path / "run")]
    words += ["--processes", "2", "--parallel", "fsdp", "--batch", "4", "--steps", "2", "--width", "16", "--heads", "2"]
    same = {"capture_output": True, "text": True, "timeout": 400, "check": False}
    assert subprocess.run([*words, "--layers", "1"], **same).returncode == 0  # pyright: ignore
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("layers: 1", "layers: 2"))
    resumed = [*words[:4], "--resume", "--out", str(tmp_path / "run"), "--processes", "2", "--parallel", "fsdp"]
    done = subprocess.run(resumed, **same)  # pyright: ignore
    assert done.returncode == 2 and done.stderr.count("layers was 1, now 2") == 1


# Everything ----------------------------------------------------------------------------------------------------------


def split(name: str) -> bool:
    """DAPE on rotations has the parameters of dape-rope, and rotations have none."""
    parsed = parse(name)
    return parsed.base == "rope" or ENTRIES[parsed.base].hook != "rotate"


SPLIT = [name for name in encodings() if split(name)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_every_encoding(run_cases, tmp_path, data, count):
    """Each in one mode on two processes, and in the other on four."""
    modes = ("ddp", "fsdp") if count == 2 else ("fsdp", "ddp")
    given = [case(modes[n % 2], name) for n, name in enumerate(SPLIT)]
    found = run_cases(given, count)
    different = {}
    for each in given:
        expected = processes.alone(tmp_path / each["name"], data, each["settings"])
        distance = max(abs(a - b) for a, b in zip(found[each["name"]], expected, strict=True))
        if not distance <= 1e-5:
            different[each["name"]] = distance
    assert not different


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_half_precision(run_cases, tmp_path, data, mode):
    given = case(mode, "dape-kerple", precision="bf16")
    expected = processes.alone(tmp_path / "run", data, given["settings"])
    # A sum of two halves rounds otherwise than one sum: bf16 has 8 bits.
    assert run_cases([given], 2)[given["name"]] == pytest.approx(expected, rel=4e-3)


@pytest.mark.slow
def test_what_two_processes_saved_continues_on_four(run_cases, tmp_path, data):
    two = run_cases(SAVED[1:], 2)
    four = [{"mode": "fsdp", "name": "on four", "folder": str(two["out"] / "saved fsdp"), "steps": 2,  # pyright: ignore
             "settings": SAVED[1]["settings"]}]  # fmt: skip
    undisturbed = processes.alone(tmp_path / "run", data, SAVED[1]["settings"], 4)[4:]
    assert run_cases(four, 4)["on four"] == pytest.approx(undisturbed, abs=1e-5)


@pytest.mark.compile
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_compiled(run_cases, tmp_path, data, mode):
    given = case(mode, "dape-kerple", compile=True)
    expected = processes.alone(tmp_path / "run", data, {"encoding": "dape-kerple"})
    assert run_cases([given], 2)[given["name"]] == pytest.approx(expected, rel=1e-3)
