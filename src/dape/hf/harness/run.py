"""Evaluate a folder of the transformers library with lm-eval: from model and tasks to result rows."""

import contextlib
import json
import sys
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lm_eval.evaluator import evaluate
from lm_eval.utils import handle_non_serializable
from transformers import AutoTokenizer

from dape.data.tokenizer import FILE
from dape.errors import UsageError
from dape.hf import DapeForCausalLM, adapter_of, load_adapter
from dape.hf.convert import quiet, read_origin
from dape.hf.folder import open_model
from dape.hf.harness.logs import said_once
from dape.hf.harness.reader import Reader
from dape.hf.harness.tasks import LastK, Selected
from dape.hf.hosts import own_encoding
from dape.hf.tokenizer import open_exported
from dape.provenance import provenance
from dape.results.records import Row

RESAMPLES = 1000
"""For standard errors that have no formula."""
OUR_METRICS = {"acc": "accuracy", "acc_norm": "accuracy_norm"}
OTHER_KEYS = ("alias", "name", "sample_len", "sample_count")


@dataclass(frozen=True)
class Subject:
    """The model in memory, and what rows say of it."""

    model: Any
    tokenizer: Any
    run: str
    method: str
    variant: str
    seed: int
    step: int | None
    train_length: int
    """Of the model or its adapter; for other models what their configuration calls max_position_embeddings, 0 if it
    says nothing (Bloom, for instance)."""


def open_subject(folder: Path, adapter: Path | None, device: torch.device) -> Subject:
    model = open_model(folder)
    with quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (ValueError, OSError) as error:
            raise UsageError(f"{folder}: {error}") from error
    if (folder / FILE).is_file():
        open_exported(folder)  # which compares it with what was saved
    if adapter is not None:
        _put_in(model, adapter)
    _check_ids(folder, model, tokenizer)
    return _described(folder, model.to(device).eval(), tokenizer, adapter is not None)


def _put_in(model: Any, adapter: Path) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        try:
            load_adapter(model, adapter)
        except (ValueError, TypeError, OSError) as error:
            raise UsageError(f"`adapter` {adapter}: {error}") from error
    for each in told:
        print(f"dape: warning: {each.message}", file=sys.stderr)


def _check_ids(folder: Path, model: Any, tokenizer: Any) -> None:
    known = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > known:
        raise UsageError(f"{folder}: its tokenizer has {len(tokenizer)} ids, the model knows {known}")


def _described(folder: Path, model: Any, tokenizer: Any, adapted: bool) -> Subject:
    told = read_origin(folder)
    length = getattr(model.config, "max_position_embeddings", None) or 0
    method, variant = _own_encoding(model), ""
    if isinstance(model, DapeForCausalLM):
        method, length = model.config.encoding, model.config.train_length
    if adapted:
        adapter = adapter_of(model)
        method, variant, length = adapter.method, "adapter", adapter.train_length
    return Subject(
        model,
        tokenizer,
        run=folder.resolve().name,
        method=method,
        variant=variant,
        seed=told["train"].seed if "train" in told else 0,
        step=told.get("step"),
        train_length=length,
    )


def _own_encoding(model: Any) -> str:
    """As `dape list` calls it, where that is known."""
    try:
        return own_encoding(model)
    except ValueError:
        return model.config.model_type


# Evaluating ----------------------------------------------------------------------------------------------------------


def measure(
    subject: Subject, selected: Selected, *, length: int, batch: int, limit: int | None
) -> tuple[list[Row], dict[str, Any]]:
    """Rows of ours and the results as lm-eval gives them, for one window length."""
    with said_once():
        reader = Reader(subject.model, subject.tokenizer, length=length, batch=batch)
        with _one_draw(subject.model, length):
            results: Any = _evaluate(reader, selected, limit)
    results["config"] = {
        "model": "hf",
        "model_args": {"pretrained": subject.run, "adapter": subject.variant, "max_length": length},
        "batch_size": batch,
        "limit": limit,
    }
    results["lm_eval_version"] = version("lm-eval")
    rows = [
        _row(subject, selected, reader, results, name, key)
        for name, metrics in {**results["results"], **results.get("groups", {})}.items()
        for key in metrics
        if _is_a_value(key, metrics[key])
    ]
    return rows, json.loads(json.dumps(results, default=handle_non_serializable))


def _evaluate(reader: Reader, selected: Selected, limit: int | None) -> Any:
    try:
        return evaluate(
            reader,
            {"tasks": selected.tasks, "groups": selected.groups},
            limit=limit,
            log_samples=False,
            bootstrap_iters=RESAMPLES,
        )
    except IndexError as error:  # of an embedding: ids were checked, so it is the one of positions
        raise ValueError(
            f"the model cannot read {reader.max_length} tokens, its table of positions is shorter ({error})"
        ) from error


def _one_draw(model: Any, length: int) -> contextlib.AbstractContextManager[None]:
    """Randomised positions are drawn once for all texts, so that a result can be had again."""
    if isinstance(model, DapeForCausalLM):
        return model.drawn(length, torch.Generator().manual_seed(0))
    return contextlib.nullcontext()


# Rows ----------------------------------------------------------------------------------------------------------------


def _is_a_value(key: str, value: Any) -> bool:
    metric = key.partition(",")[0]
    return isinstance(value, (int, float)) and not metric.endswith("_stderr") and metric not in OTHER_KEYS


def _row(subject: Subject, selected: Selected, reader: Reader, results: Any, name: str, key: str) -> Row:
    metric, _, filtered = key.partition(",")
    task, metrics = selected.tasks.get(name), {**results["results"], **results.get("groups", {})}[name]
    members = [name] if task is not None else list(selected.tasks)
    error = metrics.get(f"{metric}_stderr,{filtered}")
    extra = {
        **provenance(),
        "task": name,
        "filter": filtered,
        "stderr": error if isinstance(error, float) else None,
        "items": sum(results["n-samples"][member]["effective"] for member in members),
        "cut": sum(reader.cut[member] for member in members),
        "lm_eval": results["lm_eval_version"],
    }
    common: dict[str, Any] = {
        "run": subject.run,
        "method": subject.method,
        "variant": subject.variant,
        "seed": subject.seed,
        "step": subject.step,
        "train_length": subject.train_length,
        "length": reader.max_length,
        "metric": OUR_METRICS.get(metric, metric),
        "value": float(metrics[key]),
        "scored_tokens": sum(reader.scored[member] for member in members),
        "data_hash": selected.data_hash,
        "tokenizer": selected.tokenizer,
        "extra": {fact: value for fact, value in extra.items() if value not in (None, "", "none")},
    }
    if isinstance(task, LastK):
        windows = task.window_nll()
        scored = {"k": task.k, "windows": len(windows), "window_nll": windows, "reach": task.reach}
        return Row(protocol="lm-eval:last_k", mode="packed", **scored, **common)
    kind = task.get_config("output_type") if task is not None else "group"
    return Row(protocol=f"lm-eval:{kind}", **common)
