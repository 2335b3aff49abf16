"""An adapter as two small files: adapter.safetensors and adapter.json. Loading them runs no code."""

import json
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from dape._version import __version__
from dape.files import new_folder, sha256, write_text
from dape.hf.adapter import Adapter, Rope, adapter_of, check_method, check_rope, encodings_of, extend, new_encoding
from dape.hf.hosts import Host, describe
from dape.hf.weights import fingerprint
from dape.reading import Count, FileName, Sha256, check_files, read_json, read_record, reading, sealed
from dape.training.tensors import read_tensors, write_tensors

WEIGHTS, FACTS = "adapter.safetensors", "adapter.json"
FORMAT = 1
HOST_WEIGHTS, SHA256 = "host_weights", "sha256"
ADVICE = "Copy it again from where the adapter was saved."
SAME = ("model_type", "layers", "heads", "kv_heads", "head_dim", "width", "rope_parameters")
"""Facts about a model without which its adapter cannot work."""


def save_adapter(model: nn.Module, folder: str | Path, *, about: dict[str, Any] | None = None) -> Path:
    """Write the adapter alone. ``about``: anything worth keeping, such as how it was trained."""
    adapter, folder = adapter_of(model), Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists already; an adapter is saved into a new folder")
    tensors = {
        f"{index}.{name}": tensor
        for index, pe in enumerate(encodings_of(model))
        for name, tensor in pe.state_dict().items()
    }
    facts = {"format": FORMAT, "dape": __version__, **adapter.as_plain(), HOST_WEIGHTS: fingerprint(model)}
    facts["about"] = about or {}
    with new_folder(folder) as made:
        write_tensors(tensors, made / WEIGHTS)
        facts[SHA256] = {WEIGHTS: sha256(made / WEIGHTS)}
        write_text(made / FACTS, json.dumps(sealed(facts), indent=2) + "\n")
    return folder


class _File(TypedDict):
    """adapter.json."""

    format: int
    dape: str
    method: str
    options: dict[str, Any]
    zero_init: bool
    rope: Rope
    factor: float
    train_length: Count
    host: Host
    host_weights: NotRequired[str | None]
    about: NotRequired[dict[str, Any]]
    sha256: NotRequired[dict[FileName, Sha256]]
    """Older ones have none."""


def read_facts(folder: Path) -> _File:
    """The content of adapter.json, checked; and that the tensors beside it are those that were saved with it."""
    path = folder / FACTS
    if not path.is_file():
        raise ValueError(f"{folder} holds no adapter (no {FACTS})")
    if read_json(path, ADVICE).get("format") != FORMAT:
        raise ValueError(f"{path} is not an adapter of format {FORMAT}, which this version of dape reads")
    facts = read_record(path, _File, ADVICE)
    check_files(folder, facts.get(SHA256, {}), ADVICE)
    return facts


def load_adapter(model: nn.Module, folder: str | Path, *, freeze: bool = True) -> nn.Module:
    """Put a saved adapter into ``model``, in place. What does not fit is refused and leaves the model as it was; other
    weights of the same shape, those of a fine-tuned model for instance, get a warning."""
    folder = Path(folder)
    facts = read_facts(folder)
    saved = _adapter(facts)
    _check_host(model, saved.host, folder)
    unlike = _other_weights(model, saved.host, facts.get(HOST_WEIGHTS))
    with reading(folder / FACTS, "describes no adapter that can be built", ADVICE), torch.device("meta"):
        check_rope(model, saved.host, saved.rope, saved.factor)
        check_method(saved.method)
        new_encoding(saved)
    tensors = _read_tensors(folder / WEIGHTS)
    _check_tensors(tensors, saved, folder)
    extend(
        model,
        saved.method,
        zero_init=saved.zero_init,
        rope=saved.rope,
        factor=saved.factor,
        train_length=saved.train_length,
        freeze=freeze,
        **saved.options,
    )
    for index, pe in enumerate(encodings_of(model)):
        own = {name.partition(".")[2]: t for name, t in tensors.items() if name.partition(".")[0] == str(index)}
        pe.load_state_dict(own)
    if unlike:
        warnings.warn(
            f"{folder} was made for other weights ({unlike}): fine if this model is fine-tuned, not if it is another",
            stacklevel=2,
        )
    return model


def _adapter(facts: _File) -> Adapter:
    return Adapter(**{f.name: facts[f.name] for f in fields(Adapter)})


def _check_host(model: nn.Module, saved: Host, folder: Path) -> None:
    here = describe(model)
    different = [_difference(name, saved, here) for name in SAME if _differs(name, saved, here)]
    if different:
        raise ValueError(f"{folder} is an adapter for another model: {'; '.join(different)}")


def _other_weights(model: nn.Module, saved: Host, weights: str | None) -> str:
    """What is different of a model that an adapter does fit into; nothing where it is not known."""
    here, found = describe(model), fingerprint(model)
    words = [_difference("vocabulary", saved, here)] if _differs("vocabulary", saved, here) else []
    if weights is not None and found is not None and weights != found:
        words.append(f"fingerprint {weights[:8]}, the model has {found[:8]}")
    return "; ".join(words)


def _differs(name: str, saved: Host, here: Host) -> bool:
    """Older adapters do not know everything."""
    return getattr(saved, name) is not None and getattr(saved, name) != getattr(here, name)


def _difference(name: str, saved: Host, here: Host) -> str:
    return f"{name} {getattr(saved, name)}, the model has {getattr(here, name)}"


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"{path} is missing: the adapter is incomplete")
    return read_tensors(path, ADVICE)


def _check_tensors(tensors: dict[str, Tensor], saved: Adapter, folder: Path) -> None:
    """Names and shapes against what the file beside them promises."""
    check_method(saved.method)
    with torch.device("meta"):
        own = new_encoding(saved).state_dict()
    expected = {f"{i}.{name}": list(t.shape) for i in range(saved.host.layers) for name, t in own.items()}
    found = {name: list(t.shape) for name, t in tensors.items()}
    wrong = [
        f"{name} is {found.get(name, 'missing')}, {saved.method} has {expected.get(name, 'no such tensor')}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
    if wrong:
        more = f"; and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        raise ValueError(f"{folder / WEIGHTS} does not fit {FACTS}: {'; '.join(wrong[:4])}{more}")
