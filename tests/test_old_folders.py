"""Folders begun before the redesign (tests/golden/folders.py) go on with the same command, to the same rows."""

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from tests.golden.folders import COMMANDS, ENDS, HERE, ROOT, argv, ends

from dape.cli import main

pytest.importorskip("transformers")
IN_THIS_PROCESS = ("train", "extend")


@pytest.fixture
def folder(request, monkeypatch) -> Iterator[Path]:
    work = ROOT / request.param
    with FileLock(f"{ROOT}.lock"):
        if not ROOT.exists():
            unpack("inputs", ROOT)
        shutil.rmtree(work, ignore_errors=True)
    unpack(request.param, work)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(work)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield work / "out"
    torch.set_num_threads(before)
    shutil.rmtree(work)


def unpack(name: str, folder: Path) -> None:
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")


@pytest.mark.parametrize(
    "folder",
    [pytest.param(name, marks=[] if name in IN_THIS_PROCESS else pytest.mark.slow) for name in COMMANDS],
    indirect=True,
)
def test_a_folder_begun_before_goes_on(folder, request, capsys):
    name = request.node.callspec.params["folder"]
    begun = {path.name for path in folder.rglob("*")}
    assert main(argv(name, again=True)) == 0, capsys.readouterr().err
    assert {"metrics.jsonl", "before.jsonl"} & begun, "nothing had been done before"
    assert_same(ends(folder), json.loads(ENDS.read_text(encoding="utf-8"))[name])


def assert_same(found: list[dict], expected: list[dict]) -> None:
    """Other processors sum in another order."""
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert row.keys() == other.keys()
        for name, value in other.items():
            assert row[name] == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value)
