"""The cases of ``dape bench model`` that fit in memory. Loads torch only to count the parameters of encodings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dape.bench.records import pass_name
from dape.bench.train import TrainPass
from dape.config.load import read_preset
from dape.machine import GB
from dape.models.config import DecoderConfig
from dape.training.cost import STATE_BYTES, activation_bytes, dense_parameters, encoding_parameters

PASSES: tuple[TrainPass, ...] = ("forward", "forward_backward", "step")
"""In the order of their cost."""
GPT2_VOCABULARY = 50304
BYTE_PRESETS = ("tiny", "small")
DEFAULT_DEPTHS = (1, 2)


@dataclass(frozen=True)
class Planned:
    """The measurements of one size, which share one set of weights."""

    size: str
    shape: DecoderConfig
    """The whole model's."""
    depths: tuple[int, ...]
    cases: tuple[tuple[int, TrainPass], ...]
    """Lengths and passes that fit."""


def shape_of(size: str, vocabulary: int | None = None) -> DecoderConfig:
    """The preset, without checkpointing of activations: only a few layers are measured."""
    usual = DecoderConfig.vocabulary if size in BYTE_PRESETS else GPT2_VOCABULARY
    model = {**read_preset(size)["model"], "checkpoint_activations": False}
    return DecoderConfig(**model, encoding="nope", vocabulary=vocabulary or usual)


def plan(
    size: str,
    shape: DecoderConfig,
    depths: tuple[int, ...] | None,
    wanted: Sequence[tuple[int, TrainPass]],
    *,
    encodings: Sequence[str],
    batch: int,
    half: bool,
    limit: float,
) -> tuple[Planned, list[str]]:
    """The cases that fit in ``limit`` bytes, and a message for each other one. ``depths`` is 1 and 2 by default, or 1
    if no case fits with 2."""
    choices = [depths] if depths else [DEFAULT_DEPTHS, DEFAULT_DEPTHS[:1]]
    fitting, skipped = Planned(size, shape, choices[0], ()), []
    for chosen in choices:
        needed = {
            case: bytes_needed(shape, chosen, *case, encodings=encodings, batch=batch, half=half) for case in wanted
        }
        fitting = Planned(size, shape, chosen, tuple(case for case in wanted if needed[case] <= limit))
        skipped += [_too_large(size, chosen, *case, needed[case], limit) for case in wanted if needed[case] > limit]
        if fitting.cases:
            break
    return fitting, skipped


def bytes_needed(
    shape: DecoderConfig,
    depths: Sequence[int],
    length: int,
    pass_: TrainPass,
    *,
    encodings: Sequence[str],
    batch: int,
    half: bool,
) -> int:
    """Weights (shared by all models), gradients and optimizer state; activations of the deepest model; logits."""
    deepest = replace(shape, layers=max(depths), train_length=length)
    own = sum(encoding_parameters(replace(deepest, encoding=e, layers=d)) for e in encodings for d in depths)
    dense = dense_parameters(deepest)
    # Without gradients, the activations of a block are freed before the next block runs.
    kept = replace(deepest, layers=1) if pass_ == PASSES[0] else deepest
    rounded = 2 * dense if half else 0
    return (dense + own) * STATE_BYTES[pass_] + rounded + activation_bytes(kept, batch=batch, half=half)


def _too_large(size: str, depths: Sequence[int], length: int, pass_: TrainPass, needed: int, limit: float) -> str:
    layers = "1 layer" if max(depths) == 1 else f"{max(depths)} layers"
    return (
        f"{size}, {layers}, {length} tokens, {pass_name(pass_)}: not run, "
        f"needs about {needed / GB:.3g} GB of {limit / GB:.3g} GB that may be used"
    )
