"""Settings of model and training from keyword arguments. No torch here."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dape.config.load import read_preset
from dape.errors import did_you_mean
from dape.models.config import DecoderConfig
from dape.reading import as_record
from dape.training.config import TrainConfig


def settings(preset: str, given: Mapping[str, Any]) -> tuple[DecoderConfig, TrainConfig]:
    """The preset with the given settings in place of its own: ``layers``, ``steps``, ...

    Raises:
        TypeError: for a name that is a setting of neither the model nor the training.
    """
    sections = {"model": DecoderConfig, "train": TrainConfig}
    names = {name: {f.name for f in fields(kind)} for name, kind in sections.items()}
    known = set().union(*names.values())
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f" There are: {', '.join(sorted(known))}."
            raise TypeError(f"{name} is not a setting.{hint}")
    values = read_preset(preset)
    for section, own in names.items():
        values[section] = {**values.get(section, {}), **{name: given[name] for name in own & given.keys()}}
    model, train = (as_record(kind, values[section], f"preset {preset}") for section, kind in sections.items())
    return model, train
