"""``dape export`` and ``dape import``: checkpoints to models of transformers and back. Imports torch when they run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dape.actions.export import export_run, import_model
from dape.cli.offline import use_offline


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a trained model as a folder that Hugging Face transformers loads.

    The folder also gets the tokenizer and a README.md about training and results. The command compares the logits of
    both models. Needs the extra hf; nothing is uploaded.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A run's folder (its newest checkpoint), or one checkpoint."""
    out: Path
    """Folder to write; it must be empty or not exist."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """Turn a folder of Hugging Face transformers back into a run of dape.

    `dape eval` and `dape generate` can then read it. The model must be of type dape: written by `dape export`, and
    possibly trained further in transformers. The command compares the logits of both models. Needs the extra hf;
    nothing is downloaded.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder with config.json and model.safetensors."""
    out: Path
    """Folder of the run to write; it must be empty or not exist."""
    tokenizer: str | None = None
    """bytes or a tokenizer.json, if MODEL has no tokenizer."""


def run_export(config: Export) -> int:
    use_offline()
    where, difference = export_run(config.checkpoint, config.out)
    print(f"{where} -> {config.out}, logits differ by {difference:.1e}")
    print(
        f"load it with AutoModelForCausalLM.from_pretrained({str(config.out)!r}) after `import dape.hf`, or with "
        "trust_remote_code=True"
    )
    return 0


def run_import(config: Import) -> int:
    use_offline()
    saved, difference = import_model(config.model, config.out, config.tokenizer)
    print(f"{config.model} -> {saved}, logits differ by {difference:.1e}")
    return 0
