"""Child processes: each alone in its fate, never more than allowed, none left behind."""

import os
import signal
import time
from pathlib import Path

import pytest

from dape.experiments import executor
from dape.experiments.executor import Local, Task, last_words
from dape.machine import usable_cores

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

CHILD = """
import os, signal, sys, time
run, = sys.argv[1:]
folder, name = os.path.split(run)
what = open(os.path.join(run, "what")).read()
folder = os.path.dirname(folder)
def note(text):
    with open(os.path.join(folder, name), "a") as file:
        file.write(f"{text} {time.monotonic()}\\n")
def save(number, frame):
    note("saved")
    sys.exit(143)
signal.signal(signal.SIGTERM, signal.SIG_IGN if what == "stubborn" else save)
note(f"begin {os.getpid()} {os.getpgid(0)}")
print(f"{name} says hello", flush=True)
print("and complains", file=sys.stderr, flush=True)
if what in ("wait", "stubborn"):
    time.sleep(60)
time.sleep(0.1)
if what == "tell":
    print(os.environ["MALLOC_MMAP_THRESHOLD_"], os.environ["MALLOC_TRIM_THRESHOLD_"], flush=True)
if what == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "fail":
    sys.exit("no such thing")
note("end")
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(executor, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(executor, "WORKER", "some_child")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "some_child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path / "modules")


@pytest.fixture
def task(tmp_path):
    def make(name: str, what: str = "work") -> Task:
        made = Task(name, tmp_path / "runs" / name)
        made.folder.mkdir(parents=True, exist_ok=True)
        (made.folder / "what").write_text(what)
        return made

    return make


def no_tick(running) -> None:
    pass


def notes(tmp_path: Path, name: str) -> dict[str, list[str]]:
    lines = [line.split() for line in (tmp_path / name).read_text().splitlines()]
    return {line[0]: line[1:] for line in lines}


def has_begun(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not has_begun(path):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_task_is_run_and_told(task, tmp_path):
    names = ["a", "b", "c"]
    done = dict(Local(2).run([task(name) for name in names], tick=no_tick))
    assert {t.name: code for t, code in done.items()} == dict.fromkeys(names, 0)
    for name in names:
        assert "end" in notes(tmp_path, name)
        assert (tmp_path / "runs" / name / "log.txt").read_text().split("\n")[:2] == [
            f"{name} says hello",
            "and complains",
        ]


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_more_at_a_time_than_allowed(task, tmp_path, jobs):
    seen = []
    names = ["a", "b", "c", "d"]
    order = [t.name for t, _ in Local(jobs).run([task(n) for n in names], tick=lambda r: seen.append(len(r)))]
    assert max(seen) == jobs and sorted(order) == names
    spans = [(float(found["begin"][-1]), float(found["end"][-1])) for found in (notes(tmp_path, n) for n in names)]
    assert max(sum(a <= begin < b for a, b in spans) for begin, _ in spans) <= jobs
    if jobs == 1:
        assert order == names


def test_one_that_dies_dies_alone(task, tmp_path):
    tasks = [task("killed", "die"), task("failed", "fail"), task("a"), task("b")]
    codes = {t.name: code for t, code in Local(2).run(tasks, tick=no_tick)}
    assert codes == {"killed": -signal.SIGKILL, "failed": 1, "a": 0, "b": 0}
    assert last_words(tmp_path / "runs/failed/log.txt").endswith("no such thing")


def test_an_interrupted_parent_lets_children_save(task, tmp_path, capsys):
    """It says so before it waits for them, and does not begin what was still waiting."""

    def interrupt(running) -> None:
        if all(has_begun(tmp_path / t.name) for t in running):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(Local(2).run([task("a", "wait"), task("b", "wait"), task("c")], tick=interrupt))
    assert capsys.readouterr().err == "stopping: 2 runs will save first\n"
    for name in ("a", "b"):
        assert "saved" in notes(tmp_path, name)
        with pytest.raises(ProcessLookupError):
            os.kill(int(notes(tmp_path, name)["begin"][0]), 0)
    assert not (tmp_path / "c").exists()


def test_an_error_in_whoever_listens_stops_the_children(task, tmp_path):
    def listen() -> None:
        for _ in Local(2).run([task("a"), task("b", "wait")], tick=no_tick):
            wait_for(tmp_path / "b")
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        listen()
    assert "saved" in notes(tmp_path, "b")


def test_a_child_that_does_not_listen_is_killed_in_the_end(task, tmp_path, monkeypatch):
    monkeypatch.setattr(executor, "PATIENCE_SECONDS", 0.3)

    def interrupt(running) -> None:
        if has_begun(tmp_path / "a"):
            raise KeyboardInterrupt

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(Local(1).run([task("a", "stubborn")], tick=interrupt))
    assert time.monotonic() - begin < 30 and "saved" not in notes(tmp_path, "a")
    with pytest.raises(ProcessLookupError):
        os.kill(int(notes(tmp_path, "a")["begin"][0]), 0)


def test_ctrl_c_reaches_the_parent_alone(task, tmp_path):
    """The terminal sends it to a whole process group, so children have groups of their own."""
    list(Local(1).run([task("a")], tick=no_tick))
    pid, group, _ = notes(tmp_path, "a")["begin"]
    assert pid == group != str(os.getpgid(0))


def test_logs_are_kept(task, tmp_path):
    for _ in range(2):
        list(Local(1).run([task("a")], tick=no_tick))
    assert (tmp_path / "runs/a/log.txt").read_text().count("a says hello") == 2


def test_nothing_to_do():
    assert list(Local(2).run([], tick=no_tick)) == []


def test_last_words(tmp_path):
    assert last_words(tmp_path / "nowhere") == "it said nothing"
    (tmp_path / "log").write_bytes(b"\n \n")
    assert last_words(tmp_path / "log") == "it said nothing"
    (tmp_path / "log").write_bytes(b"one\ntwo\n\n  three\nf\xffur\n")
    assert last_words(tmp_path / "log", lines=2) == "three / f\N{REPLACEMENT CHARACTER}ur"


def test_cores():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_workers_keep_the_memory_of_large_tensors(task, monkeypatch):
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")  # what a user has set counts
    told = task("told", "tell")
    assert [code for _, code in Local(1).run([told], tick=lambda running: None)] == [0]
    assert f"{1 << 28} 131072" in told.log.read_text()
