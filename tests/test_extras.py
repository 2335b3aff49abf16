"""Optional libraries that are missing or too old: said before anything is imported."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dape import extras

WORDS = "needs transformers 5.5 or newer, and {version} is installed: pip install 'transformers>=5.5,<6'"


def pretend(folder: Path, version: str) -> dict[str, str]:
    """An environment in which that version is installed."""
    (folder / "transformers").mkdir()
    (folder / "transformers/__init__.py").write_text(f"__version__ = {version!r}\n")
    about = folder / f"transformers-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: transformers\nVersion: {version}\n")
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import dape.hf", 1),
        ("from dape.cli import main; raise SystemExit(main(['extend', '.', '--data', 'x']))", 2),
        ("from dape.cli import main; raise SystemExit(main(['export', 'run', '--out', 'x']))", 2),
    ],
)
def test_an_old_library(program, code, tmp_path):
    environment = pretend(tmp_path, "4.57.1")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == code and WORDS.format(version="4.57.1") in done.stderr
    assert code == 1 or "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("version", "works"), [("4.99.0", False), ("5.4.1", False), ("5.5.0", True), ("5.22.2", True), ("6.0.0.dev0", True)]
)
def test_versions(version, works, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    assert (extras.transformers_trouble("dape.hf") is None) == works


def test_the_same_as_the_package_asks_for():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert re.findall(r'"transformers>=([\d.]+),<6"', text) == [extras.OLDEST_TRANSFORMERS]
    assert re.findall(r'"peft>=([\d.]+),<1"', text) == [extras.OLDEST_PEFT]
