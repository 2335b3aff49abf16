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


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'dape[hf]'"),
        (
            '{"url": "file:///home/me/my%20clone", "dir_info": {"editable": true}}',
            "pip install -e '/home/me/my clone[hf]'",
        ),
        ('{"url": "file:///tmp/dape", "dir_info": {}}', "pip install '/tmp/dape[hf]'"),
        (
            '{"url": "file:///tmp/dape-1-py3-none-any.whl", "archive_info": {}}',
            "pip install '/tmp/dape-1-py3-none-any.whl[hf]'",
        ),
        ('{"url": "https://somewhere/dape.whl"}', "pip install 'dape[hf] @ https://somewhere/dape.whl'"),
        (
            '{"url": "https://somewhere/dape", "vcs_info": {"vcs": "git"}}',
            "pip install 'dape[hf] @ git+https://somewhere/dape'",
        ),
        ("broken", "pip install 'dape[hf]'"),
    ],
)
def test_extras_are_installed_from_where_the_package_came(monkeypatch, origin, command):
    class Distribution:
        def read_text(self, name: str) -> str | None:
            return origin if name == "direct_url.json" else None

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Distribution())
    assert extras.install_command("hf") == command


def test_from_the_sources_alone(monkeypatch):
    def none(name: str):
        raise extras.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", none)
    command = extras.install_command("hf")
    assert command.startswith("pip install -e ") and (Path(command[16:-5]) / "pyproject.toml").is_file()


def test_no_message_names_an_index():
    """Whoever has a clone or a wheel would get whatever an index calls by that name, or nothing."""
    root = Path(__file__).parents[1]
    pages = [*root.glob("src/dape/**/*.py"), *root.glob("docs/**/*.md"), *root.glob("*.md")]
    found = [str(page) for page in pages if re.search(r"pip install '?dape\b", page.read_text(encoding="utf-8"))]
    assert found == [str(root / "src/dape/extras.py")]


def test_one_version_everywhere():
    root = Path(__file__).parents[1]
    version = extras.importlib.import_module("dape").__version__
    assert f"\nversion: {version}\n" in (root / "CITATION.cff").read_text()
    date = re.search(rf"## {re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)", (root / "CHANGELOG.md").read_text())
    assert date and f'date-released: "{date[1]}"' in (root / "CITATION.cff").read_text()
