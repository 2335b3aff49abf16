"""An adapter as peft lays one out, beside its model and in kilobytes. Loading it runs no code.

DIR/adapter_config.json          what it is (``peft_type`` DAPE), for which model, and checksums
    adapter_model.safetensors    its tensors, named as in the model inside peft's wrapper
    README.md                    how to load it

Folders of dape 0.1 (adapter.json and adapter.safetensors) are read too, and what peft itself saves.
"""

import json
import re
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from dape._version import __version__
from dape.files import new_folder, sha256, write_text
from dape.hf.adapter import Adapter, Rope, adapter_of, check_rope, encodings_of, extend
from dape.hf.attention import PLACE
from dape.hf.hosts import Host, attention_layers, describe, library_model
from dape.hf.methods import check_for_host, check_method, new_encoding
from dape.hf.weights import fingerprint
from dape.reading import (
    Count,
    FileName,
    Sha256,
    as_record,
    check_files,
    check_seal,
    read_json,
    read_record,
    reading,
    sealed,
    unsealed,
)
from dape.training.tensors import read_tensors, write_tensors

FACTS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
OLD_FACTS, OLD_WEIGHTS = "adapter.json", "adapter.safetensors"
FORMAT, OLD_FORMAT = 2, 1
INSIDE_PEFT = "base_model.model."
"""Prefix that peft's wrapper adds to a model's names."""
ADVICE = "Copy it again from where the adapter was saved."
SAME = ("model_type", "layers", "heads", "kv_heads", "head_dim", "width", "rope_parameters")
"""Fields of a host that must agree for its adapter to work."""

_CARD = """\
---
library_name: peft
base_model: {base}
tags: [dape, length-extrapolation, {method}]
---

# An adapter of dape: {method}

{numbers:,} numbers in the attention layers of {base} ({model_type}, {layers} layers of {heads} heads), trained at
{train_length} tokens; the model's own weights are not changed. Written by dape {version}. `import dape.hf` needs the
package dape with its extra `hf`, peft its extra `peft`.

```python
import dape.hf
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("{base}")
dape.hf.load_adapter(model, "THIS FOLDER")              # in place; or, wrapped by peft:
# model = peft.PeftModel.from_pretrained(model, "THIS FOLDER")
```
"""


def save_adapter(model: nn.Module, folder: str | Path, *, about: dict[str, Any] | None = None) -> Path:
    """Write the adapter alone. ``about``: anything worth keeping, such as how it was trained."""
    adapter, folder = adapter_of(model), Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists already; an adapter is saved into a new folder")
    library: Any = library_model(model)
    base = getattr(library, "name_or_path", "") or None
    peft = {"peft_type": "DAPE", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "inference_mode": True}
    facts = {**peft, "format": FORMAT, "dape": __version__, **adapter.as_plain(), "host_weights": fingerprint(library)}
    tensors = _named_tensors(library)
    with new_folder(folder) as made:
        write_tensors(tensors, made / WEIGHTS)
        write_text(made / "README.md", _card(adapter, base, sum(t.numel() for t in tensors.values())))
        facts |= {"about": about or {}, "sha256": {WEIGHTS: sha256(made / WEIGHTS)}}
        write_text(made / FACTS, json.dumps(sealed(facts), indent=2) + "\n")
    return folder


def _named_tensors(library: nn.Module) -> dict[str, Tensor]:
    names = {id(module): name for name, module in library.named_modules()}
    return {
        f"{INSIDE_PEFT}{names[id(layer)]}.{PLACE}.{name}": tensor
        for layer, pe in zip(attention_layers(library), encodings_of(library), strict=True)
        for name, tensor in pe.state_dict().items()
    }


def _card(adapter: Adapter, base: str | None, numbers: int) -> str:
    return _CARD.format(
        base=base or "MODEL",
        method=adapter.method,
        model_type=adapter.host.model_type,
        layers=adapter.host.layers,
        heads=adapter.host.heads,
        train_length=adapter.train_length,
        numbers=numbers,
        version=__version__,
    )


class _Old(TypedDict):
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
    """Absent in older files."""


class _File(TypedDict):
    """adapter_config.json: peft's fields, then ours. If peft wrote it, some of ours may be absent and peft's own are
    there."""

    peft_type: Literal["DAPE"]
    task_type: NotRequired[str | None]
    base_model_name_or_path: NotRequired[str | None]
    inference_mode: NotRequired[bool]
    format: NotRequired[int | None]
    dape: NotRequired[str | None]
    method: str
    options: NotRequired[dict[str, Any]]
    zero_init: NotRequired[bool]
    rope: NotRequired[Rope]
    factor: NotRequired[float]
    train_length: NotRequired[Count | None]
    host: NotRequired[Host | None]
    host_weights: NotRequired[str | None]
    about: NotRequired[dict[str, Any]]
    sha256: NotRequired[dict[FileName, Sha256] | None]


def read_facts(folder: Path) -> "_File | _Old":
    """The adapter described by the folder, after checking the description and its tensors' checksums."""
    if (folder / FACTS).is_file():
        facts = _read_new(folder / FACTS)
    elif (folder / OLD_FACTS).is_file():
        facts = _read_old(folder / OLD_FACTS)
    else:
        raise ValueError(f"{folder} holds no adapter (no {FACTS})")
    check_files(folder, facts.get("sha256") or {}, ADVICE)
    return facts


def _read_new(path: Path) -> _File:
    given = read_json(path, ADVICE)
    kind = given.get("peft_type")
    if kind != "DAPE":
        raise ValueError(f"{path}: peft_type {kind!r} is no adapter of dape; peft.PeftModel.from_pretrained loads it")
    if given.get("format") not in (None, FORMAT):
        raise ValueError(f"{path} is not an adapter of format {FORMAT} or {OLD_FORMAT}, which this version reads")
    with reading(path, "is damaged", ADVICE):
        check_seal(given)
        ours = unsealed(given)
        if given.get("format") is None:  # written by peft, which has fields of its own
            ours = {name: value for name, value in ours.items() if name in _File.__annotations__}
        return as_record(_File, ours, path)


def _read_old(path: Path) -> _Old:
    if read_json(path, ADVICE).get("format") != OLD_FORMAT:
        raise ValueError(f"{path} is not an adapter of format {OLD_FORMAT}, which this version of dape reads")
    return read_record(path, _Old, ADVICE)


def load_adapter(model: nn.Module, folder: str | Path, *, freeze: bool = True) -> nn.Module:
    """Put a saved adapter into ``model``, in place. What does not fit is refused and leaves the model as it was; other
    weights of the same shape, those of a fine-tuned model for instance, get a warning."""
    folder = Path(folder)
    facts = read_facts(folder)
    saved = _adapter(facts, describe(model))
    check_host(model, saved.host, folder)
    unlike = _other_weights(model, saved.host, facts.get("host_weights"))
    with reading(folder / FACTS, "describes no adapter that can be built", ADVICE), torch.device("meta"):
        check_rope(model, saved.host, saved.rope, saved.factor)
        check_method(saved.method)
        check_for_host(saved.method, saved.host)
        new_encoding(saved)
    path = folder / (WEIGHTS if (folder / FACTS).is_file() else OLD_WEIGHTS)
    tensors = _by_layer(_read_tensors(path))
    _check_tensors(tensors, saved, path)
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


def _adapter(facts: "_File | _Old", here: Host) -> Adapter:
    """The adapter that a file describes. If peft wrote the file, it may leave out what follows from the model."""
    given = {f.name: facts[f.name] for f in fields(Adapter) if facts.get(f.name) is not None}
    return Adapter(**{"host": here, "train_length": here.train_length, **given})


def check_host(model: nn.Module, saved: Host, what: Path | str) -> None:
    here = describe(model)
    different = [_difference(name, saved, here) for name in SAME if _differs(name, saved, here)]
    if different:
        raise ValueError(f"{what} is an adapter for another model: {'; '.join(different)}")


def _other_weights(model: nn.Module, saved: Host, weights: str | None) -> str:
    """Differences of a model that the adapter still fits; none where the file does not say."""
    here, found = describe(model), fingerprint(model)
    words = [_difference("vocabulary", saved, here)] if _differs("vocabulary", saved, here) else []
    if weights is not None and found is not None and weights != found:
        words.append(f"fingerprint {weights[:8]}, the model has {found[:8]}")
    return "; ".join(words)


def _differs(name: str, saved: Host, here: Host) -> bool:
    """Whether a field is known (older files have fewer) and differs."""
    return getattr(saved, name) is not None and getattr(saved, name) != getattr(here, name)


def _difference(name: str, saved: Host, here: Host) -> str:
    return f"{name} {getattr(saved, name)}, the model has {getattr(here, name)}"


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"{path} is missing: the adapter is incomplete")
    return read_tensors(path, ADVICE)


def _by_layer(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the number of their layer, as in old files: a model without its head has other prefixes."""
    found = {}
    for name, tensor in tensors.items():
        path, _, own = name.partition(f".{PLACE}.")
        numbers = re.findall(r"(?<=\.)\d+(?=\.)", f".{path}.")
        found[f"{numbers[-1]}.{own}" if own and numbers else name] = tensor
    return found


def _check_tensors(tensors: dict[str, Tensor], saved: Adapter, path: Path) -> None:
    """Compare names and shapes with what the description says."""
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
        raise ValueError(f"{path} does not fit the adapter beside it: {'; '.join(wrong[:4])}{more}")
