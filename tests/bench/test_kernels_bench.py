"""``dape bench kernels``: what it reports. The compilation itself is tested in tests/ops/attention/test_triton.py."""

import json
import subprocess
import sys

import pytest

from dape.bench import kernels, options
from dape.bench.kernels import KernelsBench, run
from dape.cli import main
from dape.errors import UsageError

LINES = [
    {"kernel": "forward", "for": [], "bias": "lag tables", "shared": 65_536, "registers": 200, "spilled": 0},
    {"kernel": "keys", "for": ["FOR_K", "FOR_V"], "bias": "cells", "shared": 70_000, "registers": 255, "spilled": 12},
]


@pytest.fixture
def compiler(monkeypatch) -> list[list[str]]:
    """Stands for the child process; what it was asked."""
    asked: list[list[str]] = []
    monkeypatch.setitem(sys.modules, "triton", kernels)
    monkeypatch.setattr(options, "machine", dict)  # it asks other programs

    def child(command, **_):
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "\n".join(map(json.dumps, LINES)), "")

    monkeypatch.setattr(subprocess, "run", child)
    return asked


def test_a_row_for_every_kernel(compiler, tmp_path, capsys):
    path = tmp_path / "kernels.json"
    assert run(KernelsBench(targets=("sm_80", "sm_90"), heads=8, json=path)) == 0
    assert [command[-5:] for command in compiler] == [[t, "fp16", "8", "64", "32"] for t in ("sm_80", "sm_90")]
    rows = json.loads(path.read_text())["rows"]
    assert rows[1] == {
        "target": "sm_80", "kernel": "keys", "bias": "cells", "parts": "k, v", "shared_kb": 68.4, "registers": 255,
        "spilled": 12, "fits": True,
    }  # fmt: skip
    shown = capsys.readouterr()
    assert "compiled and not run: 8 heads of 64" in shown.out and "compiling for sm_90\n" in shown.err


def test_what_cannot_be_launched_is_a_failure(compiler, capsys):
    assert run(KernelsBench(targets=("gfx942",))) == 1
    out = capsys.readouterr().out
    assert out.count("NO") == 1 and out.count("yes") == 1


def test_errors_of_the_compiler_are_told(compiler, monkeypatch, capsys):
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nboom")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert run(KernelsBench(targets=("sm_80",))) == 1
    assert "do not compile for sm_80: boom" in capsys.readouterr().err


def test_wrong_arguments(monkeypatch, capsys):
    assert main(["bench", "kernels", "--targets", "sm_70"]) == 2
    assert "--targets sm_70: not one of sm_80" in capsys.readouterr().err
    with pytest.raises(UsageError, match="`heads` must be at least 1"):
        run(KernelsBench(heads=0))
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(UsageError, match=r"dape bench kernels needs Triton: pip install .*triton"):
        run(KernelsBench())
