"""Tasks for lm-evaluation-harness: from our questions and text, and its own ones from YAML."""

import difflib
import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask, Task
from lm_eval.tasks import TaskManager

from dape.data.store import Corpus
from dape.data.windows import evaluation_windows
from dape.errors import UsageError
from dape.evaluation.config import EvalConfig
from dape.evaluation.perplexity import ends_of, with_reach
from dape.hf.harness.logs import said_once
from dape.hf.harness.questions import Questions

FEWSHOT_SEED = 1234
"""As in lm-eval's own command."""


@dataclass(frozen=True)
class Selected:
    """What is evaluated together: a task, or a group of them with its mean."""

    tasks: dict[str, Task]
    groups: dict[str, Any]
    data_hash: str
    tokenizer: str = ""


def _ready(task: Task) -> Task:
    """What ``lm_eval.simple_evaluate`` does to a task; that itself would also seed everything and ask the network."""
    if task.get_config("num_fewshot") is None:
        task.set_config("num_fewshot", 0)
    task.set_fewshot_seed(FEWSHOT_SEED)
    return task


def _ours(config: dict[str, Any]) -> Task:
    with said_once(logging.ERROR):  # it warns of settings that could be given, but need not
        return _ready(ConfigurableTask(config=config))


# Questions -----------------------------------------------------------------------------------------------------------


def choices_task(questions: Questions) -> Selected:
    """Each choice is scored as the continuation of the question and a space; the likeliest one is the answer given."""
    config = {
        "task": questions.name,
        "output_type": "multiple_choice",
        "test_split": "test",
        "custom_dataset": lambda **_: {"test": Dataset.from_list(questions.items)},
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")
        ],
    }
    return Selected({questions.name: _ours(config)}, {}, questions.hash)


# Text ----------------------------------------------------------------------------------------------------------------


class Tokens(str):
    """Ids where lm-eval expects text, so that nothing is tokenized again: what is scored are these very tokens."""

    ids: list[int]

    def __new__(cls, ids: Sequence[int] | np.ndarray) -> "Tokens":
        numbers = [int(i) for i in ids]
        made = super().__new__(cls, " ".join(map(str, numbers)))  # what lm-eval logs and hashes
        made.ids = numbers
        return made


class LastK(Task):
    """Perplexity of the last k tokens of each window, as in :mod:`dape.evaluation.perplexity`."""

    VERSION = 1
    OUTPUT_TYPE = "loglikelihood"

    def __init__(self, name: str, windows: np.ndarray, k: int, reach: int | None = None) -> None:
        with said_once(logging.ERROR):  # its settings are not there yet
            super().__init__()
        self.k, self.reach = k, reach
        self._docs = [{"tokens": window} for window in windows.tolist()]
        self.set_config("task", name)
        self.set_config("output_type", "loglikelihood")
        self.set_config("metadata", {"k": k, "length": windows.shape[1] - 1})

    def download(self, *_: Any, **__: Any) -> None:
        """The windows are given."""

    def has_training_docs(self) -> Any:
        return False

    def has_validation_docs(self) -> Any:
        return False

    def has_test_docs(self) -> Any:
        return True

    def test_docs(self) -> list[dict[str, list[int]]]:
        return self._docs

    def fewshot_context(self, *_: Any, **__: Any) -> str:
        return ""

    # Any: the methods they replace are annotated as giving nothing.
    def doc_to_text(self, doc: Any) -> Any:
        return Tokens(doc["tokens"][: -self.k])

    def doc_to_target(self, doc: Any) -> Any:
        return Tokens(doc["tokens"][-self.k :])

    def construct_requests(self, doc: Any, ctx: str, **kwargs: Any) -> Any:
        arguments = (self.doc_to_text(doc), self.doc_to_target(doc))
        return Instance("loglikelihood", doc, arguments, 0, metadata=kwargs["metadata"])

    def process_results(self, doc: Any, results: Any) -> Any:
        ((loglikelihood, _greedy),) = results
        return {"perplexity": -loglikelihood / self.k}

    def aggregation(self) -> Any:
        return {"perplexity": _perplexity}

    def higher_is_better(self) -> Any:
        return {"perplexity": False}

    def window_nll(self) -> tuple[float, ...]:
        """Mean nats per scored token of each window, once evaluated."""
        return tuple(round(-instance.resps[0][0] / self.k, 5) for instance in self.instances)


def _perplexity(nll: Sequence[float]) -> float:
    mean = float(np.mean(nll))
    return math.inf if mean >= 700 else math.exp(mean)


def last_k_task(corpus: Corpus, length: int, *, k: int, windows: int, reach: int | None = None) -> Selected:
    """The windows of ``dape eval``: every length scores the same tokens."""
    if length < k:
        raise UsageError(f"length {length} is shorter than the {k} tokens to score; a smaller `last_k` is possible")
    config = with_reach(EvalConfig(lengths=(length,), last_k=k, windows=windows, reach=reach), corpus.validation)
    ends = ends_of(corpus.validation, config)
    name = f"{corpus.name}-last{k}"
    task = LastK(name, evaluation_windows(corpus.validation, ends, length), k, config.reach)
    return Selected({name: _ready(task)}, {}, corpus.hash, corpus.tokenizer.name)


def rolling_task(corpus: Corpus) -> Selected:
    """lm-eval's own perplexity of held-out documents: cut into windows that do not overlap, all tokens scored."""
    name = f"{corpus.name}-rolling"
    config = {
        "task": name,
        "output_type": "loglikelihood_rolling",
        "test_split": "test",
        "custom_dataset": lambda **_: {"test": Dataset.from_list(_documents(corpus))},
        "doc_to_text": "",
        "doc_to_target": "text",
    }
    return Selected({name: _ours(config)}, {}, corpus.hash, corpus.tokenizer.name)


def _documents(corpus: Corpus) -> list[dict[str, str]]:
    stream = corpus.validation
    ends = [int(end) for end in stream.document_ends]
    texts = [corpus.tokenizer.decode(stream.read(a, b)) for a, b in zip([0, *ends], ends, strict=False)]
    return [{"text": text} for text in texts if text.strip()]


# Tasks of lm-eval ----------------------------------------------------------------------------------------------------


def named_tasks(names: Sequence[str], include: Path | None) -> list[Selected]:
    """Tasks and groups from the folder, or of lm-eval itself if their data is on this machine."""
    with said_once():
        return _named_tasks(names, str(include) if include else None)


def _named_tasks(names: Sequence[str], include: str | None) -> list[Selected]:
    manager = TaskManager(include_path=include, include_defaults=False)
    if not all(manager.match_tasks([name]) or Path(name).is_file() for name in names):
        # Thousands of files, read only when needed.
        manager = TaskManager(include_path=include)
    found = [match for name in names for match in _matches(manager, name)]
    return [_load(manager, name) for name in dict.fromkeys(found)]


def _matches(manager: TaskManager, name: str) -> list[str]:
    if Path(name).is_file():
        return [name]
    matches = manager.match_tasks([name])
    if not matches:
        near = difflib.get_close_matches(name, manager.all_tasks, 3)
        advice = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UsageError(
            f"`tasks` {name}: neither a task of lm-eval, nor of the folder `include`, nor a YAML file.{advice}"
        )
    return matches


def _load(manager: TaskManager, name: str) -> Selected:
    try:
        loaded = manager.load([name])
        tasks = {task_name: _ready(task) for task_name, task in loaded["tasks"].items()}
        digest = hashlib.sha256()
        for task in tasks.values():
            for doc in task.eval_docs:
                digest.update(json.dumps(doc, sort_keys=True, default=str).encode())
    except Exception as error:  # data sets are loaded by many libraries, each with errors of its own
        if not isinstance(error, OSError):  # a connection, a file or a data set that is not there
            raise UsageError(f"`tasks` {name}: cannot be loaded ({_first_line(error)})") from error
        raise UsageError(
            f"`tasks` {name}: its data is not on this machine, and nothing is downloaded ({_first_line(error)})"
        ) from error
    return Selected(tasks, dict(loaded.get("groups", {})), digest.hexdigest())


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
