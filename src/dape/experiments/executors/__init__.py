"""Executors for other machines: Ray and Slurm."""

from dataclasses import dataclass
from typing import Any, Literal

from dape.errors import UsageError, check_counts
from dape.experiments.executor import Executor
from dape.experiments.executors.base import ClusterExecutor, find_library

__all__ = ["ClusterExecutor", "Where"]


@dataclass(frozen=True, kw_only=True)
class Where:
    """The options that choose an executor."""

    executor: Literal["local", "ray", "slurm"] = "local"
    """local: processes of this machine. ray: a Ray cluster (extra `ray`). slurm: jobs of Slurm (extra `slurm`)."""
    ray_address: str | None = None
    """HOST:PORT of the cluster's head; by default $RAY_ADDRESS, or the cluster that this machine belongs to, or a new
    cluster of this machine only."""
    cpus_per_run: float | None = None
    """Cores of a run on a cluster, by default 1; with Ray also less than one."""
    gpus_per_run: float | None = None
    """GPUs of a run on a cluster, by default 0; with Ray also less than one."""
    partition: str | None = None
    """Slurm's partition for the jobs."""
    minutes: int | None = None
    """Slurm's time limit of a job, by default 1440. A run that needs longer is queued again and continues."""

    def build(self, jobs: int | None) -> Executor | None:
        """The executor, or None for this machine. ``jobs`` limits the runs at a time; by default resources do.

        Raises UsageError if its library is missing: now, and not after the text is prepared and torch is imported.
        """
        self._check()
        if self.executor == "local":
            return None
        shares = {"cpus": self.cpus_per_run, "gpus": self.gpus_per_run}
        given = {"at_a_time": jobs, **{name: share for name, share in shares.items() if share is not None}}
        built = self._ray(**given) if self.executor == "ray" else self._slurm(**given)
        find_library(self.executor)
        return built

    def _ray(self, **given: Any) -> Executor:
        from dape.experiments.executors.ray import Ray

        return Ray(address=self.ray_address, **given)

    def _slurm(self, **given: Any) -> Executor:
        from dape.experiments.executors.slurm import Slurm

        return Slurm(partition=self.partition, minutes=self.minutes or Slurm.minutes, **given)

    def _check(self) -> None:
        """Raise UsageError on options that would have no effect."""
        for name, executor in (("ray_address", "ray"), ("partition", "slurm"), ("minutes", "slurm")):
            if getattr(self, name) is not None and self.executor != executor:
                raise UsageError(f"`{name}` is for `executor` {executor}, not for {self.executor}")
        for name in ("cpus_per_run", "gpus_per_run"):
            if getattr(self, name) is not None and self.executor == "local":
                raise UsageError(
                    f"`{name}` is for `executor` ray or slurm; on this machine, set `jobs` (runs at a time)"
                )
        check_counts(self, "minutes")
