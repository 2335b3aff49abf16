"""The kinds of runs: one line each. No torch here."""

import difflib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dape.experiments.job import Job

JOBS: dict[str, str] = {
    "language-model": "dape.experiments.language:LanguageModelJob",
    "chomsky": "dape.experiments.chomsky:ChomskyJob",
    "ability": "dape.experiments.abilities:AbilityJob",
    "recall": "dape.experiments.recall:RecallJob",
    "adapter": "dape.experiments.adapters.job:AdapterJob",
}
"""By kind, module:class. Modules are imported when a run of that kind is done."""


def job_class(kind: Any, path: Path) -> "type[Job]":
    """The class of a job; ``path``: the file that names its kind."""
    if not isinstance(kind, str) or kind not in JOBS:
        near = difflib.get_close_matches(str(kind), JOBS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{path}: kind {kind!r} is not known.{hint} There are: {', '.join(JOBS)}. "
            "A new kind needs a line in JOBS of dape/experiments/catalogue.py"
        )
    module, _, name = JOBS[kind].partition(":")
    return getattr(import_module(module), name)
