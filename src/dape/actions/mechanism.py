"""``dape mechanism``: measure whether f of a trained model uses content, and where."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.fields import OnThreads
from dape.actions.progress import ProgressLine
from dape.errors import UsageError, check_counts
from dape.files import check_writable_file, write_text
from dape.training.device import set_threads, use_device

if TYPE_CHECKING:
    import numpy as np

    from dape.data.store import Corpus
    from dape.evaluation.mechanism import Dissected, Gain
    from dape.evaluation.opening import Opened
    from dape.training.description import Description


@dataclass(frozen=True, kw_only=True)
class MechanismOptions(OnThreads):
    """Arguments of :func:`mechanism`."""

    checkpoint: Path
    """A run's folder (its newest checkpoint), or one checkpoint, of a model with dape-X."""
    against: Path | None = None
    """Another model to compare on the same tokens, such as one without content (variant=bias_only)."""
    length: int | None = None
    """Tokens of context; by default the training length."""
    last_k: int | None = None
    """Scored tokens per window; by default 64, or the length if that is less."""
    windows: int = 64
    """Windows of held-out text."""
    reach: int | None = None
    """Windows end only where at least this many tokens come before, as for `dape eval`."""
    data: str | None = None
    """Text to measure on (its held-out part), as for `dape eval`; by default what the model was trained on."""
    json: Path | None = None
    """Write all numbers by layer, head and lag into this file."""


def mechanism(options: MechanismOptions) -> "tuple[Dissected, list[Gain]]":
    """Measure what other content costs, and the gain over the model ``options.against`` if it is given."""
    check_counts(options, "length", "last_k")
    if options.windows < 2:
        raise UsageError(f"`windows` must be at least 2, got {options.windows}")
    if options.json is not None:
        check_writable_file(options.json, "`json`")
    return _look(options)


def _look(options: MechanismOptions) -> "tuple[Dissected, list[Gain]]":
    import json

    from dape.data.windows import evaluation_windows
    from dape.evaluation.config import EvalConfig
    from dape.evaluation.opening import open_checkpoint

    opened = open_checkpoint(options.checkpoint)
    other = None if options.against is None else _open_other(options.against, opened)
    description, corpus = opened.description, opened.corpus(options.data)
    device = use_device(options.device)
    set_threads(options.threads)
    from dape.evaluation.mechanism import PASSES, dissect
    from dape.evaluation.perplexity import ends_of

    length = options.length or description.model.train_length
    scored = options.last_k or min(64, length)
    settings = EvalConfig(lengths=(length,), last_k=scored, windows=options.windows, reach=options.reach)
    windows = evaluation_windows(corpus.validation, ends_of(corpus.validation, settings), length)
    model = opened.model(device)
    with ProgressLine() as line:

        def watch(what: str, done: int, total: int) -> None:
            line.show(f"{what}: window {done}/{total}", (PASSES.index(what) + done / total) / len(PASSES))

        try:
            found = dissect(model, windows, scored, watch=watch)
        except ValueError as error:
            raise UsageError(f"{options.checkpoint}: {error}") from error
    gained = [] if other is None else _gains(other, found, windows, corpus, device)
    if options.json is not None:
        write_text(options.json, json.dumps(_record(found, gained, description, settings, corpus), indent=1) + "\n")
    return found, gained


def _open_other(against: Path, ours: "Opened") -> "Opened":
    """Open the other model; it must have the same tokenizer."""
    from dape.evaluation.opening import open_checkpoint

    other = open_checkpoint(against)
    if other.description.data["tokenizer_fingerprint"] != ours.description.data["tokenizer_fingerprint"]:
        raise UsageError(f"`against` {against}: has another tokenizer, so that tokens cannot be compared")
    return other


def _gains(other: "Opened", found: "Dissected", windows: "np.ndarray", corpus: "Corpus", device: Any) -> "list[Gain]":
    import numpy as np
    import torch

    from dape.evaluation.mechanism import BATCH, gains, token_groups
    from dape.evaluation.perplexity import Measured, window_nll

    model, scored = other.model(device), found.usual.shape[1]
    batches = np.array_split(windows, max(1, len(windows) // BATCH))
    nll = [window_nll(model, torch.from_numpy(batch).to(device), scored).cpu().numpy() for batch in batches]
    counts = np.bincount(corpus.train.read(0, min(len(corpus.train), 1 << 24)), minlength=model.config.vocabulary)
    groups = token_groups(windows, scored, counts / counts.sum())
    ours, theirs = (
        Measured(found.length, each, found.length - scored, found.length) for each in (found.usual, np.concatenate(nll))
    )
    return gains(ours, theirs, groups)


def perplexity(nll: "np.ndarray") -> float:
    import math

    return math.exp(float(nll.mean(dtype="float64")))


def _record(
    found: "Dissected", gained: "list[Gain]", description: "Description", settings: Any, corpus: "Corpus"
) -> dict[str, Any]:
    from dataclasses import asdict

    from dape.provenance import provenance

    costs = {name: dict(zip(("nats", "low", "high"), found.cost(name), strict=True)) for name in ("swapped", "frozen")}
    layers = [
        {
            "share": layer.share().round(5).tolist(),
            "content_share_by_lag": layer.content_share().round(5).tolist(),
            "f_variance_by_lag": layer.variance("f").round(6).tolist(),
        }
        for layer in found.layers
    ]
    return {
        "method": description.model.encoding,
        "options": description.model.encoding_options,
        "seed": description.train.seed,
        "step": description.step,
        "data_hash": corpus.hash,
        "evaluation": asdict(settings),
        "perplexity": {name: perplexity(getattr(found, name)) for name in ("usual", "swapped", "frozen")},
        "cost": costs,
        "layers": layers,
        "gains": [asdict(gain) for gain in gained],
        "provenance": provenance(),
    }
