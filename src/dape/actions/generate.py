"""``dape generate``: generate text from a checkpoint. Imports torch only when it runs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dape.actions.fields import OfCheckpoint, OnThreads
from dape.errors import UsageError, check_counts, check_seed
from dape.training.device import set_threads, use_device

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dape.data.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(OnThreads, OfCheckpoint):
    """Arguments of :func:`continuation`."""

    prompt: str = "def "
    """Text to continue."""
    tokens: int = 200
    """Tokens to generate."""
    temperature: float = 0.8
    """Randomness: 0 always takes the most likely token; higher values are more random."""
    top_k: int = 0
    """Draw from the k most likely tokens only; 0 draws from all."""
    top_p: float = 1.0
    """Draw from the most likely tokens that together reach this probability."""
    seed: int = 0
    """Seed of the random choices."""
    cache: bool = True
    """Cache keys and values; False computes them again for each token."""


def continuation(options: GenerateOptions) -> Iterator[str]:
    """Generate the continuation of the prompt, piece by piece. Invalid arguments raise here, before the first piece."""
    check(options)
    from dape.data.tokenizer import load_tokenizer
    from dape.evaluation.opening import open_checkpoint

    opened = open_checkpoint(options.checkpoint)
    tokenizer = load_tokenizer(opened.where)
    import torch

    from dape.models.generate import Sampling, generate

    device = use_device(options.device)
    set_threads(options.threads)
    model = opened.model(device)
    ids = [int(i) for i in tokenizer.encode(options.prompt)]
    new = generate(
        model,
        torch.tensor([ids], device=device),
        options.tokens,
        sampling=Sampling(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p),
        generator=torch.Generator().manual_seed(options.seed),
        cached=options.cache,
        allowed=tokenizer.vocabulary,
    )
    return _pieces((int(token.item()) for token in new), ids, tokenizer)


def check(options: GenerateOptions) -> None:
    """Check the arguments that can be checked without the model."""
    if not options.prompt:
        raise UsageError("`prompt` is empty; give some text to continue")
    check_counts(options, "tokens")
    if not 0 <= options.temperature < math.inf:
        raise UsageError(f"`temperature` must be 0 or more, got {options.temperature}")
    if options.top_k < 0:
        raise UsageError(f"`top_k` must be 0 (all) or more, got {options.top_k}")
    check_seed(options.seed)
    if not 0 < options.top_p <= 1:
        raise UsageError(f"`top_p` must lie between 0 and 1, got {options.top_p}")


def _pieces(new: "Iterable[int]", ids: list[int], tokenizer: "Tokenizer") -> Iterator[str]:
    """Decode tokens up to the end of the document, adding them to ``ids``."""
    shown = tokenizer.decode(ids)
    for token in new:
        if token == tokenizer.eod:
            return
        ids.append(token)
        piece = added(tokenizer.decode(ids), shown)
        shown += piece
        yield piece


def added(text: str, shown: str) -> str:
    """The part of ``text`` after ``shown``, without a last character whose bytes are incomplete."""
    return text.rstrip("\N{REPLACEMENT CHARACTER}")[len(shown) :]
