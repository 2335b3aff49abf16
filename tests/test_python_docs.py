"""The blocks of docs/python.md run one after the other, as a reader would run them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from dape.experiments.reproduce import scales
from dape.hf import adapter_of

TEXT = (Path(__file__).parents[1] / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_blocks_run(tmp_path, monkeypatch, here, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(scales.SCALES, "smoke", replace(scales.SCALES["smoke"], steps=2))
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(block, names)
    assert names["run"].finished and names["run"].step == 4
    assert set(here[:2]) == {"alibi-seed0", "dape-alibi-seed0"} and not any("rope" in name for name in here)
    assert {row.method for row in names["more"].rows} == {"alibi", "dape-alibi", "rope"}
    assert Path("curves.png").is_file() and names["found"].claims
    assert adapter_of(names["model"]).method == "dape-kerple"
    assert "dape-kerple (adapter)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["open_data", "train", "evaluate", "compare", "extend", "reproduce"])
def test_every_function_is_shown(name):
    assert f"dape.{name}(" in TEXT


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", TEXT))))
def test_links_lead_somewhere(target):
    assert (Path(__file__).parents[1] / "docs" / target).exists()
