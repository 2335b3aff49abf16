"""Checks before any work: can this model be built, trained and evaluated on this machine? Imports torch when called."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dape.errors import UsageError
from dape.models.config import DecoderConfig
from dape.positional.catalogue import find

if TYPE_CHECKING:
    from dape.training.config import TrainConfig


def check_encoding(name: str, argument: str = "encoding") -> None:
    try:
        find(name)
    except ValueError as error:
        raise UsageError(f"`{argument}`: {error}") from error


def check_methods(methods: Sequence[str]) -> None:
    """Check the names of encodings that are to be compared."""
    if not methods:
        raise UsageError("`methods` needs at least one encoding")
    for method in methods:
        check_encoding(method, "methods")


def check_model(model: DecoderConfig, train: "TrainConfig | None" = None, device: str = "cpu") -> None:
    """Raise UsageError on sizes and options that cannot be built, and without the memory to hold the model.

    The model is built on the meta device, which takes neither memory nor time. With ``train`` there must also be memory
    to train it.
    """
    model.check()
    import torch

    from dape.training.cost import require_fits
    from dape.training.device import free_memory

    part = 0 if train is None else train.batch // train.accumulate
    half = train is not None and train.precision != "fp32"
    require_fits(model, free_memory(torch.device(device)), batch=part, training=train is not None, half=half)

    from dape.models.decoder import DecoderLM

    try:
        with torch.device("meta"):
            DecoderLM(model)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{model.encoding}: {error} ({_shape(model)})") from error


def _shape(model: DecoderConfig) -> str:
    """The settings that decide whether an encoding can be built."""
    options = " ".join(f"{name}={json.dumps(value)}" for name, value in model.encoding_options.items())
    return f"`width` {model.width} `heads` {model.heads}" + (f" `encoding_options` {options}" if options else "")


def check_reach(model: DecoderConfig, longest: int) -> None:
    """Raise UsageError if one sequence of length ``longest`` does not fit into memory, or the encoding cannot reach it.

    Some encodings have tables of fixed size. This is for before training, when another choice costs nothing.
    """
    import torch

    from dape.machine import in_words
    from dape.training.cost import window_bytes
    from dape.training.device import free_memory

    room, needed = free_memory(torch.device("cpu")), window_bytes(model.width, longest)
    if needed > room:
        raise UsageError(
            f"length {longest}: one sequence would need {in_words(needed)} of memory, and {in_words(room)} are free "
            f"here; choose shorter ones"
        )
    from dape.models.decoder import new_encoding
    from dape.positional.randomized import Randomized

    pe = new_encoding(model)
    try:
        pe = pe.draw(longest, torch.Generator()) if isinstance(pe, Randomized) else pe
        pe.embed(torch.zeros(1, 1, model.width), torch.tensor([longest - 1]))
    except (ValueError, IndexError) as error:
        raise UsageError(f"{model.encoding} cannot be evaluated at length {longest}: {error}") from error
