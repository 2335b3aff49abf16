"""``dape verify`` compares implementations with the conformance vectors; ``dape vectors`` lists or writes the files."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from dape.actions.verify import TOLERANCE, Arrays, Kind, Precision, check_encoding, verify
from dape.cli.fields import KEY_VALUES
from dape.errors import UsageError
from dape.fitting import to_terminal


@tyro.conf.configure(tyro.conf.FlagCreatePairsOff)
@dataclass(frozen=True, kw_only=True)
class Verify:
    """Compare an implementation of a positional encoding with the conformance vectors.

    TARGET is package.module:Name or file.py:Name; its code is executed. Name is a class with the hooks of dape; a class
    whose instances take (q_pos, k_pos), (q, k), scores or (q, k, v); a function of these; or a function that makes
    such an object from num_heads, head_dim, train_length. Its logits and gradients are compared with those of the
    reference in float64. Differences are shown by head, lag and length, with the known mistake they look like.

    The exit code is 0 if all agree, 1 if some differ or the code raises, 2 for invalid arguments (docs/verify.md).
    """

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """package.module:Name or path/to/file.py:Name."""
    encoding: Annotated[str, tyro.conf.arg(name="as", metavar="ENCODING")]
    """The encoding that TARGET implements: a name from `dape list`."""
    kind: Kind = "auto"
    """What TARGET takes: hooks, bias (q_pos, k_pos), logits (q, k), scores (A), attention (q, k, v), embed (x,
    positions); auto decides by its methods and the names of its arguments."""
    init: Annotated[dict[str, Any], KEY_VALUES] = field(default_factory=dict)
    """Constructor arguments whose meaning does not follow from their names: values, or one of num_heads, head_dim,
    train_length, model_dim, length, stretch."""
    names: Annotated[dict[str, Any], KEY_VALUES] = field(default_factory=dict)
    """Names of parameters, THEIRS=OURS; OURS.T transposes, - leaves a parameter as it is."""
    options: Annotated[dict[str, Any], KEY_VALUES] = field(default_factory=dict)
    """Options of the encoding, such as interleaved=true; the reference then computes the expected numbers on the
    spot."""
    cases: tuple[str, ...] = ()
    """Compare only these cases, such as short long."""
    precision: Precision = "float64"
    """Precision of parameters and inputs."""
    arrays: Arrays = "torch"
    """Arrays that functions are given. With numpy (also for JAX) gradients are not compared."""
    tolerance: float = TOLERANCE
    """Allowed error relative to the largest entry; ten times as much for gradients."""
    vectors: Path | None = None
    """A folder of vectors to use instead of those in this package."""
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
    """List the conformance vectors, describe one, or compute all of them again.

    For every encoding of the catalogue there is a file of inputs, parameters, logits and gradients in float64, small
    enough to copy into another project. With --out the reference computes all of them again, into a folder with a list
    of checksums; with --check it compares them with the files of this package.
    """

    encoding: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[ENCODING]")] = ""
    """Describe the file of this encoding: conventions, cases, tensors, known mistakes."""
    out: Path | None = None
    """Write the files of all encodings into this folder."""
    check: bool = False
    """Compute all files again and compare; the exit code is 1 if a tensor differs by more than 1e-11 of its largest
    entry."""


def run_vectors(config: Vectors) -> int:
    if sum(map(bool, (config.encoding, config.out, config.check))) > 1:
        raise UsageError("ENCODING, --out and --check are for different things: give one of them")
    if config.encoding:
        check_encoding(config.encoding)

    from dape.actions import vectors

    if config.encoding:
        for line in vectors.described(config.encoding).splitlines():
            print(to_terminal(line, indent=" " * 4))
    elif config.out is not None:
        count = vectors.write_all(config.out, lambda name: print(name, flush=True))
        print(f"wrote {count} files and their checksums in {config.out}")
    elif config.check:
        wrong = [line for line in vectors.checked() if print(line, flush=True) or " differs " in line]
        return 1 if wrong else 0
    else:
        print("\n".join(vectors.listed()))
    return 0
