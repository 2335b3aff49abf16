"""Positions, signs, scales and heads: mistakes that any encoding may have."""

from dataclasses import replace

import torch
from torch import Tensor

from dape.conformance.make import content
from dape.conformance.mistakes.base import Family, Setting
from dape.ops.attention.reference import scaled_scores
from dape.positional.grid import Grid

mistake = MISTAKES = Family()


@mistake("bias", says="the lag is transposed: j - i (or the matrix of keys by queries) instead of i - j")
def transposed_lag(s: Setting) -> Tensor:
    case = s.case
    swapped = Grid(q_index=case.k_pos, k_index=case.q_pos, causal=case.causal)
    return s.of_bias(s.bias(swapped).mT)


@mistake("bias", says="the bias has the wrong sign: it grows with the distance")
def wrong_sign(s: Setting) -> Tensor:
    return s.of_bias(-s.bias())


@mistake("bias", says="lags are off by one: one too large (the key itself should have lag 0)")
def lag_one_too_large(s: Setting) -> Tensor:
    return s.of_bias(s.bias(Grid(q_index=s.case.q_pos + 1, k_index=s.case.k_pos, causal=s.case.causal)))


@mistake("bias", says="lags are off by one: one too small (the key itself and the one before it share lag 0)")
def lag_one_too_small(s: Setting) -> Tensor:
    return s.of_bias(s.bias_at(s.case.lag - (s.case.lag > 0).long()))


@mistake("any", says="positions count from 1; the first token has position 0")
def positions_from_one(s: Setting) -> Tensor | None:
    last = int(s.case.q_pos.max()) + 1
    if s.case.x is not None and s.case.options.get("max_positions", last + 1) <= last:
        return None
    return s.of_positions(s.case.q_pos + 1, s.case.k_pos + 1)


@mistake("any", says="queries count from 0 although they are the last rows of a longer sequence (a cache's offset)")
def cache_offset(s: Setting) -> Tensor | None:
    return s.of_positions(torch.arange(len(s.case.q_pos)), s.case.k_pos)


@mistake("bias", says="lags stop at the training length: they must go on beyond it")
def lag_clamped_at_train_length(s: Setting) -> Tensor:
    return s.of_bias(s.bias_at(s.case.lag.clamp(max=s.case.dims.train_length - 1)))


@mistake("bias", says="positions are held in bfloat16, which is exact up to 256 only")
def positions_in_bfloat16(s: Setting) -> Tensor:
    q_pos, k_pos = (p.bfloat16().long() for p in (s.case.q_pos, s.case.k_pos))
    return s.of_bias(s.bias(Grid(q_index=q_pos, k_index=k_pos, causal=s.case.causal)))


@mistake("bias", says="lags are held in bfloat16, which is exact up to 256 only")
def lags_in_bfloat16(s: Setting) -> Tensor:
    return s.of_bias(s.bias_at(s.case.lag.bfloat16().long()))


@mistake("bias", says="the bias is added before the scores are divided by sqrt(d): it must be added after")
def bias_before_scaling(s: Setting) -> Tensor:
    return s.of_bias(s.bias() / s.root)


@mistake("any", says="the scores are not divided by sqrt(d)")
def scores_not_scaled(s: Setting) -> Tensor | None:
    return None if s.case.x is not None else s.of_scores(s.scores * s.root)


@mistake("any", says="the scores are divided by d, or twice by sqrt(d)")
def scores_scaled_twice(s: Setting) -> Tensor | None:
    return None if s.case.x is not None else s.of_scores(s.scores / s.root)


@mistake("bias", says="the bias is in the order of the heads reversed")
def heads_reversed(s: Setting) -> Tensor:
    return s.of_bias(s.bias().flip(0))


@mistake("bias", says="no bias is added at all")
def bias_missing(s: Setting) -> Tensor:
    return s.of_bias(torch.zeros_like(s.bias()))


@mistake("any", says="queries and keys are exchanged: the logits are transposed")
def logits_transposed(s: Setting) -> Tensor | None:
    case = s.case
    if case.q is None or case.k is None or len(case.q_pos) != len(case.k_pos):
        return None
    q, k = content(replace(case, q=case.k, k=case.q), case.k, case.q)
    q, k = s.pe.rotate(q, k, s.grid)
    return s.pe.logits(scaled_scores(q, k), q, k, s.grid).squeeze(0)
