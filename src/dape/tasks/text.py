"""The task of language models: predict the next token in windows of text."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dape.data.store import Corpus
from dape.data.windows import TrainingWindows, evaluation_ends, evaluation_windows
from dape.tasks.base import ONE_PROCESS, Batch, Loss, Shares, step_seed

VALIDATION_WINDOWS, VALIDATION_BATCH = 64, 16


class TextTask:
    """The task for :class:`~dape.models.decoder.DecoderLM`. Tasks for other models override :meth:`logits` and
    :meth:`draw`."""

    def __init__(
        self,
        corpus: Corpus,
        *,
        length: int,
        batch: int,
        seed: int,
        parts: int = 1,
        compile: bool = False,
        shares: Shares = ONE_PROCESS,
    ) -> None:
        self.corpus, self.length, self.size, self.seed, self.parts = corpus, length, batch, seed, parts
        self.windows = TrainingWindows(corpus.train, length=length, seed=seed)
        self.tokens = batch * length
        self._compile, self._shares = compile, shares

    @cached_property
    def loss_of(self) -> Callable[[nn.Module, Int[Tensor, "b t"], Any], Float[Tensor, ""]]:
        # Not in __init__: torch.compile takes seconds.
        return torch.compile(self._loss_of) if self._compile else self._loss_of

    @property
    def identity(self) -> Mapping[str, Any]:
        tokenizer = self.corpus.tokenizer
        return {
            "name": self.corpus.name,
            "hash": self.corpus.hash,
            "tokenizer": tokenizer.name,
            "tokenizer_fingerprint": tokenizer.fingerprint,
        }

    def batch(self, model: nn.Module, step: int) -> Batch:
        tokens = torch.from_numpy(self.windows.batch(step, self.size)).to(_device(model))
        generator = torch.Generator().manual_seed(step_seed(self.seed, step))
        # One draw for each part in all processes, as a single process would draw.
        parts = [self._shares.share(part) for part in tokens.chunk(self.parts)]
        drawn = [self.draw(model, generator) for _ in parts]

        def loss(part: int) -> Loss:
            return Loss(self.loss_of(model, parts[part], drawn[part]), parts[part][:, 1:].numel())

        def words() -> str:
            beginning = self.corpus.tokenizer.decode(tokens[0, :40].tolist())
            return f"batch {step} of seed {self.seed}, which begins with {beginning!r}"

        return Batch(loss=loss, count=tokens[:, 1:].numel(), parts=len(parts), words=words)

    def _loss_of(self, model: nn.Module, tokens: Int[Tensor, "b t"], drawn: Any) -> Float[Tensor, ""]:
        logits = self.logits(model, tokens[:, :-1], drawn)
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def logits(self, model: nn.Module, tokens: Int[Tensor, "b t"], drawn: Any) -> Float[Tensor, "b t n"]:
        return model(tokens, encodings=drawn)

    def draw(self, model: Any, generator: torch.Generator) -> Any:
        """The encodings with their random positions for one forward pass."""
        return model.drawn_encodings(self.length, generator)

    def validate(self, model: nn.Module) -> float | None:
        """The loss at the training length, on windows that are the same for every run on this text. None if the
        held-out text is too short."""
        stream, k = self.corpus.validation, self.length
        if len(stream) <= k:
            return None
        ends = evaluation_ends(stream, reach=k, k=k, windows=VALIDATION_WINDOWS, same_document=False)
        tokens = torch.from_numpy(evaluation_windows(stream, ends, k)).to(_device(model))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            losses = [
                self._loss_of(model, own, self.draw(model, generator)).item() * len(own) / copies
                for own, copies in map(self._own_windows, tokens.split(VALIDATION_BATCH))
            ]
        return self._shares.sums(sum(losses))[0] / len(tokens)

    def _own_windows(self, part: Int[Tensor, "b t"]) -> tuple[Int[Tensor, "b t"], int]:
        """The windows of this process, and the number of processes that have the same ones. All processes get all
        windows if these cannot be divided evenly, because processes with a sharded model must compute together."""
        world = self._shares.world
        return (part, world) if len(part) % world else (self._shares.share(part), 1)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
