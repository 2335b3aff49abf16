"""``dape.verify`` and ``dape verify``: compare implementations of encodings with the conformance vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from dape.errors import UsageError

if TYPE_CHECKING:
    from dape.conformance.case import Case
    from dape.conformance.verdict import Verdict

Kind = Literal["auto", "hooks", "bias", "logits", "scores", "attention", "embed"]
Precision = Literal["float64", "float32"]
Arrays = Literal["torch", "numpy"]
TOLERANCE = 1e-5


def verify(
    target: Any,
    encoding: str,
    *,
    kind: Kind = "auto",
    init: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    cases: Sequence[str] = (),
    precision: Precision = "float64",
    arrays: Arrays = "torch",
    tolerance: float = TOLERANCE,
    vectors: str | Path | None = None,
) -> "Verdict":
    """Compare an implementation of a positional encoding with the conformance vectors (docs/verify.md).

    Args:
        target: a class, a function that makes an object of one, a function, a module; or ``"package.module:Name"``.
        encoding: the encoding that ``target`` implements, by its name in the catalogue.
        kind: what ``target`` takes; ``auto`` decides by its methods and the names of its arguments.
        init: constructor arguments whose meaning does not follow from their names.
        names: the name in dape of each parameter of ``target`` that has another name there.
        options: options of the encoding; the reference then computes the expected numbers on the spot.
        cases: names of cases to compare; by default all.
        precision: precision of parameters and inputs.
        arrays: arrays that functions are given; gradients are compared with torch only.
        tolerance: allowed error relative to the largest entry; ten times as much for gradients.
        vectors: a folder of vectors to use instead of those in this package.

    Returns:
        A verdict, which is true if everything agrees. Printed, it shows how large differences are, where they are, and
        which known mistake they look like.

    Raises:
        dape.errors.UsageError: a ``ValueError``, for invalid arguments. Errors that the implementation raises are in
            the verdict.

    Example::

        verdict = dape.verify("mine.encodings:Kerple", "kerple")
        print(verdict)
    """
    from dape.conformance.loading import TheirError, load

    _check(kind, precision, arrays, tolerance)
    check_encoding(encoding)
    loaded, raised = target, None
    try:
        loaded = load(target) if isinstance(target, str) else target
    except TheirError as error:
        raised = str(error)

    import torch

    from dape.conformance.compare import compare
    from dape.conformance.subject import Subject
    from dape.conformance.verdict import Verdict, likely_mistakes

    chosen, source = _cases(encoding, cases, dict(options or {}), None if vectors is None else Path(vectors))
    told = target if isinstance(target, str) else getattr(target, "__qualname__", type(target).__qualname__)
    verdict = Verdict(target=told, encoding=encoding, source=source, tolerance=tolerance)
    if raised:
        return replace(verdict, raised=raised)
    done = []
    try:
        subject = Subject(
            target=loaded,
            kind=kind,
            init=init or {},
            names=names or {},
            dtype=getattr(torch, precision),
            numpy=arrays == "numpy",
        )
        for case in chosen:
            done.append(compare(subject, case, tolerance))
    except TheirError as error:
        return replace(verdict, compared=done, raised=str(error))
    if all(each.skipped for each in done):
        raise UsageError(f"no case of {encoding!r} can be asked of this kind: {done[0].skipped}")
    verdict = replace(verdict, compared=done)
    return verdict if verdict.right else replace(verdict, likely=likely_mistakes(encoding, done, tolerance))


def _check(kind: str, precision: str, arrays: str, tolerance: float) -> None:
    for name, value, choices in (("kind", kind, Kind), ("precision", precision, Precision), ("arrays", arrays, Arrays)):
        if value not in get_args(choices):
            raise UsageError(f"`{name}` {value!r} is not possible; choose one of {', '.join(get_args(choices))}")
    if not 0 < tolerance < 1:
        raise UsageError(f"`tolerance` must lie between 0 and 1, got {tolerance}")


def check_encoding(encoding: str) -> None:
    """Raise UsageError unless there can be vectors of the encoding."""
    from dape.positional.catalogue import find
    from dape.positional.names import RANDOMIZED

    if encoding.startswith(RANDOMIZED):
        raise UsageError(f"randomised positions are drawn anew at every call: compare {encoding[len(RANDOMIZED) :]!r}")
    try:
        find(encoding)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _cases(
    encoding: str, wanted: Sequence[str], options: dict[str, Any], folder: Path | None
) -> tuple[list["Case"], str]:
    from dape.conformance import files
    from dape.conformance.make import answered
    from dape.conformance.recipes import reference

    found = files.read(encoding, folder)
    if unknown := [name for name in wanted if name not in {case.name for case in found}]:
        raise UsageError(f"`cases`: {encoding} has no {unknown[0]!r}; it has {', '.join(case.name for case in found)}")
    chosen = [case for case in found if not wanted or case.name in wanted]
    path = files.path_of(encoding, folder)
    if not options:
        return chosen, f"{path.name}, SHA-256 {files.check_sum(path)[:16]}"
    try:
        others = [replace(case, options={**case.options, **options}) for case in chosen]
        said = ", ".join(f"{name}={value}" for name, value in options.items())
        return [answered(case, reference(encoding, case)) for case in others], f"the reference with {said}"
    except (TypeError, ValueError) as error:
        raise UsageError(f"`options`: {error}") from None
