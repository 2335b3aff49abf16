"""The terms of attention in a trained model: content scores A, bias B, f(A, B), logits and weights of the last queries.

The model runs unchanged. Before each chosen attention layer, a hook computes the wanted rows from the layer's input,
projections and encoding: some queries x all keys, and never the whole matrix.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.evaluation.map_files import STAGES, Stages
from dape.models.decoder import Block, DecoderLM
from dape.models.layers import SelfAttention
from dape.ops.attention import Intermediates, intermediates
from dape.positional.base import AdditiveBias, PositionalEncoding
from dape.positional.dape import WITHOUT_BIAS, Dape, DapeV2, DapeWrapper
from dape.positional.randomized import Randomized

CELLS_AT_ONCE = 1 << 18
"""Queries times keys that are computed at once; f needs some hundred numbers for each cell."""
TOLERANCE = 1e-4
"""Greatest difference between the logits and the sum of their terms, relative to the largest term."""


# Terms ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of an encoding's logits as formulas, with the scaled content scores A and the bias B."""

    bias: bool
    """Whether there is a B."""
    f: str
    """The term f: f([A; B]), f(B), ...; empty if there is none."""
    logits: str
    """The whole sum."""
    variant: str = ""
    """The variant of DAPE."""


F_BY_VARIANT = {
    "concat_residual": "f([A; B])",
    "concat": "f([A; B])",
    "add_residual": "f(A + B)",
    "bias_only": "f(B)",
    "bias_map": "f(B)",
}
ADDED = "P(A, q, k)"
"""The term of cope and transformer-xl, which depends on content and has no static part."""


def terms_of(pe: PositionalEncoding) -> Terms:
    """The terms that this encoding's class should have; :func:`stages` compares them with its logits."""
    if isinstance(pe, Randomized):
        return terms_of(pe.base)
    if isinstance(pe, DapeWrapper):
        return _terms_of_dape(pe)
    if isinstance(pe, AdditiveBias) and type(pe).logits is AdditiveBias.logits:
        return Terms(bias=True, f="", logits="A + B")
    if type(pe).logits is PositionalEncoding.logits:
        return Terms(bias=False, f="", logits="A")
    return Terms(bias=False, f=ADDED, logits=f"A + {ADDED}")


def _terms_of_dape(pe: DapeWrapper) -> Terms:
    variant = pe.variant if isinstance(pe, Dape) and pe.has_bias else ""
    f = F_BY_VARIANT.get(variant, "f([A; B])" if pe.has_bias else "f(A)")
    f = f.replace("f(", "conv(") if isinstance(pe, DapeV2) else f
    parts = ["A", *(["B"] if pe.has_bias and variant not in WITHOUT_BIAS else []), f]
    return Terms(bias=pe.has_bias, f=f, logits=" + ".join(parts), variant=variant)


def _stages_of(seen: Intermediates, terms: Terms, name: str) -> dict[str, Tensor]:
    """Every stage as [head, query, key]; stages that the encoding does not have are 0."""
    nothing = torch.zeros_like(seen.scores)
    bias = nothing if seen.bias is None else seen.bias.to(nothing.dtype).expand_as(nothing)
    if terms.f == ADDED:
        f = seen.logits - seen.scores
    else:
        f = nothing if seen.f is None else seen.f.to(nothing.dtype).expand_as(nothing)
        _check_sum(seen, bias if " + B" in terms.logits else nothing, f, terms, name)
    stages = {"scores": seen.scores, "bias": bias, "f": f, "logits": seen.logits, "weights": seen.weights}
    return {stage: x[0] for stage, x in stages.items()}


def _check_sum(seen: Intermediates, bias: Tensor, f: Tensor, terms: Terms, name: str) -> None:
    """Raise ValueError if the logits have other terms, as those of a registered encoding may."""
    parts = (seen.scores, bias, f)
    largest = max(1.0, *(float(part.abs().max()) for part in parts))
    if float((seen.logits - sum(parts)).abs().max()) > TOLERANCE * largest:
        raise ValueError(
            f"{name}: its logits are not {terms.logits}, so its maps cannot be drawn. Possible are additive biases, "
            "dape-X and dape-v2-X, rotary and embedded positions, cope and transformer-xl"
        )


# Stages of a model ---------------------------------------------------------------------------------------------------


def last_rows(
    model: DecoderLM,
    windows: Int[np.ndarray, "s t"],
    *,
    layers: Sequence[int],
    heads: Sequence[int],
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Stages:
    """Every stage of the last query: {stage: float32 [sample, layer, head, key]}. Layers and heads count from 1.

    All samples share one draw of randomised positions, so that they differ in their text alone.
    """
    encodings = drawn_once(model, windows.shape[1])
    found = []
    for done, window in enumerate(windows, 1):
        found.append(stages(model, window, layers=layers, heads=heads, encodings=encodings))
        watch(done, len(windows))
    return {stage: np.stack([each[stage][:, :, 0] for each in found]) for stage in STAGES}


def drawn_once(model: DecoderLM, length: int) -> list[PositionalEncoding]:
    """The encodings of all layers, with one fixed draw of randomised positions."""
    return model.drawn_encodings(length, torch.Generator().manual_seed(0))


@torch.inference_mode()
def stages(
    model: DecoderLM,
    window: Int[np.ndarray, " t"],
    *,
    layers: Sequence[int],
    heads: Sequence[int],
    queries: int = 1,
    keys: int | None = None,
    encodings: list[PositionalEncoding] | None = None,
) -> Stages:
    """{stage: float32 [layer, head, query, key]} for the last queries and the last keys (None: all). Cells that are
    masked are NaN. Weights are normalised over all keys, also those that are left out."""
    encodings = drawn_once(model, len(window)) if encodings is None else encodings
    name, terms = model.config.encoding, terms_of(encodings[0])
    found: dict[int, Stages] = {}

    def see(layer: int, attention: SelfAttention, x: Tensor, pe: PositionalEncoding) -> None:
        blocks = (_visible_stages(seen, terms, name, heads, keys) for seen in _row_blocks(attention, x, pe, queries))
        parts = list(blocks)
        found[layer] = {stage: np.concatenate([part[stage] for part in parts], axis=1) for stage in STAGES}

    tokens = torch.from_numpy(np.asarray(window, np.int64)).to(model.embedding.weight.device)
    with _hooked(model, layers, see):
        model.hidden(tokens.unsqueeze(0), encodings=encodings, last=1)
    return {stage: np.stack([found[layer][stage] for layer in layers]) for stage in STAGES}


@contextmanager
def _hooked(model: DecoderLM, layers: Sequence[int], see: Callable[[int, SelfAttention, Tensor, Any], None]) -> Any:
    def hook_of(layer: int) -> Callable[[Any, Any], None]:
        return lambda attention, args: see(layer, attention, args[0], args[1])

    handles = []
    try:
        for layer in set(layers):
            block = model.blocks[layer - 1]
            assert isinstance(block, Block)
            handles.append(block.attention.register_forward_pre_hook(hook_of(layer)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _row_blocks(
    attention: SelfAttention, x: Float[Tensor, "b t m"], pe: PositionalEncoding, queries: int
) -> Iterator[Intermediates]:
    """The stages of the last queries in blocks of rows, so that memory is linear in the number of keys."""
    q, k, _ = attention.project(x, queries)
    step, features = max(1, CELLS_AT_ONCE // k.shape[2]), pe.features(x)
    for first in range(0, q.shape[2], step):
        rows = slice(first, first + step)
        yield intermediates(q, k, pe, rows=rows, causal=attention.causal, features=features)


def _visible_stages(seen: Intermediates, terms: Terms, name: str, heads: Sequence[int], keys: int | None) -> Stages:
    found = _stages_of(seen, terms, name)
    chosen = torch.tensor(heads, device=seen.scores.device) - 1
    last: slice[Any, Any, Any] = slice(None if keys is None else -keys, None)

    def kept(x: Tensor) -> np.ndarray:
        if seen.visible is not None:
            x = x.masked_fill(~seen.visible, torch.nan)
        # Keys are cut before heads are picked, which copies: a view would keep all keys in memory.
        return x[..., last][chosen].float().cpu().numpy()

    return {stage: kept(x) for stage, x in found.items()}
