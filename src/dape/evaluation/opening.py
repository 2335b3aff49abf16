"""Open a checkpoint, and the text on which it is measured.

Torch is imported only when a model is loaded, so that a wrong path is refused at once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dape.data.corpora import open_data
from dape.data.sources import digest, expand
from dape.data.store import Corpus, is_prepared
from dape.errors import UsageError
from dape.files import cache_folder
from dape.models.config import DecoderConfig
from dape.provenance import provenance
from dape.reading import reading
from dape.training.description import DESCRIPTION, Description, describe, find
from dape.training.run import CONFIG, RunConfig, run_folder

if TYPE_CHECKING:
    import torch

    from dape.evaluation.perplexity import Subject
    from dape.models.decoder import DecoderLM


@dataclass(frozen=True)
class Opened:
    """A checkpoint of a language model."""

    where: Path
    description: Description

    @property
    def settings(self) -> DecoderConfig:
        return self.description.model

    def model(self, device: "torch.device") -> "DecoderLM":
        from dape.training.checkpoint import load_model

        return load_model(self.where, self.description, device).eval()

    def subject(self, corpus: Corpus) -> "Subject":
        """The model and its data, as rows describe them."""
        from dape.evaluation.perplexity import Subject

        return Subject(
            run=run_folder(self.where).name,
            method=self.settings.encoding,
            seed=self.description.train.seed,
            train_length=self.settings.train_length,
            step=self.description.step,
            data_hash=corpus.hash,
            tokenizer=corpus.tokenizer.name,
            extra=provenance(),
        )

    def corpus(self, given: "str | Path | Corpus | None") -> Corpus:
        """The data ``given``, by default that of training. UsageError if its tokenizer is not the model's."""
        where, own = self.where, self.description.data
        run = run_folder(where)
        if isinstance(given, Corpus):
            corpus = given
        elif given is not None:
            tokenizer = "bytes" if own["tokenizer"] == "bytes" else str(where / "tokenizer.json")
            corpus = open_text(str(given), tokenizer, own["tokenizer_fingerprint"])
        elif (run / CONFIG).is_file():
            corpus = open_data(RunConfig.read(run).data, out=run / "data")
        else:
            raise UsageError(f"{where} does not say where its data is; name it with `data`")
        if corpus.tokenizer.fingerprint != own["tokenizer_fingerprint"]:
            raise UsageError(
                f"{corpus.folder} was prepared with the tokenizer {corpus.tokenizer.name}, the model in {where} was "
                f"trained with {own['tokenizer']} ({own['tokenizer_fingerprint'][:12]}); "
                f"prepare the text with the model's: dape prepare ... --tokenizer {where}/tokenizer.json"
            )
        return corpus


def open_checkpoint(path: Path) -> Opened:
    """Open the checkpoint at ``path``, or the newest one of the run at ``path``."""
    where = find(path)
    description = describe(where)
    with reading(where / DESCRIPTION, "cannot be loaded"):
        if not isinstance(description.model, DecoderConfig):
            raise ValueError("it is not of a language model")
    return Opened(where, description)


def open_text(spec: str, tokenizer: str, fingerprint: str) -> Corpus:
    """Open a prepared folder, or prepare a text in the cache with the model's own tokenizer."""
    if is_prepared(Path(spec)):
        return open_data(spec)
    key = f"{digest(expand(spec).items)[:12]}-{fingerprint[:12]}"
    # The user cannot choose another folder in the cache, so a second process waits for the first.
    return open_data(spec, out=cache_folder() / f"text-{key}", tokenizer=tokenizer, wait=True)
