"""Mistakes of rotations."""

import torch
from torch import Tensor

from dape.conformance.mistakes.base import Family, Setting
from dape.ops.attention.reference import scaled_scores
from dape.positional.angles import angles
from dape.positional.rope import PositionInterpolation, Rope, rotate_pairs
from dape.positional.two_rotations import SelfExtend, TwoRotations
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
    """The logits with another rotation. Arguments that are not given are those of the encoding."""
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


# Two rotations -------------------------------------------------------------------------------------------------------


def _merged(s: Setting, q_far: Tensor, k_far: Tensor, *, window: int | None = None) -> Tensor:
    """The logits with other positions for lags from the window on."""
    assert isinstance(s.base, TwoRotations)
    (q, k), rope = s.raw, s.base.rope
    near = scaled_scores(rope.turned_at(q, s.case.q_pos), rope.turned_at(k, s.case.k_pos))
    far = scaled_scores(rope.turned_at(q, q_far), rope.turned_at(k, k_far))
    is_near = s.case.lag < (s.base.window if window is None else window)
    return torch.where(is_near, near, far).squeeze(0)


@mistake("rerope", "self-extend", says="only one rotation: this is plain rope")
def near_everywhere(s: Setting) -> Tensor:
    return _merged(s, s.case.q_pos, s.case.k_pos)


@mistake("rerope", "self-extend", says="the window is missing: near keys have the far rotation, too")
def far_everywhere(s: Setting) -> Tensor:
    assert isinstance(s.base, TwoRotations)
    return _merged(s, *s.base.far_positions(s.case.grid), window=0)


@mistake("rerope", says="far keys are at lag window - 1; from the window on they are at lag window")
def one_before_the_window(s: Setting) -> Tensor:
    assert isinstance(s.base, TwoRotations)
    return _merged(s, torch.full_like(s.case.q_pos, s.base.window - 1), torch.zeros_like(s.case.k_pos))


@mistake("rerope", says="far keys are not rotated at all: at lag 0, not window")
def far_keys_at_lag_0(s: Setting) -> Tensor:
    return _merged(s, torch.zeros_like(s.case.q_pos), torch.zeros_like(s.case.k_pos))


def _grouped(s: Setting) -> tuple[Tensor, Tensor, int, int]:
    """The groups of queries and keys, without the shift; window and group."""
    assert isinstance(s.base, SelfExtend) and s.base.group is not None
    group = s.base.group
    return s.case.q_pos // group, s.case.k_pos // group, s.base.window, group


@mistake("self-extend", says="far queries are not moved by window - floor(window / group): lags begin anew there")
def groups_not_moved(s: Setting) -> Tensor:
    q_far, k_far, _, _ = _grouped(s)
    return _merged(s, q_far, k_far)


@mistake("self-extend", says="the window ends one lag late: near are lags below `window`, not up to it")
def window_too_wide(s: Setting) -> Tensor:
    q_far, k_far, window, group = _grouped(s)
    return _merged(s, q_far + window - window // group, k_far, window=window + 1)


@mistake("self-extend", says="the lag is grouped; positions are, so that floor(i / g) - floor(j / g) counts")
def lags_grouped(s: Setting) -> Tensor:
    _, _, window, group = _grouped(s)
    moved = window - window // group
    rows = [_merged_row(s, row, s.case.lag[row] // group + moved) for row in range(len(s.case.q_pos))]
    near = _merged(s, s.case.q_pos, s.case.k_pos)
    return torch.where(s.case.lag < window, near, torch.cat(rows, dim=-2))


def _merged_row(s: Setting, row: int, lag: Tensor) -> Tensor:
    """The scores with a separate rotation for the lag of every cell."""
    assert isinstance(s.base, TwoRotations)
    (q, k), rope = s.raw, s.base.rope
    turned = rope.turned_at(k, -lag)
    return scaled_scores(rope.turned_at(q[..., row : row + 1, :], torch.zeros(1, dtype=torch.long)), turned).squeeze(0)
