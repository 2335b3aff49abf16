"""Runs on other machines: through Ray, or through Slurm. Both start our worker on a run's folder, and nothing else."""

from dataclasses import dataclass
from typing import Literal

from dape.errors import UsageError
from dape.experiments.executor import Executor
from dape.experiments.executors.base import Elsewhere

__all__ = ["Elsewhere", "Where"]


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where the runs of an experiment are done."""

    executor: Literal["local", "ray", "slurm"] = "local"
    """local: processes of this machine. ray: a Ray cluster (extra `ray`). slurm: jobs of Slurm (extra `slurm`)."""
    ray_address: str | None = None
    """HOST:PORT of the cluster's head; by default $RAY_ADDRESS, or the cluster this machine belongs to, or a new one of
    this machine alone."""
    cpus_per_run: float | None = None
    """Cores that a run takes on a cluster, by default 1; for Ray also less than one."""
    gpus_per_run: float | None = None
    """GPUs that a run takes on a cluster, by default 0; for Ray also less than one."""
    partition: str | None = None
    """Of Slurm, for its jobs."""
    minutes: int | None = None
    """That Slurm gives a job, by default 1440. A run that needs longer is queued again and goes on."""

    def build(self, jobs: int | None) -> Executor | None:
        """None for this machine. ``jobs``: runs at a time; by default as many as there is room for."""
        self._check()
        shares = {"cpus": self.cpus_per_run, "gpus": self.gpus_per_run}
        given = {"at_a_time": jobs, **{name: share for name, share in shares.items() if share is not None}}
        if self.executor == "ray":
            from dape.experiments.executors.ray import Ray

            return Ray(address=self.ray_address, **given)
        if self.executor == "slurm":
            from dape.experiments.executors.slurm import Slurm

            return Slurm(partition=self.partition, minutes=self.minutes or Slurm.minutes, **given)
        return None

    def _check(self) -> None:
        """Rather than leave a setting without effect."""
        for name, of in (("ray_address", "ray"), ("partition", "slurm"), ("minutes", "slurm")):
            if getattr(self, name) is not None and self.executor != of:
                raise UsageError(f"`{name}` is for `executor` {of}, not for {self.executor}")
        for name in ("cpus_per_run", "gpus_per_run"):
            if getattr(self, name) is not None and self.executor == "local":
                raise UsageError(f"`{name}` is for `executor` ray or slurm; here `jobs` says how many runs share it")
        if self.minutes is not None and self.minutes < 1:
            raise UsageError(f"`minutes` must be at least 1, got {self.minutes}")
