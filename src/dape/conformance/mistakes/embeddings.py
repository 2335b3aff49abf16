"""Mistakes of encodings that act on the embeddings."""

import torch
from torch import Tensor

from dape.conformance.mistakes.base import Family, Setting
from dape.positional.angles import angles, frequencies
from dape.positional.sinusoidal import sinusoid

mistake = MISTAKES = Family()


def _table(s: Setting) -> Tensor:
    return sinusoid(s.case.q_pos, s.case.dims.model_dim, dtype=torch.float64)


@mistake("sinusoidal", says="sines and cosines alternate; here all sines come first, then all cosines")
def alternating(s: Setting) -> Tensor | None:
    return s.case.x + torch.stack(_table(s).chunk(2, dim=-1), dim=-1).flatten(-2) if s.case.x is not None else None


@mistake("sinusoidal", says="cosines come first")
def cosines_first(s: Setting) -> Tensor | None:
    return s.case.x + torch.cat(_table(s).chunk(2, dim=-1)[::-1], dim=-1) if s.case.x is not None else None


@mistake("sinusoidal", says="exponents c/(m/2 - 1), as in tensor2tensor, instead of 2c/m")
def exponents_of_tensor2tensor(s: Setting) -> Tensor | None:
    half = s.case.dims.model_dim // 2
    w = frequencies(2 * half, 10000.0, torch.device("cpu")) ** (half / (half - 1))
    angle = angles(s.case.q_pos, w)
    return s.case.x + torch.cat([angle.sin(), angle.cos()], dim=-1) if s.case.x is not None else None


@mistake("embed", says="the embeddings of positions replace those of tokens: they must be added")
def replaces_tokens(s: Setting) -> Tensor | None:
    return None if s.case.x is None else s.right() - s.case.x


@mistake("embed", says="tokens are multiplied by sqrt(m) first, which belongs to the model, not to the encoding")
def tokens_scaled(s: Setting) -> Tensor | None:
    return None if s.case.x is None else s.right() + (s.case.dims.model_dim**0.5 - 1) * s.case.x
