"""Presets and YAML files of settings. Reading YAML never runs code. No torch here."""

from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from dape.errors import UsageError, did_you_mean
from dape.reading import as_record, parse_yaml, reading

T = TypeVar("T")


def preset_names() -> list[str]:
    """Names of all presets, the smallest model first."""
    order = ["tiny", "small", "125m", "350m", "2.7b", "6.7b"]
    found = [p.name.removesuffix(".yaml") for p in _presets().iterdir() if p.name.endswith(".yaml")]
    return sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))


def read_preset(name: str) -> dict[str, Any]:
    """The settings of a preset. UsageError if there is no such preset."""
    known = preset_names()
    if name not in known:
        raise UsageError(f"`preset` {name}: no such preset.{did_you_mean(name, known)} There are: {', '.join(known)}")
    return parse_yaml((_presets() / f"{name}.yaml").read_text(encoding="utf-8"))


def read_yaml(path: Path) -> dict[str, Any]:
    """The content of a YAML file of sections. UsageError if it is anything else."""
    try:
        with reading(path, "is not YAML"):
            settings = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not isinstance(settings, dict):
        raise UsageError(f"{path}: must hold sections such as model: and train:")
    return settings


def read_settings(path: Path, kind: type[T]) -> T:
    """A YAML file whose content is described by ``kind``."""
    try:
        return as_record(kind, read_yaml(path), path)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _presets() -> Any:
    return resources.files("dape.config") / "presets"
