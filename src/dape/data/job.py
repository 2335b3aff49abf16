"""The work of ``dape prepare``: documents are split, encoded and written; progress.json says how far this is."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired, Protocol, TypedDict

from dape._version import __version__
from dape.data.archives import MAX_EXPANSION
from dape.data.documents import BEGINNING, Document, Position, Reading, Tally, read_documents
from dape.data.shards import ShardWriter, WriterState, count_duplicates, dtype_for
from dape.data.sources import Item, Source, joint_name
from dape.data.split import Split, choose_split, training_sample
from dape.data.store import FORMAT, MANIFEST, SPLITS, content_hash, read_manifest
from dape.data.text import Text
from dape.data.tokenizer import (
    TOGETHER,
    TextTokenizer,
    Tokenizer,
    grouped,
    load_tokenizer,
    open_tokenizer,
    parse_spec,
    train_bpe,
)
from dape.errors import UsageError
from dape.files import write_text
from dape.reading import Count, read_json, read_record, sealed

PROGRESS = "progress.json"
BATCH_BYTES = 4 << 20
BATCH_DOCUMENTS = 1024
SECONDS_BETWEEN_SAVES = 5
MOST_WORKERS = 1024


@dataclass(frozen=True, kw_only=True)
class Options:
    tokenizer: str = "bytes"
    validation_share: float = 0.05
    validation: tuple[str, ...] = ()
    text_field: str = "text"
    strict: bool = False
    shard_tokens: int = 1 << 26
    overwrite: bool = False
    max_expansion: float = MAX_EXPANSION
    workers: int | None = None
    """Cores that encode with the library ``tokenizers``; None for all. The result does not depend on them."""

    def check(self) -> None:
        if self.workers is not None and not 1 <= self.workers <= MOST_WORKERS:
            raise UsageError(f"`workers` must lie between 1 and {MOST_WORKERS}, got {self.workers}")
        if not 0 < self.validation_share < 1:
            raise UsageError(f"`validation_share` {self.validation_share}: must lie between 0 and 1, such as 0.05")
        if self.shard_tokens < 1:
            raise UsageError(f"`shard_tokens` {self.shard_tokens}: must be at least 1")
        if not self.max_expansion >= 1:
            raise UsageError(f"`max_expansion` {self.max_expansion:g}: must be at least 1, such as {MAX_EXPANSION:g}")
        parse_spec(self.tokenizer)


class _Progress(TypedDict):
    """progress.json: how far the work has come."""

    settings: dict[str, Any]
    split: Split
    position: tuple[Count, Count]
    tally: Tally
    train: NotRequired[WriterState]
    validation: NotRequired[WriterState]


class Watcher(Protocol):
    """Receives the progress of a preparation."""

    def begin(self, what: str, total: int) -> None:
        """A stage begins, which will read ``total`` bytes of input files; 0 if unknown."""
        ...

    def update(self, tally: Tally) -> None:
        """More has been read."""
        ...


class Job:
    """Fills a folder, from the beginning or from where an earlier run stopped.

    Args:
        folder: an existing folder, empty or from an earlier run.
        sources: what to read.
        settings: what the result depends on, noted in the manifest.
        options: how to read and encode.
        watcher: receives the progress.
    """

    def __init__(
        self,
        folder: Path,
        sources: Sequence[Source],
        settings: dict[str, Any],
        options: Options,
        watcher: Watcher | None,
    ) -> None:
        self.folder, self.sources, self.settings, self.options = folder, sources, settings, options
        self.watcher = watcher or _Unwatched()
        self.items: list[Item] = [item for source in sources for item in source.items]

    def run(self) -> bool:
        """Do the work. True if an earlier run had done part of it."""
        if (self.folder / MANIFEST).is_file():  # an earlier run was stopped just before the folder was renamed
            return True
        saved = read_progress(self.folder)
        if saved:
            self._write(saved)
            return has_tokens(saved)
        clear(self.folder)
        self._write(self._begin())
        return False

    def _begin(self) -> dict[str, Any]:
        """Choose the split and the tokenizer, and save both."""
        self.watcher.begin("looking at the documents", 0)
        share = None if self.options.validation else self.options.validation_share
        split = choose_split(self._documents(Tally()), share)
        self._tokenizer(split).save(self.folder)
        progress = {
            "settings": self.settings,
            "split": {"rule": split.rule, "share": split.share, "cut": split.cut},
            "position": BEGINNING,
            "tally": asdict(Tally()),
        }
        self._save(progress)
        return progress

    def _tokenizer(self, split: Split) -> Tokenizer:
        ready, size = open_tokenizer(self.options.tokenizer), parse_spec(self.options.tokenizer)
        if ready:
            return ready
        assert isinstance(size, int)
        self.watcher.begin(f"learning the tokenizer {self.options.tokenizer}", 0)
        sample = training_sample(self._documents(Tally()), split)
        return train_bpe(size, (text.pieces() for text in sample))

    def _write(self, saved: dict[str, Any]) -> None:
        split, tally, tokenizer = Split(**saved["split"]), Tally(**saved["tally"]), load_tokenizer(self.folder)
        dtype = dtype_for(tokenizer.vocabulary)
        writers = {
            name: ShardWriter(self.folder, name, dtype, self.options.shard_tokens, saved.get(name)) for name in SPLITS
        }
        self.watcher.begin("encoding", sum(item.size for item in self.items))
        last = time.monotonic()
        try:
            documents = self._documents(tally, Position(*saved["position"]))
            # A batch is no larger than a shard. Progress is saved between batches, and no finished shard is redone.
            limit = min(BATCH_BYTES, self.options.shard_tokens)
            for pieces, position in batches(documents, split, Position(len(self.items), 0), limit):
                if encode(pieces, tokenizer, writers) or time.monotonic() > last + SECONDS_BETWEEN_SAVES:
                    self._save_writers(saved, position, tally, writers)
                    last = time.monotonic()
                self.watcher.update(tally)
            parts = {name: writer.finish() for name, writer in writers.items()}
        finally:
            for writer in writers.values():
                writer.close()
        self._write_manifest(parts, split, tally, tokenizer, dtype.name)

    def _documents(self, tally: Tally, start: Position = BEGINNING) -> Iterator[Document]:
        reading = Reading(
            text_field=self.options.text_field,
            strict=self.options.strict,
            max_expansion=self.options.max_expansion,
            folder=self.folder,
        )
        return read_documents(self.items, reading, tally, start)

    def _save_writers(
        self, saved: dict[str, Any], position: Position, tally: Tally, writers: dict[str, ShardWriter]
    ) -> None:
        for writer in writers.values():
            writer.sync()  # so that progress.json is true even if the machine stops right after
        states = {name: writer.state() for name, writer in writers.items()}
        self._save({**saved, "position": position, "tally": asdict(tally), **states})

    def _save(self, progress: dict[str, Any]) -> None:
        write_text(self.folder / PROGRESS, json.dumps(sealed(progress)))

    def _write_manifest(
        self, parts: dict[str, dict[str, Any]], split: Split, tally: Tally, tokenizer: Tokenizer, dtype: str
    ) -> None:
        empty = [name for name, part in parts.items() if not part["documents"]]
        if empty:
            clear(self.folder)
            raise UsageError(f"the text is too short: nothing is left for {empty[0]}. Give more, or use `validation`.")
        duplicates, in_both = count_duplicates(self.folder)
        manifest = {
            "format": FORMAT,
            "dape": __version__,
            "name": joint_name(self.sources),
            "hash": content_hash(tokenizer.fingerprint, parts),
            "sources": [source.describe() for source in self.sources],
            "tokenizer": {name: getattr(tokenizer, name) for name in ("name", "fingerprint", "vocabulary", "eod")},
            "dtype": dtype,
            **split.as_dict(),
            "counts": {
                "documents": tally.documents,
                "tokens": sum(part["tokens"] for part in parts.values()),
                "bytes": tally.bytes,
                "replaced_characters": tally.replaced_characters,
                "duplicate_documents": duplicates,
                "documents_in_both_parts": in_both,
                "skipped_empty": tally.empty,
                "skipped_binary": tally.binary,
                "skipped_other_files": sum(source.other_files for source in self.sources),
            },
            **parts,
            "settings": self.settings,
        }
        write_text(self.folder / MANIFEST, json.dumps(sealed(manifest), indent=2) + "\n")


class _Unwatched:
    def begin(self, what: str, total: int) -> None:
        pass

    def update(self, tally: Tally) -> None:
        pass


def batches(
    documents: Iterable[Document], split: Split, end: Position, limit: int
) -> Iterator[tuple[list[tuple[str, Document]], Position]]:
    """Pieces of documents to encode together, about ``limit`` bytes, and where reading continues after them."""
    batch, size = [], 0
    for document in documents:
        batch += split.pieces(document)
        size += document.text.size
        if size >= limit or len(batch) >= BATCH_DOCUMENTS:
            yield batch, document.next
            batch, size = [], 0
    if batch:
        yield batch, end


def encode(pieces: Sequence[tuple[str, Document]], tokenizer: TextTokenizer, writers: dict[str, ShardWriter]) -> bool:
    """Encode the pieces, and append them to their parts of the corpus. True if a shard was finished."""
    before = [len(writer.shards) for writer in writers.values()]
    for group in grouped(_in_parts(pieces, tokenizer), _length, TOGETHER):
        encoded = iter(tokenizer.encode_many([text for _, text in group if isinstance(text, str)]))
        for part, text in group:
            if isinstance(text, str):
                writers[part].add(next(encoded))
            else:
                writers[part].end(tokenizer.eod, text.digest(), text.size)
    return before != [len(writer.shards) for writer in writers.values()]


def _in_parts(pieces: Sequence[tuple[str, Document]], tokenizer: TextTokenizer) -> Iterator[tuple[str, str | Text]]:
    """The strings of each document to encode, then its Text as the end mark; each with its part of the corpus."""
    for part, document in pieces:
        for text in tokenizer.parts(document.text.pieces()):
            yield part, text
        yield part, document.text


def _length(item: tuple[str, str | Text]) -> int:
    return len(item[1]) if isinstance(item[1], str) else 0


def read_progress(folder: Path) -> dict[str, Any] | None:
    """The manifest of an earlier run if it had finished, otherwise its progress; None if there is neither."""
    if (folder / MANIFEST).is_file():
        return {**read_manifest(folder)}
    if not (folder / PROGRESS).is_file():
        return None
    read_record(folder / PROGRESS, _Progress, f"Remove the folder {folder} and give the command again.")
    return read_json(folder / PROGRESS)


def has_tokens(saved: dict[str, Any]) -> bool:
    """Whether the earlier run had encoded anything, rather than only chosen the split and the tokenizer."""
    return "position" not in saved or Position(*saved["position"]) != BEGINNING


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
