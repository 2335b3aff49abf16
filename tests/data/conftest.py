import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from dape.data.prepare import Options, prepare
from dape.data.store import Corpus, TokenStream

EOD = 256


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """It protects from power cuts, takes most of the time of small tests, and changes nothing they can see."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="session")
def stream_of() -> Callable[..., TokenStream]:
    """A stream in memory from documents (each is given its end mark), cut into shards of a given size."""

    def make(documents: Sequence[Sequence[int]], shard_tokens: int = 10**9) -> TokenStream:
        joined = np.array([token for document in documents for token in [*document, EOD]], np.uint16)
        shards = [joined[i : i + shard_tokens] for i in range(0, len(joined), shard_tokens)]
        return TokenStream(shards, np.cumsum([len(document) + 1 for document in documents]))

    return make


@pytest.fixture
def prepared(tmp_path) -> Callable[..., Corpus]:
    """Prepare sources, named relative to ``tmp_path``, into a new folder there; keyword arguments are options."""

    def make(*sources: str, out: str = "out", **options: object) -> Corpus:
        names = [source if source == "-" or ":" in source else str(tmp_path / source) for source in sources]
        return prepare(names, tmp_path / out, Options(**options)).corpus

    return make


@pytest.fixture
def texts(tmp_path) -> list[str]:
    """Sixty documents, of which some are held out, also as files a/00.txt ... and docs.jsonl."""
    documents = [f"Document {i}: " + "naïve words, \N{SNOWMAN} and more. " * (i % 7 + 1) + "\n" for i in range(60)]
    folder = tmp_path / "a"
    folder.mkdir()
    for i, text in enumerate(documents):
        (folder / f"{i:02}.txt").write_bytes(text.encode())
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in documents))
    return documents


@pytest.fixture(scope="session")
def documents_of() -> Callable[[Corpus], dict[str, list[str]]]:
    """The texts of both parts, decoded document by document, every end mark checked."""

    def read(corpus: Corpus) -> dict[str, list[str]]:
        found = {}
        for name in ("train", "validation"):
            stream: TokenStream = getattr(corpus, name)
            starts = [0, *stream.document_ends[:-1]]
            tokens = [stream.read(a, b) for a, b in zip(starts, stream.document_ends, strict=True)]
            assert all(t[-1] == corpus.tokenizer.eod and corpus.tokenizer.eod not in t[:-1] for t in tokens)
            found[name] = [corpus.tokenizer.decode(t) for t in tokens]
        return found

    return read


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Every file of a folder: two prepared folders are the same if these are."""
    return lambda folder: {path.name: path.read_bytes() for path in folder.iterdir()}
