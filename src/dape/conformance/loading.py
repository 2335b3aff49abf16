"""Load the implementation under test from its name, ``package.module:Class`` or ``file.py:Class``. This runs its
code."""

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from dape.errors import UsageError


class TheirError(Exception):
    """The code under test raised an exception; the message has its text and place."""


def load(target: str) -> Any:
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(
            f"`target` {target!r} is not MODULE:NAME, such as my_package.kerple:Kerple or kerple.py:Kerple"
        )
    found: Any = _module(where)
    for part in name.split("."):
        if not hasattr(found, part):
            there = ", ".join(sorted(n for n in vars(found) if not n.startswith("_"))[:12])
            raise UsageError(f"`target` {target!r}: {where} has no {name!r}. It has: {there or 'nothing'}")
        found = getattr(found, part)
    return found


def _module(where: str) -> ModuleType:
    path = Path(where)
    if path.suffix == ".py" and not path.is_file():
        raise UsageError(f"`target`: there is no file {where}")
    if path.suffix != ".py" and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        return _from_file(path) if path.suffix == ".py" else importlib.import_module(where)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (where == missing or where.startswith(f"{missing}.")):
            raise UsageError(
                f"`target`: no module {where!r} in {os.getcwd()} or among the installed packages; a file works, too: "
                "path/to/file.py:Name"
            ) from None
        raise TheirError(told(error, f"importing {where},")) from error


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def told(error: BaseException, doing: str) -> str:
    """A message with the exception and the innermost line outside of dape and of installed packages."""
    ours = str(Path(__file__).parents[1])
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith((ours, "<frozen")) and "site-packages" not in f.filename]
    what = f"{type(error).__name__}: {' '.join(str(error).split()) or '(no message)'}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{doing} your code raised {what}"
    if not theirs:
        return f"{doing} the call of your code raised {what}"
    at = theirs[-1]
    return f"{doing} your code raised {what}\n  {at.filename}:{at.lineno}, in {at.name}:  {at.line}"
