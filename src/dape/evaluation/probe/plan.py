"""The plan of ``dape probe --train``: which runs there are, which are finished, what they have found. No torch here.

OUT/probe.yaml           the settings all runs share
    runs/METHOD-seedN/   a run: metrics.jsonl, checkpoints, rows.jsonl (written last), log.txt
    results.jsonl        the rows of all finished runs
    table.md, depth.png, depth.svg, pairs.png, pairs.svg
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dape.evaluation.probe.config import RecallConfig
from dape.evaluation.probe.worker import Job
from dape.sweep.compare import Run, in_order
from dape.sweep.grid import Effort, Grid, united

SETTINGS = "probe.yaml"


@dataclass(frozen=True, kw_only=True)
class Plan(Grid[Run]):
    methods: tuple[str, ...]
    seeds: int
    config: RecallConfig

    what: ClassVar[str] = "probe"
    settings_name: ClassVar[str] = SETTINGS
    worker: ClassVar[str] = "dape.evaluation.probe.worker"

    def runs(self) -> list[Run]:
        return in_order(self.methods, self.seeds)

    def job(self, run: Run, threads: int) -> Job:
        return Job(config=self.config, method=run.method, seed=run.seed, device=self.device, threads=threads)

    def effort(self, run: Run) -> Effort:
        config = self.config
        repeats = 1 + len({config.pairs, *config.test_pairs})
        tests = {length: float(repeats * config.samples * length) for length in config.lengths}
        return Effort(config.steps, float(config.batch * config.train_length), tests)

    def shared_settings(self) -> dict[str, Any]:
        return asdict(self.config)

    def growing_settings(self, known: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "methods": united(known, "methods", self.methods),
            "seeds": max(self.seeds, known.get("seeds", 0)),
        }
