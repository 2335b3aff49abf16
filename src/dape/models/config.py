"""The shape of a language model. No torch here: the command line reads it."""

from dataclasses import dataclass, field
from typing import Any

from dape.config.names import OtherNames, takes_other_names
from dape.errors import UsageError


@takes_other_names
@dataclass(frozen=True, kw_only=True)
class DecoderConfig(OtherNames):
    """The shape of a language model.

    In Python and in files, sizes may also be given under the names of ``dape.build`` (``num_heads``, ``model_dim``) and
    of Hugging Face (``num_hidden_layers``, ``hidden_size``, ...): ``dape.config.names`` has the table.

    Examples:
        >>> DecoderConfig(hidden_size=64, num_heads=4) == DecoderConfig(width=64, heads=4)
        True
    """

    layers: int = 4
    """Transformer blocks."""
    width: int = 128
    """Width of the residual stream."""
    heads: int = 8
    """Attention heads; width must be a multiple."""
    vocabulary: int = 257
    """Number of token ids, set by the tokenizer of the data. 257 are bytes and the end of a document."""
    encoding: str = "dape-kerple"
    """Positional encoding, a name from `dape list`."""
    encoding_options: dict[str, Any] = field(default_factory=dict)
    """Options of the encoding, such as hidden=16 variant=concat."""
    train_length: int = 64
    """Tokens per training sequence."""
    share_encoding: bool | None = None
    """Share one set of encoding parameters between all layers; by default as the authors do (T5's table is shared)."""
    checkpoint_activations: bool = False
    """Recompute each block in the backward pass: less memory, about a third more time."""

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    def check(self) -> None:
        """Raise UsageError on invalid sizes. Options of the encoding are checked when the model is built."""
        for name in ("layers", "width", "heads", "vocabulary", "train_length"):
            if getattr(self, name) < 1:
                raise UsageError(f"`{self.written_as(name)}` must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            width, heads = self.written_as("width"), self.written_as("heads")
            raise UsageError(f"`{width}` {self.width} cannot be divided into `{heads}` {self.heads} of equal width")
