"""Rotary positions (Su et al., 2021) and position interpolation (Chen et al., 2023).

rope: the pair of channels m of q and k is turned by the angle p w_m,   w_m = base^(-2m/d),
so that q_i . k_j depends on i - j. Pairs are (m, m + d/2) or, ``interleaved``, (2m, 2m + 1).
pi: the same with p / s, where s = evaluated length / training length once that exceeds 1.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.positional.base import AttentionDims, PositionalEncoding, accumulation_dtype
from dape.positional.grid import Grid


def rope_frequencies(head_dim: int, base: float, *, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " c"]:
    return base ** (-torch.arange(0, head_dim, 2, device=device, dtype=dtype) / head_dim)


def rotate_pairs(
    x: Float[Tensor, "*b h t d"], angle: Float[Tensor, "*#b t c"], *, interleaved: bool, amplitude: Tensor | float = 1.0
) -> Float[Tensor, "*b h t d"]:
    """Turn each pair of channels by its angle. Angles are shared by the heads and used in the angle's precision."""
    cos, sin = (angle.cos() * amplitude).unsqueeze(-3), (angle.sin() * amplitude).unsqueeze(-3)
    wide = x.to(angle.dtype)
    a, b = (wide[..., 0::2], wide[..., 1::2]) if interleaved else wide.chunk(2, dim=-1)
    turned = (a * cos - b * sin, b * cos + a * sin)
    out = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return out.to(x.dtype)


def stretch(
    longest: Int[Tensor, "*b #t"], train_length: int, scale: float | None, dtype: torch.dtype
) -> Float[Tensor, "*b #t 1"]:
    """How many times longer than in training a token's document is, never below 1. A fixed ``scale`` wins: with a KV
    cache whose keys are stored rotated the stretch must not change while the sequence grows."""
    length = (longest + 1).to(dtype).unsqueeze(-1)
    return (length / train_length).clamp(min=1.0) if scale is None else torch.full_like(length, scale)


class Rope(PositionalEncoding):
    def __init__(self, dims: AttentionDims, *, base: float = 10000.0, interleaved: bool = False) -> None:
        super().__init__(dims)
        if dims.head_dim % 2:
            raise ValueError(f"rotary positions turn pairs of channels; head_dim must be even, got {dims.head_dim}")
        self.base = base
        self.interleaved = interleaved

    def rotate(
        self, q: Float[Tensor, "*b h q d"], k: Float[Tensor, "*b g k d"], grid: Grid
    ) -> tuple[Float[Tensor, "*b h q d"], Float[Tensor, "*b g k d"]]:
        dtype = accumulation_dtype(q.dtype)
        if not grid.k_index.numel():
            return q, k

        def turn(x: Tensor, positions: Tensor, longest: Tensor) -> Tensor:
            frequencies, amplitude = self.spectrum(longest, dtype)
            angle = positions.to(dtype).unsqueeze(-1) * frequencies
            return rotate_pairs(x, angle, interleaved=self.interleaved, amplitude=amplitude)

        q_longest, k_longest = grid.longest()
        return turn(q, grid.q_pos, q_longest), turn(k, grid.k_pos, k_longest)

    def spectrum(
        self, longest: Int[Tensor, "*b #t"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "*b #t c"], Float[Tensor, "*b #t 1"] | float]:
        """Angle per step of each channel pair, and a factor on the rotated vectors; both may depend on how long the
        document of a token is."""
        return rope_frequencies(self.dims.head_dim, self.base, device=longest.device, dtype=dtype), 1.0


class PositionInterpolation(Rope):
    def __init__(
        self, dims: AttentionDims, *, base: float = 10000.0, interleaved: bool = False, scale: float | None = None
    ) -> None:
        super().__init__(dims, base=base, interleaved=interleaved)
        self.scale = check_scale(scale)

    def spectrum(
        self, longest: Int[Tensor, "*b #t"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "*b #t c"], Float[Tensor, "*b #t 1"] | float]:
        plain, amplitude = super().spectrum(longest, dtype)
        return plain / stretch(longest, self.dims.train_length, self.scale, dtype), amplitude


def check_scale(scale: float | None) -> float | None:
    if scale is not None and not scale >= 1:
        raise ValueError(f"scale is how many times longer inputs may be than in training: 1 or more, got {scale}")
    return scale
