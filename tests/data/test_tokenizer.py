"""Ids and text, both ways, for every kind of tokenizer."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dape.data.tokenizer import ByteTokenizer, load_tokenizer, open_tokenizer, parse_spec, train_bpe
from dape.errors import UsageError
from dape.extras import install_command

SAMPLE = ["the cat sat on the mat, the naïve cat\n\nin the hat <|endoftext|>\n", "a\n \n", "a\n\n", "a \n"] * 3
any_text = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(300, SAMPLE)


@pytest.fixture(params=["bytes", "bpe", "file"])
def any_tokenizer(request, bpe, tmp_path):
    if request.param == "file":
        return open_tokenizer(str(library_file(tmp_path / "words.json", ["</s>"])))
    return {"bytes": ByteTokenizer(), "bpe": bpe}[request.param]


def library_file(path, special=(), **changes):
    """A tokenizer.json as others make them: byte-level, with a beginning mark that encoding is asked to add."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<s>", *special])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    made.enable_truncation(5)
    made.enable_padding(length=9)
    path.write_text(json.dumps({**json.loads(made.to_str()), **changes}))
    return path


def test_bytes_by_hand():
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aé").tolist() == [97, 0xC3, 0xA9]
    assert tokenizer.decode([97, 256, 0xC3, 0xA9, 256]) == "aé"
    assert tokenizer.decode([0xC3, 97]) == "\N{REPLACEMENT CHARACTER}a"
    assert (tokenizer.vocabulary, tokenizer.eod, tokenizer.name) == (257, 256, "bytes")


@settings(deadline=None, derandomize=True)
@given(any_text)
def test_every_text_round_trips(bpe, text):
    for tokenizer in (ByteTokenizer(), bpe):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.eod not in ids and (not len(ids) or ids.max() < tokenizer.vocabulary)


def test_end_mark_in_a_text_is_text(any_tokenizer):
    text = "a<|endoftext|>b</s>c<s>"
    ids = any_tokenizer.encode(text)
    assert any_tokenizer.eod not in ids and any_tokenizer.decode(ids) == text


def test_end_marks_decode_to_nothing(any_tokenizer):
    ids = [*any_tokenizer.encode("a b"), any_tokenizer.eod, *any_tokenizer.encode("c")]
    assert any_tokenizer.decode(ids) == "a bc"


def test_several_texts_are_encoded_as_one_by_one(any_tokenizer):
    several = ["the cat", "", "on the mat\n" * 20]
    for text, ids in zip(several, any_tokenizer.encode_many(several), strict=True):
        assert ids.tolist() == any_tokenizer.encode(text).tolist()
        assert any_tokenizer.decode(ids) == text


def test_saved_and_loaded_it_is_the_same(any_tokenizer, tmp_path):
    any_tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    for attribute in ("name", "vocabulary", "eod", "fingerprint"):
        assert getattr(loaded, attribute) == getattr(any_tokenizer, attribute)
    assert loaded.encode("the hat").tolist() == any_tokenizer.encode("the hat").tolist()
    again = open_tokenizer(str(tmp_path / "tokenizer.json"))  # used for other text, it is still the same
    assert (again.name, again.fingerprint) == (any_tokenizer.name, any_tokenizer.fingerprint)


@pytest.mark.parametrize("ids", [[-1], [5000]])
def test_ids_that_do_not_exist_are_refused(any_tokenizer, ids):
    with pytest.raises(ValueError, match=r"ids from .* has 0 to"):
        any_tokenizer.decode(ids)


# BPE -----------------------------------------------------------------------------------------------------------------


def test_bpe_learns_from_the_text(bpe):
    assert bpe.name == "bpe:300" and bpe.vocabulary <= 300
    assert len(bpe.encode("the cat")) < 5 < len(train_bpe(257, SAMPLE).encode("the cat"))
    assert train_bpe(257, SAMPLE).vocabulary == 257


def test_learning_again_gives_the_same(bpe):
    """In another process, as hashes are seeded per process."""
    code = f"from dape.data.tokenizer import train_bpe; print(train_bpe(300, {SAMPLE!r}).fingerprint)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == bpe.fingerprint
    assert train_bpe(300, ["another text"]).fingerprint != bpe.fingerprint


# tokenizer.json of others --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("special", "eod"), [(["</s>"], 257), (["<|endoftext|>"], 257), (["</s>", "<|endoftext|>"], 258), ([], 257)]
)
def test_end_mark_is_found_or_added(tmp_path, special, eod):
    tokenizer = open_tokenizer(str(library_file(tmp_path / "mine.json", special)))
    assert tokenizer.eod == eod and tokenizer.vocabulary == 257 + max(len(special), 1)
    assert tokenizer.name == "file:mine"


def test_truncation_padding_and_added_marks_are_switched_off(tmp_path):
    tokenizer = open_tokenizer(str(library_file(tmp_path / "tokenizer.json")))
    assert tokenizer.name == f"file:{tmp_path.name}"  # "tokenizer" would tell nothing
    assert len(tokenizer.encode("nothing is cut")) == len("nothing is cut")
    assert len(tokenizer.encode("ab")) == 2


def test_an_ordinary_token_as_end_mark_becomes_special(tmp_path):
    path = library_file(tmp_path / "t.json", ["</s>"])
    content = json.loads(path.read_text())
    content["added_tokens"][-1]["special"] = False
    path.write_text(json.dumps(content))
    tokenizer = open_tokenizer(str(path))
    assert tokenizer.eod == 257 and 257 not in tokenizer.encode("a</s>b")


def test_fingerprint_tells_tokenizers_apart_but_not_file_names(tmp_path):
    one = open_tokenizer(str(library_file(tmp_path / "one.json")))
    same = open_tokenizer(str(library_file(tmp_path / "same.json")))
    other = open_tokenizer(str(library_file(tmp_path / "other.json", normalizer={"type": "Lowercase"})))
    assert one.fingerprint == same.fingerprint
    assert len({one.fingerprint, other.fingerprint, ByteTokenizer.fingerprint}) == 3


def test_ids_beyond_65535_are_kept(tmp_path, prepared):
    path = library_file(tmp_path / "big.json")
    content = json.loads(path.read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 70000, "content": "</s>"})
    content["model"]["vocab"]["</s>"] = 70000
    path.write_text(json.dumps(content))
    (tmp_path / "x.txt").write_text("some text to encode")
    corpus = prepared("x.txt", tokenizer=str(path))
    assert corpus.tokenizer.eod == 70000 == corpus.train.read(0, len(corpus.train))[-1]
    assert corpus.manifest["dtype"] == "uint32" and (tmp_path / "out/train-00000.bin").stat().st_size == 4 * len(
        corpus.train
    )


# What cannot be ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["bpe:", "bpe:x", "bpe:256", "bpe:-5", "bpe:1e4", "byte", "nowhere.json", ""])
def test_impossible_tokenizers_are_refused(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"`tokenizer`"):
        parse_spec(spec)


@pytest.mark.parametrize("text", ["{", "[]", '{"type": "other"}', ""])
def test_files_that_are_no_tokenizers_are_refused(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=r"tokenizer.json: "):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match=r"tokenizer.json: "):
        open_tokenizer(str(tmp_path / "tokenizer.json"))


def test_a_folder_without_tokenizer_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"has no tokenizer.json"):
        load_tokenizer(tmp_path)


def test_without_the_library_only_bytes_work(tmp_path, monkeypatch, bpe):
    path = library_file(tmp_path / "t.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match=re.escape(install_command("data"))):
        train_bpe(300, SAMPLE)
    with pytest.raises(UsageError, match=f"t.json: needs .* {re.escape(install_command('data'))}"):
        open_tokenizer(str(path))
    assert np.array_equal(open_tokenizer("bytes").encode("a"), [97])
