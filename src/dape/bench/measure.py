"""The measurements of ``dape bench attention``, in an order that survives interruption. Imports torch."""

import statistics
from dataclasses import dataclass, field, replace

from dape.bench.cases import Shape, make_call, make_inputs, measure_mb
from dape.bench.estimate import dense_bytes
from dape.bench.memory import MeasurementError
from dape.bench.progress import Progress
from dape.bench.records import Pass, Row
from dape.bench.timing import interleaved
from dape.machine import GB


@dataclass(kw_only=True)
class Session:
    """Length after length: all times of a length, then its memory. What is finished is in ``rows``, come what may."""

    shape: Shape
    impls: list[str]
    passes: list[Pass]
    lengths: list[int]
    repeats: int
    threads: int
    memory: bool
    limit: float
    """Dense implementations that would need more bytes than this are not started."""
    rows: dict[tuple[int, Pass, str], Row] = field(default_factory=dict)

    def steps(self) -> int:
        """How many steps :meth:`run` will report."""
        calls = sum(
            self._too_large(impl, length, pass_) is None
            for length in self.lengths
            for pass_ in self.passes
            for impl in self.impls
        )
        return calls * (self.repeats + self.memory)

    def run(self, progress: Progress) -> None:
        for length in self.lengths:
            for pass_ in self.passes:
                self._time(length, pass_, progress)
            if self.memory:
                self._measure_memory(length, progress)

    def finished(self) -> list[Row]:
        return list(self.rows.values())

    def _time(self, length: int, pass_: Pass, progress: Progress) -> None:
        inputs = make_inputs(self.shape, length)
        notes = {impl: self._too_large(impl, length, pass_) for impl in self.impls}
        calls = {impl: make_call(impl, inputs, pass_) for impl in self.impls if notes[impl] is None}
        seconds: dict[str, list[float]] = {impl: [] for impl in calls}
        progress.begin(f"{length} tokens, {pass_.replace('_', '+')}")
        try:
            for impl, taken in interleaved(calls, self.repeats):
                seconds[impl].append(taken)
                progress.step()
        finally:  # an interruption keeps the repetitions that were completed
            for impl, note in notes.items():
                if note is not None:
                    self._add(impl, length, pass_, note=note)
                elif seconds[impl]:
                    ms = 1000 * statistics.median(seconds[impl])
                    self._add(impl, length, pass_, ms=ms, note=self._if_partial(len(seconds[impl])))

    def _add(self, impl: str, length: int, pass_: Pass, *, ms: float | None = None, note: str = "") -> None:
        encoding = self.shape.encoding
        self.rows[length, pass_, impl] = Row(impl=impl, encoding=encoding, length=length, pass_=pass_, ms=ms, note=note)

    def _if_partial(self, count: int) -> str:
        return "" if count == self.repeats else f"interrupted after {count} of {self.repeats} repetitions"

    def _measure_memory(self, length: int, progress: Progress) -> None:
        progress.begin(f"{length} tokens, memory")
        for key, row in self.rows.items():
            if row.length != length or row.ms is None:
                continue
            try:
                peak = measure_mb(self.shape, row.impl, length, row.pass_, self.threads)
                self.rows[key] = replace(row, peak_mb=peak)
            except MeasurementError as error:
                self.rows[key] = replace(row, note=f"memory not measured: {error}")
            progress.step()

    def _too_large(self, impl: str, length: int, pass_: Pass) -> str | None:
        """Why a call is not started, or None."""
        shape = self.shape
        needed = dense_bytes(
            impl,
            pass_,
            encoding=shape.encoding,
            batch=shape.batch,
            heads=shape.heads,
            hidden=shape.hidden,
            dtype=shape.dtype,
            length=length,
        )
        if needed is None or needed <= self.limit:
            return None
        return f"needs about {needed / GB:.3g} GB, not run"
