"""Streams over shards, and prepared folders that are not what they should be."""

import json
import random
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dape.data import verify
from dape.data.store import Corpus, content_hash
from dape.errors import UsageError
from dape.files import sha256


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
    with pytest.raises(ValueError, match=rf"{name}: damaged.*dape prepare"):
        Corpus.open(tmp_path / "out")


def test_opening_and_verify_notice_zeros_in_large_files(prepared, texts, tmp_path, monkeypatch):
    """Large files are looked at in samples; with blocks this small each block is one."""
    corpus = prepared("a", shard_tokens=300)
    monkeypatch.setattr(verify, "WHOLE", 0)
    assert Corpus.open(tmp_path / "out").hash == corpus.hash
    shard = tmp_path / "out/train-00001.bin"
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(ValueError, match=r"train-00001.bin: damaged at byte 0"):
        Corpus.open(tmp_path / "out")
    with pytest.raises(ValueError, match=r"train-00001.bin: damaged"):
        corpus.verify()


def _put(file, at, data):
    file.seek(at)
    file.write(data)
    file.flush()


def test_samples_are_spread_over_the_file(tmp_path):
    """One damaged block of a hundred is found by its neighbours in about eight of a hundred places: by the first, the
    last, and those between at equal distances."""
    content = random.Random(0).randbytes(100 * verify.BLOCK + 17)
    sums = verify.BlockSums()
    for start in range(0, len(content), 777_777):
        sums.update(content[start : start + 777_777])
    (tmp_path / "x").write_bytes(content)
    with (tmp_path / "x").open("rb") as file:
        assert verify.BlockSums(file).hex() == sums.hex()
    assert sums.hex()[:8] == f"{zlib.crc32(content[: verify.BLOCK]):08x}" and len(sums.hex()) == 101 * 8
    assert sums.hex()[-8:] == f"{zlib.crc32(content[-17:]):08x}"
    entry = {"file": "x", "sha256": "0" * 64, "blocks": sums.hex()}
    found = []
    with (tmp_path / "x").open("r+b") as file:
        for block in range(101):
            at = block * verify.BLOCK + 3
            _put(file, at, bytes([content[at] ^ 1]))
            try:
                verify.check_entries(tmp_path, [entry], "Make it again.")
            except ValueError as error:
                assert f"x: damaged at byte {block * verify.BLOCK}" in str(error)
                found.append(block)
            _put(file, at, content[at : at + 1])
    assert found == [0, 14, 28, 42, 57, 71, 85, 100]


def test_tokens_beyond_the_vocabulary(prepared, texts, tmp_path, monkeypatch):
    """Found at the latest when they are read: an embedding would raise an IndexError, or read something else."""
    prepared("a")
    folder = tmp_path / "out"
    shard, manifest = folder / "train-00000.bin", json.loads((folder / "manifest.json").read_text())
    data = bytearray(shard.read_bytes())
    data[100:102] = b"\xff\xff"
    shard.write_bytes(data)
    (entry,) = manifest["train"]["shards"]
    entry |= {"sha256": sha256(shard), "blocks": f"{zlib.crc32(data):08x}"}
    content = content_hash(manifest["tokenizer"]["fingerprint"], manifest)
    rewrite_manifest(folder, train=manifest["train"], hash=content)
    stream = Corpus.open(folder).train
    stream.read(0, 50)
    for read in (lambda: stream.read(0, 51), lambda: stream.gather(np.array([[50]])), Corpus.open(folder).verify):
        with pytest.raises(ValueError, match=r"out, train: damaged, token 65535 of a vocabulary of 257"):
            read()


@pytest.mark.parametrize(
    "ends",
    [
        np.array([[1]]),
        np.array([1.0]),
        np.array([True]),
        np.array(["x"]),
        np.array(5),
        np.array([0, 7]),
        np.array([9, 7]),
    ],
    ids=repr,
)
def test_ends_of_documents_that_are_nonsense(prepared, texts, tmp_path, ends, monkeypatch):
    """Also where they are too many to be read whole."""
    monkeypatch.setattr(verify, "WHOLE", 0)
    prepared("a")
    np.save(tmp_path / "out/train-documents.npy", ends)
    with pytest.raises(ValueError, match=r"train-documents.npy: (does not belong|damaged)"):
        Corpus.open(tmp_path / "out")


@pytest.mark.parametrize("name", ["../other.bin", "/etc/passwd", "..", "a/b", "a\\b", "", "a\0b"])
def test_shards_stay_in_their_folder(prepared, texts, tmp_path, name):
    prepared("a")
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    manifest["train"]["shards"][0]["file"] = name
    rewrite_manifest(tmp_path / "out", train=manifest["train"])
    with pytest.raises(ValueError, match=r"manifest.json: train.shards\[0\].file: found"):
        Corpus.open(tmp_path / "out")


def test_verify_notices_another_hash(prepared, texts, tmp_path):
    prepared("a")
    rewrite_manifest(tmp_path / "out", hash="0" * 64)
    with pytest.raises(ValueError, match="its hash does not belong"):
        Corpus.open(tmp_path / "out").verify()


def rewrite_manifest(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    changes = {"checksum": None, **changes}  # as in the days before there was one
    manifest = {key: value for key, value in {**manifest, **changes}.items() if value is not None}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 99}, "format 99, while this version of dape reads format 1"),
        ({"train": None, "hash": None}, "has no hash, train"),
        ({"dtype": "object"}, "dtype: found 'object', expected 'uint16' or 'uint32'"),
        ({"train": 3}, "train: found 3, expected a section"),
        ({"hash": "x"}, "hash: found 'x', expected a text like"),
        ({"extra": 1}, "'extra' is not known"),
        ({"checksum": "0" * 64}, "changed since it was written"),
        ({"name": "\ud800"}, "name: found .*, expected a text"),
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
    with pytest.raises(ValueError, match=r"manifest.json: (is not what it should be|format None)"):
        Corpus.open(tmp_path)


def test_offsets_that_belong_elsewhere_are_refused(prepared, texts, tmp_path):
    prepared("a")
    folder = tmp_path / "out"
    (folder / "train-documents.npy").write_bytes((folder / "validation-documents.npy").read_bytes())
    with pytest.raises(ValueError, match=r"train-documents.npy: does not belong"):
        Corpus.open(folder)
    (folder / "train-documents.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"train-documents.npy: damaged"):
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
