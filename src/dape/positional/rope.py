"""Rotary positions (Su et al., 2021) and position interpolation (Chen et al., 2023).

rope: the pair of channels m of q and k is rotated by the angle p w_m,   w_m = base^(-2m/d),
so that q_i . k_j depends on i - j. Pairs are (m, m + d/2), or (2m, 2m + 1) if ``interleaved``.
partial: only the first ``fraction`` of the channels is rotated, and d is their number (GPT-NeoX). Other rotations have
this option too.
pi: rope with p / s, where s = max(1, evaluated length / training length).
"""

from typing import TypedDict, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.positional.angles import angles, float64_device, frequencies
from dape.positional.base import AttentionDims, PositionalEncoding, accumulation_dtype, require_positive
from dape.positional.grid import Grid

Turn = tuple[Float[Tensor, "*#b t c"], Float[Tensor, "*#b t c"]]
"""Cosine and sine of every channel pair's angle, times a factor."""
Spectrum = tuple[Float[Tensor, "..."], Float[Tensor, "..."] | float]
"""Angle per step of every channel pair, and a factor on the rotated vectors; both broadcast over [*b, t, pair]."""


class Pairing(TypedDict, total=False):
    """Options of every rotation, handed on to :class:`Rope` (:func:`dape.positional.build.options_of` follows them)."""

    base: float
    interleaved: bool


class RopeOptions(Pairing, total=False):
    fraction: float


class StretchOptions(RopeOptions, total=False):
    """Options of the rotations that follow the length, handed on to :class:`PositionInterpolation`."""

    scale: float | None


def rotate_pairs(x: Float[Tensor, "*b h t d"], turn: Turn, *, interleaved: bool) -> Float[Tensor, "*b h t d"]:
    """Rotate each pair of channels by the same angles in all heads, in the precision of ``turn``."""
    cos, sin = (t.unsqueeze(-3) for t in turn)
    wide = x.to(cos.dtype)
    a, b = (wide[..., 0::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    turned = (a * cos - b * sin, b * cos + a * sin)
    out = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return out.to(x.dtype)


def _turn(positions: Int[Tensor, "*b t"], spectrum: Spectrum, dtype: torch.dtype) -> Turn:
    frequencies, amplitude = spectrum
    angle = angles(positions, frequencies)
    cos, sin = ((x * amplitude).to(positions.device, dtype) for x in (angle.cos(), angle.sin()))
    return cos, sin


class Rope(PositionalEncoding):
    def __init__(
        self, dims: AttentionDims, *, base: float = 10000.0, interleaved: bool = False, fraction: float = 1.0
    ) -> None:
        super().__init__(dims)
        if require_positive("fraction", fraction) > 1:
            raise ValueError(f"fraction is how many of the channels are turned, at most 1 for all; got {fraction}")
        self.width = int(dims.head_dim * fraction)
        if self.width % 2 or not self.width:
            of = "" if fraction == 1 else f", of which fraction={fraction:g} is {self.width} channels"
            raise ValueError(f"rotary positions turn pairs of channels; head_dim must be even, got {dims.head_dim}{of}")
        self.base = require_positive("base", base)
        self.interleaved = interleaved

    def rotate(
        self, q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q d"], Float[Tensor, "*b g k d"]]:
        if not grid.k_index.numel():
            return q, k
        dtype = accumulation_dtype(q.dtype)
        q_spectrum, k_spectrum = self.spectra(grid, torch.float64)
        k_turn = q_turn = _turn(grid.k_pos, k_spectrum, dtype)
        alike = q_spectrum is k_spectrum and grid.offset == 0 and grid.q_index.shape == grid.k_index.shape
        if not alike:
            q_turn = _turn(grid.q_pos, q_spectrum, dtype)
        return self._turned(q, q_turn), self._turned(k, k_turn)

    def turned_at(self, x: Float[Tensor, "*b h t d"], positions: Int[Tensor, "*#b t"]) -> Float[Tensor, "*b h t d"]:
        """Queries or keys rotated for given positions."""
        spectrum = (self.frequencies(positions.device, torch.float64), 1.0)
        return self._turned(x, _turn(positions, spectrum, accumulation_dtype(x.dtype)))

    def _turned(self, x: Float[Tensor, "*b h t d"], turn: Turn) -> Float[Tensor, "*b h t d"]:
        if self.width == x.shape[-1]:
            return rotate_pairs(x, turn, interleaved=self.interleaved)
        first, rest = x[..., : self.width], x[..., self.width :]
        return torch.cat([rotate_pairs(first, turn, interleaved=self.interleaved), rest], dim=-1)

    @property
    def rotates_once(self) -> bool:
        return type(self).spectra is Rope.spectra

    def spectra(self, grid: Grid, dtype: torch.dtype) -> tuple[Spectrum, Spectrum]:
        """The spectra of the queries and of the keys; the same object if they are equal."""
        spectrum = (self.frequencies(grid.k_index.device, dtype), 1.0)
        return spectrum, spectrum

    def frequencies(self, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " c"]:
        return frequencies(self.width, self.base, device).to(dtype)


class Partial(Rope):
    def __init__(self, dims: AttentionDims, *, fraction: float = 0.5, **pairing: Unpack[Pairing]) -> None:
        super().__init__(dims, fraction=fraction, **pairing)


class PositionInterpolation(Rope):
    """Without ``scale``, the largest position of a token's document determines the stretch. A KV cache of rotated keys
    needs a fixed ``scale``, because the stretch must not change while the sequence grows."""

    def __init__(self, dims: AttentionDims, *, scale: float | None = None, **rope: Unpack[RopeOptions]) -> None:
        super().__init__(dims, **rope)
        if scale is not None and require_positive("scale", scale) < 1:
            raise ValueError(f"scale is how many times longer inputs may be than in training: 1 or more, got {scale}")
        self.scale = scale

    @property
    def rotates_once(self) -> bool:
        return self.scale is not None

    def spectra(self, grid: Grid, dtype: torch.dtype) -> tuple[Spectrum, Spectrum]:
        q_longest, k_longest = grid.longest()
        k_spectrum = self.stretched(self.stretch(k_longest, dtype))
        alike = grid.q_document is grid.k_document
        return k_spectrum if alike else self.stretched(self.stretch(q_longest, dtype)), k_spectrum

    def stretch(self, longest: Int[Tensor, "*b #t"], dtype: torch.dtype) -> Float[Tensor, "*b #t 1"]:
        """The length of each token's document in training lengths, at least 1."""
        length = (longest + 1).to(float64_device(longest.device), dtype).unsqueeze(-1)
        if self.scale is not None:
            return torch.full_like(length, self.scale)
        return (length / self.dims.train_length).clamp(min=1.0)

    def stretched(self, s: Float[Tensor, "*b #t 1"]) -> Spectrum:
        return self.frequencies(s.device, s.dtype) / s, 1.0
