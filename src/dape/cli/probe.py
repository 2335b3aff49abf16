"""``dape probe``: can a model fetch what it has read, beyond its training length? Imports torch only when it runs."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dape.cli.checks import check_encoding, check_model, check_reach
from dape.cli.console import open_console
from dape.cli.devices import set_threads, use_device
from dape.cli.live import LiveTable
from dape.errors import UsageError
from dape.evaluation.probe.config import DEPTHS, RecallConfig, Task, TextConfig
from dape.files import check_writable_file, check_writable_folder, locked
from dape.training.interrupt import signals_as_interrupts

if TYPE_CHECKING:
    from dape.evaluation.perplexity import Subject
    from dape.evaluation.probe.plan import Plan
    from dape.evaluation.probe.score import Predict
    from dape.evaluation.probe.text import TextTask
    from dape.evaluation.records import Row

METHODS = ("rope", "alibi", "kerple", "dape-kerple")
TASKS: tuple[Task, ...] = ("recall", "passkey")
LONGEST = 32
"""By default test up to this many training lengths."""
LEARNED = 0.9
"""Accuracy at the training length below which longer lengths say nothing about positions."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Can a model fetch what it has read, at lengths beyond training?

    With CHECKPOINT, a trained language model is asked about held-out text into which something was written: a pass key,
    or one of several pairs of words. With --train, small models learn to recall pairs of made-up tokens from scratch,
    one for each of --methods, and are then tested on longer contexts; what is finished in --out is not done again.
    """

    checkpoint: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[CHECKPOINT]")] = None
    """A run's folder (its newest checkpoint), or one checkpoint."""
    train: bool = False
    """Train small models on associative recall instead, and test those."""
    lengths: tuple[int, ...] = ()
    """Tokens of context; by default the training length and its doublings up to 32 times."""
    depths: tuple[float, ...] = DEPTHS
    """Where the answer stands: 0 is the beginning of the text, 1 its end."""
    samples: int | None = None
    """Texts per length and depth, the same for every model; by default 64, and 32 with --train."""
    pairs: int | None = None
    """Pairs in a text, by default 4. With --train the most in training and those in the test by depth, by default 8."""
    tasks: tuple[Task, ...] = TASKS
    """What to ask (with CHECKPOINT)."""
    data: str | None = None
    """Text around (with CHECKPOINT), its held-out part is used; by default what the model was trained on."""
    seed: int = 0
    """Seed of keys, words and places (with CHECKPOINT)."""
    json: Path | None = None
    """Append the rows to this file (with CHECKPOINT), one JSON object per line."""
    figure: Path | None = None
    """Draw accuracy by length and depth (with CHECKPOINT) into PATH.png and PATH.svg; of two tasks, PATH-TASK."""
    methods: tuple[str, ...] = METHODS
    """Positional encodings to train, names from `dape list`."""
    out: Path = Path("runs/probe")
    """Folder for what is trained: results.jsonl, table.md, depth.png/.svg, pairs.png/.svg, and the runs."""
    seeds: int = 1
    """Runs per encoding, with seeds 0, 1, ..."""
    jobs: int | None = None
    """Runs side by side; by default one per core, one on a GPU."""
    test_pairs: tuple[int, ...] = RecallConfig.test_pairs
    """Numbers of pairs to test with (with --train)."""
    train_length: int = RecallConfig.train_length
    """Longest training sequence."""
    steps: int = RecallConfig.steps
    """Optimizer steps."""
    batch: int = RecallConfig.batch
    """Sequences of the longest per step; shorter ones are proportionally more."""
    lr: float = RecallConfig.lr
    """Highest learning rate."""
    layers: int = RecallConfig.layers
    """Transformer blocks."""
    width: int = RecallConfig.width
    """Numbers per token in the residual stream."""
    heads: int = RecallConfig.heads
    """Attention heads."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""
    threads: int | None = None
    """Threads of torch on the CPU, with --train for each run; None leaves the choice to torch, and to --jobs."""


FOR_CHECKPOINT = ("tasks", "data", "seed", "json", "figure")
FOR_TRAINING = ("methods", "out", "seeds", "jobs", "test_pairs", "train_length", "steps", "batch", "lr")
FOR_TRAINING += ("layers", "width", "heads")


def run(config: Probe) -> int:
    if not config.train:
        if config.checkpoint is None:
            raise UsageError("name a run or checkpoint to ask, or use --train to train small models")
        _refuse(config, FOR_TRAINING, "is for --train")
        return _ask(config, config.checkpoint)
    if config.checkpoint is not None:
        raise UsageError(f"--train makes its own models; leave out {config.checkpoint}, or leave out --train")
    _refuse(config, FOR_CHECKPOINT, "is for a CHECKPOINT; with --train everything goes into --out")
    return _train(config)


def _refuse(config: Probe, names: Sequence[str], why: str) -> None:
    """Rather than leave a flag without effect."""
    for name in names:
        if getattr(config, name) != getattr(Probe, name):
            raise UsageError(f"--{name.replace('_', '-')} {why}")


def _doublings(length: int) -> tuple[int, ...]:
    return tuple(length << n for n in range(LONGEST.bit_length()))


def _given(**settings: Any) -> dict[str, Any]:
    """Those that are not left to their defaults."""
    return {name: value for name, value in settings.items() if value is not None}


# Questions to a language model ---------------------------------------------------------------------------------------


def _ask(config: Probe, checkpoint: Path) -> int:
    settings = TextConfig(
        tasks=tuple(dict.fromkeys(config.tasks)),
        lengths=config.lengths or (1,),  # by default known when the model is
        depths=config.depths,
        seed=config.seed,
        **_given(samples=config.samples, pairs=config.pairs),
    )
    settings.check()
    if config.json is not None:
        check_writable_file(config.json, "--json")
    for task in settings.tasks if config.figure is not None else ():
        check_writable_file(figure_path(config, task).with_suffix(".png"), "--figure")
    device = use_device(config.device)
    set_threads(config.threads)
    return _measure(config, settings, checkpoint, device)


def _measure(config: Probe, settings: TextConfig, checkpoint: Path, device: Any) -> int:
    from dape.cli.evaluate import open_corpus, subject_of
    from dape.evaluation.probe.score import predictor
    from dape.evaluation.records import append_rows
    from dape.training import checkpoint as checkpoints

    where = checkpoints.find(checkpoint)
    description = checkpoints.describe(where)
    corpus = open_corpus(config.data, where, description)
    lengths = config.lengths or _possible_lengths(settings, corpus, description.model.train_length)
    settings = replace(settings, lengths=tuple(sorted(lengths)))
    tasks = _tasks(settings, corpus)
    check_reach(description.model, max(lengths))
    model = checkpoints.load_model(where, description, device).eval()
    subject = subject_of(where, description, corpus)
    subject = replace(subject, extra={**subject.extra, "filler": f"held-out text of {corpus.name}"})
    rows: list[Row] = []
    try:
        for new in _cells(tasks, predictor(model), model, subject):
            if config.json is not None:
                append_rows(config.json, new)
            rows += new
    finally:
        _report_text(rows, settings, config)
    return 0


def _possible_lengths(settings: TextConfig, corpus: Any, train_length: int) -> tuple[int, ...]:
    """Doublings of the training length with room for every task, and for which there is text."""
    shortest = max(task.shortest() for task in _text_tasks(settings, corpus))
    possible = tuple(n for n in _doublings(train_length) if shortest <= n <= len(corpus.validation))
    if not possible:
        raise UsageError(
            f"a text must have at least {shortest} tokens, and the held-out text has {len(corpus.validation)}: none of "
            f"the training length and its doublings is possible; choose --lengths, or --data with more text"
        )
    return possible


def _text_tasks(settings: TextConfig, corpus: Any) -> "list[TextTask]":
    from dape.evaluation.probe.text import TextTask

    return [TextTask(task, settings, corpus.validation, corpus.tokenizer) for task in settings.tasks]


def _tasks(settings: TextConfig, corpus: Any) -> "list[TextTask]":
    """With room in every length."""
    tasks = _text_tasks(settings, corpus)
    for task in tasks:
        if min(settings.lengths) < task.shortest():
            raise UsageError(
                f"length {min(settings.lengths)} is too short for the task {task.task}, whose statements and question "
                f"alone take {task.shortest()} tokens; use --lengths of at least {task.shortest()}"
            )
    if max(settings.lengths) > len(corpus.validation):
        raise UsageError(
            f"the held-out text of {corpus.name} has {len(corpus.validation)} tokens, too few to fill length "
            f"{max(settings.lengths)}; use shorter --lengths, or more text with --data"
        )
    return tasks


def _cells(tasks: "Sequence[TextTask]", predict: "Predict", model: Any, subject: "Subject") -> "Iterator[list[Row]]":
    """Rows of one task, length and depth after the other, short texts first."""
    from dape.evaluation.perplexity import batch_size
    from dape.evaluation.probe.score import as_rows, score

    with Cells(sum(len(task.config.lengths) * len(task.config.depths) for task in tasks)) as progress:
        for task in tasks:
            of_task = replace(subject, data_hash=task.data_hash(subject.data_hash))
            extra = {"sample_seed": task.config.seed, "statements": task.statements}
            for length in task.config.lengths:
                for depth in task.config.depths:
                    progress.show(f"{task.task}: length {length}, depth {depth:g}")
                    scores = score(predict, task.samples(length, depth), batch=batch_size(model, length))
                    yield as_rows(scores, of_task, task=task.task, length=length, depth=depth, extra=extra)


class Cells:
    """A line on the terminal that says what is measured; nothing where there is none."""

    def __init__(self, total: int) -> None:
        self._done, self._total = 0, total
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> "Cells":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def show(self, what: str) -> None:
        self._done += 1
        if self._shown:
            print(f"\r\033[K{what} ({self._done}/{self._total})", end="", file=sys.stderr, flush=True)


def figure_path(config: Probe, task: Task) -> Path:
    assert config.figure is not None
    path = config.figure.with_suffix("") if config.figure.suffix in (".png", ".svg") else config.figure
    return path if len(set(config.tasks)) == 1 else path.with_name(f"{path.name}-{task}")


def _report_text(rows: "list[Row]", settings: TextConfig, config: Probe) -> None:
    from dape.evaluation.probe.report import text_table

    for task in settings.tasks:
        of_task = [row for row in rows if row.protocol == task]
        if not of_task:
            continue
        open_console().print(text_table(of_task))
        if config.figure is not None:
            from dape.report.drawing import save_figure
            from dape.report.heat_maps import heat_map_figure

            figure = heat_map_figure(of_task, title=task)
            print(f"wrote {' and '.join(map(str, save_figure(figure, figure_path(config, task))))}")
    if config.json is not None and rows:
        print(f"appended {len(rows)} rows to {config.json}")


# Small models --------------------------------------------------------------------------------------------------------


def _train(config: Probe) -> int:
    plan = _plan(config)
    with locked(config.out):
        plan.begin()
        jobs = _jobs(config, plan)
        todo = [r for r in plan.runs() if not plan.finished(r)]
        _announce(plan, len(todo), jobs)
        with signals_as_interrupts():
            failures = _run(replace(plan, threads=_threads(config, jobs)), todo, jobs)
        return _report(plan, failures)


def _plan(config: Probe) -> "Plan":
    """Everything that can be wrong is found here, before anything is trained."""
    for method in config.methods:
        check_encoding(method, "--methods")
    if not config.methods:
        raise UsageError("--methods needs at least one encoding")
    for name in ("seeds", "jobs", "threads"):
        if getattr(config, name) is not None and getattr(config, name) < 1:
            raise UsageError(f"--{name} must be at least 1, got {getattr(config, name)}")
    settings = recall_config(config)
    settings.check()
    check_writable_folder(config.out, "--out")

    from dape.evaluation.probe.plan import Plan

    device = str(use_device(config.device))
    _check_models(config.methods, settings)
    methods = tuple(dict.fromkeys(config.methods))
    return Plan(out=config.out, methods=methods, seeds=config.seeds, config=settings, device=device)


def recall_config(config: Probe) -> RecallConfig:
    same = ("test_pairs", "train_length", "steps", "batch", "lr", "layers", "width", "heads")
    return RecallConfig(
        lengths=tuple(sorted(config.lengths)) or _doublings(config.train_length),
        depths=tuple(sorted(config.depths)),
        **{name: getattr(config, name) for name in same},
        **_given(samples=config.samples, pairs=config.pairs),
    )


def _check_models(methods: Sequence[str], settings: RecallConfig) -> None:
    from dape.evaluation.probe.learn import model_config

    for method in methods:
        model = model_config(settings, method)
        check_model(model)
        check_reach(model, max(settings.lengths))


def _jobs(config: Probe, plan: "Plan") -> int:
    from dape.sweep.pool import usable_cores

    if config.jobs is not None:
        return config.jobs
    return min(usable_cores(), len(plan.runs())) if plan.device == "cpu" else 1


def _threads(config: Probe, jobs: int) -> int:
    from dape.sweep.pool import usable_cores

    return config.threads or max(1, usable_cores() // jobs)


def _announce(plan: "Plan", todo: int, jobs: int) -> None:
    config, runs = plan.config, len(plan.runs())
    finished = f", {runs - todo} of them already finished" if todo < runs else ""
    grid = f"{len(plan.methods)} encodings x {plan.seeds} seed{'s' if plan.seeds > 1 else ''}"
    print(
        f"{grid} = {runs} runs{finished}, {jobs} at a time, into {plan.out}\n"
        f"train: {config.steps} steps of {config.batch} x {config.train_length} tokens, 2 to {config.pairs} pairs of "
        f"{config.keys} keys and {config.keys} values; {config.layers} layers, width {config.width}, "
        f"{config.heads} heads\n"
        f"test: {', '.join(map(str, config.lengths))} tokens, {config.samples} sequences each",
        flush=True,
    )


def _run(plan: "Plan", todo: Sequence[Any], jobs: int) -> dict[str, str]:
    """Run what is to be done; the last words of those that failed, by name."""
    from dape.sweep.pool import last_words, run_tasks

    if not todo:
        return {}
    failures: dict[str, str] = {}
    with LiveProbe(plan) as live:
        try:
            tasks = [plan.task(run) for run in todo]
            for task, code in run_tasks(tasks, jobs, tick=live.tick):
                if code == 0:
                    live.add(plan.collect(), task.name)
                else:
                    failures[task.name] = f"exit code {code}: {last_words(task.log)}"
                    live.say(f"{task.name} failed ({failures[task.name]})")
        except KeyboardInterrupt:
            live.say("interrupted; every run has been asked to save what it has")
            live.say(f"continue by giving the same command again: what is in {plan.out} is not done twice")
            raise
    return failures


class LiveProbe(LiveTable):
    """Accuracy instead of perplexity."""

    def __init__(self, plan: "Plan") -> None:
        self._plan = plan
        super().__init__(plan)  # pyright: ignore[reportArgumentType]

    def add(self, rows: "list[Row]", name: str) -> None:
        self._rows = rows
        if self._plain:
            own = [row for row in rows if row.run == name and not {"depth", "pairs"} & set(row.extra)]
            values = " ".join(f"{row.length}: {100 * row.value:.0f}%" for row in own)
            self.say(f"[{time.monotonic() - self._begin:5.0f} s] {name}  accuracy {values}")

    def _picture(self, doing: Sequence[str]) -> Any:
        from rich.console import Group
        from rich.text import Text

        from dape.evaluation.probe.report import recall_table

        table = recall_table(self._rows, self._plan, width=self._console.width)
        return Group(table, *(Text(line, "dim") for line in [*doing, self._time_left()]))

    def _doing(self, name: str) -> str:
        run = next(run for run in self._plan.runs() if run.name == name)
        if length := self._plan.testing(run):
            return f"{name} testing length {length}"
        last = self._plan.last_metrics(run)
        if not last:
            return f"{name} starting"
        step, accuracy = f"step {last['step']}/{self._plan.config.steps}", f"accuracy {100 * last['accuracy']:.0f}%"
        return f"{name} {step} loss {last['loss']:.3f} {accuracy}"


def _report(plan: "Plan", failures: dict[str, str]) -> int:
    """Files first, then the terminal."""
    from dape.evaluation.probe.report import not_learned, recall_table, write_report

    rows = plan.collect()
    for name, words in failures.items():
        print(f"dape: {name} failed, {words}", file=sys.stderr)
    if not rows:
        return 1
    written = write_report(rows, plan)
    console = open_console()
    console.print(recall_table(rows, plan, width=console.width))
    for words in not_learned(rows, plan, LEARNED):
        print(words)
    print(f"wrote {', '.join(path.name for path in written)} in {plan.out}")
    return 1 if failures else 0
