"""``dape export`` and ``dape import``: checkpoints and models of transformers. Imports torch only when they run."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dape.errors import UsageError
from dape.extras import check_transformers
from dape.files import check_writable_folder
from dape.reading import read_json

if TYPE_CHECKING:
    from dape.data.tokenizer import Tokenizer

CONFIG, MODEL_TYPE = "config.json", "dape"


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a trained model as a folder that Hugging Face transformers loads.

    With its tokenizer and a README.md that tells what was trained and measured. The logits of both models are
    compared on the way. Needs the extra hf; nothing is uploaded.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A run's folder (its newest checkpoint), or one checkpoint."""
    out: Path
    """Folder to write; must not exist, or be empty."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """Turn a folder of Hugging Face transformers back into a run of ours.

    For `dape eval` and `dape generate`. The model must be of type dape: one of `dape export`, also after training in
    transformers. The logits of both models are compared on the way. Needs the extra hf; nothing is downloaded.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder with config.json and model.safetensors."""
    out: Path
    """Run to write; must not exist, or be empty."""
    tokenizer: str | None = None
    """bytes or a tokenizer.json, where MODEL has no tokenizer of its own."""


def run_export(config: Export) -> int:
    check_transformers("dape export")
    check_out(config.out)
    from dape.training import checkpoint as checkpoints
    from dape.training.run import run_folder

    where = checkpoints.find(config.checkpoint)
    use_offline()
    from dape.hf.convert import export

    difference = export(where, run_folder(where), config.out)
    print(f"{where} -> {config.out}, logits differ by {difference:.1e}")
    print(f"load it with AutoModelForCausalLM.from_pretrained({str(config.out)!r}) after `import dape.hf`")
    return 0


def run_import(config: Import) -> int:
    check_transformers("dape import")
    check_model_folder(config.model)
    check_out(config.out)
    use_offline()
    from dape.hf.convert import import_

    saved, difference = import_(config.model, config.out, _tokenizer(config))
    print(f"{config.model} -> {saved}, logits differ by {difference:.1e}")
    return 0


def _tokenizer(config: Import) -> "Tokenizer":
    from dape.data.tokenizer import FILE, open_tokenizer
    from dape.hf.tokenizer import open_exported

    if config.tokenizer is None:
        return open_exported(config.model)
    if (config.model / FILE).is_file():
        raise UsageError(f"{config.model} has a tokenizer; --tokenizer is for folders without one")
    found = open_tokenizer(config.tokenizer)
    if found is None:
        raise UsageError(f"--tokenizer {config.tokenizer}: would be trained anew; give bytes or a tokenizer.json")
    return found


def use_offline() -> None:
    """Before the library is imported, which reads it once: a folder is all that is ever needed."""
    os.environ["HF_HUB_OFFLINE"] = "1"


def check_out(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"--out {out}: exists and is not empty; choose another folder")
    check_writable_folder(out, "--out")


def check_model_folder(folder: Path) -> None:
    kind = model_type(folder)
    if kind != MODEL_TYPE:
        raise UsageError(
            f"{folder}: is a model of type {kind!r}, and only type {MODEL_TYPE!r} can become a run. "
            "`dape extend` puts an encoding into other models"
        )


def model_type(folder: Path) -> str | None:
    """What the folder's config.json calls the model; a folder that holds none is refused."""
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: there is no such folder. A name on the Hugging Face hub is not enough, dape never goes to the "
            f"network: download it first, `hf download {folder} --local-dir DIR`"
        )
    try:
        return read_json(folder / CONFIG).get("model_type")
    except FileNotFoundError:
        raise UsageError(f"{folder}: has no {CONFIG}; give a folder of transformers, as `dape export` writes") from None
    except ValueError as error:
        raise UsageError(str(error)) from error
