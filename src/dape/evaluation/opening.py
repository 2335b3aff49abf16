"""A checkpoint, and the text on which it is measured."""

from pathlib import Path
from typing import TYPE_CHECKING

from dape.data.corpora import open_data
from dape.data.sources import digest, expand
from dape.data.store import Corpus, is_prepared
from dape.errors import UsageError
from dape.evaluation.perplexity import Subject
from dape.files import cache_folder
from dape.provenance import provenance
from dape.training.run import CONFIG, RunConfig, run_folder

if TYPE_CHECKING:
    from dape.training.checkpoint import Description


def open_corpus(given: "str | Path | Corpus | None", where: Path, description: "Description") -> Corpus:
    """The data asked for, or that of training; its tokenizer must be the model's."""

    run = run_folder(where)
    if isinstance(given, Corpus):
        corpus = given
    elif given is not None:
        corpus = _open_given(str(given), where, description)
    elif (run / CONFIG).is_file():
        corpus = open_data(RunConfig.read(run).data, out=run / "data")
    else:
        raise UsageError(f"{where} does not say where its data is; name it with `data`")
    if corpus.tokenizer.fingerprint != description.data["tokenizer_fingerprint"]:
        raise UsageError(
            f"{corpus.folder} was prepared with the tokenizer {corpus.tokenizer.name}, the model in {where} was "
            f"trained with {description.data['tokenizer']} ({description.data['tokenizer_fingerprint'][:12]}); "
            f"prepare the text with the model's: dape prepare ... --tokenizer {where}/tokenizer.json"
        )
    return corpus


def _open_given(spec: str, where: Path, description: "Description") -> Corpus:
    bytes_alone = description.data["tokenizer"] == "bytes"
    tokenizer = "bytes" if bytes_alone else str(where / "tokenizer.json")
    return open_text(spec, tokenizer, description.data["tokenizer_fingerprint"])


def open_text(spec: str, tokenizer: str, fingerprint: str) -> Corpus:
    """A prepared folder as it is; text is prepared with the model's own tokenizer, and kept in the cache."""

    if is_prepared(Path(spec)):
        return open_data(spec)
    key = f"{digest(expand(spec).items)[:12]}-{fingerprint[:12]}"
    # The folder is ours and not the user's: who comes second cannot choose another, and waits.
    return open_data(spec, out=cache_folder() / f"text-{key}", tokenizer=tokenizer, wait=True)


def subject_of(where: Path, description: "Description", corpus: Corpus) -> Subject:

    return Subject(
        run=run_folder(where).name,
        method=description.model.encoding,
        seed=description.train.seed,
        train_length=description.model.train_length,
        step=description.step,
        data_hash=corpus.hash,
        tokenizer=corpus.tokenizer.name,
        extra=provenance(),
    )
