"""The pages that `make docs` builds the site from."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import dape

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site.py")
site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(site)


def pages(nav) -> set[str]:
    found = set()
    for entry in nav:
        for target in entry.values():
            found |= {target} if isinstance(target, str) else pages(target)
    return found


def test_every_page_is_in_the_navigation():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    written = {str(page.relative_to(site.DOCS)) for page in site.DOCS.glob("**/*.md")}
    assert pages(nav) == written | set(site.ELSEWHERE.values()) | {"api.md"}


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
    page.write_text("[a](other.md#b) [c](../CONTRIBUTING.md) [the file](../Makefile) [`Makefile`](../Makefile) [d](#e)")
    assert site.with_links(page) == "[a](other.md#b) [c](contributing.md) the file (`Makefile`) `Makefile` [d](#e)"
    page.write_text("[a](gone.md)")
    with pytest.raises(SystemExit, match=r"page\.md: gone\.md does not exist"):
        site.with_links(page)
