"""Mistakes of rotations."""

import torch
from torch import Tensor

from dape.conformance.mistakes.base import Family, Setting
from dape.positional.angles import angles
from dape.positional.rope import PositionInterpolation, Rope, rotate_pairs
from dape.positional.yarn import Yarn

mistake = MISTAKES = Family()


def _turned(
    s: Setting,
    frequencies: Tensor | None = None,
    *,
    amplitudes: tuple[float, float] | None = None,
    directions: tuple[int, int] = (1, 1),
    interleaved: bool | None = None,
) -> Tensor:
    """The logits under another rotation; what is not said is the encoding's own."""
    assert isinstance(s.base, Rope)
    own, amplitude = s.base.spectra(s.case.grid, torch.float64)[1]
    frequencies = own.reshape(-1) if frequencies is None else frequencies
    out = []
    for n, (x, positions) in enumerate(zip(s.raw, (s.case.q_pos, s.case.k_pos), strict=True)):
        factor = amplitude if amplitudes is None else amplitudes[n]
        angle = angles(directions[n] * positions, frequencies)
        turn = (factor * angle.cos(), factor * angle.sin())
        pairs, width = s.base.interleaved if interleaved is None else interleaved, s.base.width
        out.append(torch.cat([rotate_pairs(x[..., :width], turn, interleaved=pairs), x[..., width:]], dim=-1))
    return s.of_turned(out[0], out[1])


def _plain(s: Setting) -> Tensor:
    assert isinstance(s.base, Rope)
    return s.base.frequencies(torch.device("cpu"), torch.float64)


def _stretch(s: Setting) -> float:
    return s.case.stretch


def _gain(s: Setting) -> float:
    return float(0.1 * torch.tensor(_stretch(s), dtype=torch.float64).log() + 1)


@mistake("rotate", says="pairs are neighbouring channels (2c, 2c+1), the interleaved layout; the default is "
         "(c, c + d/2). Compare with the option interleaved=true if you mean that")  # fmt: skip
def interleaved_pairs(s: Setting) -> Tensor:
    return _turned(s, interleaved=True)


@mistake("rotate", says="the rotation goes the other way: -p w instead of p w")
def other_direction(s: Setting) -> Tensor:
    return _turned(s, directions=(-1, -1))


@mistake("rotate", says="queries and keys turn in opposite directions: the angle is i + j, not i - j")
def opposite_directions(s: Setting) -> Tensor:
    return _turned(s, directions=(1, -1))


@mistake("rotate", says="only the queries are rotated")
def queries_only(s: Setting) -> Tensor:
    return _turned(s, directions=(1, 0))


@mistake("rotate", says="only the keys are rotated")
def keys_only(s: Setting) -> Tensor:
    return _turned(s, directions=(0, 1))


@mistake("rotate", says="nothing is rotated")
def not_rotated(s: Setting) -> Tensor:
    return _turned(s, directions=(0, 0))


@mistake("rope", says="exponents -c/d instead of -2c/d: half of the spectrum")
def half_exponents(s: Setting) -> Tensor:
    return _turned(s, _plain(s).sqrt())


@mistake("rope", says="exponents -2(c+1)/d: channels counted from 1")
def exponents_from_one(s: Setting) -> Tensor:
    return _turned(s, _plain(s) * 10000 ** (-2 / s.case.dims.head_dim))


@mistake("pi", "yarn", says="nothing is interpolated: this is plain rope")
def plain_rope(s: Setting) -> Tensor:
    return _turned(s, _plain(s), amplitudes=(1.0, 1.0))


@mistake("pi", says="positions are multiplied by the stretch instead of divided")
def stretch_inverted(s: Setting) -> Tensor:
    return _turned(s, _plain(s) * _stretch(s))


@mistake("pi", says="NTK-aware base in place of interpolated positions: base s^(d/(d-2))")
def ntk_base(s: Setting) -> Tensor:
    assert isinstance(s.base, PositionInterpolation)
    width = s.case.dims.head_dim
    exponent = torch.arange(width // 2, dtype=torch.float64) * 2 / width
    return _turned(s, (s.base.base * _stretch(s) ** (width / (width - 2))) ** -exponent)


def _ramp(s: Setting) -> Tensor:
    assert isinstance(s.base, Yarn)
    pair = torch.arange(s.case.dims.head_dim // 2, dtype=torch.float64)
    return ((pair - s.base.low) / max(s.base.high - s.base.low, 0.001)).clamp(0, 1)


@mistake("yarn", says="YaRN without its correction range: every channel is interpolated, the fast ones should be kept")
def without_correction_range(s: Setting) -> Tensor:
    return _turned(s, _plain(s) / _stretch(s))


@mistake("yarn", says="YaRN without its temperature: q and k are not multiplied by 0.1 ln s + 1")
def without_temperature(s: Setting) -> Tensor:
    return _turned(s, amplitudes=(1.0, 1.0))


@mistake("yarn", says="YaRN's temperature once: 0.1 ln s + 1 belongs on q and on k, so squared on the logits")
def temperature_once(s: Setting) -> Tensor:
    return _turned(s, amplitudes=(_gain(s), 1.0))


@mistake("yarn", says="YaRN's interpolation alone: no correction range and no temperature (this is pi)")
def neither_range_nor_temperature(s: Setting) -> Tensor:
    return _turned(s, _plain(s) / _stretch(s), amplitudes=(1.0, 1.0))


@mistake("yarn", says="YaRN's ramp runs the wrong way: fast channels are interpolated, slow ones are kept")
def ramp_reversed(s: Setting) -> Tensor:
    ramp = 1 - _ramp(s)
    return _turned(s, _plain(s) * (1 - ramp) + _plain(s) / _stretch(s) * ramp)


@mistake("yarn", says="YaRN's correction range is cut instead of a ramp: channels are either kept or interpolated")
def cut_instead_of_ramp(s: Setting) -> Tensor:
    ramp = (_ramp(s) > 0).double()
    return _turned(s, _plain(s) * (1 - ramp) + _plain(s) / _stretch(s) * ramp)
