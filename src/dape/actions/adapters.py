"""``dape study adapters``: treatments that let rotary models read longer contexts, under the same conditions."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.fields import Jobs, OnDevice
from dape.actions.found import Found
from dape.actions.running import announce, run_all, side_by_side
from dape.errors import UsageError, check_counts
from dape.experiments.adapters.config import DEFAULT, TREATMENTS, StudyConfig, find
from dape.experiments.adapters.plan import Study
from dape.experiments.executor import Executor
from dape.extras import check_transformers
from dape.files import locked, write_text

if TYPE_CHECKING:
    from dape.results.records import Row

FILES = ("results.jsonl", "table.md", "curves.png", "curves.svg")


@dataclass(frozen=True, kw_only=True)
class StudyOptions(OnDevice, Jobs):
    """Arguments of :func:`study_adapters`."""

    treatments: tuple[str, ...] = DEFAULT
    """Treatments to apply to every model, or `all`."""
    tuned_at: tuple[int, ...] = ()
    """Sequence lengths for treatments that train; by default 1, 2 and 4 training lengths."""
    seeds: int = 3
    """Models to train, with seeds 0, 1, ..."""
    data: str = "stdlib"
    """Text, as for `dape compare`; the task recall has none."""
    out: Path = Path("runs/study-adapters")
    """Folder of the study."""
    config: StudyConfig = field(default_factory=StudyConfig)


def study_adapters(options: StudyOptions, *, executor: Executor | None = None) -> Found:
    """Train small rotary models, apply every treatment to each, and measure all far beyond the training length."""
    _check(options)
    with locked(options.out):
        study = _plan(options)
        study.begin()
        jobs = options.jobs or side_by_side(study)
        announce(study, jobs, executor=executor)
        # The untreated models first: every treatment begins with one of them.
        failures: dict[str, str] = {}
        for plan in (replace(study, bases_only=True), study):
            failures = failures or run_all(plan, jobs=jobs, executor=executor, tables=_terminal)
        return _found(study, failures)


def _check(config: StudyOptions) -> None:
    for name in names_of(config):
        find(name)
    check_counts(config, "seeds", "jobs")
    if config.tuned_at and min(config.tuned_at) < 2:
        raise UsageError(f"`tuned_at` must be at least 2, got {min(config.tuned_at)}")
    config.config.check()
    Study.check_folder(config.out)


def names_of(config: StudyOptions) -> tuple[str, ...]:
    if not config.treatments:
        raise UsageError(f"`treatments` needs at least one of: {', '.join(TREATMENTS)}")
    return tuple(TREATMENTS) if config.treatments == ("all",) else tuple(dict.fromkeys(config.treatments))


def _plan(config: StudyOptions) -> Study:
    check_transformers("dape study adapters")
    data = _data(config)
    from dape.experiments.adapters.tasks import task_of
    from dape.training.device import use_device

    device = str(use_device(config.device))
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


def _data(config: StudyOptions) -> str:
    """Folder of the text; empty for recall, which generates its sequences."""
    from dape.data.corpora import open_data

    if config.config.task == "recall":
        return ""
    return str(open_data(config.data, out=config.out / "data").folder.resolve())


def _terminal(rows: "list[Row]", width: int) -> list[Any]:
    from dape.report.reproduction import labelled
    from dape.report.study import metric_of
    from dape.report.tables import terminal_table

    rows = labelled(rows)
    return [terminal_table(rows, metric=metric_of(rows), width=width)] if rows else []


def _found(study: Study, failures: dict[str, str]) -> Found:
    """Files with all rows of the folder, and the rows of this study."""
    from dape.report.drawing import save_figure
    from dape.report.reproduction import labelled
    from dape.report.study import comparison, metric_of, not_learned, study_figure
    from dape.report.tables import markdown_table
    from dape.results.records import read_rows

    def table(rows: "list[Row]") -> str:
        warnings = "".join(f"- {each}\n" for each in not_learned(rows))
        parts = (markdown_table(labelled(rows), metric=metric_of(rows)), warnings, comparison(rows))
        return "\n".join(part for part in parts if part)

    found = Found(
        rows=study.collect(),
        out=study.out,
        files=FILES,
        failures=failures,
        make_table=table,
        make_figure=study_figure,
        make_summary=lambda rows: "\n".join(not_learned(rows)),
        make_terminal=_terminal,
    )
    if found.rows:
        everything = read_rows(study.results)
        write_text(study.out / "table.md", table(everything))
        save_figure(study_figure(everything), study.out / "curves")
    return found
