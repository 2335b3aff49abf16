"""Choose which documents are held out for validation.

Usually the sha256 of a document decides. The split then does not depend on order or file names, stays the same when
documents are added, and has exact duplicates on one side. Of a text with few documents, the end is held out instead.
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
    """Share of the documents (content) or of the text (tail) to hold out."""
    cut: int = 0
    """For the rule tail: bytes of text before the held-out end."""

    def pieces(self, document: Document) -> list[tuple[str, Document]]:
        """The document with its part of the corpus; two pieces if the held-out end begins within it."""
        if self.rule == "given":
            return [(document.part, document)]
        if self.rule == "content":
            return [("validation" if held_out(document, self.share) else "train", document)]
        at, text = self.cut - document.start, document.text
        if 0 < at < text.size:
            at = _cut_near(text, at)
        if not 0 < at < text.size:
            return [("validation" if at <= 0 else "train", document)]
        head, tail = (document._replace(text=part) for part in text.cut(at))
        return [("train", head), ("validation", tail)]

    def as_dict(self) -> dict[str, Any]:
        """The entries in the manifest."""
        share = {} if self.rule == "given" else {"validation_share": self.share}
        return {"split": self.rule, **share, **({"cut": self.cut} if self.rule == "tail" else {})}


def held_out(document: Document, share: float) -> bool:
    return int.from_bytes(document.text.digest()[:8], "big") < share * 2**64


def choose_split(documents: Iterable[Document], share: float | None) -> Split:
    """Choose the rule by reading documents until both parts have one, or to the end. ``share`` None: documents have
    a part already."""
    rule: Rule = "given" if share is None else "content"
    seen, ends, first = set(), array("q"), None
    for document in documents:
        ends.append(document.start + document.text.size)
        if share is not None and len(ends) == 1:
            first = document  # its digest is not needed if it stays the only one
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


def _cut_near(text: Text, at: int) -> int:
    """A cut after the next newline if one is near, otherwise between two characters; 0 if there is only one."""
    newline = text.read(at, at + min(NEWLINE_WITHIN, (text.size - at) // 2)).find(b"\n")
    if newline >= 0:
        return at + newline + 1
    first = max(at - 3, 1)  # a character of UTF-8 has at most four bytes
    starts = [i for i, byte in enumerate(text.read(first, at + 4), first) if byte & 0xC0 != 0x80]
    return min(starts, key=lambda i: abs(i - at), default=0)


def _tail(ends: "array[int]", share: float) -> Split:
    """Hold out the end of the text. It begins with a document if its share is then between half and twice ``share``."""
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
    """Training documents with ``budget`` characters in all, drawn by their sha256 from the first gigabytes of text.

    Memory holds at most the budget and one document.
    """
    kept: list[tuple[int, int, int, Text]] = []  # a heap, from which the document with the largest number is removed
    total = 0
    pieces = (piece for document in _first(documents) for piece in split.pieces(document))
    for count, document in enumerate(piece for part, piece in pieces if part == "train"):
        text, length = document.text.head(budget)
        number = int.from_bytes(document.text.digest()[8:16], "big")
        heapq.heappush(kept, (-number, length, count, text))  # count breaks ties, as texts cannot be compared
        total += length
        while total > budget and len(kept) > 1:
            total -= heapq.heappop(kept)[1]
    return [text for _, _, _, text in sorted(kept, reverse=True)]


def _first(documents: Iterable[Document]) -> Iterator[Document]:
    for document in documents:
        if document.start > SCANNED_BYTES:
            return
        yield document
