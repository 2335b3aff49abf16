"""Checks of a model's settings, shared by the commands that train. Imports torch only when called."""

from dape.errors import UsageError
from dape.models.config import DecoderConfig
from dape.positional.catalogue import RANDOMIZED, find


def check_encoding(name: str, flag: str = "--encoding") -> None:
    try:
        find(name.removeprefix(RANDOMIZED))
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error


def check_model(model: DecoderConfig) -> None:
    """Build it on no device: wrong sizes and options show without memory or time."""
    model.check()
    import torch

    from dape.models.decoder import DecoderLM

    try:
        with torch.device("meta"):
            DecoderLM(model)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{model.encoding}: {error}") from error
