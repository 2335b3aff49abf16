"""An adapter as two small files: adapter.safetensors and adapter.json. Loading them runs no code."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

from dape._version import __version__
from dape.files import new_folder
from dape.hf.adapter import adapter_of, encodings_of, extend
from dape.hf.hosts import describe

WEIGHTS, FACTS = "adapter.safetensors", "adapter.json"
FORMAT = 1


def save_adapter(model: nn.Module, folder: str | Path, *, about: dict[str, Any] | None = None) -> Path:
    """Write the adapter alone. ``about``: anything worth keeping, such as how it was trained."""
    adapter, folder = adapter_of(model), Path(folder)
    tensors = {
        f"{index}.{name}": tensor.detach().cpu().contiguous()
        for index, pe in enumerate(encodings_of(model))
        for name, tensor in pe.state_dict().items()
    }
    facts = {"format": FORMAT, "dape": __version__, **adapter.as_plain(), "about": about or {}}
    with new_folder(folder) as made:
        save_file(tensors, made / WEIGHTS)
        (made / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return folder


def read_facts(folder: Path) -> dict[str, Any]:
    path = folder / FACTS
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{folder} holds no adapter (no {FACTS}: {error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(f"{path} is not an adapter of format {FORMAT}, which this version of dape reads")
    return facts


def load_adapter(model: nn.Module, folder: str | Path, *, freeze: bool = True) -> nn.Module:
    """Put a saved adapter into ``model``, in place."""
    folder = Path(folder)
    facts = read_facts(folder)
    _check_host(model, facts["host"], folder)
    tensors = load_file(folder / WEIGHTS)
    extend(
        model,
        facts["method"],
        zero_init=facts["zero_init"],
        rope=facts["rope"],
        train_length=facts["train_length"],
        freeze=freeze,
        **facts["options"],
    )
    for index, pe in enumerate(encodings_of(model)):
        own = {name.partition(".")[2]: t for name, t in tensors.items() if name.partition(".")[0] == str(index)}
        pe.load_state_dict(own)
    return model


def _check_host(model: nn.Module, saved: dict[str, Any], folder: Path) -> None:
    here = asdict(describe(model))
    names = ("model_type", "layers", "heads", "head_dim", "width")
    different = [
        f"{name} {saved.get(name)}, the model has {here[name]}" for name in names if saved.get(name) != here[name]
    ]
    if different:
        raise ValueError(f"{folder} is an adapter for another model: {'; '.join(different)}")
