"""``dape generate``: text from a checkpoint. Imports torch only when it runs."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from dape.errors import UsageError
from dape.training.device import set_threads, use_device


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Continue a text with a trained model, also beyond its training length.

    Decoding keeps keys and values, so a token costs one row of attention. The same seed gives the same text.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A run's folder (its newest checkpoint), or one checkpoint."""
    prompt: str = "def "
    """Text to continue; - reads standard input."""
    tokens: int = 200
    """Tokens to generate."""
    temperature: float = 0.8
    """0 takes the most likely token; higher is more random."""
    top_k: int = 0
    """Only the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Only the most likely tokens that together reach this probability."""
    seed: int = 0
    """Seed of the random choices."""
    cache: bool = True
    """Keep keys and values. `--no-cache` computes everything anew for each token: slow, and the same text, except with
    pi and yarn when their scale is not fixed (it then grows with the text)."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""
    threads: int | None = None
    """Threads of torch on the CPU; None leaves the choice to torch."""


def run(config: Generate) -> int:
    check(config)
    device = use_device(config.device)
    set_threads(config.threads)
    prompt = sys.stdin.read() if config.prompt == "-" else config.prompt
    if not prompt:
        raise UsageError("--prompt is empty; give some text to continue")
    return _generate(config, prompt, device)


def check(config: Generate) -> None:
    if config.tokens < 1:
        raise UsageError(f"--tokens must be at least 1, got {config.tokens}")
    if not 0 <= config.temperature < math.inf:
        raise UsageError(f"--temperature must be 0 or more, got {config.temperature}")
    if config.top_k < 0:
        raise UsageError(f"--top-k must be 0 (all) or more, got {config.top_k}")
    if not 0 <= config.seed < 1 << 63:
        raise UsageError(f"--seed must lie between 0 and 2^63 - 1, got {config.seed}")
    if not 0 < config.top_p <= 1:
        raise UsageError(f"--top-p must lie between 0 and 1, got {config.top_p}")


def _generate(config: Generate, prompt: str, device: Any) -> int:
    import torch

    from dape.data.tokenizer import load_tokenizer
    from dape.models.generate import Sampling, generate
    from dape.training import checkpoint as checkpoints

    where = checkpoints.find(config.checkpoint)
    description = checkpoints.describe(where)
    tokenizer = load_tokenizer(where)
    model = checkpoints.load_model(where, description, device).eval()
    ids = [int(i) for i in tokenizer.encode(prompt)]
    sampling = Sampling(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
    new = generate(
        model,
        torch.tensor([ids], device=device),
        config.tokens,
        sampling=sampling,
        generator=torch.Generator().manual_seed(config.seed),
        cached=config.cache,
        allowed=tokenizer.vocabulary,
    )
    print(prompt, end="", flush=True)
    shown = tokenizer.decode(ids)
    for token in new:
        if token.item() == tokenizer.eod:
            break
        ids.append(int(token.item()))
        shown = _print_new(tokenizer.decode(ids), shown)
    print()
    return 0


def _print_new(text: str, shown: str) -> str:
    """Print what has been added, but not the beginning of a character whose other bytes are still to come."""
    complete = text.rstrip("\N{REPLACEMENT CHARACTER}")
    if len(complete) > len(shown):
        print(complete[len(shown) :], end="", flush=True)
        return complete
    return shown
