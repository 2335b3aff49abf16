"""Texts that are too long for the memory: read in chunks, kept in files, and still the same."""

import bz2
import contextlib
import gzip
import json
import lzma
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dape.data import archives, formats, long_json
from dape.data import text as text_module
from dape.data.documents import Reading, Tally, read_documents
from dape.data.long_json import LongJSON
from dape.data.prepare import Options, prepare
from dape.data.sources import Item
from dape.data.text import Collected, Text
from dape.errors import UsageError


@contextlib.contextmanager
def short_is_long() -> Iterator[None]:
    """Everything beyond a few bytes goes the way of long texts, cut wherever that could hurt."""
    sizes = {
        text_module: {"LONG": 7, "PIECE": 4},
        formats: {"LONG": 7, "CHUNK": 2},
        long_json: {"SHORT": 5},
    }
    with pytest.MonkeyPatch.context() as patch:
        for module, values in sizes.items():
            for name, value in values.items():
                patch.setattr(module, name, value)
        yield


# Text ----------------------------------------------------------------------------------------------------------------

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(any_text, st.integers(0, 45))
def test_a_text_in_a_file_is_the_same_as_one_in_memory(text, at):
    short = Text.of(text)
    with short_is_long():
        collected = Collected(None)
        for i in range(0, len(text), 3):
            collected.add(text[i : i + 3])
        long = collected.text()
        assert collected.blank == (not text.strip())
        assert (str(long), long.size, long.digest()) == (text, len(text.encode()), short.digest())
        assert [str(x) for x in long.cut(len(text[:at].encode()))] == [text[:at], text[at:]]
        head, count = long.head(at)
        assert (str(head), count) == (text[:at], len(text[:at]))
        assert long.read(at - 2, at + 3) == text.encode()[max(at - 2, 0) : at + 3]


# JSON ----------------------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=30),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=10), x, max_size=3),
    max_leaves=8,
)
written_strings = st.lists(
    st.sampled_from(
        [
            "a",
            "é",
            "\\\\",
            '\\"',
            "\\/",
            "\\n",
            "\\u0041",
            "\\ud83d",
            "\\ude00",
            "\\ud83d\\ude00",
            "\\u00e9",
            " ",
            "\N{SNOWMAN}",
        ]
    ),
    max_size=12,
).map(lambda parts: f'"{"".join(parts)}"')


def in_pieces(line: str, size: int) -> tuple[object, LongJSON]:
    with short_is_long():
        reader = LongJSON(None)
        for at in range(0, len(line), size):
            reader.feed(line[at : at + size])
        return reader.value(), reader


def filled_in(value, long):
    if isinstance(value, str):
        return str(long[value].text) if value in long else value
    if isinstance(value, list):
        return [filled_in(x, long) for x in value]
    if isinstance(value, dict):
        return {filled_in(k, long): filled_in(x, long) for k, x in value.items()}
    return value


@settings(deadline=None, derandomize=True, max_examples=100)
@given(values, st.booleans(), st.integers(1, 9))
def test_long_json_means_what_json_means(value, ascii_only, size):
    line = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace").decode()
    found, reader = in_pieces(line, size)
    assert repr(filled_in(found, reader.long)) == repr(json.loads(line))


@settings(deadline=None, derandomize=True, max_examples=150)
@given(written_strings, st.integers(1, 9))
def test_escapes_are_not_torn_apart(written, size):
    import re

    found, reader = in_pieces(f'{{"text": {written}}}', size)
    clean, halves = re.subn("[\ud800-\udfff]", "\ufffd", json.loads(written))
    text = found["text"]
    if text in reader.long:
        assert (str(reader.long[text].text), reader.long[text].surrogates) == (clean, halves)
    else:
        assert text == json.loads(written)


@pytest.mark.parametrize(
    "line",
    [
        '{"a": "bcdefghij',
        '{"a": "bcdefghijk\\',
        '{"a": "bcdefg\\q"}',
        '{"a": "bcdefg\\u12x4hijklmnopqrstuv"}',
        '{"a" "bcdefgh"}',
        '{"a": "bcd\nefgh"}',
        "[1, 2",
    ],
)
def test_what_is_no_json_is_none_in_pieces_either(line):
    with pytest.raises(ValueError):
        json.loads(line)
    for size in (1, 3, 100):
        with pytest.raises(ValueError):
            in_pieces(line, size)


# Files ---------------------------------------------------------------------------------------------------------------


def everything(path: Path, kind: str, **reading: object) -> tuple:
    """All that can be seen of the documents of a file, and how reading it ended."""
    tally, found = Tally(), []
    item = Item("name", str(path), kind, "", path.stat().st_size, named=False)
    try:
        for document in read_documents([item], Reading(**reading), tally):
            found.append((str(document.text), document.start, document.next, document.text.digest()))
    except ValueError as error:
        if "not JSON" not in str(error):  # there the place within a long string is not known
            return found, replace(tally, consumed=0), str(error)
        return found, tally.documents, str(error)[:20]
    return found, replace(tally, consumed=0), None


PIECES = [
    *(b"a", b"words and ", b" ", b"\n", b"\xff", "é".encode(), "\ufffd".encode(), b"\xe2\x98", b"\xf0\x9f", b"\0"),
    *(b"\xef\xbb\xbf", b'{"text": "', b'"}\n', b'{"text": 1}\n', b'{"no": "text"}\n', b"\\ud83d", b"\\n", b"      \n"),
    b'{"text": "abc", "text": "a long one"}\n',
]
pieces_of_files = st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(pieces_of_files, st.sampled_from(["text", "jsonl", "python"]), st.booleans())
def test_chunks_change_nothing(tmp_path_factory, content, kind, strict):
    path = tmp_path_factory.getbasetemp() / "chunks.bin"
    path.write_bytes(content)
    whole = everything(path, kind, strict=strict)
    with short_is_long():
        assert everything(path, kind, strict=strict) == whole


def test_where_text_is_broken_is_told_in_a_later_chunk(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"abc " * 10 + b"\xe2\x98" + b"x")
    with short_is_long():
        assert "broken UTF-8 at byte 43 (invalid continuation byte)" in everything(path, "text", strict=True)[2]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_a_prepared_folder_is_the_same(tmp_path, tokenizer, contents):
    words = "The naïve \N{SNOWMAN} cat's 12 words;\n" * 30
    (tmp_path / "a.txt").write_text(words + "x" * 200)
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": words[i:]}) + "\n" for i in range(20)))
    sources = [str(tmp_path / name) for name in ("a.txt", "b.jsonl")]
    options = Options(tokenizer=tokenizer, validation_share=0.3)
    prepare(sources, tmp_path / "whole", options)
    with short_is_long():
        prepare(sources, tmp_path / "chunks", options)
    assert contents(tmp_path / "whole") == contents(tmp_path / "chunks")
    assert not list(tmp_path.glob(".*"))


# Compressed files ----------------------------------------------------------------------------------------------------


def zst(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return zstandard.compress(data)


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zst}


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_bomb_is_refused(tmp_path, monkeypatch, compression):
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 1 << 16)
    path = tmp_path / f"bomb.txt{compression}"
    path.write_bytes(COMPRESS[compression](b"word " * 100_000))
    expected = (
        rf"bomb.txt{compression}: [\d,]+ bytes that hold more than [\d,]+, over 200 times as much.*`max_expansion`"
    )
    with pytest.raises(UsageError, match=expected):
        prepare([str(path)], tmp_path / "out", Options())
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]
    made = prepare([str(path)], tmp_path / "out", Options(max_expansion=1e6)).corpus
    assert made.manifest["counts"]["bytes"] == 500_000


@pytest.mark.parametrize("compression", COMPRESS)
def test_what_is_written_in_several_frames_is_read(tmp_path, compression):
    compress = COMPRESS[compression]
    path = tmp_path / f"x.txt{compression}"
    path.write_bytes(compress(b"one ") + compress(b"two ") + compress(b"three" * 100_000))
    with archives.Archive(path).opened() as (stream, _):
        assert stream.read() == b"one two " + b"three" * 100_000


def test_zeros_and_rubbish_after_an_xz_file_are_left_alone(tmp_path):
    path = tmp_path / "x.txt.xz"
    path.write_bytes(lzma.compress(b"one ") + bytes(8) + lzma.compress(b"two") + bytes(4) + b"rubbish")
    with archives.Archive(path).opened() as (stream, _):
        assert stream.read() == b"one two"


def test_an_xz_file_may_not_ask_for_gigabytes(tmp_path):
    path = tmp_path / "x.txt.xz"
    with lzma.open(path, "wb", filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 28}]) as file:
        file.write(b"a few words")
    with archives.Archive(path).opened() as (stream, _), pytest.raises(ValueError, match="Memory usage limit"):
        stream.read()


@pytest.mark.parametrize("factor", [0.5, -1.0, float("nan")])
def test_factors_that_make_no_sense(tmp_path, factor):
    with pytest.raises(UsageError, match=r"`max_expansion` .*: must be at least 1"):
        prepare(["stdlib"], tmp_path / "out", Options(max_expansion=factor))


# Memory --------------------------------------------------------------------------------------------------------------

MEASURED = textwrap.dedent("""
    import re, sys
    from pathlib import Path
    from dape.data.prepare import Options, prepare

    def peak():
        return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1000

    tokenizer, folder, source = sys.argv[1:]
    Path(folder, "small.txt").write_text("a few words " * 50)
    prepare([f"{folder}/small.txt"], Path(folder, "small"), Options(tokenizer=tokenizer))
    before = peak()
    prepare([source], Path(folder, "out"), Options(tokenizer=tokenizer, max_expansion=2e6))
    print(peak() - before)
""")
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of its memory")


def extra_megabytes(tmp_path: Path, source: Path, tokenizer: str) -> float:
    """In a process of its own, beyond what preparing a small text takes."""
    argv = [sys.executable, "-c", MEASURED, tokenizer, str(tmp_path), str(source)]
    return float(subprocess.check_output(argv))


def one_line(path: Path, megabytes: int) -> Path:
    words = "the quick brown foxes jump over 12 lazy dogs; they don't mind at all, "
    with path.open("w") as file:
        for _ in range(megabytes):
            file.write((words * (10**6 // len(words) + 1))[: 10**6])
    return path


@needs_proc
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_the_length_of_a_line_costs_no_memory(tmp_path, tokenizer):
    source = one_line(tmp_path / "line.txt", 20 if tokenizer == "bytes" else 2)
    assert extra_megabytes(tmp_path, source, tokenizer) < 80


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:512"])
def test_100_megabytes_in_one_line(tmp_path, tokenizer):
    source = one_line(tmp_path / "line.txt", 100)
    assert extra_megabytes(tmp_path, source, tokenizer) < 100


@needs_proc
@pytest.mark.slow
def test_100_megabytes_in_one_line_of_json(tmp_path):
    line = one_line(tmp_path / "line.txt", 100)
    source = tmp_path / "line.jsonl"
    with source.open("w") as file, line.open() as words:
        file.write('{"id": 1, "text": "')
        while piece := words.read(1 << 20):
            file.write(piece)
        file.write('"}\n')
    assert extra_megabytes(tmp_path, source, "bytes") < 100


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("compression", COMPRESS)
def test_300_megabytes_in_a_small_file(tmp_path, compression):
    source = tmp_path / f"bomb.txt{compression}"
    source.write_bytes(COMPRESS[compression](b"a" * 300_000_000))
    assert extra_megabytes(tmp_path, source, "bytes") < 200


@needs_proc
@pytest.mark.slow
def test_a_word_without_an_end(tmp_path):
    source = tmp_path / "word.txt"
    source.write_text("ACGTTGCAAC" * 600_000)
    assert extra_megabytes(tmp_path, source, "bpe:300") < 200
