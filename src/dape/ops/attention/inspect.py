"""Intermediate results of attention for chosen query rows, as the visualisations need them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dape.modules import without_autocast
from dape.ops.attention.check import Features, check_causal, check_tensors, make_grid, with_features
from dape.ops.attention.reference import masked_softmax, scaled_scores
from dape.positional.base import PositionalEncoding


@dataclass(frozen=True, kw_only=True)
class Intermediates:
    """All stages of the chosen rows. Scores, bias, f and logits are unmasked; the weights multiply the values."""

    rows: Int[Tensor, " r"]
    scores: Float[Tensor, "b h r k"]
    """A: scaled scores of (rotated) queries and keys."""
    bias: Float[Tensor, "*b h r k"] | None
    """B of an additive encoding or of the base of DAPE; None for other encodings."""
    f: Float[Tensor, "b h r k"] | None
    """The output of DAPE's f; None for other encodings."""
    logits: Float[Tensor, "b h r k"]
    weights: Float[Tensor, "b h r k"]
    visible: Bool[Tensor, "*b r k"] | None


def intermediates(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    pe: PositionalEncoding,
    *,
    rows: int | Sequence[int] | slice | None = None,
    causal: bool = True,
    q_pos: Int[Tensor, "*b q"] | None = None,
    k_pos: Int[Tensor, "*b k"] | None = None,
    key_padding_mask: Bool[Tensor, "b k"] | None = None,
    q_document: Int[Tensor, "*b q"] | None = None,
    k_document: Int[Tensor, "*b k"] | None = None,
    features: Features | None = None,
) -> Intermediates:
    """Scores, bias, f, logits and weights of chosen query rows.

    Runs the hooks of :func:`dape.attention` on the same positions: ``weights @ v`` (with v repeated for grouped heads)
    is its output.

    Args:
        q: queries; this and all arguments but ``rows`` as in :func:`dape.attention`.
        k: keys.
        pe: the encoding.
        rows: indices of query rows; negative ones count from the end. All rows by default.
        causal: hide keys whose position is larger than the query's.
        q_pos: positions of the queries.
        k_pos: positions of the keys.
        key_padding_mask: True at keys that are padding.
        q_document: documents of the queries.
        k_document: documents of the keys.
        features: for encodings that read features.

    Returns:
        All stages of these rows.

    Raises:
        ValueError, TypeError: as :func:`dape.attention`, and for rows that do not exist.

    Examples:
        >>> from dape import build
        >>> pe = build("dape-alibi", num_heads=2, head_dim=4, train_length=8)
        >>> q, k = (torch.randn(1, 2, 16, 4) for _ in range(2))
        >>> last = intermediates(q, k, pe, rows=-1)
        >>> torch.allclose(last.logits, last.scores + last.bias + last.f)
        True
    """
    check_tensors(q, k, k, pe)
    grid = make_grid(q, k, q_pos, k_pos, key_padding_mask, q_document, k_document, causal=causal)
    grid = with_features(grid, features, pe, q, k)
    index = _row_index(rows, q.shape[2], q.device)
    pe, grid = pe.settle(grid)
    check_causal(pe, causal)
    with without_autocast(q.device):
        q, k = pe.rotate(q, k, grid)
        q, grid = q[:, :, index], grid.rows(index)
        scores = scaled_scores(q, k)
        logits = pe.logits(scores, q, k, grid)
        bias, f = pe.terms(scores, grid)
        visible = grid.visible()
        weights = masked_softmax(logits, visible, pe.sinks())
    return Intermediates(rows=index, scores=scores, bias=bias, f=f, logits=logits, weights=weights, visible=visible)


def _row_index(rows: int | Sequence[int] | slice | None, queries: int, device: torch.device) -> Int[Tensor, " r"]:
    every = torch.arange(queries, device=device)
    if rows is None or isinstance(rows, slice):
        return every[rows or slice(None)]
    rows = [rows] if isinstance(rows, int) else [int(row) for row in rows]
    outside = [row for row in rows if not -queries <= row < queries]
    if outside:
        raise ValueError(f"rows {outside} do not exist: there are {queries} query rows")
    return every[rows]
