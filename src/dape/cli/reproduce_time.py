"""``dape reproduce time-cost``: on `dape bench model`."""

from pathlib import Path
from typing import TYPE_CHECKING

from dape.errors import UsageError
from dape.reproduce.catalogue import Experiment
from dape.reproduce.scales import Scale

if TYPE_CHECKING:
    from dape.cli.reproduce import Reproduce


def run(config: "Reproduce", out: Path, experiment: Experiment, scale: Scale) -> int:
    raise UsageError("not yet")
