"""Compiled libraries: only whole ones are loaded, from where only we can write, and no compiler outlives its caller."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dape.ops import native

pytestmark = [
    pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler"),
    pytest.mark.skipif(os.name != "posix", reason="about permissions and signals"),
]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "answer.cpp"
    path.write_text('extern "C" int answer() { return 42; }\n')
    return path


# What it is made of --------------------------------------------------------------------------------------------------


def test_a_changed_header_is_compiled_anew(cache, tmp_path, capsys):
    source, header = tmp_path / "answer.cpp", tmp_path / "words.h"
    source.write_text('#include "words.h"\nextern "C" int answer() { return WORD; }\n')
    answers = []
    for word in (42, 43):
        header.write_text(f"#include <cmath>\n#define WORD {word}\n")
        answers.append(ctypes.CDLL(str(native.build(source))).answer())
    assert answers == [42, 43] and native.parts_of(source) == [source, header]
    assert capsys.readouterr().err.count("compiling answer.cpp, an attention kernel,") == 2


# Damage --------------------------------------------------------------------------------------------------------------


def flip(library: Path) -> None:
    """The 42, wherever it is: the library still loads."""
    content = bytearray(library.read_bytes())
    for at in [i for i, byte in enumerate(content) if byte == 42]:
        content[at] = 43
    library.write_bytes(content)


def truncate(library: Path) -> None:
    os.truncate(library, library.stat().st_size // 3)


def empty(library: Path) -> None:
    os.truncate(library, 0)


@pytest.mark.parametrize("damage", [flip, truncate, empty])
def test_a_damaged_library_is_built_anew(cache, source, damage):
    whole = native.build(source)
    before = whole.read_bytes()
    damage(whole)
    again = native.build(source)
    assert again.read_bytes() == before and list(cache.iterdir()) == [again]
    assert ctypes.CDLL(str(again)).answer() == 42


def test_a_library_without_a_hash_in_its_name_is_not_loaded(cache, source):
    """As older versions of dape wrote them."""
    whole = native.build(source)
    old = cache / f"{whole.name.split('-')[0]}.so"
    old.write_bytes(b"nonsense")
    assert native.build(source) == whole


# Who can write -------------------------------------------------------------------------------------------------------


def test_a_link_is_refused_and_its_target_stays_as_it_is(cache, source, tmp_path):
    target = tmp_path / "precious"
    target.mkdir(mode=0o755)
    cache.parent.mkdir()
    cache.symlink_to(target)
    with pytest.raises(OSError, match="is a symbolic link; remove it, or set DAPE_CACHE"):
        native.build(source)
    assert target.stat().st_mode & 0o777 == 0o755 and not list(target.iterdir())


def test_a_dangling_link_is_refused(cache, source, tmp_path):
    cache.parent.mkdir()
    cache.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="is a symbolic link"):
        native.build(source)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_write_is_refused_and_stays_as_it_is(cache, source, mode):
    cache.mkdir(parents=True)
    cache.chmod(mode)
    with pytest.raises(OSError, match="kernels can be written by others; set DAPE_CACHE to a folder of your own"):
        native.build(source)
    assert cache.stat().st_mode & 0o7777 == mode and not list(cache.iterdir())


def test_nor_may_the_folders_above_be_writable_by_all_unless_sticky(cache, source):
    cache.mkdir(mode=0o700, parents=True)
    cache.parent.chmod(0o777)
    with pytest.raises(OSError, match="cache can be written by others"):
        native.build(source)
    cache.parent.chmod(0o1777)  # as /tmp
    assert native.build(source).is_file()


def test_what_others_could_have_written_is_not_loaded(cache, source):
    native.build(source).chmod(0o722)
    with pytest.raises(OSError, match="can be written by others; delete it"):
        native.build(source)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["folder", "library"])
def test_what_belongs_to_another_user_is_refused(cache, source, what):
    library = native.build(source)
    os.chown(cache if what == "folder" else library, 12345, 12345)
    with pytest.raises(OSError, match="belongs to another user"):
        native.build(source)


def test_a_folder_reached_through_a_link_above_it_is_fine(source, tmp_path, monkeypatch):
    """A cache on another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "link"))
    assert native.build(source).resolve().parent == tmp_path / "disk" / "kernels"


# Interruptions -------------------------------------------------------------------------------------------------------

SLOW = """#!/bin/sh
case "$*" in *--version*) echo slow; exit 0;; esac
sleep 600 &
echo $$ $! > "$PIDS/pids.tmp"
touch "$TMPDIR/ccX.s"
mv "$PIDS/pids.tmp" "$PIDS/pids"
wait
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_compilation_leaves_no_process_and_no_file(cache, source, tmp_path, number):
    slow, temporary = tmp_path / "slow", tmp_path / "tmp"
    slow.write_text(SLOW)
    slow.chmod(0o700)
    temporary.mkdir()
    code = f"from pathlib import Path; from dape.ops import native; native.build(Path({str(source)!r}))"
    env = {**os.environ, "CXX": str(slow), "PIDS": str(tmp_path), "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.PIPE) as process:
        assert wait_for((tmp_path / "pids").exists), process.stderr
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert all(map(alive, pids))
        process.send_signal(number)
        process.communicate(timeout=20)
    assert process.returncode == -number or number == signal.SIGINT
    assert wait_for(lambda: not any(map(alive, pids))), "the compiler goes on"
    assert wait_for(lambda: not list(cache.iterdir())) and not list(temporary.iterdir())


def test_a_compiler_that_takes_too_long_is_ended(cache, source, tmp_path, monkeypatch):
    slow = tmp_path / "slow"
    slow.write_text(SLOW)
    slow.chmod(0o700)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setenv("PIDS", str(tmp_path))
    monkeypatch.setattr(native, "TIMEOUT", 1)
    with pytest.raises(OSError, match=r"could not be run.*timed out"):
        native.build(source)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert wait_for(lambda: not any(map(alive, pids))) and not list(cache.iterdir())


def test_what_a_stopped_machine_has_left_is_swept(cache, source):
    old, new = cache / "compiling-old", cache / "compiling-new"
    for folder in (old, new):
        folder.mkdir(parents=True, mode=0o700)
        (folder / "kernel.o").touch()
    cache.chmod(0o700)
    os.utime(old, (0, 0))
    native.build(source)
    assert not old.exists() and new.is_dir()
