"""What `make docs` builds the site from, in build/docs: the pages of this folder, pages that live elsewhere in the
repository, and a page of every public name. Links to files that are no pages become their paths.

python docs/site.py
"""

import re
import shutil
from pathlib import Path

import dape

DOCS = Path(__file__).parent
ROOT = DOCS.parent
OUT = ROOT / "build" / "docs"
ELSEWHERE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "src/dape/ops/attention/README.md": "operator.md",
}
GROUPS = {
    "What the commands do": ("actions", "data"),
    "Encodings": ("positional",),
    "Attention": ("ops",),
    "Models and layers": ("models", "nn"),
}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(DOCS, OUT, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in sorted(DOCS.glob("**/*.md")):
        (OUT / page.relative_to(DOCS)).write_text(with_links(page), encoding="utf-8")
    for source, name in ELSEWHERE.items():
        (OUT / name).write_text(with_links(ROOT / source), encoding="utf-8")
    (OUT / "api.md").write_text(api(), encoding="utf-8")


def with_links(page: Path) -> str:
    """The text of a page, every link to where its target is on the site."""

    def linked(match: re.Match[str]) -> str:
        text, target = match.groups()
        name, mark, part = target.partition("#")
        if not name or "://" in name:
            return match[0]
        path = (page.parent / name).resolve()
        if not path.exists():
            raise SystemExit(f"{page}: {target} does not exist")
        inside = str(path.relative_to(ROOT))
        if path.is_relative_to(DOCS):
            return f"[{text}]({path.relative_to(DOCS)}{mark}{part})"
        if inside in ELSEWHERE:
            return f"[{text}]({ELSEWHERE[inside]}{mark}{part})"
        return text if text.strip("`") == inside else f"{text} (`{inside}`)"

    return LINK.sub(linked, page.read_text(encoding="utf-8"))


def api() -> str:
    lines = ["# API", "", "Everything that `import dape` gives. Names are imported on first use.", ""]
    for title, packages in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in dape.__all__:
            home = dape._HOME.get(name, "")
            if home.split(".")[1:2] and home.split(".")[1] in packages and name != "Impl":
                lines += [f"::: {home}.{name}", f"    options: {{heading: dape.{name}, toc_label: {name}}}", ""]
    return "\n".join([*lines, "## Layers for plain PyTorch", "", "::: dape.nn.SelfAttention", ""])


if __name__ == "__main__":
    main()
