"""Small decoders that learn one generated task each, and nothing else. No torch before a model is made."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dape.errors import UsageError, check_counts
from dape.models.config import DecoderConfig

if TYPE_CHECKING:
    from dape.models.decoder import DecoderLM


@dataclass(frozen=True, kw_only=True)
class SmallModels:
    """Size and training, the same for every method and seed."""

    train_length: int = 64
    """Longest training sequence."""
    layers: int = 2
    width: int = 64
    heads: int = 4
    steps: int = 1000
    batch: int = 16
    """Training sequences per step, if they are of the longest; shorter ones are proportionally more."""
    lr: float = 3e-3

    @property
    def train_tokens(self) -> int:
        """The most tokens that a model reads in training: no step has more than a batch of the longest sequences."""
        return self.steps * self.batch * self.train_length

    def check_sizes(self) -> None:
        check_counts(self, "layers", "width", "heads", "steps", "batch")
        if not 0 < self.lr < 1:
            raise UsageError(f"`lr` must be between 0 and 1, got {self.lr}")

    def model(self, method: str, vocabulary: int) -> DecoderConfig:
        return DecoderConfig(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            vocabulary=vocabulary,
            encoding=method,
            train_length=self.train_length,
        )


def new_model(config: DecoderConfig, seed: int) -> "DecoderLM":
    """Embeddings have variance 1. With those of the language models, a twelfth as large, rope and kerple did not get
    beyond guessing one of the values stated in a recall task, rope not even of two pairs in 8 tokens
    (docs/lab-notes.md)."""
    import torch

    from dape.models.decoder import DecoderLM

    torch.manual_seed(seed)
    model = DecoderLM(config)
    torch.nn.init.normal_(model.embedding.weight, generator=torch.Generator().manual_seed(seed))
    return model
