"""Estimates of what training a model takes: parameters, floating-point operations, memory.

m width, h heads, v vocabulary, t tokens of a sequence, L layers. The forward pass of one sequence takes, with a
multiplication and an addition counted as two operations:

weights         2 t (12 m^2 L + m v)        linear layers of all blocks, and the head; embedding is a lookup
scores, values  4 m L t(t+1)/2              pairs (i, j) with j <= i only, as the operator skips the others
encoding        2 w L t(t+1)/2              w: weights applied at each pair, 2hD + Dh for DAPE's f with D units

The backward pass takes twice as many; recomputing the blocks (``checkpoint_activations``) adds their forward pass.
Only products of matrices are counted. Torch is imported only to count the parameters of an encoding.
"""

from dataclasses import dataclass

from dape.errors import UsageError
from dape.machine import in_words
from dape.models.config import DecoderConfig
from dape.positional.catalogue import find
from dape.positional.names import parse
from dape.training.config import TrainConfig

A800_PEAK = 312e12
"""Operations per second in bfloat16 of the paper's GPU."""
UTILISATION = 0.4
"""Share of the peak that training reaches: our guess, optimistic for models below 1B parameters."""

STATE_BYTES = {"forward": 4, "forward_backward": 8, "step": 16}
"""Bytes per parameter, in float32: the weight; with its gradient; with AdamW's two moments."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    parameters: int
    """All parameters, embeddings and encodings included."""
    flops: float
    """Floating-point operations of the whole run."""
    memory_bytes: int
    """Peak on one device, without what the framework takes for itself."""


def gpu_hours(flops: float, peak: float = A800_PEAK) -> float:
    """Hours of training on a GPU with ``peak`` operations per second, by default the paper's."""
    return flops / (peak * UTILISATION) / 3600


def training_cost(model: DecoderConfig, train: TrainConfig, *, evaluation_tokens: int = 0) -> Cost:
    """The cost of a whole run. Evaluation counts as forward passes at the training length."""
    sequences = train.steps * train.batch
    evaluated = evaluation_tokens / model.train_length * forward_flops(model)
    count, part = parameters(model), train.batch // train.accumulate
    half = train.precision != "fp32"
    return Cost(
        parameters=count,
        flops=sequences * training_flops(model) + evaluated,
        memory_bytes=count * (STATE_BYTES["step"] + 2 * half) + activation_bytes(model, batch=part, half=half),
    )


LAYER_BYTES = 50_000
"""Memory of the Python objects of one layer, without its tensors."""
TOLERANCE = 1.25
"""Estimates are rough: a model that seems a little too large may still fit."""


def memory_needed(model: DecoderConfig, *, batch: int = 0, training: bool = False, half: bool = False) -> int:
    """A lower bound in bytes, without the encodings, so that nothing is built. ``batch``: sequences at a time."""
    state = dense_parameters(model) * STATE_BYTES["step" if training else "forward"]
    return state + model.layers * LAYER_BYTES + activation_bytes(model, batch=batch, half=half)


def require_fits(
    model: DecoderConfig, room: int, *, batch: int = 0, training: bool = False, half: bool = False
) -> None:
    """Raise UsageError if the model cannot fit into ``room`` bytes. Nothing is built."""
    needed = memory_needed(model, batch=batch, training=training, half=half)
    if needed <= TOLERANCE * room:
        return
    shape = f"{model.layers} layers of width {model.width} ({dense_parameters(model):.3g} parameters)"
    data = f" with {batch} x {model.train_length} tokens at a time" if batch else ""
    advice = "Make it smaller (layers, width"
    advice += ", batch; or accumulate, checkpoint_activations)" if training else ")"
    raise UsageError(
        f"{shape}{data} would need {in_words(needed)} of memory, and {in_words(room)} are free here. {advice}, or use "
        "a larger machine"
    )


def window_bytes(width: int, length: int) -> int:
    """Memory of a forward pass of one sequence in float32: residual stream, q, k, v, attention output and the
    feed-forward's four widths with its activation."""
    return 4 * 16 * width * length


# Parameters ----------------------------------------------------------------------------------------------------------


def parameters(model: DecoderConfig) -> int:
    return dense_parameters(model) + encoding_parameters(model)


def dense_parameters(model: DecoderConfig) -> int:
    """Parameters without the encodings: embedding and head, and per layer 12 m^2 weights, biases and norms."""
    m = model.width
    return 2 * model.vocabulary * m + model.layers * (12 * m**2 + 13 * m) + 2 * m


def encoding_parameters(model: DecoderConfig) -> int:
    """Parameters of the encodings of all layers together."""
    import torch

    from dape.models.decoder import new_encodings

    with torch.device("meta"):  # shapes without data
        return sum(p.numel() for pe in new_encodings(model) for p in pe.parameters())


def pair_weights(model: DecoderConfig) -> int:
    """Weights of the encoding that are applied at every pair (i, j) in one layer.

    These are the layers of its networks: DAPE's f, FIRE's perceptron. (FIRE's is overestimated: it is evaluated once
    for a whole batch.) Transformer-XL instead forms a product over the channels of a query at each pair. Work per token
    or per lag, as in Transformer-XL and CoPE, is left out.
    """
    import torch

    from dape.models.decoder import new_encoding
    from dape.positional.layers import Affine, RowConvolution
    from dape.positional.transformer_xl import TransformerXL

    with torch.device("meta"):
        pe = new_encoding(model)
    if any(isinstance(module, TransformerXL) for module in pe.modules()):
        return model.width
    return sum(module.weight.numel() for module in pe.modules() if isinstance(module, Affine | RowConvolution))


# Operations ----------------------------------------------------------------------------------------------------------


def training_flops(model: DecoderConfig, *, causal: bool = True) -> float:
    """Forward and backward pass of one sequence of the training length."""
    once = forward_flops(model, causal=causal)
    # The last layer of a block, from 4 m to m, is not recomputed: the backward pass does not need its result.
    last = model.layers * 2 * model.train_length * 4 * model.width**2
    return 3 * once + (_block_flops(model, causal) - last if model.checkpoint_activations else 0)


def forward_flops(model: DecoderConfig, *, causal: bool = True) -> float:
    """Forward pass of one sequence of the training length. ``causal=False`` counts every pair, as dense attention."""
    head = 2 * model.train_length * model.width * model.vocabulary
    return _block_flops(model, causal) + head


def _block_flops(model: DecoderConfig, causal: bool) -> float:
    t, m = model.train_length, model.width
    pairs = t * (t + 1) / 2 if causal else t**2
    return model.layers * (2 * t * 12 * m**2 + pairs * (4 * m + 2 * pair_weights(model)))


# Memory --------------------------------------------------------------------------------------------------------------


def activation_bytes(model: DecoderConfig, *, batch: int, half: bool = False) -> int:
    """Memory of the activations that the backward pass needs, and of the logits at its beginning.

    A block keeps 17 numbers per token and channel: the inputs of two norms, of four linear layers (3 x 1 and 4), of
    attention (3) with its result, and of GELU (4). Attention itself is linear in memory and keeps next to nothing. In
    mixed precision 13 of them take two bytes; norms stay in float32, and their results are kept in both types. Rotated
    queries and keys are kept beside the projection that values are a view of. PyTorch's own attention keeps its result
    twice.
    """
    tokens = batch * model.train_length
    name = parse(model.encoding)
    hook = find(name.base).hook
    rotated = 2 * (hook == "rotate")
    twice = hook in ("rotate", "embed", "none") and not name.wrapper and not name.modifiers
    block = model.width * (((13 + rotated + twice) * 2 + 4 * 4 + 2 * 2) if half else (17 + rotated + twice) * 4)
    kept = model.layers * 4 * model.width + block if model.checkpoint_activations else model.layers * block
    logits = model.vocabulary * (2 * 2 + 3 * 4 if half else 3 * 4)  # logits, their log-softmax, their gradient
    return tokens * (kept + logits)
