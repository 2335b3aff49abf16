"""``dape study adapters``: what gives a model longer reach, measured under the same conditions."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from dape.cli.console import open_console
from dape.cli.export import check_extra
from dape.cli.live import LiveRuns, run_shown, side_by_side, tell_failures, threads_each
from dape.errors import UsageError
from dape.experiments.adapters.config import DEFAULT, TREATMENTS, StudyConfig, find
from dape.files import check_writable_folder, locked, write_text

if TYPE_CHECKING:
    from dape.experiments.adapters.plan import Study
    from dape.results.records import Row


@dataclass(frozen=True, kw_only=True)
class StudyAdapters:
    """Longer reach for a rotary model: adapters, interpolation and fine-tuning side by side.

    Trains small Llama models at a short length, then treats each in many ways with the same steps on the same text,
    and measures perplexity far beyond the training length; or, with --task recall, how many values are still found by
    their keys. Treatments: {treatments}. Writes results.jsonl, table.md and figures into --out. What is finished is not
    done again: stop at any time and give the same command.
    """

    treatments: tuple[str, ...] = DEFAULT
    """What is done to the models, or `all`."""
    tuned_at: tuple[int, ...] = ()
    """Lengths of the text for treatments that train; by default 1, 2 and 4 training lengths."""
    seeds: int = 3
    """Models, each treated in every way."""
    data: str = "stdlib"
    """Text, as for `dape compare`; the task recall has none."""
    out: Path = Path("runs/study-adapters")
    """Folder of the study."""
    jobs: int | None = None
    """Runs side by side; by default one per core, one on a GPU."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""
    config: tyro.conf.OmitArgPrefixes[StudyConfig] = field(default_factory=StudyConfig)


StudyAdapters.__doc__ = (StudyAdapters.__doc__ or "").replace("{treatments}", ", ".join(TREATMENTS))


def run(config: StudyAdapters) -> int:
    check(config)
    with locked(config.out):
        study = _study(config)
        study.begin()
        jobs = config.jobs or side_by_side(study)
        _announce(study, jobs)
        failures = _both_phases(study, jobs)
        return _report(study, failures)


def check(config: StudyAdapters) -> None:
    for name in names_of(config):
        find(name)
    for name in ("seeds", "jobs"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1, got {value}")
    if config.tuned_at and min(config.tuned_at) < 2:
        raise UsageError(f"--tuned-at must be at least 2, got {min(config.tuned_at)}")
    config.config.check()
    check_writable_folder(config.out, "--out")


def names_of(config: StudyAdapters) -> tuple[str, ...]:
    if not config.treatments:
        raise UsageError(f"--treatments needs at least one of: {', '.join(TREATMENTS)}")
    return tuple(TREATMENTS) if config.treatments == ("all",) else tuple(dict.fromkeys(config.treatments))


def _study(config: StudyAdapters) -> "Study":
    check_extra("dape study adapters")
    from dape.cli.devices import use_device
    from dape.experiments.adapters.plan import Study
    from dape.experiments.adapters.tasks import task_of

    device = str(use_device(config.device))
    data = _data(config)
    task = task_of(config.config, data)
    length = config.config.train_length
    return Study(
        out=config.out,
        config=config.config,
        treatments=names_of(config),
        lengths=tuple(sorted(set(config.tuned_at))) or (length, 2 * length, 4 * length),
        seeds=config.seeds,
        data=data,
        data_name=task.name,
        data_hash=task.data_hash,
        device=device,
    )


def _data(config: StudyAdapters) -> str:
    """Folder of the text; none for recall, whose sequences are made up."""
    from dape.data.corpora import open_data

    if config.config.task == "recall":
        return ""
    return str(open_data(config.data, out=config.out / "data").folder.resolve())


def _announce(study: "Study", jobs: int) -> None:
    config, runs = study.config, study.runs()
    done = sum(map(study.finished, runs))
    finished = f", {done} of them already finished" if done else ""
    print(
        f"{len(runs)} runs{finished}, {jobs} at a time, into {study.out}\n"
        f"models: {config.layers} layers, width {config.width}, {config.heads} heads, {config.base_steps} steps at "
        f"{config.train_length} tokens of {study.data_name}\n"
        f"treatments: {config.steps} steps of {config.tokens} tokens, at {', '.join(map(str, study.lengths))}\n"
        f"test: {', '.join(map(str, config.lengths))} tokens, {config.windows} windows",
        flush=True,
    )


def _both_phases(study: "Study", jobs: int) -> dict[str, str]:
    """The models first: everything else begins with them."""
    threads = threads_each(jobs)
    failures = run_shown(replace(study, bases_only=True), LiveStudy, jobs=jobs, threads=threads)
    return failures or run_shown(study, LiveStudy, jobs=jobs, threads=threads)


class LiveStudy(LiveRuns):
    def _found(self, rows: "list[Row]") -> str:
        whole = [row for row in rows if "depth" not in row.extra]
        return f"{whole[0].metric} " + " ".join(f"{row.length}: {row.value:.4g}" for row in whole)

    def _tables(self) -> Sequence[Any]:
        from dape.report.reproduction import labelled
        from dape.report.study import metric_of
        from dape.report.tables import terminal_table

        rows = labelled(self._rows)
        return [terminal_table(rows, metric=metric_of(rows), width=self._console.width)] if rows else []


def _report(study: "Study", failures: dict[str, str]) -> int:
    """Files first, of everything the folder holds, then the terminal, of what was asked for."""
    from dape.report.drawing import save_figure
    from dape.report.reproduction import labelled
    from dape.report.study import comparison, metric_of, not_learned, study_figure
    from dape.report.tables import markdown_table, terminal_table
    from dape.results.records import read_rows

    rows = study.collect()
    tell_failures(failures)
    if not rows:
        return 1
    metric, warnings, everything = metric_of(rows), not_learned(rows), read_rows(study.results)
    table = markdown_table(labelled(everything), metric=metric)
    parts = (table, "".join(f"- {each}\n" for each in not_learned(everything)), comparison(everything))
    write_text(study.out / "table.md", "\n".join(part for part in parts if part))
    save_figure(study_figure(everything), study.out / "curves")
    console = open_console()
    console.print(terminal_table(labelled(rows), metric=metric, width=console.width))
    for each in warnings:
        print(each, file=sys.stderr)
    print(f"wrote results.jsonl, table.md, curves.png, curves.svg in {study.out}")
    return 1 if failures else 0
