"""Axis names: all in the legend, and true at run time."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dape
from dape import shapes

pytest.importorskip("beartype")

SOURCE = Path(dape.__file__).parent
ROOT = Path(__file__).parents[1]
SPELLED_OUT = {"ones", "bands"}
"""Names that say themselves what they are."""


def checked(*names: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tests.shapes_checked", *names]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_legend_knows_every_axis():
    legend = set(re.findall(r"(?m)^(\w) {4}", shapes.__doc__))
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Subscript) and (axes := _axes(node)):
                assert axes <= legend | SPELLED_OUT, f"{file}:{node.lineno}: {axes - legend - SPELLED_OUT}"


def _axes(node: ast.Subscript) -> set[str]:
    """Of ``Float[Tensor, "*b h q"]``."""
    match node.slice:
        case ast.Tuple(elts=[ast.Name(id="Tensor"), ast.Constant(value=str(text))]):
            return set(re.findall(r"[A-Za-z]+", text))
    return set()


def test_shapes_of_models_layers_and_hooks_are_what_they_say():
    """And a wrong one is noticed: the program tries that first."""
    found = checked("rope", "cope", "dape-kerple")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_shapes_of_every_encoding_are_what_they_say():
    found = checked()
    assert found.returncode == 0, found.stdout + found.stderr
