"""Runs as tasks of a Ray cluster. If a machine is lost, Ray starts its runs again on another one."""

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
from dape.experiments.executors.base import (
    ClusterExecutor,
    RemoteRun,
    append_log,
    deliver,
    exit_code,
    has_begun,
    require,
    stop,
)

ANSWER_SECONDS = 30
"""Time for a cluster to answer at its address."""
RETRIES = 5
"""Further attempts of a run whose machine is lost."""


@dataclass(frozen=True, kw_only=True)
class Ray(ClusterExecutor):
    address: str | None = None
    """HOST:PORT. None: $RAY_ADDRESS, or the cluster that this machine belongs to, or a new one (as ``ray.init``)."""

    def run(self, tasks: Sequence[Task], *, tick: Callable[[Sequence[Task]], None]) -> Iterator[tuple[Task, int]]:
        ray = require("ray")
        ours = not ray.is_initialized()
        if ours:
            connect(self.address)
        self._check_resources()
        try:
            yield from self._run(tasks, tick)
        finally:
            if ours:
                ray.shutdown()

    def _run(self, tasks: Sequence[Task], tick: Callable[[Sequence[Task]], None]) -> Iterator[tuple[Task, int]]:
        ray = require("ray")
        work = ray.remote(do_run).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=RETRIES)
        waiting, running, begin = list(tasks), dict[Any, Task](), time.time()
        try:
            while waiting or running:
                while waiting and len(running) < (self.at_a_time or len(tasks)):
                    task = waiting.pop(0)
                    running[work.remote(RemoteRun.of(task))] = task
                done, _ = ray.wait(list(running), num_returns=len(running), timeout=executor.POLL_SECONDS)
                for reference in done:
                    task = running.pop(reference)
                    yield task, _outcome(task, reference)
                tick([task for task in running.values() if has_begun(task, begin)])
        finally:
            for reference in running:
                ray.cancel(reference, force=False)  # interrupts `do_run`, which lets the worker save
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=executor.PATIENCE_SECONDS)

    def _check_resources(self) -> None:
        """Raise UsageError if no machine has the resources of a run. Ray would wait for such a machine forever."""
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
        append_log(task, f"Ray gave up after {RETRIES + 1} attempts: {str(error).splitlines()[0]}")
        return 1
    deliver(task, files)
    return code


def do_run(run: RemoteRun) -> tuple[int, dict[str, bytes]]:
    """Do the run on a machine of the cluster. Returns the worker's exit code and the files to send back."""
    folder, shared = run.work_folder()
    child: subprocess.Popen[bytes] | None = None
    try:
        child = run.start(folder)
        code = exit_code(child)
    finally:
        stop(child)
    return code, run.results(folder, shared)


def connect(address: str | None) -> None:
    """Connect to the cluster. Raises UsageError if none answers within ANSWER_SECONDS."""
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
    """Raise UsageError unless a Ray cluster answers. ``ray.init`` would try for minutes, and may end the process.

    Ray's health check runs in a child process, because a different program may listen at the address.
    """
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
        raise UsageError(f"`ray_address` {address}: no working Ray cluster listens there; {advice}")
