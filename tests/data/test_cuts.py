"""Texts in parts: encoded one by one they give the ids of the whole, for every kind of tokenizer."""

import contextlib
from collections.abc import Iterator

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from dape.data import cuts
from dape.data.tokenizer import LibraryTokenizer, train_bpe

# What the pattern of GPT-2 and others like it tell apart: letters, numbers, marks, spaces of all kinds, contractions.
PIECES = [
    *("\n", "\n\n", " ", "  ", "   ", "\t", "\r\n", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}", "\x1c", "\x85"),
    *(
        "a",
        "the",
        "aaaaaaaa",
        "abab",
        "B",
        "é",
        "e\N{COMBINING ACUTE ACCENT}",
        "中文",
        "中文中文中文中文中文",
        "1",
        "12345678",
    ),
    *("'s", "'", "''''''''''", "'ll", ".", "...", "........", "\N{SNOWMAN}", "+/", "\u180e", "\u200b", "<|endoftext|>"),
]
LEARN = [
    "the cat's abababab 中文中文 aaaa    12345 ........ he'll " * 3,
    "aaaaaaaaaaaaaaa\n\n\n",
    "aabaabaabbbabab 中中中",
] * 3
# Numbers in threes, marks that take newlines along, and any mark in front of a word.
OTHER_PATTERN = r"[^\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|[^\s\p{L}\p{N}]+\n*|\s*\n|\s+(?!\S)|\s+"
texts = st.lists(st.sampled_from(PIECES), max_size=150).map("".join)


@contextlib.contextmanager
def small_parts(part: int = 4, reach: int = 8) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "PART", part)
        patch.setattr(cuts, "REACH", reach)
        patch.setattr(cuts, "AROUND", 16)
        yield


def byte_level_bpe(**changes) -> tokenizers.Tokenizer:
    return library_of(models.BPE(**changes), pre_tokenizers.ByteLevel(add_prefix_space=False))


def library_of(model, splitter, normalizer=None, size=330) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = splitter
    if normalizer is not None:
        made.normalizer = normalizer
    kinds = {"BPE": trainers.BpeTrainer, "WordPiece": trainers.WordPieceTrainer, "Unigram": trainers.UnigramTrainer}
    more = {"unk_token": "<unk>"} if isinstance(model, models.Unigram) else {}
    trainer = kinds[type(model).__name__](
        vocab_size=size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<unk>", "<|endoftext|>"],
        show_progress=False,
        **more,
    )
    made.train_from_iterator(LEARN, trainer)
    return made


def with_spaces_as_tokens() -> tokenizers.Tokenizer:
    """As GPT-NeoX has them."""
    made = byte_level_bpe()
    made.add_tokens([" " * n for n in range(2, 6)])
    return made


KINDS = {
    "bpe": byte_level_bpe,
    "bpe with a space in front": lambda: library_of(models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "bpe, normalised": lambda: library_of(models.BPE(), pre_tokenizers.ByteLevel(), normalizers.NFC()),
    "bpe, spaces as tokens": with_spaces_as_tokens,
    "bpe, another pattern": lambda: library_of(
        models.BPE(),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(OTHER_PATTERN), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
    ),
    "word pieces": lambda: library_of(
        models.WordPiece(unk_token="<unk>"), pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer()
    ),
    "unigram": lambda: library_of(models.Unigram(), pre_tokenizers.Metaspace(), normalizers.NFKC(), 400),
}


def ids_of(library, text) -> list[int]:
    return library.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module", params=KINDS)
def kind(request) -> LibraryTokenizer:
    made = KINDS[request.param]()
    return LibraryTokenizer(made.to_str(), name="x", origin="x")


@settings(deadline=None, derandomize=True, max_examples=100)
@given(text=texts, part=st.sampled_from([1, 4, 20]), reach=st.sampled_from([1, 3, 30]))
def test_parts_give_the_ids_of_the_whole(kind, text, part, reach):
    with small_parts(part, reach):
        parts = list(kind.parts([text]))
        assert "".join(parts) == text
        assert kind.encode(text).tolist() == ids_of(kind._library, text)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    alphabet=st.sampled_from(["a", "ab", "abc", "aé", "中", "01", ".!", " "]),
    seed=st.randoms(use_true_random=False),
    length=st.integers(100, 2000),
    size=st.sampled_from([258, 270, 300, 400]),
)
def test_words_without_an_end_are_cut_between_tokens(alphabet, seed, length, size):
    """With a tokenizer that learned from the text itself, so that tokens are long and everything could be merged."""
    text = "".join(seed.choices(alphabet, k=length))
    bpe = train_bpe(size, [text[: length // 2]])
    with small_parts(40, 80):
        parts = list(bpe.parts([text]))
        assert "".join(parts) == text
        assert bpe.encode(text).tolist() == ids_of(bpe._library, text)


def test_they_are_cut_indeed():
    bpe = train_bpe(300, ["ab aabb ba "])
    for text in ("ab " * 500, "ab1" * 500, "ab" * 750, "." * 1500, " " * 1500, "é" * 1500):
        with small_parts(20, 40):
            assert max(map(len, bpe.parts([text]))) < 150
            assert bpe.encode(text).tolist() == ids_of(bpe._library, text)


def test_a_cut_that_does_not_fit_is_not_made():
    """`a a a a` is merged from the left: a cut after an odd number of letters would give other tokens."""
    bpe = train_bpe(259, ["aaaa"])
    assert [bpe.decode([i]) for i in bpe.encode("aaaaa")] == ["aaaa", "a"]
    cutter = bpe._cutter
    a, aaaa = bpe.encode("a")[0], bpe.encode("aaaa")[0]
    apart = cutter._stay_apart
    assert apart(aaaa, a) and apart(aaaa, aaaa) and not apart(a, a) and not apart(a, aaaa)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Replace", "pattern": {"String": " a"}, "content": "b"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "_"}]}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": False}},
        {"added_tokens": [{"id": 0, "content": "a b", "special": False}]},
        {"added_tokens": [{"id": 0, "content": "a", "special": False, "lstrip": True}]},
        {"model": {"type": "BPE", "dropout": 0.1}},
    ],
)
def test_what_looks_further_than_a_word_is_encoded_as_a_whole(change):
    import json

    library = byte_level_bpe()
    content = json.loads(library.to_str())
    assert cuts.cutter(library, content)
    if change == {"pre_tokenizer": None}:
        library = tokenizers.Tokenizer(models.BPE())
    assert cuts.cutter(library, {**content, **change}) is None


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(texts, min_size=1, max_size=5))
def test_what_is_learned_does_not_depend_on_parts(texts):
    with small_parts(10, 10**6):
        learned = train_bpe(300, texts)
        assert train_bpe(300, [iter(text) for text in texts]).fingerprint == learned.fingerprint
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    assert learned._library.get_vocab() == library.get_vocab()


def test_of_endless_words_only_some_is_learned(monkeypatch):
    monkeypatch.setattr(cuts, "UNBROKEN", 300)
    monkeypatch.setattr(cuts, "LEARNED_WORD", 10)
    with small_parts(20, 40):
        parts = list(cuts.learning_parts(["ab " * 50 + "c" * 5000 + " ab" * 50]))
    assert sum(part.count("c") for part in parts) < 800 and "".join(parts).count("ab") == 100
    assert max(map(len, parts)) < 150
