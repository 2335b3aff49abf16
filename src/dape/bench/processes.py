"""``dape bench processes``: training in several processes beside one process with as many threads.

A group of processes takes a step with DDP, then one with FSDP2, then its first process takes one alone, and so on, so
that other load on the machine affects all of them equally. Imports torch only when it runs.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.bench.options import WithFile, check_common, check_encoding, unique
from dape.bench.records import Column, Record, Results, make_table, paired, text
from dape.bench.runner import NotMeasuredError, Once, Plan, command
from dape.config.load import read_preset
from dape.errors import UsageError
from dape.machine import usable_cores
from dape.training.launch import check_processes, check_shares, is_first, run_processes

if TYPE_CHECKING:
    from rich.table import Table

ALONE = "alone"


@dataclass(frozen=True, kw_only=True)
class ProcessesBench(WithFile):
    """Tokens per second of training in several processes, beside one process with as many threads.

    Each process has one thread. The single process has as many threads as there are processes, but at most one per
    core. They take turns; ratios are taken within a round, and medians count. Gradients are exchanged through gloo.
    """

    counts: tuple[int, ...] = (2, 4)
    """Numbers of processes."""
    preset: str = "small"
    """Model and batch: tiny, small, 125m, ..."""
    encoding: str = "dape-kerple"
    """Positional encoding from `dape list`."""
    batch: int | None = None
    """Sequences per step; None: as in the preset."""
    repeats: int = 5
    """Timed steps of each kind."""


def run(config: ProcessesBench) -> int:
    """Returns the exit code: 1 if processes fail, 130 if interrupted."""
    check_common(config, "batch", "repeats")
    check_encoding("encoding", config.encoding)
    if not config.counts:
        raise UsageError("`counts` needs at least one number of processes")
    config = unique(config, "counts")
    batch = config.batch or read_preset(config.preset)["train"]["batch"]
    for count in config.counts:
        check_processes(count)
        check_shares(batch, 1, count)
    parts = [Once(what=f"{count} processes", do=partial(_measured, config, batch, count)) for count in config.counts]
    return command(config, lambda threads: Plan(parts=parts, steps=len(parts)), tables)


def _measured(config: ProcessesBench, batch: int, count: int) -> list[Record]:
    with tempfile.TemporaryDirectory(prefix="dape-bench-") as folder:
        threads = min(count, usable_cores())
        given = {**asdict(config), "json": None, "batch": batch, "folder": folder, "threads": threads}
        code = run_processes(["-m", "dape.bench.processes", json.dumps(given)], count, restarts=0)
        if code >= 128:
            raise KeyboardInterrupt
        if code:
            raise NotMeasuredError(f"dape: training in {count} processes failed with exit code {code}")
        seconds = json.loads((Path(folder) / "seconds.json").read_text())
    tokens = seconds.pop("tokens")
    return [
        {
            "processes": 1 if kind == ALONE else count,
            "threads": threads if kind == ALONE else 1,
            "parallel": kind,
            "tokens_per_second": tokens / statistics.median(times),
            "vs_alone": ratio.median if (ratio := paired(seconds[ALONE], times)) else None,
        }
        for kind, times in seconds.items()
    ]


# One of the processes ------------------------------------------------------------------------------------------------


def work(given: dict[str, Any]) -> None:
    """Time the steps, and write them to ``seconds.json``."""
    import torch

    from dape.training.parallel import joined

    folder, threads = Path(given["folder"]), given["threads"]
    found: dict[str, list[float]] = {"ddp": [], "fsdp": [], ALONE: []}
    with joined("ddp", torch.device("cpu")) as group:
        trainers = _trainers(given, group)
        for _ in range(given["repeats"] + 1):
            for kind, trainer in trainers.items():
                group.barrier()
                torch.set_num_threads(threads if kind == ALONE else 1)
                begin = time.perf_counter()
                if kind != ALONE or group.is_first:
                    trainer.take_step()
                group.barrier()
                found[kind].append(time.perf_counter() - begin)
        if is_first():
            tokens = trainers[ALONE].task.tokens
            timed = {kind: times[1:] for kind, times in found.items()}  # the first round warms up
            (folder / "seconds.json").write_text(json.dumps({**timed, "tokens": tokens}))


def _trainers(given: dict[str, Any], group: Any) -> dict[str, Any]:
    import torch

    from dape.data.corpora import open_data
    from dape.models.config import DecoderConfig
    from dape.training.config import TrainConfig
    from dape.training.language_model import LanguageModelTrainer
    from dape.training.parallel import ALONE as ONE
    from dape.training.run import RunConfig

    preset, folder = read_preset(given["preset"]), Path(given["folder"])
    model = DecoderConfig(**{**preset["model"], "encoding": given["encoding"]})
    train = TrainConfig(**{**preset["train"], "batch": given["batch"]})
    group.from_first(lambda: str(open_data("stdlib").folder))  # the first process prepares the text for all
    groups = {"ddp": group, "fsdp": replace(group, mode="fsdp"), ALONE: ONE}
    return {
        kind: LanguageModelTrainer(
            folder / f"{kind}-{group.rank if kind == ALONE else 0}",
            RunConfig(model=model, train=train, data="stdlib", threads=1),
            open_data("stdlib"),
            device=torch.device("cpu"),
            group=group_of_kind,
        )
        for kind, group_of_kind in groups.items()
    }


# The report ----------------------------------------------------------------------------------------------------------


def tables(results: Results) -> "Iterator[Table]":
    columns = [
        Column("processes", lambda r: str(r["processes"])),
        Column("threads each", lambda r: str(r["threads"])),
        text("parallel"),
        Column("tokens/s", lambda r: f"{r['tokens_per_second']:.0f}"),
        Column("vs alone", lambda r: f"{r['vs_alone']:.2f}x"),
    ]
    if results.records:
        title = f"training {results.settings['preset']} with {results.settings['encoding']}"
        caption = "vs alone: speed relative to one process with several threads, the median over rounds"
        yield make_table(title, caption, results.records, columns)


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
