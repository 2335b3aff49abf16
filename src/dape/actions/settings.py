"""Settings of models and training from the keyword arguments of a call. No torch here."""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dape.config.load import read_preset
from dape.models.config import DecoderConfig
from dape.reading import as_record
from dape.training.config import TrainConfig


def settings(preset: str, given: Mapping[str, Any]) -> tuple[DecoderConfig, TrainConfig]:
    """A preset with other values for some of its settings, each by its own name: ``layers``, ``steps``, ...

    Raises:
        TypeError: for a name that neither a model nor training has.
    """
    sections = {"model": DecoderConfig, "train": TrainConfig}
    names = {name: {f.name for f in fields(kind)} for name, kind in sections.items()}
    known = set().union(*names.values())
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" There are: {', '.join(sorted(known))}."
            raise TypeError(f"{name} is not a setting.{hint}")
    values = read_preset(preset)
    model, train = (
        as_record(
            kind, {**values.get(name, {}), **{n: v for n, v in given.items() if n in names[name]}}, f"preset {preset}"
        )
        for name, kind in sections.items()
    )
    return model, train
