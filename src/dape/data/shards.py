"""Write one split: shards, ends of documents and digests. Writing can continue after a crash."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

import numpy as np

from dape.data.store import SPLITS, Shard
from dape.data.verify import BlockSums
from dape.files import sha256
from dape.reading import Count

COUNTED_DUPLICATES = 10_000_000  # with more documents than that, counting duplicates would take too much memory


class WriterState(TypedDict):
    """How much of one split is on the disk."""

    shards: list[Shard]
    open_tokens: Count
    documents: Count
    tokens: Count
    bytes: Count


class ShardWriter:
    """Appends documents to the shards of one split.

    A writer that is made from the :meth:`state` of an earlier one drops whatever was written after that state.
    """

    def __init__(
        self, folder: Path, split: str, dtype: np.dtype, shard_tokens: int, state: dict[str, Any] | None = None
    ) -> None:
        self.folder, self.split, self.dtype, self.shard_tokens = folder, split, dtype, shard_tokens
        state = state or {"shards": [], "open_tokens": 0, "documents": 0, "tokens": 0, "bytes": 0}
        self.shards: list[dict[str, Any]] = list(state["shards"])
        self.documents, self.tokens, self.bytes = state["documents"], state["tokens"], state["bytes"]
        self._ends = _reopen(self.folder / f"{split}.ends", self.documents * 8)
        self._digests = _reopen(self.folder / f"{split}.digests", self.documents * 8)
        self._open_shard(state["open_tokens"])

    def end(self, eod: int, digest: bytes, size: int) -> None:
        """End a document, which is everything added since the last end; ``size`` is that of its text."""
        self.add(np.array([eod]))
        self.documents += 1
        self.bytes += size
        self._ends.write(self.tokens.to_bytes(8, "little"))
        self._digests.write(digest[:8])

    def add(self, ids: np.ndarray) -> None:
        """Append a part of a document."""
        tokens = ids.astype(self.dtype)
        self.tokens += len(tokens)
        while len(tokens):
            room = self.shard_tokens - self._open_tokens
            self._write(tokens[:room].tobytes())
            tokens = tokens[room:]
            if self._open_tokens == self.shard_tokens:
                self._close_shard()
                self._open_shard(0)

    def state(self) -> dict[str, Any]:
        """How much is written. Call :meth:`sync` first, so that it is on the disk."""
        return {
            "shards": self.shards,
            "open_tokens": self._open_tokens,
            "documents": self.documents,
            "tokens": self.tokens,
            "bytes": self.bytes,
        }

    def sync(self) -> None:
        for file in (self._shard, self._ends, self._digests):
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> dict[str, Any]:
        """Close all files and return the entry of this split in the manifest. Files that it does not list may go."""
        if self._open_tokens:
            self._close_shard()
        for file in (self._shard, self._ends, self._digests):
            file.close()
        documents = self.folder / f"{self.split}-documents.npy"
        _write_npy(self.folder / f"{self.split}.ends", documents, self.documents)
        return {
            "documents": self.documents,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "shards": self.shards,
            "document_ends": {"file": documents.name, "sha256": sha256(documents)},
        }

    def close(self) -> None:
        """Close all files after a failure; a later run may continue them."""
        for file in (self._shard, self._ends, self._digests):
            try:
                file.close()
            except OSError:  # a full disk, reported already
                continue

    def _open_shard(self, tokens: int) -> None:
        self._path = self.folder / f"{self.split}-{len(self.shards):05d}.bin"
        self._shard = _reopen(self._path, tokens * self.dtype.itemsize)
        self._open_tokens = tokens
        self._hash, self._blocks = hashlib.sha256(), BlockSums()
        if tokens:
            with self._path.open("rb") as file:
                self._hash = hashlib.file_digest(file, "sha256")
                file.seek(0)
                self._blocks = BlockSums(file)

    def _write(self, data: bytes) -> None:
        self._shard.write(data)
        self._hash.update(data)
        self._blocks.update(data)
        self._open_tokens += len(data) // self.dtype.itemsize

    def _close_shard(self) -> None:
        self._shard.flush()
        os.fsync(self._shard.fileno())
        self._shard.close()
        entry = {"file": self._path.name, "tokens": self._open_tokens, "sha256": self._hash.hexdigest()}
        self.shards = [*self.shards, {**entry, "blocks": self._blocks.hex()}]


def count_duplicates(folder: Path) -> tuple[int | None, int | None]:
    """Number of documents that repeat an earlier one, and of distinct documents in both parts; None if too many."""
    files = [folder / f"{split}.digests" for split in SPLITS]
    documents = sum(file.stat().st_size for file in files) // 8
    if documents > COUNTED_DUPLICATES:
        return None, None
    train, validation = (np.unique(np.fromfile(file, "<u8")) for file in files)
    both = len(np.intersect1d(train, validation, assume_unique=True))
    return documents - (len(train) + len(validation) - both), both


def dtype_for(vocabulary: int) -> np.dtype:
    return np.dtype("<u2") if vocabulary <= 1 << 16 else np.dtype("<u4")


def _reopen(path: Path, size: int) -> BinaryIO:
    """Open a file to append after its first ``size`` bytes; the rest is dropped."""
    file = path.open("ab")
    if file.tell() < size:
        file.close()
        raise ValueError(f"{path}: has been shortened; remove the folder {path.parent} and start again")
    file.truncate(size)
    return file


def _write_npy(raw: Path, path: Path, count: int) -> None:
    """Write a file of raw int64 as .npy, without reading all of it at once."""
    with raw.open("rb") as source, path.open("wb") as target:
        np.lib.format.write_array_header_1_0(target, {"descr": "<i8", "fortran_order": False, "shape": (count,)})
        shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(target.fileno())
