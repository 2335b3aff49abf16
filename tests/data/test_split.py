"""What is held out: by content, by hand, or the tail; and the sample a tokenizer learns from."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dape.data.documents import BEGINNING, Document
from dape.data.split import Split, choose_split, training_sample
from dape.data.text import Text
from dape.errors import UsageError


def documents(texts, part=""):
    start = 0
    for text in texts:
        yield Document(Text.of(text), start, part, BEGINNING)
        start += len(text.encode())


def parts(texts, split):
    found = {"train": [], "validation": []}
    for document in documents(texts):
        for part, piece in split.pieces(document):
            found[part].append(str(piece.text))
    return found


# By content ----------------------------------------------------------------------------------------------------------


def test_the_hash_of_the_content_decides():
    texts = [f"document {i}" for i in range(400)]
    below = [t for t in texts if int(hashlib.sha256(t.encode()).hexdigest()[:16], 16) < 0.1 * 2**64]
    assert parts(texts, Split("content", 0.1))["validation"] == below
    assert 20 <= len(below) <= 60


def test_order_and_company_do_not_matter(prepared, texts, tmp_path, documents_of):
    first = documents_of(prepared("a", validation_share=0.3))
    for path in (tmp_path / "a").iterdir():
        path.rename(path.with_name(f"renamed-{99 - int(path.stem)}.md"))
    (tmp_path / "a/another.txt").write_text("one more")
    second = documents_of(prepared("a", validation_share=0.3, out="second"))
    assert set(first["validation"]) <= set(second["validation"]) and set(first["train"]) <= set(second["train"])
    assert first["train"] != second["train"]  # the order did change


def test_a_larger_share_holds_out_more_of_the_same(texts):
    small, large = (set(parts(texts, Split("content", share))["validation"]) for share in (0.1, 0.4))
    assert small < large


def test_duplicates_land_on_one_side_and_are_counted(prepared, tmp_path, texts, documents_of):
    (tmp_path / "b").mkdir()
    for i, text in enumerate(texts[:20]):
        (tmp_path / f"b/{i}.md").write_text(text, encoding="utf-8", newline="")
    corpus = prepared("a", "b", validation_share=0.3)
    found = documents_of(corpus)
    assert not set(found["train"]) & set(found["validation"])
    assert corpus.manifest["counts"]["duplicate_documents"] == 20
    assert corpus.manifest["counts"]["documents_in_both_parts"] == 0
    assert corpus.manifest["split"] == "content" and corpus.manifest["validation_share"] == 0.3


def test_choosing_reads_no_more_than_it_must():
    def endless():
        yield from documents(f"document {i}" for i in range(10**9))

    assert choose_split(endless(), 0.05).rule == "content"


# By hand -------------------------------------------------------------------------------------------------------------


def test_sources_held_out_by_hand(prepared, tmp_path, documents_of):
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "e.txt").write_text("a.txt")
    held_out = tuple(str(tmp_path / name) for name in ("c.txt", "d.txt", "e.txt"))
    corpus = prepared("a.txt", "b.txt", validation=held_out)
    assert documents_of(corpus) == {"train": ["a.txt", "b.txt"], "validation": ["c.txt", "d.txt", "a.txt"]}
    assert corpus.manifest["split"] == "given" and corpus.manifest["counts"]["documents_in_both_parts"] == 1
    assert "validation_share" not in corpus.manifest and len(corpus.manifest["sources"]) == 5


@pytest.mark.parametrize(("train", "validation", "missing"), [("", "x", "training"), ("x", " ", "validation")])
def test_both_parts_need_a_document(prepared, tmp_path, train, validation, missing):
    (tmp_path / "t.txt").write_text(train)
    (tmp_path / "v.txt").write_text(validation)
    with pytest.raises(UsageError, match=f"no documents for {missing}"):
        prepared("t.txt", validation=(str(tmp_path / "v.txt"),))
    assert not list(tmp_path.glob(".*"))


# The tail ------------------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.text("aé\N{SNOWMAN}\n ", min_size=1, max_size=60), min_size=1, max_size=4), st.floats(0.01, 0.9))
def test_the_tail_is_the_end_of_the_text(texts, share):
    assume(len("".join(texts)) > 2)
    split = choose_split(documents(texts), share)
    assume(split.rule == "tail")
    found = parts(texts, split)
    # Nothing lost, nothing twice, in order; and both parts have something if there is anything to share.
    assert "".join(found["train"] + found["validation"]) == "".join(texts)
    assert found["validation"] and found["train"]


def test_one_book_loses_its_last_chapter(prepared, tmp_path, documents_of):
    lines = [f"line {i} of the book\n" for i in range(1000)]
    (tmp_path / "book.txt").write_text("".join(lines))
    corpus = prepared("book.txt", validation_share=0.1)
    found = documents_of(corpus)
    assert len(found["train"]) == len(found["validation"]) == 1
    assert found["train"][0] + found["validation"][0] == "".join(lines)
    assert found["validation"][0].startswith("line 9")  # cut between lines
    assert 0.09 < len(corpus.validation) / (len(corpus.train) + len(corpus.validation)) < 0.11
    assert corpus.manifest["split"] == "tail" and corpus.name == "book"


@pytest.mark.parametrize(("sizes", "train"), [((70, 20, 10), 2), ((70, 24, 6), 2), ((95, 1, 4), 1), ((50, 49, 1), 2)])
def test_the_end_of_a_document_is_used_if_near(sizes, train):
    """One held-out tenth of 100 bytes: ends within half and twice of that count as near, otherwise it is cut at 90."""
    texts = [letter * size for letter, size in zip("abc", sizes, strict=True)]
    split = choose_split(documents(texts), 1e-12)
    assert split.rule == "tail"
    split = Split("tail", 0.1, cut=_cut(sizes, 0.1))
    found = parts(texts, split)
    if sizes == (50, 49, 1):
        assert found == {"train": ["a" * 50, "b" * 40], "validation": ["b" * 9, "c"]}
    else:
        assert found == {"train": texts[:train], "validation": texts[train:]}


def _cut(sizes, share):
    from array import array
    from itertools import accumulate

    from dape.data.split import _tail

    return _tail(array("q", accumulate(sizes)), share).cut


def test_characters_are_never_cut(prepared, tmp_path, documents_of):
    (tmp_path / "x.txt").write_text("\N{SNOWMAN}" * 1000, encoding="utf-8")
    for share in (0.05, 0.0501, 0.0502):
        found = documents_of(prepared("x.txt", validation_share=share, out=f"out{share}"))
        assert set("".join(found["train"] + found["validation"])) == {"\N{SNOWMAN}"}


def test_a_text_of_one_character_cannot_be_shared(prepared, tmp_path):
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(UsageError, match="too short"):
        prepared("x.txt")
    assert not list(tmp_path.glob(".*")) and not (tmp_path / "out").exists()


def test_no_documents_at_all(prepared, tmp_path):
    (tmp_path / "x.txt").write_text(" \n")
    with pytest.raises(UsageError, match="no documents"):
        prepared("x.txt")
    assert not list(tmp_path.glob(".*")) and not (tmp_path / "out").exists()


def sample_of(*arguments, **more):
    return [str(text) for text in training_sample(*arguments, **more)]


# The sample ----------------------------------------------------------------------------------------------------------


def test_the_sample_is_of_training_documents_only():
    texts = [f"{i:03}" * 20 for i in range(300)]
    split = Split("content", 0.3)
    train = parts(texts, split)["train"]
    assert sorted(sample_of(documents(texts), split)) == sorted(train)
    sample = sample_of(documents(texts), split, budget=1000)
    assert set(sample) < set(train) and 900 < sum(map(len, sample)) <= 1000
    # Drawn by content: from everywhere, and independent of the order.
    assert min(sample) < "100" and max(sample) > "200"
    assert sample_of(documents(texts[::-1]), split, budget=1000) == sample


def test_of_the_tail_nothing_is_learned(prepared, tmp_path):
    (tmp_path / "x.txt").write_text("plain words " * 500 + "zyzzyva zyzzyva " * 15)
    corpus = prepared("x.txt", tokenizer="bpe:280")
    assert corpus.manifest["split"] == "tail"
    assert len(corpus.tokenizer.encode("plain words")) < 5
    assert len(corpus.tokenizer.encode(" zyzzyva")) == len(" zyzzyva")


def test_a_document_larger_than_the_budget_is_cut():
    sample = sample_of(documents(["a" * 5000, "b" * 5000]), Split("tail", 0.1, cut=9000), budget=1000)
    assert [len(text) for text in sample] == [1000]


def test_only_the_first_gigabytes_are_scanned(monkeypatch):
    monkeypatch.setattr("dape.data.split.SCANNED_BYTES", 100)
    sample = sample_of(documents(f"{i:010}" for i in range(10**9)), Split("content", 0.05))
    assert 5 <= len(sample) <= 11


def test_bpe_learns_the_same_whatever_the_shards(prepared, texts, tmp_path):
    one = prepared("a", tokenizer="bpe:300")
    many = prepared("docs.jsonl", tokenizer="bpe:300", shard_tokens=50, out="many")
    assert one.tokenizer.fingerprint == many.tokenizer.fingerprint
    assert Path(tmp_path / "many/train-00001.bin").exists()
    everything = [corpus.train.read(0, len(corpus.train)).tolist() for corpus in (one, many)]
    assert everything[0] == everything[1]
