"""Settings of the training loop. No torch here: the command line reads it."""

import math
from dataclasses import dataclass
from typing import Literal

from dape.errors import UsageError, check_counts, check_seed

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    steps: int = 400
    """Optimizer steps."""
    batch: int = 16
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
    """Decoupled weight decay of all parameters but norms and biases, as the authors do."""
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
    save_seconds: float = 0.0
    """Seconds between two checkpoints, besides those by steps; 0: by steps only."""
    keep: int = 2
    """Checkpoints to keep, newest first."""

    def check(self) -> None:
        """Raise UsageError on invalid settings."""
        check_counts(self, "steps", "batch", "accumulate", "log_every", "keep")
        for name in ("lr", "eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"`{name}` must be a positive number, got {getattr(self, name)}")
        for name in ("weight_decay", "clip", "save_every", "save_seconds", "validate_every"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"`{name}` must be 0 or more, got {getattr(self, name)}")
        for name in ("final_lr_share", "warmup_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"`{name}` must lie between 0 and 1, got {getattr(self, name)}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"`{name}` must be at least 0 and below 1, got {getattr(self, name)}")
        check_seed(self.seed)
        if self.batch % self.accumulate:
            raise UsageError(f"`batch` {self.batch} cannot be split into `accumulate` {self.accumulate} equal parts")
