"""Streams over shards, and prepared folders that are not what they should be."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dape.data.store import Corpus
from dape.errors import UsageError


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_shard_borders_are_invisible(stream_of, length, shard_tokens, data):
    stream = stream_of([range(length)], shard_tokens)
    everything = [*range(length), 256]
    assert len(stream) == length + 1
    start = data.draw(st.integers(0, len(stream)))
    stop = data.draw(st.integers(start, len(stream)))
    read = stream.read(start, stop)
    assert read.dtype == np.int64 and read.tolist() == everything[start:stop]
    positions = np.array(data.draw(st.lists(st.integers(0, length), min_size=6, max_size=6))).reshape(2, 3)
    gathered = stream.gather(positions)
    assert gathered.dtype == np.int64 and gathered.tolist() == [[everything[p] for p in row] for row in positions]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 7), (3, 2)])
def test_reading_outside_is_an_error(stream_of, start, stop):
    with pytest.raises(IndexError):
        stream_of([range(5)]).read(start, stop)


@pytest.mark.parametrize("position", [-1, 6])
def test_gathering_outside_is_an_error(stream_of, position):
    for shard_tokens in (2, 100):
        with pytest.raises(IndexError):
            stream_of([range(5)], shard_tokens).gather(np.array([0, position]))


def test_a_prepared_folder_opens_as_it_was_written(prepared, texts, tmp_path, documents_of):
    made = prepared("a", shard_tokens=100)
    assert len(list((tmp_path / "out").glob("train-*.bin"))) > 10
    opened = Corpus.open(tmp_path / "out")
    opened.verify()
    assert (opened.hash, opened.name, opened.tokenizer.name) == (made.hash, "a", "bytes")
    found = documents_of(opened)
    assert sorted(found["train"] + found["validation"]) == sorted(texts) and found["validation"]
    assert opened.manifest["counts"]["documents"] == len(texts)
    assert opened.manifest["train"]["tokens"] == len(opened.train) == sum(len(t.encode()) + 1 for t in found["train"])


def test_offsets_are_plain_numbers(prepared, texts, tmp_path):
    """No pickle, so that a folder from elsewhere can be opened without running what is in it."""
    corpus = prepared("a")
    ends = np.load(tmp_path / "out/train-documents.npy", allow_pickle=False)
    assert ends.dtype == np.int64 and (np.diff(ends) > 0).all() and ends[-1] == len(corpus.train)


def test_shards_are_little_endian_uint16(prepared, tmp_path):
    (tmp_path / "x.txt").write_text("ab" * 50)
    prepared("x.txt")
    assert (tmp_path / "out/train-00000.bin").read_bytes()[:4] == b"a\0b\0"


@pytest.mark.parametrize("change", ["missing", "shorter", "longer"])
def test_a_shard_of_the_wrong_size_is_noticed_at_once(prepared, texts, tmp_path, change):
    prepared("a")
    shard = tmp_path / "out/train-00000.bin"
    data = shard.read_bytes()
    shard.unlink() if change == "missing" else shard.write_bytes(data[:-2] if change == "shorter" else data + b"ab")
    with pytest.raises(ValueError, match=r"train-00000.bin: (missing|has \d+ bytes instead of \d+).*dape prepare"):
        Corpus.open(tmp_path / "out")


@pytest.mark.parametrize("name", ["validation-00000.bin", "train-documents.npy"])
def test_verify_notices_changed_bytes(prepared, texts, tmp_path, name):
    prepared("a")
    path = tmp_path / "out" / name
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    corpus = Corpus.open(tmp_path / "out")
    with pytest.raises(ValueError, match=rf"{name}: damaged"):
        corpus.verify()


def test_verify_notices_another_hash(prepared, texts, tmp_path):
    prepared("a")
    rewrite_manifest(tmp_path / "out", hash="0" * 64)
    with pytest.raises(ValueError, match="its hash does not belong"):
        Corpus.open(tmp_path / "out").verify()


def rewrite_manifest(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest = {key: value for key, value in {**manifest, **changes}.items() if value is not None}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 99}, "format 99; this version of dape reads format 1"),
        ({"train": None, "hash": None}, "has no hash, train"),
    ],
)
def test_manifests_of_other_versions_are_refused(prepared, texts, tmp_path, changes, message):
    prepared("a")
    rewrite_manifest(tmp_path / "out", **changes)
    with pytest.raises(ValueError, match=message):
        Corpus.open(tmp_path / "out")


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_broken_manifests_are_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest.json: not the manifest"):
        Corpus.open(tmp_path)


def test_offsets_that_belong_elsewhere_are_refused(prepared, texts, tmp_path):
    prepared("a")
    folder = tmp_path / "out"
    (folder / "train-documents.npy").write_bytes((folder / "validation-documents.npy").read_bytes())
    with pytest.raises(ValueError, match=r"train-documents.npy: does not belong"):
        Corpus.open(folder)
    (folder / "train-documents.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"train-documents.npy: missing or damaged"):
        Corpus.open(folder)


def test_another_tokenizer_is_refused(prepared, texts, tmp_path):
    prepared("a", tokenizer="bpe:270", out="bpe")
    prepared("a")
    for name in ("tokenizer.json", "tokenizer-info.json"):
        (tmp_path / "out" / name).write_bytes((tmp_path / "bpe" / name).read_bytes())
    with pytest.raises(ValueError, match=r"tokenizer.json is not the one"):
        Corpus.open(tmp_path / "out")


def test_what_is_not_a_prepared_folder_is_a_usage_error(tmp_path):
    (tmp_path / "file").touch()
    for name, state in (("nowhere", "does not exist"), ("file", "is not a folder"), (".", "has no manifest.json")):
        with pytest.raises(UsageError, match=rf"{state}.*dape prepare"):
            Corpus.open(tmp_path / name)
