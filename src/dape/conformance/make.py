"""The expected values of every case, computed by the reference."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dape.conformance.case import Case
from dape.conformance.recipes import blank_cases
from dape.ops.attention.reference import masked_softmax, scaled_scores
from dape.positional.base import PositionalEncoding
from dape.positional.grid import Grid

INPUTS = ("q", "k", "x", "entering")


def make(name: str) -> list[Case]:
    """All vectors of an encoding in the catalogue, computed in float64."""
    return [answered(case, pe) for case, pe in blank_cases(name)]


def answered(case: Case, pe: PositionalEncoding) -> Case:
    """The case with the expected values: the result of the encoding's hooks and a softmax."""
    leaves = {n: t.clone().requires_grad_() for n in INPUTS if (t := getattr(case, n)) is not None}
    out = reference_output(pe, case, **leaves)
    gradients = {}
    if case.weight is not None:
        named = leaves | dict(pe.named_parameters())
        found = torch.autograd.grad(loss(out, case), list(named.values()), allow_unused=True)
        gradients = {n: torch.zeros_like(named[n]) if g is None else g for n, g in zip(named, found, strict=True)}
    out = out.detach()
    return replace(case, expected=out if case.x is not None else hide(out, case), gradients=gradients)


def reference_output(
    pe: PositionalEncoding,
    case: Case,
    *,
    q: Tensor | None = None,
    k: Tensor | None = None,
    x: Tensor | None = None,
    entering: Tensor | None = None,
) -> Tensor:
    if x is not None:
        return pe.embed(x, case.q_pos)
    q, k = content(case, q, k)
    grid = featured(case.grid, pe, entering)
    q, k = pe.rotate(q, k, grid)
    return pe.logits(scaled_scores(q, k), q, k, grid).squeeze(0)


def featured(grid: Grid, pe: Any, entering: Tensor | None) -> Grid:
    """The grid with the features of the tokens at its positions, which are clamped to the text."""
    found = None if entering is None or not hasattr(pe, "features") else pe.features(entering.unsqueeze(0))
    if found is None:
        return grid
    features = found.squeeze(0)
    q, k = (features[index.clamp(0, len(features) - 1)] for index in (grid.q_index, grid.k_index))
    return replace(grid, q_features=q, k_features=k)


def content(case: Case, q: Tensor | None, k: Tensor | None) -> tuple[Tensor, Tensor]:
    """The compared rows of q, and k, with a batch axis; zeros if the case has only positions."""
    if q is None or k is None:
        heads, width = case.dims.num_heads, case.dims.head_dim
        q, k = (torch.zeros(heads, len(p), width, dtype=torch.float64) for p in (case.q_pos, case.k_pos))
    else:
        q = q[:, case.q_pos]
    return q.unsqueeze(0), k.unsqueeze(0)


def loss(out: Tensor, case: Case) -> Tensor:
    assert case.weight is not None
    value = out if case.x is not None else softmax(out, case)
    return (value * case.weight.to(value.dtype)).sum()


def softmax(logits: Tensor, case: Case) -> Tensor:
    return masked_softmax(logits, case.visible)


def hide(out: Tensor, case: Case) -> Tensor:
    """Set hidden cells, whose values are arbitrary, to 0."""
    return out.masked_fill(~case.visible, 0.0)
