"""The pages that `make docs` builds the site from."""

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import dape

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site.py")
site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(site)
notebooks = site.notebooks
TUTORIALS = sorted(site.DOCS.glob("tutorials/*.py"))


def pages(nav) -> set[str]:
    found = set()
    for entry in nav:
        for target in entry.values():
            found |= {target} if isinstance(target, str) else pages(target)
    return found


def test_every_page_is_in_the_navigation():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    written = {str(page.relative_to(site.DOCS)) for page in site.DOCS.glob("**/*.md")}
    run = {str(page.relative_to(site.DOCS).with_suffix(".md")) for page in TUTORIALS}
    assert len(TUTORIALS) == 5 and pages(nav) == written | run | set(site.ELSEWHERE.values()) | {"api.md", "gallery.md"}


def test_the_reference_has_every_public_name():
    listed = re.findall(r"^::: ([\w.]+)$", site.api(), re.MULTILINE)
    names = set(dape.__all__) - {"Impl", "__version__", "nn"}
    assert {home.rpartition(".")[2] for home in listed} == names | {"SelfAttention"}


def test_links_lead_somewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "ROOT", tmp_path)
    monkeypatch.setattr(site, "DOCS", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    for name in ("CONTRIBUTING.md", "Makefile", "docs/other.md"):
        (tmp_path / name).write_text("")
    page = tmp_path / "docs" / "page.md"
    text = "[a](other.md#b) [c](../CONTRIBUTING.md) [the file](../Makefile) [`Makefile`](../Makefile) [d](#e)"
    linked = "[a](other.md#b) [c](contributing.md) the file (`Makefile`) `Makefile` [d](#e)"
    assert site.with_links(page, text) == linked
    inner = tmp_path / "docs" / "tutorials" / "page.py"
    assert (
        site.with_links(inner, "[a](../other.md) [c](../../CONTRIBUTING.md)")
        == "[a](../other.md) [c](../contributing.md)"
    )
    with pytest.raises(SystemExit, match=r"page\.md: gone\.md does not exist"):
        site.with_links(page, "[a](gone.md)")


def test_the_gallery_has_every_encoding(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(dape, "draw", lambda name, **_: drawn.append(name) or Figure())
    text = site.gallery(tmp_path / "gallery")
    assert {name for name in dape.encodings() if not name.startswith("dape-")} - set(drawn) == {"nope"}
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == drawn and "dape-v2-fire" in drawn
    assert "ALiBi (Press et al., 2022)" in text and "A - m_h \\|i-j\\|" in text


# Tutorials -----------------------------------------------------------------------------------------------------------


def test_cells():
    cells = notebooks.read_text("# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\nx = 1\nprint(x)\n\n# %%\nx + 1\n")
    assert [cell.is_code for cell in cells] == [False, True, True] and cells[0].text == "# Title\n\nWords."
    assert notebooks.run(cells)["x"] == 1 and [cell.printed for cell in cells] == ["", "1", "2"]
    page = notebooks.as_page(cells, "name", Path())
    assert "```python\nx = 1\nprint(x)\n```\n\n```text\n1\n```" in page
    kinds = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(notebooks.as_notebook(cells))["cells"]]
    assert kinds == [("markdown", "# Title\n\nWords."), ("code", "x = 1\nprint(x)"), ("code", "x + 1")]


def test_it_is_known_what_every_tutorial_prints():
    """`make docs` runs them and looks for it: minutes, which no test repeats."""
    assert set(site.PRINTS) == {path.stem for path in TUTORIALS}


def test_a_tutorial_that_no_longer_prints_it(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "OUT", tmp_path)
    monkeypatch.setattr(site, "PRINTS", {"page": ("two", "three")})
    tutorial = site.DOCS / "tutorials" / "page.py"
    monkeypatch.setattr(site.notebooks, "read", lambda file: notebooks.read_text("# %%\nprint('one, two')\n"))
    with pytest.raises(SystemExit, match=r"page\.py: \['three'\] is not in what it prints"):
        site.write_tutorial(tutorial)
