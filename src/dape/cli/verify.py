"""``dape verify`` and ``dape vectors``: conformance vectors, and anybody's implementation against them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from dape.actions.verify import TOLERANCE, Arrays, Kind, Precision, check_encoding, verify
from dape.cli.fields import KEY_VALUES


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class Verify:
    """Compare an implementation of a positional encoding with the conformance vectors.

    TARGET is package.module:Name or file.py:Name, and its code is run: a class with hooks such as dape's own, or
    whose instances are called with (q_pos, k_pos), (q, k), scores or (q, k, v); a function of these; a function that
    makes one of num_heads, head_dim, train_length. Logits and gradients are compared with the numbers of the
    reference in float64. What is off is shown by head, lag and length, and which known mistake it looks like.

    The exit code is 0 if it is right, 1 if it is off or raises, 2 if the arguments do not fit (docs/verify.md).
    """

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """package.module:Name or path/to/file.py:Name."""
    encoding: Annotated[str, tyro.conf.arg(name="as", metavar="ENCODING")]
    """What it is to be: a name of `dape list`."""
    kind: Kind = "auto"
    """What it takes: hooks, bias (q_pos, k_pos), logits (q, k), scores (A), attention (q, k, v), embed (x, positions);
    auto reads its methods and the names of its arguments."""
    init: Annotated[dict[str, Any], KEY_VALUES] = field(default_factory=dict)
    """Arguments of its constructor that cannot be told from their names: values, or one of num_heads, head_dim,
    train_length, model_dim, length, stretch."""
    names: Annotated[dict[str, Any], KEY_VALUES] = field(default_factory=dict)
    """Names of its parameters, THEIRS=OURS; OURS.T transposes, - leaves a parameter as it is."""
    options: Annotated[dict[str, Any], KEY_VALUES] = field(default_factory=dict)
    """Options of the encoding, such as interleaved=true; the reference then computes the right numbers now."""
    cases: tuple[str, ...] = ()
    """Only these cases, such as short long."""
    precision: Precision = "float64"
    """Of its parameters and inputs."""
    arrays: Arrays = "torch"
    """What a function is given. With numpy (for JAX, too) gradients are not compared."""
    tolerance: float = TOLERANCE
    """In parts of the largest entry; gradients may be off ten times as much."""
    vectors: Path | None = None
    """A folder of vectors instead of those of this package."""
    json: bool = False
    """Print JSON instead of text."""


def run(config: Verify) -> int:
    verdict = verify(
        config.target,
        config.encoding,
        kind=config.kind,
        init=config.init,
        names={theirs: str(ours) for theirs, ours in config.names.items()},
        options=config.options,
        cases=config.cases,
        precision=config.precision,
        arrays=config.arrays,
        tolerance=config.tolerance,
        vectors=config.vectors,
    )
    print(json.dumps(verdict.as_record(), indent=2) if config.json else verdict)
    return 0 if verdict.right else 1


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class Vectors:
    """List the conformance vectors, describe one, write all anew, or check them.

    For every encoding of the catalogue a file of inputs, parameters, logits and gradients in float64, small enough to
    copy into another project. --out lets the reference compute all of them again, into a folder with a list of
    checksums; --check does the same and compares with the files of this package.
    """

    encoding: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[ENCODING]")] = ""
    """Describe the file of this encoding: conventions, cases, tensors, known mistakes."""
    out: Path | None = None
    """Write the files of all encodings into this folder."""
    check: bool = False
    """Compute all again and compare; exit code 1 if one differs by more than 1e-12 of its largest entry."""


def run_vectors(config: Vectors) -> int:
    if config.encoding:
        check_encoding(config.encoding)

    from dape.actions import vectors

    if config.encoding:
        print(vectors.described(config.encoding))
    elif config.out is not None:
        count = vectors.write_all(config.out, lambda name: print(name, flush=True))
        print(f"wrote {count} files and their checksums in {config.out}")
    elif config.check:
        wrong = [line for line in vectors.checked() if print(line, flush=True) or " differs " in line]
        return 1 if wrong else 0
    else:
        print("\n".join(vectors.listed()))
    return 0
