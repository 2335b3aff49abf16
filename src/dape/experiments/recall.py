"""Small models that learn to recall pairs, tested on longer contexts: ``dape probe --train``. No torch here.

OUT/probe.yaml           the settings all runs share
    runs/METHOD-seedN/   a run: metrics.jsonl, checkpoints, rows.jsonl (written last), log.txt
    results.jsonl        the rows of all finished runs
    table.md, depth.png, depth.svg, pairs.png, pairs.svg
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dape.experiments.compare import MethodsAndSeeds, Run
from dape.experiments.grid import Effort
from dape.experiments.job import Job, Stop, Test
from dape.results.records import Row
from dape.tasks.recall.config import RecallConfig

if TYPE_CHECKING:
    from dape.training.recall import RecallTrainer

SETTINGS = "probe.yaml"


@dataclass(frozen=True, kw_only=True)
class RecallJob(Job):
    config: RecallConfig
    method: str
    seed: int

    kind: ClassVar[str] = "recall"

    def learn(self, folder: Path, stop: Stop) -> "RecallTrainer | None":
        import torch

        from dape.training.recall import RecallTrainer

        device = torch.device(self.device)
        trainer = RecallTrainer(folder, self.config, method=self.method, seed=self.seed, device=device)
        return trainer if trainer.run(stop=stop) else None

    def tests(self, learned: "RecallTrainer", run: str) -> Iterator[Test]:
        from dape.evaluation.recall import measure_at, subject_of
        from dape.provenance import provenance

        model = learned.model.eval()
        subject = subject_of(learned, run=run, extra={**provenance(), "device": self.device})
        for length in sorted(self.config.lengths):
            yield Test(length, "accuracy", lambda _, length=length: measure_at(model, self.config, subject, length))


@dataclass(frozen=True, kw_only=True)
class Recall(MethodsAndSeeds):
    config: RecallConfig

    what: ClassVar[str] = "probe"
    settings_name: ClassVar[str] = SETTINGS

    def job(self, run: Run, threads: int) -> RecallJob:
        return RecallJob(config=self.config, method=run.method, seed=run.seed, device=self.device, threads=threads)

    def effort(self, run: Run) -> Effort:
        config = self.config
        repeats = 1 + len({config.pairs, *config.test_pairs})
        tests = {length: float(repeats * config.samples * length) for length in config.lengths}
        return Effort(config.steps, float(config.batch * config.train_length), tests)

    def found(self, rows: list[Row]) -> str:
        own = [row for row in rows if not {"depth", "pairs"} & set(row.extra)]
        return "accuracy " + " ".join(f"{row.length}: {100 * row.value:.0f}%" for row in own)

    def conditions(self) -> list[str]:
        config = self.config
        return [
            f"train: {config.steps} steps of {config.batch} x {config.train_length} tokens, 2 to {config.pairs} pairs "
            f"of {config.keys} keys and {config.keys} values; {config.layers} layers, width {config.width}, "
            f"{config.heads} heads",
            f"test: {', '.join(map(str, config.lengths))} tokens, {config.samples} sequences each",
        ]

    def shared_settings(self) -> dict[str, Any]:
        return asdict(self.config)
