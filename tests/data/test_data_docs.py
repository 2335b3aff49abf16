"""What docs/data.md shows works as it stands there."""

import re
import shlex
from pathlib import Path

import tyro

from dape.cli.prepare import Prepare

TEXT = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")


def test_the_commands_are_understood():
    commands = [shlex.split(line, comments=True) for line in TEXT.splitlines() if line.startswith("dape prepare ")]
    assert len(commands) == 4
    for command in commands:
        parsed = tyro.cli(Prepare, args=command[2:])
        assert parsed.source and parsed.out.name == command[command.index("--out") + 1]


def test_the_program_runs(prepared, tmp_path, monkeypatch):
    (tmp_path / "text.jsonl").write_text("".join(f'{{"text": "{i} {"some words " * 2000}"}}\n' for i in range(60)))
    prepared("text.jsonl", out="papers")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["batch"].shape == (32, 513) and names["long"].shape[1] == 8193 and len(names["long"]) > 50
