"""A prepared folder: tokens as plain binary shards, described by ``manifest.json``, read through memory maps.

``train-00000.bin``, ``validation-00000.bin``, ...  ids, little-endian uint16 (uint32 if the vocabulary needs it)
``train-documents.npy``, ``validation-documents.npy``  where documents end, int64
``tokenizer.json``  what turned the text into ids
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dape.data import tokenizer
from dape.data.tokenizer import Tokenizer, load_tokenizer
from dape.errors import UsageError

FORMAT = 1
MANIFEST = "manifest.json"
SPLITS = ("train", "validation")


class TokenStream:
    """All tokens of one split, in order, end-of-document marks included. Memory-mapped, so its size does not matter."""

    def __init__(self, shards: Sequence[np.ndarray], document_ends: np.ndarray) -> None:
        self._shards = [np.asarray(shard) for shard in shards]  # plain views: np.memmap makes every slice slower
        self._starts = np.cumsum([0, *map(len, self._shards)])
        self.document_ends = np.asarray(document_ends)
        """int64: document i is [ends[i - 1], ends[i]), and its last token is the end-of-document mark."""

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens [start, stop) as int64."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start} to {stop} of a stream of {len(self)}")
        pieces = [
            shard[max(start - begin, 0) : max(stop - begin, 0)]
            for shard, begin in zip(self._shards, self._starts, strict=False)
            if begin < stop and begin + len(shard) > start
        ]
        return np.concatenate(pieces).astype(np.int64) if pieces else np.empty(0, np.int64)

    def gather(self, positions: np.ndarray) -> np.ndarray:
        """The tokens at these positions, in their shape, as int64."""
        if positions.size and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of a stream of {len(self)}")
        if len(self._shards) == 1:
            return self._shards[0][positions].astype(np.int64)
        tokens = np.empty(positions.shape, np.int64)
        shard = np.searchsorted(self._starts, positions, side="right") - 1
        for number in np.unique(shard):
            here = shard == number
            tokens[here] = self._shards[number][positions[here] - self._starts[number]]
        return tokens


class Corpus:
    """A prepared folder, opened. Opening looks at sizes only; :meth:`verify` reads everything."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        self.hash: str = manifest["hash"]
        """Of tokens and tokenizer: equal hashes mean equal data."""
        self.name: str = manifest["name"]
        self.tokenizer: Tokenizer = load_tokenizer(folder)
        self.train, self.validation = (_open_stream(folder, manifest, split) for split in SPLITS)

    @classmethod
    def open(cls, folder: Path) -> "Corpus":
        folder = Path(folder)
        corpus = cls(folder, read_manifest(folder))
        if corpus.tokenizer.fingerprint != corpus.manifest["tokenizer"]["fingerprint"]:
            raise ValueError(f"{folder}: tokenizer.json is not the one this folder was prepared with")
        return corpus

    def verify(self) -> None:
        """Read every file and compare it with its checksum."""
        for split in SPLITS:
            part = self.manifest[split]
            for entry in [*part["shards"], part["document_ends"]]:
                if file_hash(self.folder / entry["file"]) != entry["sha256"]:
                    raise ValueError(f"{self.folder / entry['file']}: damaged, its checksum differs. {_ADVICE}")
        if content_hash(self.tokenizer.fingerprint, self.manifest) != self.hash:
            raise ValueError(f"{self.folder / MANIFEST}: its hash does not belong to its shards. {_ADVICE}")


_ADVICE = "Prepare the folder again (dape prepare ... --overwrite)."


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        what = "has no manifest.json" if folder.is_dir() else "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"{folder}: {what}, so it is not a prepared folder. `dape prepare TEXT --out DIR` makes one.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not the manifest of a prepared folder ({error})") from error
    if version != FORMAT:
        raise ValueError(f"{path}: format {version}; this version of dape reads format {FORMAT}. {_ADVICE}")
    missing = [key for key in ("hash", "name", "tokenizer", "dtype", *SPLITS) if key not in manifest]
    if missing:
        raise ValueError(f"{path}: has no {', '.join(missing)}. {_ADVICE}")
    return manifest


def is_prepared(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def prepared_files(manifest: Mapping[str, Any]) -> set[str]:
    """Names of everything that belongs to a prepared folder."""
    entries = [entry for split in SPLITS for entry in (*manifest[split]["shards"], manifest[split]["document_ends"])]
    return {MANIFEST, tokenizer.FILE, tokenizer.INFO, *(entry["file"] for entry in entries)}


def content_hash(fingerprint: str, parts: Mapping[str, Any]) -> str:
    """sha256 over the tokenizer and all shards, in order."""
    lines = [fingerprint]
    lines += [f"{split} {shard['sha256']}" for split in SPLITS for shard in parts[split]["shards"]]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_stream(folder: Path, manifest: dict[str, Any], split: str) -> TokenStream:
    part, dtype = manifest[split], np.dtype(manifest["dtype"]).newbyteorder("<")
    shards = []
    for shard in part["shards"]:
        path = folder / shard["file"]
        found, expected = path.stat().st_size if path.is_file() else None, shard["tokens"] * dtype.itemsize
        if found != expected:
            state = "missing" if found is None else f"has {found} bytes instead of {expected}"
            raise ValueError(f"{path}: {state}. {_ADVICE}")
        shards.append(np.memmap(path, dtype, "r"))
    path = folder / part["document_ends"]["file"]
    try:
        ends = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: missing or damaged ({error}). {_ADVICE}") from error
    if len(ends) != part["documents"] or not len(ends) or ends[-1] != part["tokens"]:
        raise ValueError(f"{path}: does not belong to the shards beside it. {_ADVICE}")
    return TokenStream(shards, ends)
