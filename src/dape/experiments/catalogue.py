"""The kinds of runs: one line each. No torch here."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.errors import did_you_mean

if TYPE_CHECKING:
    from dape.experiments.job import Job

JOBS: dict[str, str] = {
    "language-model": "dape.experiments.language:LanguageModelJob",
    "chomsky": "dape.experiments.chomsky:ChomskyJob",
    "ability": "dape.experiments.abilities:AbilityJob",
    "recall": "dape.experiments.recall:RecallJob",
    "adapter": "dape.experiments.adapters.job:AdapterJob",
}
"""By kind: ``module:class``. The module is imported only for a run of that kind."""


def job_class(kind: Any, path: Path) -> "type[Job]":
    """The class of a job; ``path`` is the file that names its kind. Raises ValueError for an unknown kind."""
    if not isinstance(kind, str) or kind not in JOBS:
        raise ValueError(
            f"{path}: kind {kind!r} is not known.{did_you_mean(str(kind), JOBS)} There are: {', '.join(JOBS)}. "
            "A new kind needs a line in JOBS of dape/experiments/catalogue.py"
        )
    module, _, name = JOBS[kind].partition(":")
    return getattr(import_module(module), name)
