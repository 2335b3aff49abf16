"""Find the files and data sets behind the name of a text that a user gives."""

import contextlib
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from dape.data import bundled
from dape.data.formats import HubName, is_known, kind_of
from dape.errors import UsageError
from dape.files import sha256_of


@dataclass(frozen=True, slots=True)
class Item:
    """One file, or one data set of the hub."""

    name: str
    """As shown in messages."""
    path: str
    kind: str
    """text, jsonl, parquet, python (text that may declare its encoding) or hub."""
    identity: str
    """Changes when the content does."""
    size: int = 0
    named: bool = True
    """Whether the user named this file, rather than a folder with it: then it is an error if it is not text."""
    part: str = ""
    """train or validation if the user chose one, else empty."""


@dataclass(frozen=True)
class Source:
    given: str
    name: str
    items: list[Item]
    other_files: int = 0
    """Number of files of a folder that were left out because of their names."""
    details: dict[str, str] = field(default_factory=dict)

    def describe(self) -> dict[str, object]:
        """The entry in the manifest."""
        size = sum(item.size for item in self.items)
        return {"source": self.given, "files": len(self.items), "bytes": size, **self.details}


def expand(given: str, spool: Path | None = None) -> Source:
    """Find the files behind one argument. A pipe is first copied to ``spool``; without one it is refused."""
    if given == "-":
        return _stream(given, "standard input", lambda: contextlib.nullcontext(sys.stdin.buffer), spool)
    if given in bundled.BUNDLED:
        return _bundled(given)
    if given.startswith("hf:"):
        return _hub(given)
    path = Path(given)
    if not path.exists():
        raise UsageError(f"{_shown(given)}: no such file or folder{_hint(given)}")
    if path.is_dir():
        return _folder(given, path)
    if not os.access(path, os.R_OK):
        raise UsageError(f"{given}: may not be read")
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe, as <(command) of a shell
        return _stream(given, given, lambda: path.open("rb"), spool)
    name = path.name.split(".")[0] or path.name
    return Source(given, name, [_file(path, given, path.name)])


def digest(items: Sequence[Item]) -> str:
    """A hash that changes when any of the inputs does."""
    return hashlib.sha256("\n".join(item.identity for item in items).encode("utf-8", "surrogateescape")).hexdigest()


def joint_name(sources: Sequence[Source]) -> str:
    first, *others = [source.name for source in sources]
    return f"{first}+{len(others)}" if others else first


def _shown(name: str) -> str:
    """The name; in quotation marks if it has invisible characters or begins or ends with a space."""
    return name if name.isprintable() and name == name.strip() else repr(name)


def _hint(given: str) -> str:
    if given.lower() in bundled.BUNDLED:
        return f". Did you mean {given.lower()!r}?"
    if given.count("/") == 1 and not given.startswith((".", "/", "~")):
        return f". For a data set of the Hugging Face hub write hf:{given}"
    return ""


def _file(path: Path, name: str, relative: str, *, named: bool = True) -> Item:
    status = path.stat()
    identity = f"{relative} {status.st_size} {status.st_mtime_ns}"
    return Item(name, str(path), kind_of(path), identity, status.st_size, named)


def _folder(given: str, root: Path) -> Source:
    found, others = [], 0
    for path in _walk(root):
        if is_known(path) and path.is_file():
            found.append(_file(path, str(path), path.relative_to(root).as_posix(), named=False))
        else:
            others += 1
    if not found:
        raise UsageError(f"{given}: no text files in this folder (.txt, .md, .tex, .py, ..., .jsonl, .parquet)")
    return Source(given, root.resolve().name or "root", found, others)


def _walk(root: Path) -> Iterator[Path]:
    """All files that are not hidden, in an order that does not depend on the file system."""

    def fail(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=fail):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        yield from (Path(folder, f) for f in sorted(files) if not f.startswith("."))


def _bundled(name: str) -> Source:
    kind = "python" if name == "stdlib" else "text"
    items = []
    for relative, path in bundled.bundled_files(name):
        content = path.read_bytes()
        identity = f"{relative} {sha256_of(content)}"
        items.append(Item(f"{name}: {relative}", str(path), kind, identity, len(content), named=False))
    return Source(name, name, items, details=bundled.details(name))


def _hub(given: str) -> Source:
    spec = HubName.parse(given)
    folder = Path(spec.name)
    identity = str(spec)
    if folder.is_absolute():
        if not folder.is_dir():
            raise UsageError(f"{given}: no such folder")
        identity = (
            digest([_file(path, str(path), str(path.relative_to(folder))) for path in _walk(folder)]) + f" {spec.split}"
        )
    return Source(given, folder.name, [Item(str(spec), given, "hub", identity)])


def _stream(given: str, name: str, open_: Callable[[], AbstractContextManager[BinaryIO]], spool: Path | None) -> Source:
    """Copy a pipe to a file: text is read up to three times (to split it, to learn a tokenizer, to encode it)."""
    if spool is None:
        raise UsageError(f"{name} can be read only once; prepare it first: dape prepare {given} --out DIR")
    seen, size = hashlib.sha256(), 0
    spool.parent.mkdir(parents=True, exist_ok=True)
    with open_() as stream, spool.open("wb") as copy:
        while block := stream.read(1 << 20):
            copy.write(block)
            seen.update(block)
            size += len(block)
    return Source(given, "stdin", [Item(name, str(spool), "text", seen.hexdigest(), size)])
