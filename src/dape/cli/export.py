"""``dape export`` and ``dape import``: checkpoints and models of transformers. Imports torch only when they run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dape.actions.export import export_run, import_model
from dape.cli.offline import use_offline


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
