"""The measurements of ``dape bench train``, in an order that survives interruption. Imports torch."""

import contextlib
from dataclasses import dataclass, field

from dape.bench.progress import Progress
from dape.bench.timing import interleaved
from dape.bench.train_cases import Workload, make_trainee, room_for_graphs
from dape.bench.train_records import TrainPass, TrainRow, make_rows


@dataclass(kw_only=True)
class Session:
    """Length after length, pass after pass; models take turns. What is finished is in ``rows``, come what may."""

    workload: Workload
    models: list[str]
    lengths: list[int]
    passes: list[TrainPass]
    repeats: int
    warm_up: int
    rows: list[TrainRow] = field(default_factory=list)

    def steps(self) -> int:
        """How many steps :meth:`run` will report."""
        return len(self.lengths) * len(self.passes) * len(self.models) * self.repeats

    def run(self, progress: Progress) -> None:
        for length in self.lengths:
            # With gradients and without are two graphs of a model, and each of them may come in several pieces.
            graphs = room_for_graphs(4 * len(self.models)) if self.workload.compile else contextlib.nullcontext()
            with graphs:
                self._run_length(length, progress)

    def _run_length(self, length: int, progress: Progress) -> None:
        progress.begin(f"{length} tokens, initial weights")
        trainees = {model: make_trainee(model, self.workload, length) for model in self.models}
        for pass_ in self.passes:
            progress.begin(f"{length} tokens, {pass_.replace('_', '+')}")
            calls = {model: getattr(trainee, pass_) for model, trainee in trainees.items()}
            samples: dict[str, list[float]] = {model: [] for model in self.models}
            try:
                for model, seconds in interleaved(calls, self.repeats, warm_up=self.warm_up):
                    samples[model].append(seconds)
                    progress.step()
            finally:  # an interruption keeps the repetitions that were completed
                self._add(samples, length, pass_, {model: trainee.size for model, trainee in trainees.items()})

    def _add(self, samples: dict[str, list[float]], length: int, pass_: TrainPass, sizes: dict[str, int]) -> None:
        self.rows += make_rows(
            samples,
            length=length,
            pass_=pass_,
            batch=self.workload.batch,
            parameters=sizes,
            repeats=self.repeats,
        )
