"""What `make docs` builds the site from, in build/docs: the pages of this folder, pages that live elsewhere in the
repository, a page of every public name, the gallery of encodings, and the tutorials with what they print and draw.
Links to files that are no pages become their paths.

python docs/site.py
"""

import inspect
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import dape

sys.path.insert(0, str(Path(__file__).parent))
import notebooks

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
SHOWN_WITH_DAPE = ("alibi", "kerple", "fire")
PRINTS = {
    "compare": ("dape-alibi", "9 measurements before, 18 now"),
    "my-model": ("dape-kerple", "torch.Size([1, 8, 300, 32])"),
    "longer-llama": ("dape-kerple (adapter)", "adapter_model.safetensors"),
    "add-an-encoding": ("-0.7500", "largest difference"),
    "cluster": ("dape-alibi", "True"),
}
"""What each tutorial prints, among other things."""
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(DOCS, OUT, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in sorted(DOCS.glob("**/*.md")):
        (OUT / page.relative_to(DOCS)).write_text(with_links(page, page.read_text(encoding="utf-8")), encoding="utf-8")
    for source, name in ELSEWHERE.items():
        page = ROOT / source
        (OUT / name).write_text(with_links(page, page.read_text(encoding="utf-8")), encoding="utf-8")
    (OUT / "api.md").write_text(api(), encoding="utf-8")
    (OUT / "gallery.md").write_text(gallery(OUT / "gallery"), encoding="utf-8")
    for tutorial in sorted(DOCS.glob("tutorials/*.py")):
        write_tutorial(tutorial)


def with_links(page: Path, content: str) -> str:
    """The content of a page, every link to where its target is on the site."""
    inner = "../" * len(page.parent.relative_to(DOCS).parts) if page.is_relative_to(DOCS) else ""

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
            page_of = path.with_suffix(".md") if path.parent == DOCS / "tutorials" else path
            return f"[{text}]({inner}{page_of.relative_to(DOCS)}{mark}{part})"
        if inside in ELSEWHERE:
            return f"[{text}]({inner}{ELSEWHERE[inside]}{mark}{part})"
        return text if text.strip("`") == inside else f"{text} (`{inside}`)"

    return LINK.sub(linked, content)


def write_tutorial(file: Path) -> None:
    """Run, in a folder of its own; as a page and as a notebook. SystemExit if it does not print what it is for."""
    print(f"running {file.relative_to(ROOT)}", flush=True)
    cells, out, here = notebooks.read(file), OUT / "tutorials", Path.cwd()
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            notebooks.run(cells)
        finally:
            os.chdir(here)
    printed = "\n".join(cell.printed for cell in cells)
    if missing := [words for words in PRINTS[file.stem] if words not in printed]:
        raise SystemExit(f"{file}: {missing} is not in what it prints:\n{printed}")
    text = with_links(file, notebooks.as_page(cells, file.stem, out))
    told = f"\n*A notebook, run when the site was built: [{file.stem}.ipynb]({file.stem}.ipynb)*\n"
    (out / f"{file.stem}.md").write_text(text + told, encoding="utf-8")
    (out / f"{file.stem}.ipynb").write_text(notebooks.as_notebook(cells), encoding="utf-8")


def gallery(folder: Path) -> str:
    """Every encoding of the catalogue with its equation, what its source says, and its picture."""
    folder.mkdir()
    known = dape.encodings()
    names = [name for name, entry in known.items() if not name.startswith("dape-") and entry.hook != "none"]
    names += [f"{prefix}{base}" for prefix in ("dape-", "dape-v2-") for base in SHOWN_WITH_DAPE]
    bases, shown = ", ".join(name for name, entry in known.items() if entry.dape), ", ".join(SHOWN_WITH_DAPE)
    lines = [
        "# Gallery of encodings\n",
        "Every encoding before training, as `dape.draw` draws it: by distance with a line per head, as a matrix, and",
        "through randomised positions. The dotted line is the training length. Nope has no picture: it does nothing.",
        f"DAPE can be put on {bases}; it is shown on {shown}.\n",
    ]
    print(f"drawing {len(names)} encodings", flush=True)
    for name in names:
        entry = known[name]
        dape.draw(name, out=folder / f"{name}.png", train_length=32, heads=4, head_dim=16).clear()
        lines += [f"## {name}", "", f"![{name} before training](gallery/{name}.png)", "", "| | |", "|---|---|"]
        for what in ("equation", "hook", "learns", "extrapolates"):
            lines.append(f"| {what} | `{getattr(entry, what)}` |".replace("|i-j|", "\\|i-j\\|"))
        module = inspect.getmodule(entry.load() if not name.startswith("dape-") else type(built(name)))
        assert module is not None and module.__doc__ and module.__file__
        source, said = f"src/dape/positional/{Path(module.__file__).name}", module.__doc__.strip().replace("``", "")
        lines += ["", f"From `{source}`:", "", f"```text\n{said}\n```", ""]
    return "\n".join(lines)


def built(name: str) -> dape.PositionalEncoding:
    return dape.build(name, num_heads=2, head_dim=4, train_length=8)


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
