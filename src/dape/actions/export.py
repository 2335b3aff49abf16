"""``dape export`` and ``dape import``: checkpoints to models of transformers and back."""

from pathlib import Path
from typing import TYPE_CHECKING

from dape.actions.model_folder import model_type
from dape.errors import UsageError
from dape.extras import check_transformers
from dape.files import check_writable_folder

if TYPE_CHECKING:
    from dape.data.tokenizer import Tokenizer

MODEL_TYPE = "dape"


def export_run(run: Path, out: Path) -> tuple[Path, float]:
    """Write a checkpoint, or the newest one of a run, as a folder of transformers.

    Returns:
        The checkpoint, and the largest difference between the logits of both models.
    """
    check_transformers("dape export")
    _check_out(out)
    from dape.training.description import find
    from dape.training.run import run_folder

    where = find(run)
    from dape.hf.convert import export

    return where, export(where, run_folder(where), out)


def import_model(folder: Path, out: Path, tokenizer: str | None) -> tuple[Path, float]:
    """Write a folder of transformers as a run; ``tokenizer`` is for folders without one.

    Returns:
        The new checkpoint, and the largest difference between the logits of both models.
    """
    check_transformers("dape import")
    _check_model_folder(folder)
    _check_out(out)
    from dape.hf.convert import import_

    return import_(folder, out, _tokenizer(folder, tokenizer))


def _tokenizer(folder: Path, given: str | None) -> "Tokenizer":
    from dape.data.tokenizer import FILE, open_tokenizer
    from dape.hf.tokenizer import open_exported

    if given is None:
        return open_exported(folder)
    if (folder / FILE).is_file():
        raise UsageError(f"{folder} has a tokenizer; `tokenizer` is for folders without one")
    found = open_tokenizer(given)
    if found is None:
        raise UsageError(f"`tokenizer` {given}: would train a new tokenizer; give bytes or a tokenizer.json")
    return found


def _check_out(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"`out` {out}: exists and is not empty; choose another folder")
    check_writable_folder(out, "`out`")


def _check_model_folder(folder: Path) -> None:
    kind = model_type(folder)
    if kind != MODEL_TYPE:
        raise UsageError(
            f"{folder}: is a model of type {kind!r}, and only type {MODEL_TYPE!r} can become a run. "
            "`dape extend` puts an encoding into other models"
        )
