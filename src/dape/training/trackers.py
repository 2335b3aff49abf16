"""Trackers of metrics besides metrics.jsonl: TensorBoard and Weights & Biases. Both are extras, imported when used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from dape.errors import UsageError
from dape.extras import install_command


class Tracker(Protocol):
    def add(self, line: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise UsageError(f"`tensorboard` needs a package: {install_command('tensorboard')}") from error
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def add(self, line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            if name != "step":
                self._writer.add_scalar(name, value, line["step"])

    def close(self) -> None:
        self._writer.close()


class WandB:
    def __init__(self, folder: Path, project: str, settings: Mapping[str, Any]) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UsageError(f"`wandb` needs a package: {install_command('wandb')}") from error
        # The folder's name is the id, so that a resumed run goes on in the same plot.
        self._run = wandb.init(
            project=project, name=folder.name, id=folder.name, resume="allow", dir=str(folder), config=dict(settings)
        )

    def add(self, line: Mapping[str, Any]) -> None:
        values = {name: value for name, value in line.items() if name != "step"}
        self._run.log(values, step=line["step"])

    def close(self) -> None:
        self._run.finish()
