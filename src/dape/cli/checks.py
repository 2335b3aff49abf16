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


def check_reach(model: DecoderConfig, longest: int) -> None:
    """Find out before training whether the encoding can be evaluated at that length: some have tables of fixed size."""
    import torch

    from dape.positional.build import build
    from dape.positional.randomized import Randomized

    pe = build(
        model.encoding,
        num_heads=model.heads,
        head_dim=model.width // model.heads,
        model_dim=model.width,
        train_length=model.train_length,
        **model.encoding_options,
    )
    try:
        pe = pe.draw(longest, torch.Generator()) if isinstance(pe, Randomized) else pe
        pe.embed(torch.zeros(1, 1, model.width), torch.tensor([longest - 1]))
    except (ValueError, IndexError) as error:
        raise UsageError(f"{model.encoding} cannot be evaluated at length {longest}: {error}") from error
