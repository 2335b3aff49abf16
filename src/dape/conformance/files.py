"""Vectors as files: one per encoding, ``NAME.safetensors``, and ``SHA256SUMS`` of all.

Tensors of a case are called ``CASE/q``, ``CASE/parameters/r1``, ``CASE/logits``, ``CASE/gradients/q`` and so on. The
metadata have only one entry, because the library does not fix the order of several, and the checksum would change. The
entry is ``about``: JSON with the equation, the conventions, and the shape and options of every case.
Inputs and parameters are float16, which represents them exactly; expected values are float64.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from dape.conformance.case import Case
from dape.conformance.conventions import conventions_of
from dape.conformance.recipes import SHAPES
from dape.errors import UsageError
from dape.files import replacing, sha256
from dape.positional.base import AttentionDims
from dape.positional.catalogue import find
from dape.reading import parse_json, reading
from dape.training.tensors import read_tensors, write_tensors

FOLDER = Path(__file__).parent / "vectors"
SUMS = "SHA256SUMS"
FORMAT = 1
ADVICE = "`dape vectors` with an output folder makes all files again."
_INPUTS = ("q", "k", "x", "entering", "weight")
_POSITIONS = ("q_pos", "k_pos")


def write(path: Path, name: str, cases: Sequence[Case]) -> None:
    tensors: dict[str, Tensor] = {}
    for case in cases:
        for key, value in _tensors(case).items():
            tensors[f"{case.name}/{key}"] = value
    with replacing(path) as temporary:
        write_tensors(tensors, temporary, {"about": json.dumps(description(name, cases), indent=1)})


def description(name: str, cases: Sequence[Case]) -> dict[str, Any]:
    """The metadata of a file of these cases."""
    return {
        "format": FORMAT,
        "encoding": name,
        "equation": find(name).equation,
        "conventions": conventions_of(name),
        "cases": {case.name: _facts(case) for case in cases},
    }


def _tensors(case: Case) -> dict[str, Tensor]:
    given = {n: getattr(case, n) for n in _INPUTS} | {f"parameters/{n}": p for n, p in case.parameters.items()}
    found: dict[str, Tensor] = {n: getattr(case, n).to(torch.int32) for n in _POSITIONS}
    for name, value in given.items():
        if value is not None:
            found[name] = value.half()
            if not torch.equal(found[name].double(), value):
                raise ValueError(f"float16 does not hold {name} of the case {case.name} exactly")
    found[_output(case)] = case.expected
    return found | {f"gradients/{n}": g for n, g in case.gradients.items()}


def _output(case: Case) -> str:
    return "logits" if case.x is None else "embedded"


def _facts(case: Case) -> dict[str, Any]:
    return {
        "says": SHAPES[case.name].says,
        "causal": case.causal,
        "options": dict(case.options),
        **{n: getattr(case.dims, n) for n in ("num_heads", "head_dim", "train_length", "model_dim")},
    }


def path_of(name: str, folder: Path | None = None) -> Path:
    return (FOLDER if folder is None else folder) / f"{name}.safetensors"


def about(name: str, folder: Path | None = None) -> dict[str, Any]:
    """The metadata of an encoding's file."""
    path = path_of(name, folder)
    with reading(path, "is not a file of vectors that this version of dape reads", ADVICE):
        with safe_open(path, framework="pt") as file:
            facts = parse_json((file.metadata() or {})["about"])
        if facts["format"] != FORMAT:
            raise ValueError(f"format {facts['format']}, expected {FORMAT}")
        return facts


def read(name: str, folder: Path | None = None) -> list[Case]:
    """The vectors of an encoding. Raises an error if the file's checksum is wrong."""
    path = path_of(name, folder)
    if not path.is_file():
        raise UsageError(f"no vectors of {name!r} in {path.parent}; there are some of {', '.join(names(path.parent))}")
    check_sum(path)
    tensors, cases = read_tensors(path, ADVICE), about(name, folder)["cases"]
    with reading(path, "is damaged", ADVICE):
        return [_case(case, facts, tensors) for case, facts in cases.items()]


def _case(name: str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Case:
    own = {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")}

    def within(prefix: str) -> dict[str, Tensor]:
        return {key.removeprefix(prefix): v.double() for key, v in own.items() if key.startswith(prefix)}

    dims = {n: facts[n] for n in ("num_heads", "head_dim", "train_length", "model_dim")}
    return Case(
        name=name,
        dims=AttentionDims(**dims),
        options=facts["options"],
        causal=facts["causal"],
        **{n: own[n].long() for n in _POSITIONS},
        **{n: own[n].double() for n in _INPUTS if n in own},
        parameters=within("parameters/"),
        expected=own["embedded" if "x" in own else "logits"],
        gradients=within("gradients/"),
    )


def names(folder: Path | None = None) -> list[str]:
    return sorted(path.stem for path in (FOLDER if folder is None else folder).glob("*.safetensors"))


# Checksums -----------------------------------------------------------------------------------------------------------


def write_sums(folder: Path) -> None:
    """Write the checksums of all files in the format of ``sha256sum``."""
    lines = [f"{sha256(path_of(name, folder))}  {name}.safetensors\n" for name in names(folder)]
    with replacing(folder / SUMS) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")


@functools.cache
def sums(folder: Path) -> dict[str, str]:
    path = folder / SUMS
    with reading(path, "is damaged", ADVICE):
        lines = path.read_text(encoding="utf-8").splitlines()
        return {file: digest for digest, file in (line.split("  ", 1) for line in lines)}


def check_sum(path: Path) -> str:
    """The file's SHA-256. Raises ValueError if it differs from the one in ``SHA256SUMS``."""
    found, noted = sha256(path), sums(path.parent).get(path.name)
    if found != noted:
        raise ValueError(f"{path}: its SHA-256 is {found[:16]}…, {SUMS} says {str(noted)[:16]}…. {ADVICE}")
    return found
