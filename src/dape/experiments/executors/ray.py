"""Runs as tasks of a Ray cluster. A machine that is lost loses no run: Ray starts it again on another one."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dape.errors import UsageError
from dape.experiments import executor
from dape.experiments.executor import Task
from dape.experiments.executors.base import Elsewhere, Errand, became_of, deliver, has_begun, note, require, stop

ANSWER_SECONDS = 30
"""For a cluster to answer at its address."""
ATTEMPTS = 5
"""Of a run whose machine is lost, beside the first."""


@dataclass(frozen=True, kw_only=True)
class Ray(Elsewhere):
    address: str | None = None
    """HOST:PORT; None as for ``ray.init``: what $RAY_ADDRESS or this machine knows, else a cluster of its own."""

    def run(self, tasks: Sequence[Task], *, tick: Callable[[Sequence[Task]], None]) -> Iterator[tuple[Task, int]]:
        ray = require("ray")
        ours = not ray.is_initialized()
        if ours:
            connect(self.address)
        self._check_room()
        try:
            yield from self._run(tasks, tick)
        finally:
            if ours:
                ray.shutdown()

    def _run(self, tasks: Sequence[Task], tick: Callable[[Sequence[Task]], None]) -> Iterator[tuple[Task, int]]:
        ray = require("ray")
        work = ray.remote(do).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=ATTEMPTS)
        waiting, running, begin = list(tasks), dict[Any, Task](), time.time()
        try:
            while waiting or running:
                while waiting and len(running) < (self.at_a_time or len(tasks)):
                    task = waiting.pop(0)
                    running[work.remote(Errand.of(task))] = task
                done, _ = ray.wait(list(running), num_returns=len(running), timeout=executor.POLL_SECONDS)
                for reference in done:
                    task = running.pop(reference)
                    yield task, _outcome(task, reference)
                tick([task for task in running.values() if has_begun(task, begin)])
        finally:
            for reference in running:
                ray.cancel(reference, force=False)  # an interrupt in `do`, which lets the worker save
            ray.wait(list(running), num_returns=len(running), timeout=executor.PATIENCE_SECONDS) if running else None

    def _check_room(self) -> None:
        """A share that no machine has would be waited for without end."""
        ray = require("ray")
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes):
            return
        most = {kind: max((node.get(kind, 0) for node in nodes), default=0) for kind in ("CPU", "GPU")}
        raise UsageError(
            f"`cpus_per_run` {self.cpus:g} and `gpus_per_run` {self.gpus:g}: no machine of the Ray cluster has them; "
            f"the largest have {most['CPU']:g} cores and {most['GPU']:g} GPUs"
        )


def _outcome(task: Task, reference: Any) -> int:
    ray = require("ray")
    try:
        code, files = ray.get(reference)
    except ray.exceptions.RayError as error:
        note(task, f"Ray gave the run up after {ATTEMPTS + 1} attempts: {str(error).splitlines()[0]}")
        return 1
    deliver(task, files)
    return code


def do(errand: Errand) -> tuple[int, dict[str, bytes]]:
    """On a machine of the cluster."""
    folder, shared = errand.place()
    child: subprocess.Popen[bytes] | None = None
    try:
        child = errand.start(folder)
        code = became_of(child)
    finally:
        stop(child)
    return code, errand.results(folder, shared)


def connect(address: str | None) -> None:
    """Within a time limit."""
    ray = require("ray")
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address and address not in ("auto", "local"):
        _require_answer(address)
    # Workers find modules where this process does, also when dape is run from a source tree.
    modules = os.pathsep.join(p for p in sys.path if p)
    try:
        ray.init(
            address=address,
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="warning",
            runtime_env={"env_vars": {"PYTHONPATH": modules}},
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(f"`ray_address` {address}: {str(error).splitlines()[0]}") from error


def _require_answer(address: str) -> None:
    """Ray itself tries for minutes, and may end the process. As something else may listen there, a child asks it."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    advice = "start one with `ray start --head`, and give HOST:PORT as it prints it"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(f"`ray_address` {address}: no Ray cluster answers there ({error}); {advice}") from error
    if address.startswith("ray://"):
        return
    question = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        healthy = subprocess.run(question, capture_output=True, timeout=ANSWER_SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        healthy = False
    if not healthy:
        raise UsageError(f"`ray_address` {address}: what listens there is no Ray cluster that works; {advice}")
