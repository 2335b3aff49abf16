"""Tutorials: Python files in which `# %%` begins a cell, and `# %% [markdown]` one of text, the format that Jupyter and
editors open. `make docs` runs them and makes of each a page with what it printed and drew, and a notebook to
download."""

import ast
import contextlib
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Cell:
    text: str
    is_code: bool
    printed: str = ""
    drawn: Any = None
    """A figure of matplotlib."""


def read(file: Path) -> list[Cell]:
    return read_text(file.read_text(encoding="utf-8"))


def read_text(content: str) -> list[Cell]:
    cells = []
    for part in re.split(r"^# %%", content, flags=re.MULTILINE)[1:]:
        kind, _, text = part.partition("\n")
        if "[markdown]" in kind:
            cells.append(Cell(re.sub(r"^# ?", "", text, flags=re.MULTILINE).strip(), is_code=False))
        else:
            cells.append(Cell(text.strip(), is_code=True))
    return cells


def run(cells: list[Cell]) -> dict[str, Any]:
    """In this folder, one after the other. As in a notebook, the value of a cell's last line is shown. The names that
    they leave."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if not cell.is_code:
            continue
        body = ast.parse(cell.text).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(ast.Module(body, []), "cell", "exec"), names)
            shown = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        if hasattr(shown, "savefig"):
            cell.drawn = shown
        elif shown is not None:
            said.write(f"{shown!r}\n")
        cell.printed = said.getvalue().rstrip()
    return names


def as_page(cells: list[Cell], name: str, folder: Path) -> str:
    """Markdown; figures go into the folder."""
    parts = []
    for number, cell in enumerate(cells):
        if not cell.is_code:
            parts.append(cell.text)
            continue
        parts.append(f"```python\n{cell.text}\n```")
        if cell.printed:
            parts.append(f"```text\n{cell.printed}\n```")
        if cell.drawn is not None:
            cell.drawn.savefig(folder / f"{name}-{number}.png", dpi=100)
            parts.append(f"![what the cell draws]({name}-{number}.png)")
    return "\n\n".join(parts) + "\n"


def as_notebook(cells: list[Cell]) -> str:
    """For Jupyter, without results."""
    made = []
    for number, cell in enumerate(cells):
        about = {"cell_type": "code" if cell.is_code else "markdown", "id": f"cell-{number}", "metadata": {}}
        source = {"source": cell.text.splitlines(keepends=True)}
        made.append({**about, **source, **({"outputs": [], "execution_count": None} if cell.is_code else {})})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps({"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}, indent=1)
