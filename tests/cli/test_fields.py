"""Arguments that errors of the library name are flags in messages of the command line, and only there."""

import ast
import re
from pathlib import Path

import pytest

import dape
from dape.cli.commands import COMMANDS
from dape.cli.fields import with_flags

SOURCE = Path(dape.__file__).parent
CONFIGS = [command.config for command in COMMANDS]
FLAGS = {"cli", "bench"}
"""Packages that read flags."""


@pytest.mark.parametrize(
    "message, shown",
    [
        ("`train_length` must be at least 1, got 0", "--train-length must be at least 1, got 0"),
        ("`width` 8 is not 3 times `heads`", "--width 8 is not 3 times --heads"),
        ("a width of 8", "a width of 8"),
        ("the weights of `model` changed, `checkpoint` is not", "the weights of MODEL changed, CHECKPOINT is not"),
        ("a folder `no_such_flag`, from `dape train`", "a folder `no_such_flag`, from `dape train`"),
    ],
)
def test_arguments_in_backticks_become_flags(message, shown):
    assert with_flags(message, CONFIGS) == shown


OTHERS = r"dape [a-z.]|ray start|^--(version|porcelain|address)$|of commands"
"""Texts with flags of whole command lines, and of programs that are not ours."""


@pytest.mark.parametrize("package", sorted({path.name for path in SOURCE.iterdir()} - FLAGS - {"__pycache__"}))
def test_the_library_knows_no_flags(package):
    """Whole command lines may be quoted, as in "dape prepare TEXT --out DIR"."""
    path = SOURCE / package
    for file in [path] if path.suffix == ".py" else path.rglob("*.py"):
        for text in _texts(ast.parse(file.read_text(encoding="utf-8"))):
            found = re.search(r"(?<![\w-])--[a-z][a-z-]+", text)
            assert not found or re.search(OTHERS, text), (file, text)


def _texts(tree: ast.Module) -> list[str]:
    """All texts of a module but its docstrings; of an f-string, all that is between its values."""
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = []
    for node in ast.walk(tree):  # outer nodes come before those within
        if isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            skipped.update(map(id, parts))
            texts.append("...".join(str(part.value) for part in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            texts.append(node.value)
    return texts
