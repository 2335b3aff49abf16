"""Runs as Slurm jobs, through submitit. Before its time limit a run saves and is queued again."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from dape.files import write_text

REQUEUED = 1000
"""How often a run may be queued again."""
WARNING_SECONDS = 120
"""Time to save between Slurm's signal and the time limit."""
SUBMITTED = "slurm-job.txt"
"""A file in the run's folder with the number of its job, so that starting the grid again finds the job."""


@dataclass(frozen=True, kw_only=True)
class Slurm(ClusterExecutor):
    partition: str | None = None
    minutes: int = 1440
    cluster: str = "slurm"
    """For submitit: ``local`` runs jobs as processes of this machine, for tests."""

    def run(self, tasks: Sequence[Task], *, tick: Callable[[Sequence[Task]], None]) -> Iterator[tuple[Task, int]]:
        require("slurm")
        if not tasks:
            return
        jobs = self._executor(tasks[0].folder.parent.parent / "slurm")
        waiting, running, begin = list(tasks), dict[Task, Any](), time.time()
        try:
            while waiting or running:
                while waiting and len(running) < (self.at_a_time or len(tasks)):
                    task = waiting.pop(0)
                    running[task] = _submit(jobs, task)
                time.sleep(executor.POLL_SECONDS)
                for task in [task for task, job in running.items() if job.done()]:
                    yield task, _outcome(task, running.pop(task))
                tick([task for task in running if has_begun(task, begin)])
        finally:
            for job in running.values():
                job.cancel()

    def _executor(self, folder: Path) -> Any:
        import submitit

        if self.cpus != int(self.cpus) or self.gpus != int(self.gpus):
            raise UsageError(
                f"`cpus_per_run` {self.cpus:g}, `gpus_per_run` {self.gpus:g}: Slurm needs whole numbers; Ray can share "
                "a core or GPU"
            )
        try:
            jobs = submitit.AutoExecutor(folder=folder, cluster=self.cluster, slurm_max_num_timeout=REQUEUED)
        except RuntimeError as error:
            raise UsageError(f"`executor` slurm: {error} (is sbatch on this machine?)") from error
        more = {"slurm_partition": self.partition} if self.partition else {}
        jobs.update_parameters(
            name="dape",
            cpus_per_task=int(self.cpus),
            gpus_per_node=int(self.gpus),
            timeout_min=self.minutes,
            slurm_signal_delay_s=WARNING_SECONDS,
            **more,
        )
        return jobs


class Work:
    """A job: does the run, and is queued again on Slurm's signal."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self, run: RemoteRun) -> tuple[int, dict[str, bytes]]:
        folder, shared = run.work_folder()
        self._child = run.start(folder)
        return exit_code(self._child), run.results(folder, shared)

    def checkpoint(self, run: RemoteRun) -> Any:
        """Called by submitit on Slurm's signal: let the run save, and return the job to submit next."""
        from submitit.helpers import DelayedSubmission

        stop(self._child)
        return DelayedSubmission(Work(), run)


def _submit(jobs: Any, task: Task) -> Any:
    """A new job, or the job of an earlier attempt if it is still queued or running."""
    known = task.folder / SUBMITTED
    if jobs.cluster == "slurm" and known.is_file():
        job = jobs._executor.job_class(folder=jobs.folder, job_id=known.read_text(encoding="utf-8").strip())
        if not job.done(force_check=True):
            return job
    job = jobs.submit(Work(), RemoteRun.of(task))
    write_text(known, f"{job.job_id}\n")
    return job


def _outcome(task: Task, job: Any) -> int:
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        code, files = job.result()
    except (UncompletedJobError, FailedJobError) as error:
        append_log(task, f"job {job.job_id}: {str(error).splitlines()[0]}")
        return 1
    deliver(task, files)
    return code
