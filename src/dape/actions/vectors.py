"""The conformance vectors as files: listing, describing, making and checking them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from dape.conformance import files
from dape.conformance.case import Case
from dape.conformance.make import make
from dape.conformance.mistakes import mistakes_of
from dape.files import check_writable_folder, locked
from dape.positional.catalogue import encodings

ROUNDING = 1e-11
"""Another processor or version of torch may round the last bits of float64 otherwise."""


def listed() -> list[str]:
    """One line per file: checksum, size, name."""
    lines = []
    for name in files.names():
        path = files.path_of(name)
        lines.append(f"{files.check_sum(path)}  {path.stat().st_size:6d}  {name}")
    return [*lines, f"in {files.FOLDER}"]


def described(name: str) -> str:
    cases, about = files.read(name), files.about(name)
    lines = [f"{name}:  {about['equation']}", "", about["conventions"], "", "Cases:"]
    for case in cases:
        facts = about["cases"][case.name]
        options = "".join(f", {key}={value}" for key, value in facts["options"].items())
        lines += [
            f"  {case.name:6} {facts['says']}: {case.dims.num_heads} heads of {case.dims.head_dim}, "
            f"{case.length} tokens, trained at {case.dims.train_length}{options}"
        ]
    lines += [
        "",
        "Parameters: " + (", ".join(f"{n} {list(p.shape)}" for n, p in cases[0].parameters.items()) or "none"),
    ]
    says = dict.fromkeys(each.says for each in mistakes_of(name))
    return "\n".join([*lines, "", "Known mistakes:", *(f"  - {text}" for text in says)])


def write_all(folder: Path, say: Callable[[str], object]) -> int:
    check_writable_folder(folder, "`out`")
    with locked(folder):
        for name in encodings():
            cases = make(name)
            if not _holds(folder, name, cases):
                files.write(files.path_of(name, folder), name, cases)
            say(name)
        files.write_sums(folder)
    return len(encodings())


def _holds(folder: Path, name: str, cases: list[Case]) -> bool:
    """The file is there and gives the same: its last bits, and so its checksum, stay those of whoever made it."""
    try:
        if files.about(name, folder) != json.loads(json.dumps(files.description(name, cases))):
            return False
        stored = files.read(name, folder)
    except (ValueError, OSError):
        return False
    return max(difference(a, b) for a, b in zip(stored, cases, strict=True)) < ROUNDING


def checked() -> Iterator[str]:
    """One line per encoding of the catalogue: how far what the reference gives now is from the file."""
    for name in encodings():
        off = max(difference(a, b) for a, b in zip(files.read(name), make(name), strict=True))
        yield (
            f"{name}: differs by {off:.1e} of the largest entry"
            if off > ROUNDING
            else f"{name}: the same, to {off:.1e}"
        )


def difference(stored: Case, made: Case) -> float:
    """The largest of logits and gradients, in parts of the largest entry; infinite if inputs differ."""
    if stored.gradients.keys() != made.gradients.keys() or stored.parameters.keys() != made.parameters.keys():
        return float("inf")
    inputs = [(getattr(stored, n), getattr(made, n)) for n in ("q", "k", "x", "weight", "q_pos", "k_pos")]
    inputs += [(stored.parameters[n], made.parameters[n]) for n in made.parameters]
    if not all(a is b is None or (a is not None and b is not None and a.equal(b)) for a, b in inputs):
        return float("inf")
    outputs = [(stored.expected, made.expected)]
    outputs += [(stored.gradients[n], made.gradients[n]) for n in made.gradients]
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1e-3)).item() for a, b in outputs)
