"""Runs as jobs of Slurm, by way of submitit. Before its time is up a run saves, is queued again, and goes on."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dape.errors import UsageError
from dape.experiments import executor
from dape.experiments.executor import Task
from dape.experiments.executors.base import Elsewhere, Errand, became_of, deliver, has_begun, note, require, stop
from dape.files import write_text

REQUEUED = 1000
"""So often at the most."""
WARNING_SECONDS = 120
"""Between Slurm's signal and the end of a job's time: enough to save."""
SUBMITTED = "slurm-job.txt"
"""In a run's folder: the number of its job, by which somebody who starts again finds it."""


@dataclass(frozen=True, kw_only=True)
class Slurm(Elsewhere):
    partition: str | None = None
    minutes: int = 1440
    cluster: str = "slurm"
    """For submitit: ``local`` runs jobs as processes of this machine, to try things out."""

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
                f"`cpus_per_run` {self.cpus:g}, `gpus_per_run` {self.gpus:g}: Slurm gives whole ones; Ray shares them"
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
    """What a job does, and on Slurm's signal, how it is to be done again."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self, errand: Errand) -> tuple[int, dict[str, bytes]]:
        folder, shared = errand.place()
        self._child = errand.start(folder)
        return became_of(self._child), errand.results(folder, shared)

    def checkpoint(self, errand: Errand) -> Any:
        from submitit.helpers import DelayedSubmission

        stop(self._child)
        return DelayedSubmission(Work(), errand)


def _submit(jobs: Any, task: Task) -> Any:
    """A new job, or the one that an earlier attempt has submitted and that is still queued or running."""
    known = task.folder / SUBMITTED
    if jobs.cluster == "slurm" and known.is_file():
        job = jobs._executor.job_class(folder=jobs.folder, job_id=known.read_text(encoding="utf-8").strip())
        if not job.done(force_check=True):
            return job
    job = jobs.submit(Work(), Errand.of(task))
    write_text(known, f"{job.job_id}\n")
    return job


def _outcome(task: Task, job: Any) -> int:
    from submitit.core.utils import FailedJobError, UncompletedJobError

    try:
        code, files = job.result()
    except (UncompletedJobError, FailedJobError) as error:
        note(task, f"job {job.job_id}: {str(error).splitlines()[0]}")
        return 1
    deliver(task, files)
    return code
