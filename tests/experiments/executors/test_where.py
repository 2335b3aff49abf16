"""Which executor is meant, what it refuses, and the way of a run's files to a machine that sees no folder of ours."""

import importlib.util
import re
import socket
import threading
import time

import pytest
from filelock import FileLock

from dape.errors import UsageError
from dape.experiments.executor import Task
from dape.experiments.executors import Where, base, ray
from dape.experiments.executors.base import RemoteRun, deliver, require
from dape.experiments.executors.slurm import Slurm
from dape.extras import install_command


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"ray_address": "a:1"}, "`ray_address` is for `executor` ray"),
        ({"executor": "ray", "minutes": 3}, "`minutes` is for `executor` slurm"),
        ({"executor": "ray", "cpus_per_run": 0.0}, "`cpus_per_run`"),
        ({"executor": "ray", "gpus_per_run": -1.0}, "`gpus_per_run`"),
        ({"cpus_per_run": 2.0}, "set `jobs`"),
        ({"executor": "slurm", "minutes": 0}, "`minutes` must be at least 1"),
    ],
)
def test_settings_without_effect_or_sense_are_refused(given, word):
    with pytest.raises(UsageError, match=word):
        Where(**given).build(None)


def test_this_machine_by_default_and_shares_elsewhere(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # as if Ray and submitit were installed
    assert Where().build(3) is None
    far = Where(executor="ray", cpus_per_run=0.5, gpus_per_run=0.25).build(3)
    assert (far.cpus, far.gpus, far.at_a_time, far.threads) == (0.5, 0.25, 3, 1)
    assert far.description == "through Ray with 0.5 cores and 0.25 GPUs each, at most 3 at a time"
    slurm = Where(executor="slurm", cpus_per_run=4, minutes=60).build(None)
    assert slurm.threads == 4 and slurm.description == "through Slurm with 4 cores each"


@pytest.mark.parametrize("extra", ["ray", "slurm"])
def test_a_missing_library_names_its_extra(extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape(install_command(extra))):
        require(extra)
    with pytest.raises(UsageError, match=re.escape(install_command(extra))):
        Where(executor=extra).build(None)  # before any work: the runs begin after the text is prepared


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:99999999999"])
def test_an_address_nobody_answers_at(address):
    with pytest.raises(UsageError, match=f"`ray_address` {address}: no Ray cluster answers"):
        ray._require_answer(address)


def test_something_else_listens(monkeypatch):
    """And never answers: there is a limit to waiting for it."""
    monkeypatch.setattr(ray, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(UsageError, match="no working Ray cluster"):
        ray._require_answer(f"127.0.0.1:{server.getsockname()[1]}")


def test_slurm_gives_whole_cores(tmp_path):
    pytest.importorskip("submitit", reason="needs the extra `slurm`")
    with pytest.raises(UsageError, match="Slurm needs whole numbers"):
        Slurm(cpus=0.5, cluster="local")._executor(tmp_path)


def test_a_machine_that_sees_the_folder_works_there(tmp_path):
    (tmp_path / "job.json").write_text("{}")
    run = RemoteRun.of(Task("a", tmp_path))
    assert run.work_folder() == (tmp_path, True) and run.results(tmp_path, True) == {}


def test_a_machine_that_does_not_works_in_its_cache_and_sends_the_rows(tmp_path, monkeypatch):
    here, task = tmp_path / "here", Task("a", tmp_path / "here" / "a")
    task.folder.mkdir(parents=True)
    (task.folder / "job.json").write_text('{"threads": 1}')
    run = RemoteRun.of(task)
    here.rename(tmp_path / "away")  # another machine has another disk
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    folder, shared = run.work_folder()
    assert not shared and folder.name == "a" and (folder / "job.json").read_text() == '{"threads": 1}'
    assert run.work_folder()[0] == folder  # a second attempt goes on there
    (folder / "log.txt").write_text("done")
    (folder / "rows.jsonl").write_text("rows\n")
    files = run.results(folder, shared)
    assert set(files) == {"rows.jsonl", "log.txt"}
    (tmp_path / "away").rename(here)
    deliver(task, {**files, "../stray": b"x"})
    assert (task.folder / "rows.jsonl").read_text() == "rows\n" and not (here / "stray").exists()


def test_a_job_of_other_settings_in_the_same_place_is_another(tmp_path, monkeypatch):
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    one, two = (RemoteRun(str(tmp_path / "a"), job, "w").work_folder()[0] for job in ('{"x": 1}', '{"x": 2}'))
    assert one != two


def test_the_worker_of_a_lost_attempt_is_waited_for(tmp_path):
    lock = FileLock(tmp_path / ".lock", thread_local=False)
    with lock:
        ending = threading.Timer(0.2, lock.release)
        ending.start()
        base._wait_until_free(tmp_path)
        assert not lock.is_locked
        ending.join()


def test_a_worker_that_does_not_end_is_waited_for_no_longer_than_patience(tmp_path, monkeypatch):
    monkeypatch.setattr(base.executor, "PATIENCE_SECONDS", 0.2)
    with FileLock(tmp_path / ".lock") as lock:
        begin = time.monotonic()
        base._wait_until_free(tmp_path)  # gives up; the new worker then says that the folder is in use
        assert lock.is_locked and 0.2 <= time.monotonic() - begin < 10
