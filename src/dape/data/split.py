"""Which documents are held out for validation.

Usually by content: the sha256 of a document decides, so the split does not depend on order or file names, grows with
the corpus, and puts exact duplicates on one side. A text of one or few documents has its tail held out instead.
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from dape.data.documents import Document
from dape.data.text import Text
from dape.errors import UsageError

Rule = Literal["content", "tail", "given"]
NEWLINE_WITHIN = 1000


@dataclass(frozen=True)
class Split:
    rule: Rule
    share: float
    """Of the documents (content) or of the text (tail) to hold out."""
    cut: int = 0
    """Tail: so many bytes of text are for training."""

    def pieces(self, document: Document) -> list[tuple[str, Document]]:
        """The document with its part; in two if the cut of the tail goes through it."""
        if self.rule == "given":
            return [(document.part, document)]
        if self.rule == "content":
            return [("validation" if held_out(document, self.share) else "train", document)]
        at, text = self.cut - document.start, document.text
        if 0 < at < text.size:
            at = _good_place(text, at)
        if not 0 < at < text.size:
            return [("validation" if at <= 0 else "train", document)]
        head, tail = (document._replace(text=part) for part in text.cut(at))
        return [("train", head), ("validation", tail)]

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        share = {} if self.rule == "given" else {"validation_share": self.share}
        return {"split": self.rule, **share, **({"cut": self.cut} if self.rule == "tail" else {})}


def held_out(document: Document, share: float) -> bool:
    return int.from_bytes(document.text.digest()[:8], "big") < share * 2**64


def choose_split(documents: Iterable[Document], share: float | None) -> Split:
    """Read until both parts have a document, or to the end. Without a share every document says its part."""
    rule: Rule = "given" if share is None else "content"
    seen, ends, first = set(), array("q"), None
    for document in documents:
        ends.append(document.start + document.text.size)
        if share is not None and len(ends) == 1:
            first = document  # a text that is alone need not be read for its digest
            continue
        for each in (first, document) if first else (document,):
            seen.add(each.part if share is None else held_out(each, share))
        first = None
        if len(seen) == 2:
            return Split(rule, share or 0)
    if not ends:
        raise UsageError("no documents: there is no text in what was given")
    if share is None:
        raise UsageError(f"no documents for {'validation' if 'train' in seen else 'training'} in what was given")
    return _tail(ends, share)


def _good_place(text: Text, at: int) -> int:
    """After the next newline if there is one soon, otherwise between two characters; 0 if there are no two."""
    newline = text.read(at, at + min(NEWLINE_WITHIN, (text.size - at) // 2)).find(b"\n")
    if newline >= 0:
        return at + newline + 1
    first = max(at - 3, 1)  # a character of UTF-8 has at most four bytes
    starts = [i for i, byte in enumerate(text.read(first, at + 4), first) if byte & 0xC0 != 0x80]
    return min(starts, key=lambda i: abs(i - at), default=0)


def _tail(ends: "array[int]", share: float) -> Split:
    """At the end of a document if the part held out is then not less than half, nor more than twice the share."""
    total = ends[-1]
    target = total - max(round(total * share), 1)
    at = bisect_left(ends, target)
    nearest = min(ends[max(at - 1, 0) : at + 1], key=lambda end: abs(end - target))
    close = share / 2 <= (total - nearest) / total <= share * 2
    return Split("tail", share, nearest if close else target)


# A sample to learn a tokenizer from ----------------------------------------------------------------------------------

SAMPLE_CHARACTERS = 32 << 20
SCANNED_BYTES = 4 << 30


def training_sample(documents: Iterable[Document], split: Split, budget: int = SAMPLE_CHARACTERS) -> list[Text]:
    """Training documents of ``budget`` characters in all, drawn by their content from the first gigabytes of text.

    Deterministic, and never more than the budget and one document in memory.
    """
    kept: list[tuple[int, int, int, Text]] = []  # a heap: the document with the largest number goes first
    total = 0
    pieces = (piece for document in _first(documents) for piece in split.pieces(document))
    for count, document in enumerate(piece for part, piece in pieces if part == "train"):
        text, length = document.text.head(budget)
        number = int.from_bytes(document.text.digest()[8:16], "big")
        heapq.heappush(kept, (-number, length, count, text))  # the count: texts have no order
        total += length
        while total > budget and len(kept) > 1:
            total -= heapq.heappop(kept)[1]
    return [text for _, _, _, text in sorted(kept, reverse=True)]


def _first(documents: Iterable[Document]) -> Iterator[Document]:
    for document in documents:
        if document.start > SCANNED_BYTES:
            return
        yield document
