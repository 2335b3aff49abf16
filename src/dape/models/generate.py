"""Decoding with a KV cache, also beyond the training length: each new token costs one row of attention."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.models.cache import Cache
from dape.models.decoder import DecoderLM


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen from the model's distribution."""

    temperature: float = 1.0
    """0 takes the most likely token; higher is more random."""
    top_k: int = 0
    """Only the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Only the most likely tokens that together reach this probability."""


@torch.inference_mode()
def generate(
    model: DecoderLM,
    prompt: Int[Tensor, "b t"],
    tokens: int,
    *,
    sampling: Sampling | None = None,
    generator: torch.Generator | None = None,
    cached: bool = True,
    allowed: int | None = None,
) -> Iterator[Int[Tensor, " b"]]:
    """Yield ``tokens`` new tokens for every row of ``prompt``, one step at a time.

    Randomised encodings draw their positions once, for the whole text.

    Args:
        model: in the mode in which it is to run; ``model.eval()`` switches dropout off.
        prompt: token ids.
        tokens: how many to generate.
        sampling: how the next token is chosen; by default from the model's own distribution.
        generator: for reproducible choices and draws; on the CPU.
        cached: False runs the whole text through the model for every token: slow, to compare with.
        allowed: only ids below this number are chosen, where a padded vocabulary has ids without meaning.

    Yields:
        The ids chosen at each step, one for every row.

    Raises:
        ValueError: a text that would be longer than the encoding allows (learned).

    Examples:
        >>> from dape import DecoderConfig, DecoderLM
        >>> model = DecoderLM(DecoderConfig(encoding="rope", layers=1, width=8, heads=2, vocabulary=5))
        >>> new = list(generate(model, torch.tensor([[1, 2, 3]]), 4))
        >>> len(new), new[0].shape
        (4, torch.Size([1]))
    """
    sampling = sampling or Sampling()
    encodings = model.drawn_encodings(prompt.shape[1] + tokens, generator)
    cache = Cache(model.config.layers) if cached else None
    text, new = prompt, prompt
    for _ in range(tokens):
        hidden = model.hidden(new if cached else text, cache=cache, encodings=encodings)
        logits = model.head(hidden[:, -1]).float()[:, :allowed]
        chosen = choose(logits, sampling, generator)
        yield chosen
        new = chosen.unsqueeze(1)
        text = torch.cat([text, new], dim=1) if not cached else text


def choose(
    logits: Float[Tensor, "b v"], sampling: Sampling, generator: torch.Generator | None = None
) -> Int[Tensor, " b"]:
    if sampling.temperature == 0:
        return logits.argmax(-1)
    # The largest logit becomes 0, so that a tiny temperature does not make it infinite. The temperature itself must not
    # be rounded to 0.
    temperature = max(sampling.temperature, torch.finfo(logits.dtype).tiny)
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature
    probabilities = torch.softmax(_restricted(logits, sampling), dim=-1)
    # On the CPU, like the generator: the same seed then gives the same text on every device.
    return torch.multinomial(probabilities.cpu(), 1, generator=generator).squeeze(1).to(logits.device)


def _restricted(logits: Float[Tensor, "b v"], sampling: Sampling) -> Float[Tensor, "b v"]:
    """The logits, with -inf for tokens outside of top-k and top-p. The most likely token always stays."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    excluded = torch.zeros_like(ordered, dtype=torch.bool)
    if sampling.top_k > 0:
        excluded[:, sampling.top_k :] = True
    if sampling.top_p < 1:
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        excluded |= before >= sampling.top_p
    excluded[:, 0] = False
    return logits.masked_fill(excluded.scatter(-1, order, excluded), -torch.inf)
