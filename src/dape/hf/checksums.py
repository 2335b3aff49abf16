"""Checksums of a model's folder: what was saved is what is loaded, bit for bit.

DIR/dape-checksums.json     sha256 of weights and configuration, fingerprint of the tokenizer, and a checksum of itself

Weights are huge and a flipped bit in them shows nowhere else. Only files that we or the classes of this package write
are noted, and whoever writes them again notes them again, so that a note is right or absent. The library may save the
tokenizer anew in other words: of it the fingerprint is compared, which stays. Folders without notes (from before, from
others) are loaded as ever.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from dape.files import sha256, write_text
from dape.hf.remote import MODULE
from dape.reading import FileName, Sha256, check_files, read_record, sealed

NOTES, CONFIGURATION = "dape-checksums.json", ("config.json", MODULE)
FORMAT = 1
PATTERNS = ("model*.safetensors", "model*.safetensors.index.json")
"""Names of files that the library's models save weights in; adapters (peft's and ours) have other names."""
ADVICE = f"Copy or export the folder again; if it was changed on purpose, delete its {NOTES}."


class _File(TypedDict):
    format: int
    sha256: dict[FileName, Sha256]
    tokenizer: NotRequired[Sha256]


def note(folder: Path, more: Iterable[str] = (), *, tokenizer: str | None = None) -> None:
    """Write the checksums of weights, configuration and ``more`` files as they are now. Files noted before that are no
    part of the model keep their notes, except the tokenizer, which may be saved again with the model."""
    kept = {name: noted for name, noted in _before(folder).items() if not _is_of_model(name)}
    now = {name: sha256(folder / name) for name in (*_files_of_model(folder), *more)}
    _write(folder, {**kept, **now}, tokenizer)


def note_config(folder: Path) -> None:
    """Note the configuration after it alone was saved again; weights keep their notes."""
    before = _before(folder)
    if before:
        now = {name: sha256(folder / name) for name in CONFIGURATION}
        _write(folder, {**before, **now}, _read(folder).get("tokenizer"))


def _write(folder: Path, checksums: dict[str, str], tokenizer: str | None) -> None:
    content = {"format": FORMAT, "sha256": dict(sorted(checksums.items()))}
    content |= {"tokenizer": tokenizer} if tokenizer else {}
    write_text(folder / NOTES, json.dumps(sealed(content), indent=2) + "\n")


def _before(folder: Path) -> dict[str, str]:
    """What was noted before; nothing if the notes are damaged, which must not prevent saving."""
    try:
        return {name: noted for name, noted in _noted(folder).items() if (folder / name).is_file()}
    except ValueError:
        (folder / NOTES).unlink()
        return {}


def verify(folder: Path) -> None:
    """Compare the folder's files with their notes, if there are any."""
    noted = _noted(folder)
    if not noted:
        return
    if unknown := sorted(set(_files_of_model(folder)) - set(noted)):
        raise ValueError(f"{folder / unknown[0]}: {NOTES} does not know this file. {ADVICE}")
    check_files(folder, noted, ADVICE)


def verify_tokenizer(folder: Path, fingerprint: str) -> None:
    """Compare the tokenizer that was read from the folder with its note."""
    expected = _read(folder).get("tokenizer")
    if expected not in (None, fingerprint):
        raise ValueError(
            f"{folder}: the tokenizer is not the one that was saved: its fingerprint is {fingerprint[:16]}, "
            f"{NOTES} says {expected[:16]}. {ADVICE}"
        )


def _noted(folder: Path) -> dict[str, str]:
    return _read(folder).get("sha256", {})


def _read(folder: Path) -> dict[str, Any]:
    path = folder / NOTES
    return dict(read_record(path, _File, ADVICE, version=FORMAT)) if path.is_file() else {}


def _files_of_model(folder: Path) -> list[str]:
    found = [path.name for pattern in PATTERNS for path in folder.glob(pattern)]
    return found + [name for name in CONFIGURATION if (folder / name).is_file()]


def _is_of_model(name: str) -> bool:
    return name in CONFIGURATION or any(Path(name).match(pattern) for pattern in PATTERNS)
