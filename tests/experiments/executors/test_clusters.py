"""Whole comparisons on a Ray cluster of which a machine is lost, and as jobs that are queued again."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

import dape
from dape.experiments.executors.ray import Ray
from dape.experiments.executors.slurm import Slurm

TINY = {"layers": 1, "width": 16, "heads": 2, "train_length": 16, "batch": 4}
GRID = {"lengths": (16, 32), "windows": 4, "preset": "tiny", "device": "cpu"}
LOG = os.environ.get("DAPE_CLUSTER_LOG")
"""Where the log of the killed machine goes, if it is wanted."""


def rows_of(found) -> set[tuple]:
    return {(row.run, row.length, row.value) for row in found.rows}


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("".join(f"line {n}: {n * n % 97} apples and {n % 13} pears\n" for n in range(3000)))
    return path


@pytest.fixture
def note():
    lines, begin = [], time.monotonic()

    def say(text: str) -> None:
        lines.append(f"[{time.monotonic() - begin:6.1f} s] {text}")
        print(lines[-1])

    yield say
    if LOG:
        Path(LOG).write_text("\n".join(lines) + "\n")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray: sockets it leaves to the end of the process
def test_a_grid_survives_a_machine(book, tmp_path, monkeypatch, note):
    """Eight runs on two raylets; one is killed while it works. All rows come, and they are those of this machine."""
    ray = pytest.importorskip("ray", reason="needs the extra `ray`: pip install 'dape[ray]'")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_health_check_period_ms", "1000")
    same = {**GRID, **TINY, "methods": ("nope", "alibi", "kerple", "dape-kerple"), "seeds": 2, "steps": 200}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    lost = cluster.add_node(num_cpus=1)
    note(f"cluster {cluster.address}: two raylets with 1 core each, Ray {ray.__version__}")
    killed = []
    tick_of = executor_tick(tmp_path / "far", cluster, lost, killed, note)
    try:
        found = dape.compare(
            book, out=tmp_path / "far", executor=Watched(Ray(address=cluster.address), tick_of), **same
        )
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert killed and not found.failures
    logs = {p.parent.name: p.read_text() for p in (tmp_path / "far" / "runs").glob("*/log.txt")}
    note(f"{len({row.run for row in found.rows})} runs finished, failures: {found.failures or 'none'}")
    note("attempts by run: " + json.dumps({n: t.count("attempt on") for n, t in sorted(logs.items())}))
    here = dape.compare(book, out=tmp_path / "here", jobs=2, **same)
    assert len(rows_of(found)) == 16 and rows_of(found) == rows_of(here)
    note("all 16 rows equal those of the same grid done by processes of this machine, to the last bit")
    again = dape.compare(book, out=tmp_path / "far", executor=Ray(address="127.0.0.1:1"), **same)
    assert rows_of(again) == rows_of(here)
    note("the same command again finds everything finished, and needs no cluster")


class Watched:
    """An executor whose progress somebody else looks at, too."""

    def __init__(self, inner, look) -> None:
        self.inner, self.look = inner, look

    def run(self, tasks, *, tick):
        yield from self.inner.run(tasks, tick=lambda running: (self.look(running), tick(running)))


def executor_tick(out, cluster, lost, killed, note):
    def look(running) -> None:
        working = [task for task in running if (task.folder / "metrics.jsonl").exists()]
        if not killed and len(working) == 2:
            note(f"working: {', '.join(task.name for task in working)}")
            killed.append(time.monotonic())
            cluster.remove_node(lost, allow_graceful=False)
            note("one raylet killed (SIGKILL)")

    return look


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_failing_run_is_listed_and_others_go_on(book, tmp_path):
    ray = pytest.importorskip("ray", reason="needs the extra `ray`: pip install 'dape[ray]'")
    same = {**GRID, **TINY, "methods": ("nope", "alibi"), "seeds": 1, "steps": 3}
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    try:
        with pytest.raises(ValueError, match="no machine of the Ray cluster has them"):
            dape.compare(book, out=tmp_path / "x", executor=Ray(gpus=1), **same)
        found = dape.compare(book, out=tmp_path / "out", executor=Sabotage(), **same)
    finally:
        ray.shutdown()
    assert list(found.failures) == ["nope-seed0"] and {row.method for row in found.rows} == {"alibi"}


class Sabotage:
    """The first run cannot write its metrics."""

    def run(self, tasks, *, tick):
        (tasks[0].folder / "metrics.jsonl").mkdir()
        yield from Ray().run(tasks, tick=tick)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_job_that_is_interrupted_is_queued_again(book, tmp_path):
    """As Slurm does it before the time is up, by submitit's own local executor."""
    pytest.importorskip("submitit", reason="needs the extra `slurm`: pip install 'dape[slurm]'")
    same = {**GRID, **TINY, "methods": ("alibi", "dape-alibi"), "seeds": 1, "steps": 600}
    signalled = []

    def look(running) -> None:
        for task in running:
            if not signalled and (task.folder / "metrics.jsonl").exists():
                (job,) = (tmp_path / "far" / "slurm").glob(
                    f"{(task.folder / 'slurm-job.txt').read_text().strip()}_*_log.out"
                )
                children = Path(f"/proc/{job.name.split('_')[0]}/task/{job.name.split('_')[0]}/children").read_text()
                signalled.append(task)
                os.kill(int(children.split()[0]), signal.SIGUSR2)

    far = Watched(Slurm(cluster="local", minutes=30), look)
    found = dape.compare(book, out=tmp_path / "far", executor=far, **same)
    assert signalled and not found.failures
    said = "".join(p.read_text() for p in (tmp_path / "far" / "slurm").glob("*_log.*"))
    assert "this job is preempted" in said
    assert signalled[0].log.read_text().count("attempt on") == 2
    here = dape.compare(book, out=tmp_path / "here", jobs=2, **same)
    assert rows_of(found) == rows_of(here)
