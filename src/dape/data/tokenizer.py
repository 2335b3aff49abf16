"""Text to ids and back: bytes (own code), or any ``tokenizer.json`` through the library ``tokenizers``."""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

import numpy as np

from dape.data.cuts import Cutter, cutter, learning_parts
from dape.errors import UsageError
from dape.extras import install_command
from dape.files import sha256_of, write_text
from dape.reading import parse_json, read_record, reading

if TYPE_CHECKING:
    import tokenizers

T = TypeVar("T")
FILE = "tokenizer.json"
INFO = "tokenizer-info.json"
END_OF_DOCUMENT = ("<|endoftext|>", "</s>")
SMALLEST_BPE = 257  # 256 bytes and the end-of-document mark
TOGETHER = 1 << 19
"""Characters that are encoded at once: the library needs a hundred bytes for each."""


class Tokenizer(Protocol):
    name: str
    """bytes, bpe:8192 or file:NAME."""
    vocabulary: int
    """Number of ids, the end-of-document mark included."""
    eod: int
    """The end-of-document mark. No text is encoded to it."""
    fingerprint: str
    """sha256; the same if and only if the same text gives the same ids."""

    def encode(self, text: str) -> np.ndarray:
        """Ids of the text, without end-of-document mark."""
        ...

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The same for several texts, on all cores if possible."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text. End-of-document marks become nothing, broken UTF-8 becomes U+FFFD."""
        ...

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json`` (and for some a small file beside it) into the folder."""
        ...


class TextTokenizer(Tokenizer, Protocol):
    """A tokenizer for text of any length."""

    def parts(self, pieces: Iterable[str]) -> Iterator[str]:
        """Cut a text that comes in pieces into parts that, encoded one by one, give the ids of the whole."""
        ...


def load_tokenizer(folder: Path) -> TextTokenizer:
    """Read the files that :meth:`Tokenizer.save` writes."""
    path = Path(folder) / FILE
    try:
        text, content = _parse(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder}: has no {FILE}") from None
    if content.get("type") == "bytes":
        return ByteTokenizer()
    info = path.with_name(INFO)
    given = read_record(info, _Info) if info.is_file() else _Info(name=f"file:{path.name}", eod=None)
    return LibraryTokenizer(text, name=given["name"], origin=path, eod=given["eod"])


class _Info(TypedDict):
    """tokenizer-info.json."""

    name: str
    eod: str | None


def _parse(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a tokenizer.json, and its content."""
    with reading(path, "not a tokenizer"):
        text = path.read_text(encoding="utf-8")
        content = parse_json(text)
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        return text, content


def _check_ids(ids: Sequence[int] | np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    array = np.asarray(ids, dtype=np.int64)
    if array.size and not 0 <= array.min() <= array.max() < tokenizer.vocabulary:
        last = tokenizer.vocabulary - 1
        raise ValueError(f"ids from {array.min()} to {array.max()}; the tokenizer {tokenizer.name} has 0 to {last}")
    return array


# Bytes ---------------------------------------------------------------------------------------------------------------


class ByteTokenizer:
    """The ids are the bytes of UTF-8."""

    name = "bytes"
    vocabulary = 257
    eod = 256
    fingerprint = sha256_of("dape: bytes of UTF-8, end of document 256")

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8"), np.uint8)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def parts(self, pieces: Iterable[str]) -> Iterator[str]:
        return iter(pieces)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        array = _check_ids(ids, self)
        return array[array != self.eod].astype(np.uint8).tobytes().decode("utf-8", errors="replace")

    def save(self, folder: Path) -> None:
        content = {"type": "bytes", "vocabulary": self.vocabulary, "eod": self.eod}
        write_text(Path(folder) / FILE, json.dumps(content, indent=2) + "\n")


def grouped(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Lists of consecutive items, each as short as its total size allows to reach ``limit``."""
    group, total = [], 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= limit:
            yield group
            group, total = [], 0
    if group:
        yield group


# The library ``tokenizers`` ------------------------------------------------------------------------------------------


class LibraryTokenizer:
    """A ``tokenizer.json``, as Hugging Face and many others publish it."""

    def __init__(self, text: str, *, name: str, origin: Path | str, eod: str | None = None) -> None:
        """``text`` is the content of the file. ``eod`` is the token that ends a document, by default a usual one."""
        self.name = name
        self._library = _open_library(text, origin)
        self._library.no_truncation()
        self._library.no_padding()
        known = self._library.get_vocab(with_added_tokens=True)
        self._eod_token = eod or next((token for token in END_OF_DOCUMENT if token in known), END_OF_DOCUMENT[0])
        # Made special even if it was an ordinary token: otherwise a text that contains it would end a document.
        self._library.add_special_tokens([self._eod_token])
        self._library.encode_special_tokens = True  # special tokens in a text are encoded as ordinary text
        ids = self._library.get_vocab(with_added_tokens=True)
        self.vocabulary = max(ids.values()) + 1
        self.eod = ids[self._eod_token]
        self._text = text if eod else self._library.to_str()  # unchanged: versions of the library differ
        self.fingerprint = _fingerprint(self._text, self.eod)

    def encode(self, text: str) -> np.ndarray:
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        parts = [list(self.parts([text])) or [text] for text in texts]
        encoded = self._encode(part for of_text in parts for part in of_text)
        return [np.concatenate([next(encoded) for _ in of_text]) for of_text in parts]

    def _encode(self, parts: Iterable[str]) -> Iterator[np.ndarray]:
        for group in grouped(parts, len, TOGETHER):
            # Encoding special tokens as text takes the library a seventh longer, even if there are none.
            self._library.encode_special_tokens = self._mentions_special(group)
            for encoded in self._library.encode_batch_fast(group, add_special_tokens=False):
                yield np.array(encoded.ids, np.int64)

    def _mentions_special(self, texts: Sequence[str]) -> bool:
        """Whether texts may contain special tokens. A normaliser may produce them from other characters."""
        if self._library.normalizer is not None:
            return True
        return any(token in text for text in texts for token in self._special)

    @functools.cached_property
    def _special(self) -> list[str]:
        return [token.content for token in self._library.get_added_tokens_decoder().values() if token.special]

    def parts(self, pieces: Iterable[str]) -> Iterator[str]:
        return self._cutter.parts(pieces) if self._cutter else iter(["".join(pieces)])

    @functools.cached_property
    def _cutter(self) -> Cutter | None:
        return cutter(self._library, json.loads(self._text))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return self._library.decode(_check_ids(ids, self).tolist(), skip_special_tokens=True)

    def save(self, folder: Path) -> None:
        write_text(Path(folder) / INFO, json.dumps({"name": self.name, "eod": self._eod_token}, indent=2) + "\n")
        write_text(Path(folder) / FILE, self._text)


def _fingerprint(text: str, eod: int) -> str:
    content = json.loads(text)
    relevant = {key: content.get(key) for key in ("added_tokens", "normalizer", "pre_tokenizer", "model")}
    return sha256_of(json.dumps({**relevant, "eod": eod}, sort_keys=True))


def _open_library(text: str, origin: Path | str) -> "tokenizers.Tokenizer":
    try:
        from tokenizers import Tokenizer as Library
    except ImportError:
        raise UsageError(f"{origin}: needs the library tokenizers; {install_command('data')}") from None
    try:
        return Library.from_str(text)
    except Exception as error:  # the library raises nothing more specific
        raise ValueError(f"{origin}: the library tokenizers cannot read it ({error})") from error


# Tokenizers by name --------------------------------------------------------------------------------------------------


def parse_spec(spec: str) -> int | Path | None:
    """Parse ``bytes`` (None), ``bpe:N`` (N) or the path of a ``tokenizer.json``. UsageError on anything else."""
    if spec == "bytes":
        return None
    if spec.startswith("bpe:"):
        size = spec.removeprefix("bpe:")
        if not size.isascii() or not size.isdigit() or not SMALLEST_BPE <= int(size) <= 10_000_000:
            raise UsageError(f"`tokenizer` {spec}: N in bpe:N must be a whole number of at least {SMALLEST_BPE}")
        return int(size)
    path = Path(spec)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise UsageError(f"`tokenizer` {spec}: neither bytes, nor bpe:N (such as bpe:8192), nor a tokenizer.json file")
    return path


def open_tokenizer(spec: str) -> TextTokenizer | None:
    """The tokenizer of that name, or None if it must be trained first (:func:`train_bpe`)."""
    path = parse_spec(spec)
    if path is None:
        return ByteTokenizer()
    if isinstance(path, int):
        return None
    if path.name == FILE and (found := _saved_by_us(path)):
        return found
    text, _ = _parse(path)
    name = path.resolve().parent.name if path.name == FILE else path.stem
    return LibraryTokenizer(text, name=f"file:{name}", origin=path)


def tokenizer_identity(spec: str) -> str:
    """A text that changes when the tokenizer does, and does not depend on the name of its file."""
    ready = open_tokenizer(spec)
    return spec if ready is None or ready.name == spec else f"{ready.name} ({ready.fingerprint[:16]})"


def _saved_by_us(path: Path) -> TextTokenizer | None:
    """The tokenizer of a prepared folder, which keeps its name for other text; None if another program wrote it."""
    if path.with_name(INFO).is_file() or _parse(path)[1].get("type") == "bytes":
        return load_tokenizer(path.parent)
    return None


def train_bpe(size: int, texts: Iterable[str | Iterable[str]]) -> TextTokenizer:
    """Learn a byte-level BPE of up to ``size`` ids from texts, whole or in pieces. It can encode any text."""
    try:
        from tokenizers import Tokenizer as Library
        from tokenizers import decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise UsageError(f"`tokenizer` bpe:{size}: needs the library tokenizers; {install_command('data')}") from None
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    library.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_DOCUMENT[0]],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(learning_parts(texts), trainer)
    return LibraryTokenizer(library.to_str(), name=f"bpe:{size}", origin=f"bpe:{size}", eod=END_OF_DOCUMENT[0])
