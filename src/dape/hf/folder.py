"""Open a model's folder for a command: offline, quiet, and only if every weight is there."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM

from dape.errors import UsageError
from dape.hf.convert import quiet


def open_model(folder: Path) -> Any:
    """The library would fill gaps with random numbers and a note; what flash-attention was asked for, SDPA computes."""
    with quiet():
        try:
            config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
            wanted = str(getattr(config, "_attn_implementation", None) or "")
            opened: Any = AutoModelForCausalLM.from_pretrained(
                str(folder),
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **({"attn_implementation": "sdpa"} if "flash" in wanted else {}),
            )
        except (ValueError, OSError, SafetensorError) as error:
            raise UsageError(f"{folder}: {error}") from error
    model, report = opened
    missing = sorted(str(key) for key in report["missing_keys"])
    other = [f"{key} is {list(found)}, the model has {list(own)}" for key, found, own in report["mismatched_keys"]]
    gaps = [f"{len(missing)} tensors missing ({', '.join(missing[:3])})"] if missing else []
    if gaps + other:
        raise UsageError(f"{folder}: the weights are not those of its config.json: {'; '.join(gaps + other[:3])}")
    return model
