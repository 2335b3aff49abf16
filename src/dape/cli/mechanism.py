"""``dape mechanism``: whether a trained DAPE model uses content, and where. Imports torch only when it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from dape.cli.console import open_console
from dape.errors import UsageError
from dape.files import check_writable_file, write_text
from dape.training.device import set_threads, use_device

if TYPE_CHECKING:
    import numpy as np

    from dape.data.store import Corpus
    from dape.evaluation.mechanism import Dissected, Gain
    from dape.training.checkpoint import Description


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Does f use content? Feed it other scores and see what that costs.

    Perplexity on the same tokens with f as it was trained, with f reading the scores of another text (swapped), and
    with f reading the mean score at each lag (frozen); the share of f's variance that the text decides, by layer and
    head. With --against, which tokens this model predicts better than another: those that repeat a rare token, or
    others.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A run's folder (its newest checkpoint), or one checkpoint, of a model with dape-X."""
    against: Path | None = None
    """Another model on the same tokens, such as the same without content (variant=bias_only)."""
    length: int | None = None
    """Tokens of context; by default the training length."""
    last_k: int | None = None
    """Scored tokens per window; by default 64, or the length if that is less."""
    windows: int = 64
    """Windows of held-out text."""
    reach: int | None = None
    """Tokens before every end of a window, as for `dape eval`."""
    data: str | None = None
    """Text to look at (its held-out part), as for `dape eval`; by default what the model was trained on."""
    json: Path | None = None
    """Write all numbers, by layer, head and lag, into this file."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""
    threads: int | None = None
    """Threads of torch on the CPU; None leaves the choice to torch."""


def run(config: Mechanism) -> int:
    for name in ("length", "last_k", "windows"):
        value = getattr(config, name)
        if value is not None and value < (2 if name == "windows" else 1):
            raise UsageError(
                f"--{name.replace('_', '-')} must be at least {2 if name == 'windows' else 1}, got {value}"
            )
    if config.json is not None:
        check_writable_file(config.json, "--json")
    device = use_device(config.device)
    set_threads(config.threads)
    return _look(config, device)


def _look(config: Mechanism, device: Any) -> int:
    import json

    from dape.data.windows import evaluation_windows
    from dape.evaluation.config import EvalConfig
    from dape.evaluation.mechanism import dissect
    from dape.evaluation.opening import open_corpus
    from dape.evaluation.perplexity import ends_of
    from dape.training import checkpoint as checkpoints

    where = checkpoints.find(config.checkpoint)
    description = checkpoints.describe(where)
    corpus = open_corpus(config.data, where, description)
    length = config.length or description.model.train_length
    scored = config.last_k or min(64, length)
    settings = EvalConfig(lengths=(length,), last_k=scored, windows=config.windows, reach=config.reach)
    windows = evaluation_windows(corpus.validation, ends_of(corpus.validation, settings), length)
    model = checkpoints.load_model(where, description, device).eval()
    try:
        found = dissect(model, windows, scored)
    except ValueError as error:
        raise UsageError(f"{config.checkpoint}: {error}") from error
    gained = _gains(config, description, found, windows, corpus, device) if config.against is not None else []
    _print(found, gained, config)
    if config.json is not None:
        write_text(config.json, json.dumps(_record(found, gained, description, settings, corpus), indent=1) + "\n")
        print(f"wrote {config.json}")
    return 0


def _gains(
    config: Mechanism, ours: "Description", found: "Dissected", windows: "np.ndarray", corpus: "Corpus", device: Any
) -> "list[Gain]":
    import numpy as np
    import torch

    from dape.evaluation.mechanism import BATCH, gains, token_groups
    from dape.evaluation.perplexity import Measured, window_nll
    from dape.training import checkpoint as checkpoints

    assert config.against is not None
    where = checkpoints.find(config.against)
    other = checkpoints.describe(where)
    if other.data["tokenizer_fingerprint"] != ours.data["tokenizer_fingerprint"]:
        raise UsageError(f"--against {config.against}: has another tokenizer, so that tokens cannot be compared")
    model, scored = checkpoints.load_model(where, other, device).eval(), found.usual.shape[1]
    parts = np.array_split(windows, max(1, len(windows) // BATCH))
    nll = [window_nll(model, torch.from_numpy(part).to(device), scored).cpu().numpy() for part in parts]
    counts = np.bincount(corpus.train.read(0, min(len(corpus.train), 1 << 24)), minlength=model.config.vocabulary)
    groups = token_groups(windows, scored, counts / counts.sum())
    ours_nll, theirs = (
        Measured(found.length, each, found.length - scored, found.length) for each in (found.usual, np.concatenate(nll))
    )
    return gains(ours_nll, theirs, groups)


def _print(found: "Dissected", gained: "list[Gain]", config: Mechanism) -> None:
    from rich.table import Table

    console = open_console()
    table = Table(box=None, pad_edge=False)
    for header in ("what f reads", "perplexity", "nats more", "95% interval"):
        table.add_column(header, justify="left" if header == "what f reads" else "right", no_wrap=True)
    for name, words in (("usual", "its own scores"), ("swapped", "another text's"), ("frozen", "mean at each lag")):
        perplexity = _perplexity(getattr(found, name))
        mean, low, high = found.cost(name)
        cost = ("", "") if name == "usual" else (f"{mean:+.4f}", f"{low:+.4f} to {high:+.4f}")
        table.add_row(words, f"{perplexity:.4f}", *cost)
    console.print(table)
    print("\nshare of f's variance that the text decides (the rest is the lag's), by head:")
    for number, layer in enumerate(found.layers, 1):
        print(f"  layer {number}: " + " ".join(f"{share:.2f}" for share in layer.share()))
    if gained:
        print(f"\nnats per token gained over {config.against}, by group of tokens:")
        for gain in gained:
            print(
                f"  {gain.group:24} {gain.nats:+.4f} ({gain.low:+.4f} to {gain.high:+.4f}), {gain.tokens} tokens, "
                f"{100 * gain.total_share:.0f}% of the whole"
            )


def _perplexity(nll: "np.ndarray") -> float:
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
        "perplexity": {name: _perplexity(getattr(found, name)) for name in ("usual", "swapped", "frozen")},
        "cost": costs,
        "layers": layers,
        "gains": [asdict(gain) for gain in gained],
        "provenance": provenance(),
    }
