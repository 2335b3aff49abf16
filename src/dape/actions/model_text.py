"""Text as tokens of the model in a folder of transformers."""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dape.errors import UsageError
from dape.fitting import to_terminal

if TYPE_CHECKING:
    from dape.data.store import Corpus
    from dape.data.tokenizer import Tokenizer

BYTE_MODELS = 384
"""Most ids of a model that reads bytes: 257, padded."""


def model_corpus(spec: str, folder: Path, argument: str, *, vocabulary: int | None = None) -> "Corpus":
    """Open a text with the tokenizer of the model in ``folder``, and print which part is held out.

    Args:
        spec: the text, as for ``dape.open_data``.
        folder: the model.
        argument: name of the argument that ``spec`` was given as, for errors.
        vocabulary: the model's number of ids. With it, the folder may lack a tokenizer: a prepared text is then taken
            as it is, and any other text is read as bytes if the number of ids fits.
    """
    from dape.data.held_out import held_out_warnings, held_out_words

    corpus = _model_corpus(spec, folder, argument, vocabulary)
    print(to_terminal(f"held out of {corpus.name}: {held_out_words(corpus)}"), flush=True)
    for words in held_out_warnings(corpus):
        print(f"dape: warning: {words}", file=sys.stderr)
    return corpus


def _model_corpus(spec: str, folder: Path, argument: str, vocabulary: int | None) -> "Corpus":
    from dape.data.corpora import open_data
    from dape.data.store import is_prepared
    from dape.data.tokenizer import FILE, ByteTokenizer, open_tokenizer
    from dape.evaluation.opening import open_text

    has_own = (folder / FILE).is_file()
    if vocabulary is not None and not has_own and is_prepared(Path(spec)):
        return open_data(spec)
    own = _tokenizer(folder, argument, vocabulary)
    with tempfile.TemporaryDirectory() as saved:
        own.save(Path(saved))  # also saves which token ends a document; tokenizer.json alone does not say
        given = "bytes" if isinstance(own, ByteTokenizer) else str(Path(saved, FILE))
        corpus = open_text(spec, given, own.fingerprint)
    same = {own.fingerprint}
    if not isinstance(own, ByteTokenizer) and (as_file := open_tokenizer(str(folder / FILE))):
        same.add(as_file.fingerprint)  # `dape prepare --tokenizer MODEL/tokenizer.json`
    if corpus.tokenizer.fingerprint not in same:
        raise UsageError(
            f"`{argument}` {spec}: was prepared with the tokenizer {corpus.tokenizer.name}, not with that of {folder}; "
            f"give the text itself, or prepare it again: dape prepare ... --tokenizer {folder / FILE}"
        )
    return corpus


def _tokenizer(folder: Path, argument: str, vocabulary: int | None) -> "Tokenizer":
    from dape.data.tokenizer import FILE, ByteTokenizer
    from dape.hf.tokenizer import open_exported

    if (folder / FILE).is_file():
        return open_exported(folder)
    if vocabulary is not None and vocabulary <= BYTE_MODELS:
        return ByteTokenizer()
    also = "" if vocabulary is None else f"; or give `{argument}` a folder that `dape prepare` made with it"
    raise UsageError(
        f"{folder} has no {FILE}, which is needed to read `{argument}` as the model does. Save it there: "
        f"AutoTokenizer.from_pretrained(...).save_pretrained({str(folder)!r}){also}"
    )
