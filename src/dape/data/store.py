"""A prepared folder: tokens as plain binary shards, described by ``manifest.json``, read through memory maps.

``train-00000.bin``, ``validation-00000.bin``, ...  ids, little-endian uint16 (uint32 if the vocabulary needs it)
``train-documents.npy``, ``validation-documents.npy``  where documents end, int64
``tokenizer.json``  the tokenizer
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np

from dape.data import tokenizer
from dape.data.tokenizer import Tokenizer, load_tokenizer
from dape.data.verify import check_entries
from dape.errors import UsageError
from dape.files import sha256_of
from dape.reading import Count, FileName, Sha256, check_files, read_record, reading

FORMAT = 1
MANIFEST = "manifest.json"
SPLITS = ("train", "validation")
MOST_ENDS = 1_000_000
"""Ends of documents that are checked when a folder is opened; of more, a sample."""


class Shard(TypedDict):
    file: FileName
    tokens: Count
    sha256: Sha256
    blocks: NotRequired[Annotated[str, re.compile("([0-9a-f]{8})*")]]
    """CRC-32 of every MiB. Folders of older versions have none."""


class _Ends(TypedDict):
    file: FileName
    sha256: Sha256


class _Part(TypedDict):
    documents: Count
    tokens: Count
    bytes: Count
    shards: list[Shard]
    document_ends: _Ends


class _Tokenizer(TypedDict):
    name: str
    fingerprint: str
    vocabulary: Count
    eod: Count


class _Counts(TypedDict):
    documents: Count
    tokens: Count
    bytes: Count
    replaced_characters: Count
    duplicate_documents: Count | None
    documents_in_both_parts: Count | None
    skipped_empty: Count
    skipped_binary: Count
    skipped_other_files: Count


class Manifest(TypedDict):
    """manifest.json."""

    format: int
    dape: str
    name: str
    hash: Sha256
    sources: list[dict[str, Any]]
    tokenizer: _Tokenizer
    dtype: Literal["uint16", "uint32"]
    split: Literal["content", "tail", "given"]
    validation_share: NotRequired[float]
    cut: NotRequired[Count]
    counts: _Counts
    train: _Part
    validation: _Part
    settings: dict[str, Any]


class TokenStream:
    """All tokens of one split, in order, with end-of-document marks. They are memory-mapped, and may exceed memory."""

    def __init__(
        self, shards: Sequence[np.ndarray], document_ends: np.ndarray, *, vocabulary: int | None = None, name: str = ""
    ) -> None:
        """``vocabulary``: number of ids; larger ones raise ValueError when they are read. ``name`` is for messages."""
        self._shards = [np.asarray(shard) for shard in shards]  # plain views: np.memmap makes every slice slower
        self._starts = np.cumsum([0, *map(len, self._shards)])
        self.document_ends = np.asarray(document_ends)
        """int64: document i is [ends[i - 1], ends[i]), and its last token is the end-of-document mark."""
        self._vocabulary, self._name = vocabulary, name

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
        return self._checked(np.concatenate(pieces).astype(np.int64) if pieces else np.empty(0, np.int64))

    def gather(self, positions: np.ndarray) -> np.ndarray:
        """The tokens at these positions, in their shape, as int64."""
        if positions.size and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError(f"positions {positions.min()} to {positions.max()} of a stream of {len(self)}")
        if len(self._shards) == 1:
            return self._checked(self._shards[0][positions].astype(np.int64))
        tokens = np.empty(positions.shape, np.int64)
        shard = np.searchsorted(self._starts, positions, side="right") - 1
        for number in np.unique(shard):
            here = shard == number
            tokens[here] = self._shards[number][positions[here] - self._starts[number]]
        return self._checked(tokens)

    def check(self, eod: int) -> None:
        """Read everything. ValueError unless end-of-document marks are exactly where documents end."""
        start = 0
        for shard in self._shards:
            for first in range(0, len(shard), 1 << 24):
                tokens = self._checked(shard[first : first + (1 << 24)].astype(np.int64))
                low, high = np.searchsorted(self.document_ends, [start, start + len(tokens)], side="right")
                marks, expected = start + np.flatnonzero(tokens == eod) + 1, self.document_ends[low:high]
                if not np.array_equal(marks, expected):
                    raise ValueError(f"{self._name}: damaged, end marks are not where documents end. {_ADVICE}")
                start += len(tokens)

    def _checked(self, tokens: np.ndarray) -> np.ndarray:
        if self._vocabulary is not None and tokens.size and tokens.max() >= self._vocabulary:
            what = f"token {tokens.max()} of a vocabulary of {self._vocabulary}"
            raise ValueError(f"{self._name}: damaged, {what}. {_ADVICE}")
        return tokens


class Corpus:
    """An open prepared folder. :meth:`open` compares small files with their checksums, and samples of large ones;
    :meth:`verify` reads everything."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.hash: str = manifest["hash"]
        """Hash of tokens and tokenizer: equal hashes mean equal data."""
        self.name: str = manifest["name"]
        self.tokenizer: Tokenizer = load_tokenizer(folder)
        self.train, self.validation = (_open_stream(folder, manifest, split) for split in SPLITS)

    @classmethod
    def open(cls, folder: Path) -> "Corpus":
        folder = Path(folder)
        corpus = cls(folder, read_manifest(folder))
        for name in ("fingerprint", "vocabulary", "eod"):
            if getattr(corpus.tokenizer, name) != corpus.manifest["tokenizer"][name]:
                raise ValueError(f"{folder}: tokenizer.json is not the one this folder was prepared with. {_ADVICE}")
        check_entries(folder, _entries(corpus.manifest), _ADVICE)
        return corpus

    def verify(self) -> None:
        """Read every file and compare it with its checksum."""
        check_files(self.folder, {entry["file"]: entry["sha256"] for entry in _entries(self.manifest)}, _ADVICE)
        for stream in (self.train, self.validation):
            stream.check(self.tokenizer.eod)


_ADVICE = "Prepare the folder again (dape prepare ... --overwrite)."


def _entries(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The manifest's entries of all files that have a checksum."""
    return [entry for split in SPLITS for entry in (*manifest[split]["shards"], manifest[split]["document_ends"])]


def read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    if not path.is_file():
        what = "has no manifest.json" if folder.is_dir() else "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"{folder}: {what}, so it is not a prepared folder. `dape prepare TEXT --out DIR` makes one.")
    manifest = read_record(path, Manifest, _ADVICE, version=FORMAT)
    for split in SPLITS:
        part = manifest[split]
        if sum(shard["tokens"] for shard in part["shards"]) != part["tokens"]:
            raise ValueError(f"{path}: {split}.tokens: found {part['tokens']}, not the sum of its shards. {_ADVICE}")
    if manifest["counts"]["tokens"] != manifest["train"]["tokens"] + manifest["validation"]["tokens"]:
        raise ValueError(
            f"{path}: counts.tokens: found {manifest['counts']['tokens']}, not the sum of both parts. {_ADVICE}"
        )
    if manifest["split"] == "content" and "validation_share" not in manifest:
        raise ValueError(f"{path}: has no validation_share, though documents were held out by content. {_ADVICE}")
    if content_hash(manifest["tokenizer"]["fingerprint"], manifest) != manifest["hash"]:
        raise ValueError(f"{path}: its hash does not belong to its shards. {_ADVICE}")
    return manifest


def is_prepared(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def prepared_files(manifest: Mapping[str, Any]) -> set[str]:
    """Names of all files of a prepared folder."""
    return {MANIFEST, tokenizer.FILE, tokenizer.INFO, *(entry["file"] for entry in _entries(manifest))}


def content_hash(fingerprint: str, parts: Mapping[str, Any]) -> str:
    """sha256 over the tokenizer and all shards, in order."""
    lines = [fingerprint]
    lines += [f"{split} {shard['sha256']}" for split in SPLITS for shard in parts[split]["shards"]]
    return sha256_of("\n".join(lines))


def _open_stream(folder: Path, manifest: Manifest, split: str) -> TokenStream:
    part, dtype = manifest[split], np.dtype(manifest["dtype"]).newbyteorder("<")
    shards = []
    for shard in part["shards"]:
        path = folder / shard["file"]
        found, expected = path.stat().st_size if path.is_file() else None, shard["tokens"] * dtype.itemsize
        if found != expected:
            state = "missing" if found is None else f"has {found} bytes instead of {expected}"
            raise ValueError(f"{path}: {state}. {_ADVICE}")
        shards.append(np.memmap(path, dtype, "r") if expected else np.empty(0, dtype))
    ends = _open_ends(folder / part["document_ends"]["file"], part["documents"], part["tokens"])
    vocabulary = manifest["tokenizer"]["vocabulary"]
    return TokenStream(shards, ends, vocabulary=vocabulary, name=f"{folder}, {split}")


def _open_ends(path: Path, documents: int, tokens: int) -> np.ndarray:
    if not path.is_file():
        raise ValueError(f"{path}: missing. {_ADVICE}")
    with reading(path, "damaged", _ADVICE):
        ends = np.load(path, mmap_mode="r", allow_pickle=False)
        if ends.dtype != np.dtype("<i8") or ends.shape != (documents,) or not documents or ends[-1] != tokens:
            raise ValueError(f"{path}: does not belong to the shards beside it. {_ADVICE}")
        some = ends[:: max(1, documents // MOST_ENDS)]
        if some[0] < 1 or (np.diff(some) < 1).any():
            raise ValueError("the ends of documents are not in ascending order")
        return ends
