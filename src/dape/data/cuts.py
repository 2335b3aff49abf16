"""Cut a text so that its parts, encoded one by one, give the ids of the whole.

The library ``tokenizers`` needs hundreds of bytes per character, so a long text must be encoded in parts. It works in
steps: the text is normalised, split into pre-tokens (usually words), and every pre-token is encoded on its own. A cut
between two pre-tokens changes nothing if normalising and splitting do not depend on both sides of it. There are three
kinds of cuts, tried in this order:

1. Between a printing character and the space or newline after it. Only tokenizers whose steps depend on neighbouring
   characters alone (``LOCAL``) are cut, and each cut is tested on the text around it.
2. Between characters of different kinds (letter, number, other). Byte-level BPE with GPT-2's pattern never has two
   kinds in a pre-token, except for a leading space and after an apostrophe.
3. Within a pre-token, for byte-level BPE. If ``u`` ends in the token ``x`` and ``v`` begins with ``y``, and ``xy``
   alone is encoded as ``x`` and ``y``, then ``uv`` gives the tokens of ``u`` and those of ``v``. Proof: BPE merges the
   pair of lowest rank, the leftmost first. Suppose a merge crosses the cut, and take the first that does. The merges
   before it that lie within ``xy`` are also chosen, in the same order, when ``xy`` is encoded alone: a pair that ranks
   lowest in the whole ranks lowest in the part. So that merge happens there too, and ``xy`` has a token across the cut.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import tokenizers

PART = 1 << 17
"""Least number of characters before a cut."""
REACH = 1 << 14
"""Number of characters that are searched for a cut."""
AROUND = 128
"""Characters on each side of a cut on which it is tested."""
TRIES = 64
"""Most cuts of one kind that are tested."""
UNBROKEN = 2 << 20
"""Most characters to learn from in pre-tokens that had to be cut."""
LEARNED_WORD = 1 << 12
"""Characters of each piece of such a pre-token."""
UNIFORM = 8
"""Least number of characters of the pre-token on each side of a cut within it."""

LOCAL = {
    "normalizer": {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"},
    "pre_tokenizer": {
        *("ByteLevel", "Split", "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Digits", "Punctuation"),
        "Metaspace",
    },
}
_BEFORE_SPACE = re.compile(r"(?<=[^\s\u180e])(?=[ \n])")  # U+180E was a space in older versions of Unicode
_ACROSS_SPACE = re.compile(r"\S\s")


def cutter(library: "tokenizers.Tokenizer", content: dict[str, Any]) -> "Cutter | None":
    """A cutter for this tokenizer; None if texts must be encoded as a whole. ``content``: of its tokenizer.json."""
    words = [token for token in content.get("added_tokens", ()) if not token.get("special")]
    if not all(_is_local(content.get(name), kinds) for name, kinds in LOCAL.items()) or library.pre_tokenizer is None:
        return None
    if content["model"].get("dropout") or any(map(_looks_around, words)):
        return None
    return Cutter(library, breaks_words=not words and content.get("normalizer") is None and _is_gpt2(content))


def _is_local(step: dict[str, Any] | None, kinds: set[str]) -> bool:
    if step is None:
        return True
    if step["type"] == "Sequence":
        return all(_is_local(part, kinds) for name in ("normalizers", "pretokenizers") for part in step.get(name, ()))
    return step["type"] in kinds and step.get("split", True)


def _looks_around(token: dict[str, Any]) -> bool:
    flags = [token.get(name) for name in ("lstrip", "rstrip", "single_word")]
    return any(flags) or _ACROSS_SPACE.search(token["content"]) is not None


def _is_gpt2(content: dict[str, Any]) -> bool:
    """Byte-level BPE with every byte in its vocabulary and no rule but its merges."""
    from tokenizers import pre_tokenizers

    split, model = content["pre_tokenizer"], content["model"]
    plain = split["type"] == "ByteLevel" and split.get("use_regex", True) and not split["add_prefix_space"]
    rules = ("continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
    if not plain or model.get("type") != "BPE" or any(model.get(rule) for rule in rules):
        return False
    return all(letter in model["vocab"] for letter in pre_tokenizers.ByteLevel.alphabet())


class _Cut(NamedTuple):
    at: int
    first: int | None = None
    last: int | None = None
    """For a cut within a pre-token: the first and the last token of the text before it."""

    @property
    def within(self) -> bool:
        """Whether the cut is within a pre-token."""
        return self.last is not None


class _Proposals:
    """Cuts of a text by the pattern of GPT-2 alone, without a tokenizer."""

    breaks_words = True
    """Whether cuts of the second and third kind are allowed."""

    def proposed(self, pieces: Iterable[str]) -> Iterator[tuple[str, _Cut]]:
        """Parts of the text, each with the cut after it."""
        text, wanted = "", PART + REACH + AROUND
        for more in (piece[at : at + PART] for piece in pieces for at in range(0, len(piece), PART)):
            text += more
            while len(text) >= wanted:
                cut = self._find(text, wanted - REACH - AROUND)
                if cut is None:
                    wanted *= 2
                    continue
                yield text[: cut.at], cut
                text, wanted = text[cut.at :], wanted if cut.within else PART + REACH + AROUND
        if text:
            yield text, _Cut(len(text))

    def _find(self, text: str, begin: int) -> _Cut | None:
        """The first possible cut after ``begin``; one within a pre-token may also be before."""
        end = len(text) - AROUND
        for found in islice(_BEFORE_SPACE.finditer(text, begin, end), TRIES):
            if self.changes_nothing(text, found.start()):
                return _Cut(found.start())
        if not self.breaks_words:
            return None
        changes = (at for at in range(begin, end) if _between_kinds(text[at - 1], text[at]))
        for at in islice(changes, TRIES):
            if self.changes_nothing(text, at):
                return _Cut(at)
        return self.within_word(text[:end])

    def changes_nothing(self, text: str, at: int) -> bool:
        """Whether a proposed cut of the first or second kind leaves the ids as they are."""
        return True

    def within_word(self, text: str) -> _Cut | None:
        """A cut of the third kind."""
        return _Cut(len(text), 0, 0)


def learning_parts(texts: Iterable[str | Iterable[str]]) -> Iterator[str]:
    """Cut texts, given whole or in pieces, into parts for a byte-level BPE to learn from.

    The parts have the same pre-tokens as the whole texts, equally often. Only pre-tokens of more than ``PART + REACH``
    characters are cut, and only ``UNBROKEN`` characters of these are used, as the library would need gigabytes.
    """
    unbroken = 0
    for text in texts:
        for part, cut in _Proposals().proposed([text] if isinstance(text, str) else text):
            if not cut.within:
                yield part
            elif unbroken < UNBROKEN:
                unbroken += len(part)
                yield from (part[at : at + LEARNED_WORD] for at in range(0, len(part), LEARNED_WORD))


class Cutter(_Proposals):
    """Cuts texts for one tokenizer."""

    def __init__(self, library: "tokenizers.Tokenizer", *, breaks_words: bool) -> None:
        assert library.pre_tokenizer is not None
        self._library, self._splitter, self.breaks_words = library, library.pre_tokenizer, breaks_words

    def parts(self, pieces: Iterable[str]) -> Iterator[str]:
        """Cut a text that comes in ``pieces`` into parts to encode one by one, long ones where no cut is possible."""
        before, last = "", None  # a part that ends within a pre-token and its last token, kept until the next is known
        for part, cut in self.proposed(pieces):
            end = cut.last
            if last is not None:
                first = self._ids(part)[0] if cut.first is None else cut.first
                if self._stay_apart(last, first):
                    yield before
                else:
                    part = before + part
                    end = self._ids(part)[-1] if cut.within else None
            if end is None:
                yield part
            before, last = part, end

    def changes_nothing(self, text: str, at: int) -> bool:
        left, right = text[max(at - AROUND, 0) : at], text[at : at + AROUND]
        return self._split(left + right) == self._split(left) + self._split(right)

    def _split(self, text: str) -> list[str]:
        """The pre-tokens."""
        normalizer = self._library.normalizer
        words = self._splitter.pre_tokenize_str(normalizer.normalize_str(text) if normalizer else text)
        return [word for word, _ in words]

    def within_word(self, text: str) -> _Cut | None:
        """The last cut between two tokens that is surely within a pre-token. It keeps a distance from the end, because
        text that follows may change the last tokens."""
        content, ids = text.encode("utf-8"), self._ids(text)
        ends = np.cumsum(self._sizes[ids])
        usable = int(np.searchsorted(ends, len(content) - 2 * self._sizes.max() - AROUND))
        for count in range(usable, max(usable - TRIES, 0), -1):
            end = ends[count - 1]
            if content[end] & 0xC0 != 0x80:  # a character begins
                at = len(content[:end].decode("utf-8"))
                if self._is_uniform(text, at):
                    return _Cut(at, ids[0], ids[count - 1])
        return None

    def _is_uniform(self, text: str, at: int) -> bool:
        """Whether the characters on both sides of the cut are in one pre-token."""
        begin = max(at - 2 * UNIFORM, 0)
        words = self._splitter.pre_tokenize_str(text[begin : at + 2 * UNIFORM])
        return any(begin + a <= at - UNIFORM and at + UNIFORM <= begin + b for _, (a, b) in words)

    def _stay_apart(self, *pair: int) -> bool:
        """Whether two tokens, joined and encoded again, are the same two tokens."""
        joined = "".join(self._library.id_to_token(token) or "" for token in pair)
        return [token.id for token in self._library.model.tokenize(joined)] == [*pair]

    @functools.cached_property
    def _sizes(self) -> np.ndarray:
        """Bytes of each token: in byte-level BPE, a character of a token stands for a byte."""
        ids = self._library.get_vocab(with_added_tokens=False)
        sizes = np.zeros(max(ids.values()) + 1, np.int64)
        sizes[list(ids.values())] = [len(token) for token in ids]
        return sizes

    def _ids(self, text: str) -> list[int]:
        return self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _between_kinds(before: str, after: str) -> bool:
    kinds = [_kind(character) for character in (before, after)]
    return kinds[0] != kinds[1] and "" not in kinds


def _kind(character: str) -> str:
    """L(etter), N(umber) or O(ther). "" if a character fits two kinds, or versions of Unicode may differ on it."""
    category = unicodedata.category(character)
    if category[0] in "LN":
        return category[0]
    return "" if character == "'" or character.isspace() or category[0] in "CZ" else "O"
