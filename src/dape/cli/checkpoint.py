"""``dape checkpoint merge``: merge a sharded checkpoint. Imports torch only when it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dape.files import check_writable_folder


@dataclass(frozen=True, kw_only=True)
class MergeCheckpoint:
    """Merge a checkpoint that several processes have written in shards into one file.

    Other programs need this; `dape eval`, `dape generate`, `dape export` and `dape train --resume` also read shards.
    The shards are kept.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run, or one of its checkpoints."""
    out: Path | None = None
    """Folder to write; by default RUN/merged/step-N."""


def run(config: MergeCheckpoint) -> int:
    from dape.training.description import find
    from dape.training.run import run_folder

    found = find(config.run)
    out = run_folder(found) / "merged" / found.name if config.out is None else config.out
    check_writable_folder(out, "`out`")
    out.parent.mkdir(parents=True, exist_ok=True)
    from dape.training.checkpoint import merge

    print(f"merged {found} into {merge(found, out)}")
    return 0
