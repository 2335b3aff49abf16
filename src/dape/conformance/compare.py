"""The errors of an implementation on one case."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from dape.conformance.case import Case
from dape.conformance.loading import TheirError
from dape.conformance.make import INPUTS, hide, loss, softmax
from dape.conformance.subject import Built, Subject, theirs

LARGE = 1e3
"""The largest allowed logit of a hidden cell. A larger one, if no mask followed, would dominate the softmax."""
GRADIENT_SLACK = 10
"""Gradients are sums, so their tolerance is this times that of logits."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    case: Case
    kind: str = ""
    gives_weights: bool = False
    found: Float[Tensor, "..."] | None = None
    """The result of the implementation."""
    hidden: Float[Tensor, "..."] | None = None
    """The result, if its hidden cells have values that a mask would not leave."""
    skipped: str | None = None
    gradients: Mapping[str, float] = field(default_factory=dict)
    """The error of each gradient, divided by its largest entry."""
    leak: float = 0.0
    """The largest change in earlier rows when the last key changes."""
    tolerance: float = 1e-5

    @property
    def expected(self) -> Tensor:
        return softmax(self.case.expected, self.case) if self.gives_weights else self.case.expected

    @property
    def scale(self) -> float:
        return max(1.0, self.expected.abs().max().item())

    @property
    def error(self) -> Tensor:
        """The error of every visible cell, divided by the largest entry; infinite if a number is not finite."""
        assert self.found is not None
        shown = self.found if self.gives_weights or self.case.x is not None else hide(self.found, self.case)
        return ((shown - self.expected).abs() / self.scale).nan_to_num(nan=torch.inf, posinf=torch.inf)

    @property
    def off(self) -> float:
        return 0.0 if self.skipped else self.error.max().item()

    @property
    def wrong_gradients(self) -> dict[str, float]:
        return {n: off for n, off in self.gradients.items() if not off <= GRADIENT_SLACK * self.tolerance}

    @property
    def right(self) -> bool:
        return self.skipped is not None or (
            self.off <= self.tolerance and not self.wrong_gradients and self.hidden is None and self.leaks is False
        )

    @property
    def leaks(self) -> bool:
        return not self.leak <= self.tolerance


def compare(subject: Subject, case: Case, tolerance: float) -> Compared:
    built = subject.built(case)
    if reason := built.runs():
        return Compared(case=case, kind=built.kind, skipped=reason)
    given = {n: getattr(case, n) for n in INPUTS}
    leaves = {n: None if t is None else t.to(subject.dtype).requires_grad_(not subject.numpy) for n, t in given.items()}
    found = built.output(**leaves)
    with theirs(f"differentiating the case {case.name},"):
        gradients = {} if subject.numpy else _gradients(found, built, leaves)
    found = found.detach().double()
    return Compared(
        case=case,
        kind=built.kind,
        gives_weights=built.gives_weights,
        found=found,
        hidden=_strange(found, case, built),
        gradients=gradients,
        leak=_leak(found, built, leaves),
        tolerance=tolerance,
    )


def _gradients(found: Tensor, built: Built, leaves: Mapping[str, Tensor | None]) -> dict[str, float]:
    """The errors of the gradients that the case has."""
    case = built.case
    if case.weight is None:
        return {}
    if not found.requires_grad:
        if built.kind in ("bias", "hooks") and not case.parameters:
            return {}
        raise TheirError(
            f"differentiating the case {case.name}, its output does not depend on q, k and parameters: a detach, a "
            ".data or numpy in between? (Functions of numpy: `arrays` numpy, and gradients are not compared)"
        )
    value = (found * case.weight.to(found.dtype)).sum() if built.gives_weights else loss(found, case)
    value.backward()
    inputs = {n: leaf.grad for n, leaf in leaves.items() if leaf is not None}
    owned = {n: gradient() for n, gradient in built.leaves.items()}
    return {n: _off(g, case.gradients[n]) for n, g in (inputs | owned).items() if n in case.gradients}


def _off(found: Tensor | None, expected: Tensor) -> float:
    found = torch.zeros_like(expected) if found is None else found.detach().double()
    scale = max(expected.abs().max().item(), 1e-3)
    return ((found - expected).abs().max() / scale).nan_to_num(nan=torch.inf, posinf=torch.inf).item()


def _strange(found: Tensor, case: Case, built: Built) -> Tensor | None:
    """The logits, if hidden cells are NaN or so large that they would dominate the softmax."""
    if built.gives_weights or case.q is None or case.visible.all():
        return None
    hidden = found[:, ~case.visible]
    return found if bool((hidden.isnan() | (hidden > LARGE)).any()) else None


def _leak(found: Tensor, built: Built, leaves: Mapping[str, Tensor | None]) -> float:
    """The largest change in rows before the last key when this key changes, which should be 0."""
    case, k = built.case, leaves["k"]
    earlier = case.q_pos < case.length - 1
    if k is None or not case.causal or not earlier.any():
        return 0.0
    changed = k.detach().clone()
    changed[:, -1] += 1
    moved = built.output(leaves["q"], changed, None, leaves["entering"]).detach().double()
    seen = case.visible & earlier.unsqueeze(-1)
    difference = (moved - found)[:, seen].abs() / max(1.0, found[:, seen].abs().max().item())
    return difference.nan_to_num(nan=0.0, posinf=torch.inf).max().item()
