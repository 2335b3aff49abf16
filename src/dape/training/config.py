"""How a language model is trained. No torch here: the command line reads it."""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 500
    """Optimizer steps."""
    batch: int = 32
    """Sequences per optimizer step."""
    accumulate: int = 1
    """Split each batch into this many parts, one after the other: less memory, the same gradient."""
    lr: float = 2e-3
    """Highest learning rate: linear warm-up, then cosine."""
    final_lr_share: float = 0.1
    """The last learning rate, as a share of the highest."""
    warmup_share: float = 0.01
    """Share of the steps that warm up, at least one step."""
    beta1: float = 0.9
    """Memory of AdamW's mean."""
    beta2: float = 0.95
    """Memory of AdamW's variance."""
    eps: float = 1e-8
    """Added to AdamW's denominator."""
    weight_decay: float = 0.1
    """Decoupled weight decay of everything but norms and biases, as the authors do."""
    decay_positions: bool = True
    """Decay the encoding's own scalars and vectors too, as the authors do (Kerple's authors did not)."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 switches clipping off."""
    precision: Precision = "fp32"
    """fp32, or mixed precision in bf16 or fp16 (with a loss scaler). Positions, f and softmax stay in float32."""
    compile: bool = False
    """Compile the model with torch.compile: minutes at the start, for speed afterwards."""
    seed: int = 0
    """Seed of the weights and of the order of the data."""
    log_every: int = 10
    """Steps between two lines of metrics."""
    validate_every: int = 0
    """Steps between two measurements of the validation loss at the training length; 0: at the end only."""
    save_every: int = 500
    """Steps between two checkpoints; the last step is always saved."""
    keep: int = 2
    """Checkpoints to keep, newest first."""
