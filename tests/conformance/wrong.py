"""Implementations with mistakes that have been made: what `dape verify` must find. By name, the encoding and a word of
what it must say."""

# pyright: reportIncompatibleMethodOverride=false

import math

import torch
from plain import T5, Dape, DapeKerple, Fire, Kerple, Rotary, lags, nope
from torch import nn


def alibi_of_the_text(q_pos, k_pos, num_heads=12):
    slopes = torch.tensor([2 ** (-8 * n / num_heads) for n in range(1, num_heads + 1)], dtype=torch.float64)
    return -slopes.view(-1, 1, 1) * lags(q_pos, k_pos).abs()


def alibi_transposed(q, k):
    heads, length = q.shape[-3:-1]
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)
    at = torch.arange(length)
    return nope(q, k) - slopes.view(-1, 1, 1) * lags(at, at).mT.clamp(min=0)


class KerpleBeforeScaling(nn.Module):
    """Whole attention: the bias goes into the scores before they are scaled."""

    def __init__(self, num_heads):
        super().__init__()
        self.inner = Kerple(num_heads)

    def forward(self, q, k, v):
        at = torch.arange(q.shape[-2])
        logits = (q @ k.mT + self.inner.bias(at, at)) / math.sqrt(q.shape[-1])
        return logits.masked_fill(lags(at, at) < 0, -math.inf).softmax(-1) @ v


class KerpleOffByOne(Kerple):
    def bias(self, q_pos, k_pos):
        return super().bias(q_pos + 1, k_pos)


class KerpleRaw(Kerple):
    def bias(self, q_pos, k_pos):
        return -self.r1 * torch.log(1 + self.r2 * lags(q_pos, k_pos).abs())


class KerpleDetached(Kerple):
    """Right values, no gradient of r2."""

    def bias(self, q_pos, k_pos, causal=True):
        r2 = self.r2
        self.r2 = nn.Parameter(r2.detach().clone())
        out = super().bias(q_pos, k_pos, causal)
        self.r2 = r2
        return out


class FireNotNormalised(Fire):
    def bias(self, q_pos, k_pos):
        u = (1 + (self.c * lags(q_pos, k_pos).clamp(min=0)).abs()).log()
        return self.second(nn.functional.relu(self.first(u[..., None]))).permute(2, 0, 1)


class T5Bidirectional(T5):
    def bucket(self, lag, causal):
        return super().bucket(lag, False)


def yarn_without_range(head_dim, train_length, factor):
    made = Rotary(head_dim, train_length, factor)
    made.gain = 0.1 * math.log(factor) + 1
    return made


class DapeMaskedFirst(DapeKerple):
    """Called with scores that are masked already, as many attention layers do."""

    def forward(self, scores):
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return super().forward(scores.masked_fill(hidden, -1e9))


class DapeBiasFirst(DapeKerple):
    def forward(self, scores):
        at = torch.arange(scores.shape[-1])
        bias = self.base.bias(at, at).expand_as(scores)
        return scores + bias + self.f(torch.cat([bias, scores], 1))


def sandwich_swapped(num_heads):
    w = 10000.0 ** (-torch.arange(64, dtype=torch.float64) / 64)

    def bias(q_pos, k_pos):
        a, b = q_pos[:, None] * w, k_pos[:, None] * w
        s = torch.cat([a.sin(), a.cos()], -1) @ torch.cat([b.cos(), b.sin()], -1).T
        return (s - 64) / (8 * torch.arange(1, num_heads + 1, dtype=torch.float64) / num_heads).view(-1, 1, 1)

    return bias


def leaky_attention(q, k, v):
    """No mask at all."""
    return nope(q, k).softmax(-1) @ v


class Raises(Kerple):
    def bias(self, q_pos, k_pos):
        return self.missing(q_pos)


class GivesNothing(Dape):
    def forward(self, scores):
        self.f(scores)


WRONG = {
    "alibi_of_the_text": ("alibi", "rule of ALiBi's text", {"cases": ["heads"]}),
    "alibi_transposed": ("alibi", "transposed", {"cases": ["short", "long"]}),
    "KerpleBeforeScaling": ("kerple", "before the scores are divided", {"names": {"inner.r1": "r1", "inner.r2": "r2"}}),
    "KerpleOffByOne": ("kerple", "off by one: one too large", {}),
    "KerpleRaw": ("kerple", "not kept at 0.01", {}),
    "FireNotNormalised": ("fire", "normalisation is missing", {}),
    "T5Bidirectional": ("t5", "buckets of the bidirectional form", {}),
    "yarn_without_range": ("yarn", "without its correction range", {}),
    "DapeMaskedFirst": ("dape-kerple", "mask comes before f", {}),
    "DapeBiasFirst": ("dape-kerple", "bias first", {}),
    "sandwich_swapped": ("sandwich", "halves of one side are exchanged", {}),
}
