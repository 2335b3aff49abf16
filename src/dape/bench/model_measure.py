"""The measurements of ``dape bench model``, in an order that survives interruption. Imports torch."""

import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from dape.bench.model_cases import make_trainees, make_trunk
from dape.bench.model_plan import GPT2_VOCABULARY, Planned
from dape.bench.model_records import Group, ModelRow, make_rows
from dape.bench.timing import interleaved
from dape.bench.train_cases import Trainee, Workload
from dape.bench.train_records import TrainPass


class Watch(Protocol):
    """As :class:`dape.bench.progress.Progress`."""

    def begin(self, what: str) -> None: ...

    def step(self) -> None: ...


@dataclass(kw_only=True)
class Session:
    """Size after size, pass after pass; models take turns. What is finished is in ``rows``, come what may."""

    planned: Sequence[Planned]
    encodings: Sequence[str]
    batch: int
    precision: str
    device: str
    seed: int
    rounds: int
    warm_up: int
    minutes: float | None
    rows: list[ModelRow] = field(default_factory=list)

    def steps(self) -> int:
        """How many steps :meth:`run` will report, unless time runs out."""
        return self.rounds * len(self.encodings) * sum(len(p.depths) * len(p.cases) for p in self.planned)

    def run(self, watch: Watch) -> None:
        self._end = math.inf if self.minutes is None else monotonic() + 60 * self.minutes
        self._cases_left = sum(len(planned.cases) for planned in self.planned)
        for planned in self.planned:
            self._run_size(planned, watch)
            gc.collect()  # gigabytes, before the next ones are taken

    def _run_size(self, planned: Planned, watch: Watch) -> None:
        lengths = list(dict.fromkeys(length for length, _ in planned.cases))
        if not lengths:
            return
        watch.begin(f"{planned.size}: initial weights")
        workload = self._workload(planned)
        trunk = make_trunk(workload, lengths[0])
        for length in lengths:
            # Anew for every length: the optimizer's memory is that of one step, and must not outlive it.
            trainees = make_trainees(trunk, self.encodings, planned.depths, workload, length)
            for _, pass_ in (case for case in planned.cases if case[0] == length):
                watch.begin(f"{planned.size}, {length} tokens, {pass_.replace('_', '+')}")
                self._run_case(planned, length, pass_, trainees, watch)

    def _run_case(
        self, planned: Planned, length: int, pass_: TrainPass, trainees: dict[tuple[str, int], Trainee], watch: Watch
    ) -> None:
        calls = {case: getattr(trainee, pass_) for case, trainee in trainees.items()}
        samples: dict[tuple[str, int], list[float]] = {case: [] for case in calls}
        deadline = self._share_of_time()
        try:
            for count, (case, seconds) in enumerate(interleaved(calls, self.rounds, warm_up=self.warm_up), 1):
                samples[case].append(seconds)
                watch.step()
                if count % len(calls) == 0 and monotonic() > deadline:
                    break
        finally:  # an interruption keeps the repetitions that were completed
            self.rows += make_rows(samples, self._group(planned, length, pass_))

    def _share_of_time(self) -> float:
        """When this case should be over: what is left is shared equally, and unused time passed on."""
        now, cases = monotonic(), self._cases_left
        self._cases_left -= 1
        return now + (self._end - now) / cases

    def _group(self, planned: Planned, length: int, pass_: TrainPass) -> Group:
        as_published = self.batch == 1 and length == 512 and planned.shape.vocabulary == GPT2_VOCABULARY
        return Group(
            size=planned.size,
            layers=planned.shape.layers,
            length=length,
            pass_=pass_,
            rounds=self.rounds,
            as_published=as_published,
        )

    def _workload(self, planned: Planned) -> Workload:
        shape = planned.shape
        return Workload(
            layers=max(planned.depths),
            width=shape.width,
            heads=shape.heads,
            vocabulary=shape.vocabulary,
            batch=self.batch,
            precision=self.precision,
            compile=False,
            device=self.device,
            seed=self.seed,
        )
