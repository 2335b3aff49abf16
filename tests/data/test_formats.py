"""Every format in, the same documents out; and files that are broken, empty or something else."""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dape.data import documents as documents_module
from dape.data.documents import BEGINNING, Position, Reading, Tally, read_documents
from dape.data.formats import HubName
from dape.data.sources import expand
from dape.errors import UsageError
from dape.extras import install_command

TEXTS = [
    "one\ntwo\r\n",
    "naïve \N{SNOWMAN}",
    "  spaces stay \n\n",
    "\ufeffmark inside" + "x" * 200_000,
    "nul \0 in JSON",
]


def zst(data: bytes) -> bytes:
    import zstandard

    half = len(data) // 2  # two frames, as tools that compress in parallel write them
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:half], data[half:]))


COMPRESS = {"": bytes, ".gz": gzip.compress, ".zst": zst, ".bz2": bz2.compress, ".xz": lzma.compress}


def jsonl(texts: list[str], field: str = "text") -> bytes:
    return "".join(json.dumps({"n": 1, field: text}) + "\n" for text in texts).encode()


def parquet(texts: list, field: str = "text", **options: object) -> bytes:
    import pyarrow
    from pyarrow import parquet

    out = io.BytesIO()
    table = pyarrow.table({"n": range(len(texts)), field: texts})
    parquet.write_table(table, out, row_group_size=2, **options)
    return out.getvalue()


def read(path: Path | str, *, start: Position = BEGINNING, tally: Tally | None = None, **reading: object) -> list[str]:
    source = expand(str(path), Path("unused"))
    return [str(d.text) for d in read_documents(source.items, Reading(**reading), tally or Tally(), start)]


# Round trips ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "ndjson", "parquet"])
def test_documents_come_out_as_they_went_in(tmp_path, kind, compression):
    path = tmp_path / f"data.{kind}{compression}"
    texts = TEXTS[:1] if kind == "txt" else TEXTS
    data = {"txt": TEXTS[0].encode(), "parquet": parquet(TEXTS)}.get(kind, jsonl(TEXTS))
    path.write_bytes(COMPRESS[compression](data))
    assert read(path) == texts


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz", "data.parquet"])
@pytest.mark.parametrize("skip", range(6))
def test_reading_goes_on_after_any_record(tmp_path, name, skip):
    data = jsonl(TEXTS) if "jsonl" in name else parquet(TEXTS)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert read(tmp_path / name, start=Position(0, skip)) == read(tmp_path / name)[skip:]


def test_positions_lead_to_the_next_document(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\n" + jsonl(["one", "", "two"]))
    (tmp_path / "b.txt").write_text("three")
    items = expand(str(tmp_path), Path()).items
    found = list(read_documents(items, Reading(), Tally()))
    for i, document in enumerate(found):
        tally = Tally()
        rest = read_documents(items, Reading(), tally, document.next)
        assert [str(d.text) for d in rest] == ["one", "two", "three"][i + 1 :]
        assert tally.consumed == (sum(item.size for item in items) if i < 2 else 0)


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
def test_text_is_read_when_it_is_asked_for(tmp_path, compression):
    """Progress shows how much of the file was needed for the first of many documents."""
    path = tmp_path / f"long.jsonl{compression}"
    path.write_bytes(COMPRESS[compression](jsonl([os.urandom(2000).hex() for _ in range(500)])))
    tally = Tally()
    first = next(read_documents(expand(str(path), Path()).items, Reading(), tally))
    assert len(str(first.text)) == 4000 and tally.documents == 1
    assert 0 < tally.consumed < path.stat().st_size / 4


def test_another_field_can_hold_the_text(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(jsonl(["one"], "body"))
    (tmp_path / "x.parquet").write_bytes(parquet(["two"], "body"))
    assert read(tmp_path, text_field="body") == ["one", "two"]
    for name in ("x.jsonl", "x.parquet"):
        with pytest.raises(
            UsageError, match=rf"{name}.* has no (field|column) 'text'; it has 'n', 'body'.*`text_field`"
        ):
            read(tmp_path / name)
        with pytest.raises(UsageError, match=r"not text.*`text_field`"):
            read(tmp_path / name, text_field="n")


def test_all_kinds_of_text_columns_are_read(tmp_path):
    import pyarrow

    for kind in (pyarrow.large_string(), pyarrow.string_view(), pyarrow.binary()):
        (tmp_path / "x.parquet").write_bytes(parquet(pyarrow.array(["ä", None, "b"]).cast(kind)))
        assert read(tmp_path / "x.parquet") == ["ä", "b"]
    (tmp_path / "x.parquet").write_bytes(parquet(pyarrow.array(["ä", "b", "ä"]).dictionary_encode()))
    assert read(tmp_path / "x.parquet") == ["ä", "b", "ä"]


def test_standard_input_is_one_document(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a\npipe")))
    source = expand("-", tmp_path / "spool")
    assert [str(d.text) for d in read_documents(source.items, Reading(), Tally())] == ["from a\npipe"]
    assert source.name == "stdin"


def test_a_pipe_of_the_shell_is_one_document(tmp_path):
    reader, writer = os.pipe()
    os.write(writer, b"from a\npipe")
    os.close(writer)
    with os.fdopen(reader):
        source = expand(f"/dev/fd/{reader}", tmp_path / "spool")
    assert [str(d.text) for d in read_documents(source.items, Reading(), Tally())] == ["from a\npipe"]


# Folders -------------------------------------------------------------------------------------------------------------


def test_folders_are_read_in_order_without_hidden_and_unknown_files(tmp_path):
    for name in (
        "b.md",
        "a/z.tex",
        "a/b/c.py",
        "a.rst",
        "c.txt.gz",
        ".hidden.txt",
        ".git/x.txt",
        "image.png",
        "noname",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(name.encode()) if name.endswith("gz") else name.encode())
    (tmp_path / "dangling.txt").symlink_to("nowhere")
    source = expand(str(tmp_path), Path())
    texts = [str(d.text) for d in read_documents(source.items, Reading(), Tally())]
    assert texts == ["a.rst", "b.md", "c.txt.gz", "a/z.tex", "a/b/c.py"]
    assert source.other_files == 3  # the picture, the one without suffix, the link


def test_a_file_that_is_named_may_be_called_anything(tmp_path):
    for name in ("LICENSE", ".hidden", "x.json", "UPPER.TXT"):
        (tmp_path / name).write_text(name)
        assert read(tmp_path / name) == [name]


def test_binary_and_empty_files_of_folders_are_counted(tmp_path):
    for name, data in {"a.txt": b"text", "b.txt": b"a\0b", "c.txt": b"", "d.txt": b" \n\t\n"}.items():
        (tmp_path / name).write_bytes(data)
    tally = Tally()
    assert read(tmp_path, tally=tally) == ["text"]
    assert (tally.documents, tally.binary, tally.empty, tally.bytes) == (1, 1, 2, 4)


def test_empty_lines_and_values_are_left_out(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b'\n{"text": ""}\n{"text": null}\n  \n{"text": "a"}')
    tally = Tally()
    assert read(tmp_path / "x.jsonl", tally=tally) == ["a"] and tally.empty == 2


# Broken text ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.sampled_from(
            [b"a", b"\xff", b"\xc3", b"\xa9", "é".encode(), "\ufffd".encode(), b"\xe2\x98", b"\xf0\x9f", b"\n"]
        )
    ),
    st.integers(1, 9),
)
def test_replaced_characters_are_counted(pieces, size):
    """Counted as Python's decoder calls its error handler, which is what `replace` replaces."""
    import codecs

    data, calls = b"".join([b"x", *pieces]), []

    def count(error):
        calls.append(error)
        return "\ufffd", error.end

    codecs.register_error("dape-test-count", count)
    expected = data.decode("utf-8", "dape-test-count")
    tally = Tally()
    record = documents_module.Record(data, "x", offset=1)
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert "".join(documents_module._decoded(iter(chunks), record, Reading(), tally)) == expected
    assert tally.replaced_characters == len(calls)


def test_strict_names_file_and_byte(tmp_path):
    (tmp_path / "x.txt").write_bytes("né".encode() + b"\xff")
    assert read(tmp_path / "x.txt") == ["né\ufffd"]
    with pytest.raises(ValueError, match=r"x.txt: broken UTF-8 at byte 3 .*`strict`"):
        read(tmp_path / "x.txt", strict=True)
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfab\xff")
    with pytest.raises(ValueError, match="at byte 5"):
        read(tmp_path / "x.txt", strict=True)
    (tmp_path / "y.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(ValueError, match=r"y.jsonl, line 2: broken UTF-8 at byte 24"):
        read(tmp_path / "y.jsonl", strict=True)


def test_byte_order_mark_is_dropped_at_the_beginning(tmp_path):
    (tmp_path / "x.txt").write_bytes("\ufeffa\ufeffb".encode())
    assert read(tmp_path / "x.txt") == ["a\ufeffb"]
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl(["a"]))
    assert read(tmp_path / "x.jsonl") == ["a"]


def test_halves_of_characters_in_json_are_replaced(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(rb'{"text": "a\ud83d \ud83d\ude00 b\ude00"}')
    tally = Tally()
    assert read(tmp_path / "x.jsonl", tally=tally) == ["a\ufffd \N{GRINNING FACE} b\ufffd"]
    assert tally.replaced_characters == 2
    with pytest.raises(ValueError, match=r"x.jsonl, line 1: half of"):
        read(tmp_path / "x.jsonl", strict=True)


def test_python_files_say_how_they_are_encoded(tmp_path, monkeypatch):
    sources = {"a.py": b"# coding: latin-1\nx = '\xe9'\n", "b.py": b"x = '\xe9'\n", "c.py": b"# coding: klingon\n"}
    files = []
    for name, data in sources.items():
        (tmp_path / name).write_bytes(data)
        files.append((name, tmp_path / name))
    monkeypatch.setattr("dape.data.bundled.bundled_files", lambda _: files)
    tally = Tally()
    assert read("stdlib", tally=tally) == ["# coding: latin-1\nx = 'é'\n", "x = '\ufffd'\n", "# coding: klingon\n"]
    assert tally.replaced_characters == 1


# Files that cannot be read -------------------------------------------------------------------------------------------


def test_named_binary_files_are_refused(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"ab\0")
    with pytest.raises(UsageError, match=r"x.bin: is a binary file \(a zero byte at 2\)"):
        read(tmp_path / "x.bin")
    (tmp_path / "x.txt").write_bytes("text".encode("utf-16"))
    with pytest.raises(UsageError, match="seems to be UTF-16"):
        read(tmp_path / "x.txt")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"text": "a\nb"}', "not JSON"),
    ],
    ids=["cut off", "list", "deep", "newline"],
)
def test_broken_lines_are_named(tmp_path, line, message):
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "a"}\n\n' + line)
    with pytest.raises(ValueError, match=rf"x.jsonl, line 3: {message}"):
        read(tmp_path / "x.jsonl")


@pytest.mark.parametrize("damage", ["cut off", "garbage"])
@pytest.mark.parametrize("compression", [".gz", ".zst", ".bz2", ".xz"])
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_damaged_archives_are_named(tmp_path, kind, compression, damage):
    path = tmp_path / f"x.{kind}{compression}"
    data = COMPRESS[compression](
        parquet(TEXTS) if kind == "parquet" else jsonl([os.urandom(999).hex() for _ in range(99)])
    )
    path.write_bytes(data[: len(data) * 2 // 3] if damage == "cut off" else b"this is no archive")
    with pytest.raises(ValueError, match=rf"x.{kind}{compression}: broken {compression} file"):
        read(path)


def test_damaged_parquet_is_named(tmp_path):
    data = parquet(TEXTS)
    for broken in (data[:-9], b"no parquet at all", b"", data[:100] + bytes(60) + data[160:]):
        (tmp_path / "x.parquet").write_bytes(broken)
        with pytest.raises(ValueError, match=r"x.parquet: broken parquet file"):
            read(tmp_path / "x.parquet")


@pytest.mark.parametrize(("name", "library"), [("x.txt.zst", "zstandard"), ("x.parquet", "pyarrow")])
def test_missing_libraries_are_named(tmp_path, monkeypatch, name, library):
    (tmp_path / name).write_bytes(b"")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=re.escape(f"{name}: needs the library {library}; {install_command('data')}")):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ("nowhere.txt", "nowhere.txt: no such file or folder$"),
        (" ", "' ': no such file or folder$"),
        ("a\nb", r"'a\\nb': no such file or folder$"),
        ("STDLIB", "Did you mean 'stdlib'"),
        ("allenai/c4", "write hf:allenai/c4"),
        ("empty", "empty: no text files in this folder"),
        ("hf:a/b/c/d", "hf:OWNER/NAME/CONFIG"),
        ("hf:", "hf:OWNER/NAME"),
        ("hf:./nowhere", "no such folder"),
    ],
)
def test_sources_that_are_not_there(tmp_path, monkeypatch, given_, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=message):
        expand(given_, tmp_path / "spool")


def test_unreadable_files_are_refused_at_once(tmp_path, monkeypatch):
    (tmp_path / "x.txt").write_text("secret")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read anything
    with pytest.raises(UsageError, match=r"x.txt: may not be read"):
        expand(str(tmp_path / "x.txt"), Path())


# The hub -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("hf:wikitext", ("wikitext", None, "train")),
        ("hf:allenai/c4", ("allenai/c4", None, "train")),
        ("hf:allenai/c4/en:validation", ("allenai/c4", "en", "validation")),
        ("hf:/some/folder/deep/down:test", ("/some/folder/deep/down", None, "test")),
    ],
)
def test_names_of_hub_data(spec, name):
    assert HubName.parse(spec) == name


@pytest.fixture(scope="module")
def hub_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "papers"
    folder.mkdir()
    (folder / "train.parquet").write_bytes(parquet(["one", "two", "", "three"]))
    (folder / "test.parquet").write_bytes(parquet(["held out"]))
    return folder


def test_hub_data_is_streamed(hub_folder):
    assert read(f"hf:{hub_folder}") == ["one", "two", "three"]
    assert read(f"hf:{hub_folder}", start=Position(0, 2)) == ["three"]
    assert read(f"hf:{hub_folder}:test") == ["held out"]
    assert expand(f"hf:{hub_folder}", Path()).name == "papers"
    with pytest.raises(UsageError, match=r"has no column 'body'; it has 'n', 'text'"):
        read(f"hf:{hub_folder}", text_field="body")
    with pytest.raises(UsageError, match=r"row 1: 'n' is int, not text"):
        read(f"hf:{hub_folder}", text_field="n")
    with pytest.raises(ValueError, match=r"dev: cannot be opened .*Check name"):
        read(f"hf:{hub_folder}:dev")


def test_hub_data_that_changes_is_noticed(hub_folder):
    before = expand(f"hf:{hub_folder}", Path()).items[0].identity
    assert before == expand(f"hf:{hub_folder}", Path()).items[0].identity
    os.utime(hub_folder / "test.parquet", (1, 1))
    assert before != expand(f"hf:{hub_folder}", Path()).items[0].identity


def test_failures_of_the_hub_are_explained(monkeypatch):
    import datasets

    def offline(*_, **__):
        raise ConnectionError("Couldn't reach 'a/b' on the Hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(ValueError, match=r"hf:a/b:train: .*Couldn't reach 'a/b' on the Hub\).*network"):
        read("hf:a/b")

    class Breaking:
        def skip(self, _):
            yield {"text": "one"}
            raise OSError("connection lost")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: Breaking())
    with pytest.raises(ValueError, match=r"hf:a/b:train: reading row 2 failed \(OSError: connection lost\)"):
        read("hf:a/b")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"needs the library datasets; pip install .*hub"):
        read("hf:a/b")


def test_files_are_closed_when_reading_stops_early(tmp_path):
    """An open file would warn when it is collected, and warnings are errors here."""
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(jsonl(TEXTS)))
    with contextlib.closing(read_documents(expand(str(tmp_path), Path()).items, Reading(), Tally())) as found:
        assert str(next(found).text) == TEXTS[0]
