"""Mistakes of logits that read other heads and neighbouring keys: talking heads, multi-token attention."""

import torch
from torch import Tensor, nn

from dape.conformance.mistakes.base import Family, Setting
from dape.positional.multi_token import MultiToken
from dape.positional.talking_heads import TalkingHeads

mistake = MISTAKES = Family()


# Talking heads -------------------------------------------------------------------------------------------------------


def _talking(s: Setting) -> Tensor:
    assert isinstance(s.base, TalkingHeads)
    return s.base.mix


@mistake("talking-heads", says="the matrix is transposed: M_hg weighs what head h takes from head g")
def heads_transposed(s: Setting) -> Tensor:
    return (s.scores + torch.einsum("gh,bgqk->bhqk", _talking(s), s.scores)).squeeze(0)


@mistake("talking-heads", says="A itself is missing: M comes on top of the identity")
def mixture_alone(s: Setting) -> Tensor:
    return torch.einsum("hg,bgqk->bhqk", _talking(s), s.scores).squeeze(0)


# Multi-token attention -----------------------------------------------------------------------------------------------


def _over_keys(s: Setting, *, flip: bool = False, mask: bool = True, residual: bool = True, shift: int = 0) -> Tensor:
    assert isinstance(s.base, MultiToken)
    theta, a = s.base.theta, s.scores
    width = theta.shape[1]
    padded = nn.functional.pad(a * s.case.visible if mask else a, (width, width))
    start, taps = width - width // 2 + shift, theta.flip(-1) if flip else theta
    near = [taps[:, t].view(-1, 1, 1) * padded[..., start + t : start + t + a.shape[-1]] for t in range(width)]
    return sum(near, a if residual else torch.zeros_like(a))


def _over_heads(s: Setting, near: Tensor, *, transposed: bool = False, residual: bool = True) -> Tensor:
    assert isinstance(s.base, MultiToken)
    size = s.base.mix.shape[1]
    mix = s.base.mix.unflatten(0, (-1, size))
    mix = mix.transpose(-1, -2) if transposed else mix
    mixed = torch.einsum("ghf,bgfqk->bghqk", mix, near.unflatten(1, (-1, size))).flatten(1, 2)
    return (near + mixed if residual else mixed).squeeze(0)


@mistake("multi-token", says="hidden scores are not set to 0 before the convolution: the future leaks into it")
def neighbours_of_the_future(s: Setting) -> Tensor:
    return _over_heads(s, _over_keys(s, mask=False))


@mistake("multi-token", says="the kernel is flipped: cross-correlation is meant, as torch's convolutions compute it")
def key_kernel_flipped(s: Setting) -> Tensor:
    return _over_heads(s, _over_keys(s, flip=True))


@mistake("multi-token", says="the kernel ends at the key itself; its middle should stand there")
def kernel_of_the_past(s: Setting) -> Tensor:
    assert isinstance(s.base, MultiToken)
    return _over_heads(s, _over_keys(s, shift=-(s.base.theta.shape[1] // 2)))


@mistake("multi-token", says="A itself is missing: theta and mix come on top of the identity")
def convolutions_alone(s: Setting) -> Tensor:
    return _over_heads(s, _over_keys(s, residual=False), residual=False)


@mistake("multi-token", says="heads are not mixed: this is the convolution over keys alone")
def keys_only_convolved(s: Setting) -> Tensor:
    return _over_keys(s).squeeze(0)


@mistake("multi-token", says="the matrix of a group of heads is transposed")
def group_transposed(s: Setting) -> Tensor:
    return _over_heads(s, _over_keys(s), transposed=True)
