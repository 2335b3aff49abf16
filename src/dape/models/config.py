"""The shape of a language model. No torch here: the command line reads it."""

from dataclasses import dataclass, field
from typing import Any

from dape.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    layers: int = 4
    """Transformer blocks."""
    width: int = 128
    """Numbers per token in the residual stream."""
    heads: int = 8
    """Attention heads; width must be a multiple."""
    vocabulary: int = 257
    """Number of token ids; the tokenizer of the data decides. 257 are bytes and the end of a document."""
    encoding: str = "dape-kerple"
    """Positional encoding, a name from `dape list`."""
    encoding_options: dict[str, Any] = field(default_factory=dict)
    """Options of the encoding, such as hidden=16 variant=concat."""
    train_length: int = 64
    """Tokens per training sequence."""
    share_encoding: bool | None = None
    """One set of encoding parameters for all layers; by default as the authors do (T5's table is shared)."""
    checkpoint_activations: bool = False
    """Recompute each block in the backward pass: less memory, about a third more time."""

    def check(self) -> None:
        """Refuse sizes that cannot be meant; what an encoding thinks of its options shows when the model is built."""
        for name in ("layers", "width", "heads", "vocabulary", "train_length"):
            if getattr(self, name) < 1:
                raise UsageError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise UsageError(f"`width` {self.width} cannot be divided into `heads` {self.heads} of equal width")
