"""Files and folders that appear whole or not at all, and locks."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dape import files
from dape.errors import UsageError
from dape.files import check_writable_file, check_writable_folder, locked, new_folder, only_one, replacing, write_text


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Files ---------------------------------------------------------------------------------------------------------------


def test_write_text(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "eins\n")
    write_text(path, "zwei ü\n")
    assert path.read_bytes() == "zwei ü\n".encode() and names_in(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)), replacing(path) as temporary:
        temporary.write_text("half of the ne")
        raise error
    assert path.read_text() == "old" and names_in(tmp_path) == ["a.txt"]


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old" and temporary.parent == tmp_path
    assert path.read_text() == "new"


def test_it_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    happened = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (happened.append("fsync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda *args: (happened.append("replace"), replace(*args)))
    write_text(tmp_path / "a.txt", "new")
    assert happened[:2] == ["fsync", "replace"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real" / "a.txt")
    write_text(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real" / "a.txt").read_text() == "new"


# Folders -------------------------------------------------------------------------------------------------------------


def test_a_new_folder(tmp_path):
    target = tmp_path / "a"
    with new_folder(target) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "b.txt").write_text("text")
        assert not target.exists() and temporary.name.startswith(".a.")
    assert (target / "inner" / "b.txt").read_text() == "text" and names_in(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_no_folder(tmp_path, error):
    with pytest.raises(type(error)), new_folder(tmp_path / "a") as temporary:
        (temporary / "b.txt").write_text("half")
        raise error
    assert names_in(tmp_path) == []


def test_an_existing_folder_is_not_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("old")
    with pytest.raises(OSError), new_folder(tmp_path / "a") as temporary:
        (temporary / "b.txt").write_text("new")
    assert (tmp_path / "a" / "b.txt").read_text() == "old" and names_in(tmp_path) == ["a"]


def test_what_a_killed_process_left_is_no_obstacle(tmp_path):
    left = files._temporary(tmp_path / "a")
    left.mkdir()
    (left / "old.txt").touch()
    with new_folder(tmp_path / "a") as temporary:
        (temporary / "b.txt").touch()
    assert names_in(tmp_path / "a") == ["b.txt"]


# Checks in advance ---------------------------------------------------------------------------------------------------


def test_files_that_can_be_written(tmp_path):
    (tmp_path / "there.txt").touch()
    for name in ("there.txt", "new.txt"):
        check_writable_file(tmp_path / name, "--json")
    assert names_in(tmp_path) == ["there.txt"]


def test_folders_that_can_be_written(tmp_path):
    for name in (".", "new", "new/and/deeper"):
        check_writable_folder(tmp_path / name, "--out")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("check", "name", "words"),
    [
        (check_writable_file, "folder", "--flag .*folder: is not a regular file"),
        (check_writable_file, "nowhere/a.txt", "the folder .*nowhere does not exist; create it first"),
        (check_writable_folder, "file", "file is a file, not a folder"),
        (check_writable_folder, "file/below", "file is a file, not a folder"),
    ],
)
def test_what_cannot_be_written(tmp_path, check, name, words):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=words):
        check(tmp_path / name, "--flag")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_permissions(tmp_path):
    (tmp_path / "file").touch(0o444)
    (tmp_path / "folder").mkdir(0o555)
    with pytest.raises(UsageError, match="may not be written"):
        check_writable_file(tmp_path / "file", "--json")
    for check, path in ((check_writable_file, "folder/a"), (check_writable_folder, "folder/a")):
        with pytest.raises(UsageError, match=r"cannot create files in .*folder \(Permission denied\)"):
            check(tmp_path / path, "--out")


# Locks ---------------------------------------------------------------------------------------------------------------


def test_one_at_a_time(tmp_path):
    first, second = locked(tmp_path / "a"), locked(tmp_path / "a")
    with first, locked(tmp_path / "b"), pytest.raises(UsageError, match="in use by another dape process"), second:
        pass
    with locked(tmp_path / "a"):
        pass


def test_a_killed_process_releases_its_lock(tmp_path):
    code = (
        "import pathlib, sys, time, dape.files\n"
        "with dape.files.locked(pathlib.Path(sys.argv[1])):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "locked\n"
    with pytest.raises(UsageError), locked(tmp_path):
        pass
    child.send_signal(signal.SIGKILL)
    child.communicate()
    with locked(tmp_path):
        pass


def test_an_error_releases_the_lock(tmp_path):
    with pytest.raises(ValueError, match="wrong"), locked(tmp_path):
        raise ValueError("wrong")
    with locked(tmp_path):
        pass


def test_a_lock_file_that_is_to_go_goes(tmp_path):
    lock = tmp_path / "a.lock"
    with only_one(lock, "busy", remove=True):
        with pytest.raises(UsageError, match="busy"), only_one(lock, "busy", remove=True):
            pass
        assert lock.exists(), "whoever is refused must not take away the lock of the other"
    assert not lock.exists()


@pytest.mark.parametrize("number, goes_on", [(errno.ENOLCK, True), (errno.EOPNOTSUPP, True), (errno.EIO, False)])
def test_a_file_system_without_locks_is_worked_on_without(tmp_path, monkeypatch, number, goes_on):
    def refuse(*_) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    expected = contextlib.nullcontext() if goes_on else pytest.raises(OSError, match=os.strerror(number))
    with expected, locked(tmp_path):
        (tmp_path / "done").touch()
    assert (tmp_path / "done").exists() == goes_on


# What killed processes leave -----------------------------------------------------------------------------------------


@pytest.fixture
def gone() -> int:
    """The number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_what_killed_processes_left_is_swept_at_the_next_start(tmp_path, gone):
    def litter(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text("half")

    litter(f".curves.png.{gone}.tmp", f".curves.png.{os.getpid()}.tmp", f".other.{gone}.tmp", ".notes.tmp", "x.tmp")
    (tmp_path / f".maps.{gone}.tmp").mkdir()
    litter(f".maps.{gone}.tmp/half")
    check_writable_file(tmp_path / "curves.png", "--figure")
    assert f".curves.png.{gone}.tmp" not in names_in(tmp_path) and f".other.{gone}.tmp" in names_in(tmp_path)
    check_writable_folder(tmp_path / "maps", "--out")
    assert f".maps.{gone}.tmp" not in names_in(tmp_path) and f".other.{gone}.tmp" in names_in(tmp_path)
    with locked(tmp_path):
        assert names_in(tmp_path) == [f".curves.png.{os.getpid()}.tmp", ".lock", ".notes.tmp", "x.tmp"]
