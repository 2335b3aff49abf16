"""Open a model's folder for a command: offline, quiet, and only if every weight is there."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

from dape.errors import UsageError
from dape.hf import checksums
from dape.hf.convert import quiet


def open_model(folder: Path) -> Any:
    """The model of a folder. Missing weights are refused: the library would fill them with random numbers and a note.
    SDPA replaces flash-attention if the configuration asks for that."""
    try:
        checksums.verify(folder)
    except ValueError as error:
        raise UsageError(str(error)) from error
    config = _read_config(folder)
    with quiet():
        try:
            opened: Any = AutoModelForCausalLM.from_pretrained(
                str(folder),
                config=config,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except ImportError as error:  # of quantised weights, for instance
            raise UsageError(f"{folder}: the model needs a library that is not installed: {_line(error)}") from error
        except Exception as error:  # numbers that cannot be (KeyError, TypeError, ...), as the library builds first
            raise UsageError(f"{folder}: the library cannot load it: {_line(error)}") from error
    model, report = opened
    missing = sorted(str(key) for key in report["missing_keys"])
    other = [f"{key} is {list(found)}, the model has {list(own)}" for key, found, own in report["mismatched_keys"]]
    gaps = [f"{len(missing)} tensors missing ({', '.join(missing[:3])})"] if missing else []
    if gaps + other:
        raise UsageError(f"{folder}: the weights are not those of its config.json: {'; '.join(gaps + other[:3])}")
    return model


def _read_config(folder: Path) -> Any:
    with quiet():
        try:
            config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        except (ValueError, OSError) as error:
            raise UsageError(f"{folder}: {error}") from error
        except Exception as error:  # anything from ZeroDivisionError to types of its own, as the numbers are wrong
            raise UsageError(f"{folder / 'config.json'}: the library refuses it: {_line(error)}") from error
    if "flash" in str(config._attn_implementation or ""):
        config._attn_implementation = "sdpa"  # the argument of from_pretrained would not be heard
    return config


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
