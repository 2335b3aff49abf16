"""Encodings written from their equations with nothing of dape: the right implementations that `dape verify` must
accept, of every kind it takes. tests/conformance/test_plain.py compares them with the golden numbers first."""

import math
from typing import Any

import torch
from torch import nn


def lags(q_pos, k_pos):
    return q_pos[:, None] - k_pos[None, :]


def distance(q_pos, k_pos, causal):
    lag = lags(q_pos, k_pos)
    return lag.clamp(min=0).double() if causal else lag.abs() - 0.5 * (lag > 0).double()


def floor(parameter, top=None):
    return parameter + (parameter.clamp(0.01, top) - parameter).detach()


class Alibi:
    """Called with positions."""

    def __init__(self, num_heads):
        power = 2 ** math.floor(math.log2(num_heads))
        slopes = [2 ** (-8 * n / power) for n in range(1, power + 1)]
        slopes += [2 ** (-4 * n / power) for n in range(1, 2 * power, 2)][: num_heads - power]
        self.slopes = torch.tensor(slopes, dtype=torch.float64).view(-1, 1, 1)

    def __call__(self, q_pos, k_pos, causal=True):
        return -self.slopes * distance(q_pos, k_pos, causal)


class Kerple(nn.Module):
    """A module with one hook, parameters of another shape."""

    def __init__(self, heads):
        super().__init__()
        self.r1, self.r2 = (nn.Parameter(torch.ones(heads, 1, 1)) for _ in range(2))

    def bias(self, q_pos, k_pos, causal=True):
        return -floor(self.r1) * torch.log(1 + floor(self.r2) * distance(q_pos, k_pos, causal))


class KerplePower(Kerple):
    def bias(self, q_pos, k_pos, causal=True):
        d = distance(q_pos, k_pos, causal)
        return -floor(self.r1) * torch.where(d == 0, 0.0, d.clamp(min=0.25) ** floor(self.r2, 2.0))


class T5(nn.Module):
    """Buckets counted in a loop."""

    def __init__(self, num_heads, head_dim):
        super().__init__()
        self.table, self.scale = nn.Parameter(torch.zeros(32, num_heads)), math.sqrt(head_dim)

    def forward(self, q_pos, k_pos, causal=True):
        index = [[self.bucket(i - j, causal) for j in k_pos.tolist()] for i in q_pos.tolist()]
        return self.table[torch.tensor(index)].permute(2, 0, 1) * self.scale

    def bucket(self, lag, causal):
        side, n = (32, max(lag, 0)) if causal else (16, abs(lag))
        exact = side // 2
        if n >= exact:
            n = min(exact + int(math.log(n / exact) / math.log(128 / exact) * (side - exact) + 1e-9), side - 1)
        return n if causal or lag >= 0 else n + side


def sandwich(num_heads):
    """A factory of a function."""
    w = 10000.0 ** (-torch.arange(64, dtype=torch.float64) / 64)

    def bias(q_pos, k_pos, causal=True):
        # The inner product of two sinusoidal vectors.
        a, b = q_pos[:, None] * w, k_pos[:, None] * w
        s = a.sin() @ b.sin().T + a.cos() @ b.cos().T
        return (s - 64) / (8 * torch.arange(1, num_heads + 1, dtype=torch.float64) / num_heads).view(-1, 1, 1)

    return bias


class Fire(nn.Module):
    def __init__(self, num_heads, train_length, mlp_width=6, leaky=0.0):
        super().__init__()
        self.c, self.threshold_multiplier = nn.Parameter(torch.tensor(0.1)), nn.Parameter(torch.tensor(1.0))
        self.first, self.second = nn.Linear(1, mlp_width), nn.Linear(mlp_width, num_heads)
        self.threshold, self.leaky = train_length, leaky

    def bias(self, q_pos, k_pos, causal=True):
        d = distance(q_pos, k_pos, causal)
        reach = q_pos.double()[:, None] if causal else d.max(1, keepdim=True)[0]
        row = torch.maximum(reach, (self.threshold_multiplier * self.threshold).abs())
        u = (1 + (self.c * d).abs()).log() / ((1 + (self.c * row).abs()).log() + 1e-6)
        return self.second(nn.functional.leaky_relu(self.first(u[..., None]), self.leaky)).permute(2, 0, 1)


class Rotary:
    """Called with q, k, v: whole attention. With a factor, position interpolation or YaRN."""

    def __init__(self, head_dim, train_length, factor=1.0, yarn=False):
        self.w = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        self.gain = 1.0
        if yarn:
            low, high = (
                head_dim * math.log(train_length / (2 * math.pi * beta)) / (2 * math.log(10000)) for beta in (32, 1)
            )
            low, high = max(math.floor(low), 0), max(min(math.ceil(high), head_dim - 1), 0)
            ramp = ((torch.arange(head_dim // 2).double() - low) / max(high - low, 0.001)).clamp(0, 1)
            self.w, self.gain = self.w / factor * ramp + self.w * (1 - ramp), 0.1 * math.log(factor) + 1
        else:
            self.w = self.w / factor

    def __call__(self, q, k, v, causal=True):
        q, k = self.turn(q), self.turn(k)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def turn(self, x):
        complex_ = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(
            torch.full((), self.gain, dtype=torch.float64), torch.arange(x.shape[-2])[:, None] * self.w
        )
        return torch.cat([complex_.real, complex_.imag], dim=-1)


def rope(head_dim, train_length):
    return Rotary(head_dim, train_length)


def pi(head_dim, train_length, factor):
    return Rotary(head_dim, train_length, factor)


def yarn(head_dim, train_length, factor):
    return Rotary(head_dim, train_length, factor, yarn=True)


def nope(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def table_of(positions, width):
    angle = positions.double()[:, None] * 10000.0 ** (-2 * torch.arange(width // 2).double() / width)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def sinusoidal(x, positions):
    return x + table_of(positions, x.shape[-1])


class Learned(nn.Module):
    def __init__(self, max_positions, d_model):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(max_positions, d_model))

    def forward(self, positions):
        return self.table[positions]


def transformer_xl(q, k, *, u, v, W, causal=True):
    """Parameters as arguments; every cell on its own."""
    heads, length, width = q.shape[-3:]
    out = torch.zeros(1, heads, length, length, dtype=q.dtype)
    for i in range(length):
        lag = (i - torch.arange(length)) * (1 if causal else -1)
        r = (table_of(lag, heads * width) @ W.T).view(length, heads, width).transpose(0, 1)
        content = ((q[0, :, i] + u)[:, None] * k[0]).sum(-1)
        out[0, :, i] = (content + ((q[0, :, i] + v)[:, None] * r).sum(-1)) / math.sqrt(width)
    return out


class Cope(nn.Module):
    def __init__(self, head_dim, npos=8):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(head_dim, npos))

    def forward(self, query, key):
        scores = nope(query, key)
        masked = scores + torch.ones_like(scores).triu(1) * -1e9
        count = torch.sigmoid(masked).flip(-1).cumsum(-1).flip(-1).clamp(max=self.table.shape[1] - 1)
        z = query @ self.table
        low, high = (z.gather(-1, n.long()) for n in (count.floor(), count.ceil()))
        return scores + torch.lerp(low, high, count - count.floor())


class F(nn.Module):
    def __init__(self, inputs, hidden, heads):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, hidden), nn.Linear(hidden, heads)

    def forward(self, x):
        hidden = nn.functional.leaky_relu(self.first(x.permute(0, 2, 3, 1)), 0.01)
        return self.second(hidden).permute(0, 3, 1, 2)


class Dape(nn.Module):
    """Called with scaled scores, as the paper's listing and the authors' program are."""

    make = staticmethod(lambda num_heads, head_dim, train_length, hidden: None)

    def __init__(self, num_heads, head_dim, train_length, hidden):
        super().__init__()
        self.base = self.make(num_heads, head_dim, train_length, hidden)
        self.f = F(num_heads * (1 if self.base is None else 2), hidden, num_heads)

    def forward(self, scores, causal=True):
        at = torch.arange(scores.shape[-1])
        if self.base is None:
            return scores + self.f(scores)
        bias_of: Any = getattr(self.base, "bias", self.base)
        bias = bias_of(at, at, causal).expand_as(scores).to(scores.dtype)
        return scores + bias + self.f(torch.cat([scores, bias], 1))


class DapeAlibi(Dape):
    make = staticmethod(lambda num_heads, head_dim, train_length, hidden: Alibi(num_heads))


class DapeKerple(Dape):
    make = staticmethod(lambda num_heads, head_dim, train_length, hidden: Kerple(num_heads))


class DapeFire(Dape):
    make = staticmethod(
        lambda num_heads, head_dim, train_length, hidden: Fire(num_heads, train_length, hidden, leaky=0.01)
    )


class DapeT5(Dape):
    make = staticmethod(lambda num_heads, head_dim, train_length, hidden: T5(num_heads, head_dim))


class DapeV2Kerple(nn.Module):
    def __init__(self, num_heads, hidden):
        super().__init__()
        self.base = Kerple(num_heads)
        self.first = nn.Conv2d(2 * num_heads, hidden, (1, 3), padding=(0, 1))
        self.second = nn.Conv2d(hidden, num_heads, (1, 3), padding=(0, 1))

    def forward(self, scores, causal=True):
        at = torch.arange(scores.shape[-1])
        bias = self.base.bias(at, at, causal).expand_as(scores)
        x = torch.cat([scores, bias], 1)
        hidden = nn.functional.leaky_relu(self.first(x.tril() if causal else x), 0.01)
        return scores + bias + self.second(hidden.tril() if causal else hidden)


def turned(x, position, base=10000.0):
    """One vector of every head, its pairs of channels as complex numbers."""
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half], x[..., half:])
    angles = torch.tensor([position * base ** (-2 * m / x.shape[-1]) for m in range(half)], dtype=torch.float64)
    z = z * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([z.real, z.imag], dim=-1)


def at_lags(q, k, lag_of):
    """Only the query is turned, by the lag."""
    rows = []
    for i in range(q.shape[2]):
        keys = [(turned(q[0, :, i], lag_of(i, j)) * k[0, :, j]).sum(-1) for j in range(k.shape[2])]
        rows.append(torch.stack(keys, dim=-1))
    return torch.stack(rows, dim=1).unsqueeze(0) / math.sqrt(q.shape[-1])


class ReRope:
    def __init__(self, window):
        self.window = window

    def __call__(self, q, k):
        return at_lags(q, k, lambda i, j: min(i - j, self.window))


class SelfExtend:
    def __init__(self, window, group):
        self.window, self.group = window, group

    def lag(self, i, j):
        if i - j < self.window:
            return i - j
        return i // self.group - j // self.group + self.window - self.window // self.group

    def __call__(self, q, k):
        return at_lags(q, k, self.lag)


class TalkingHeads(nn.Module):
    def __init__(self, num_heads):
        super().__init__()
        self.mix = nn.Parameter(torch.zeros(num_heads, num_heads))

    def forward(self, scores):
        own = self.mix + torch.eye(len(self.mix), dtype=self.mix.dtype)
        return torch.stack([sum(own[h, g] * scores[:, g] for g in range(len(own))) for h in range(len(own))], dim=1)


class MultiToken(nn.Module):
    """Key by key and head by head, over scores that stop at the query."""

    def __init__(self, num_heads, kernel):
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(num_heads, kernel))
        self.mix = nn.Parameter(torch.zeros(num_heads, 2))

    def forward(self, q, k, causal=True):
        # float64 masks: of scores that are hidden nothing is left.
        a = at_lags(q, k, lambda i, j: i - j)[0]
        shown = a.tril() if causal else a
        taps, keys = self.theta.shape[1], a.shape[-1]
        near = []
        for h in range(len(a)):
            columns = []
            for j in range(keys):
                there = [(t, j + t - taps // 2) for t in range(taps) if 0 <= j + t - taps // 2 < keys]
                columns.append(a[h, :, j] + sum(self.theta[h, t] * shown[h, :, n] for t, n in there))
            near.append(torch.stack(columns, dim=-1))
        out = [near[h] + sum(self.mix[h, g] * near[h // 2 * 2 + g] for g in range(2)) for h in range(len(a))]
        return torch.stack(out).unsqueeze(0)


class Fox(nn.Module):
    """Called with queries, keys and what enters the layer; every sum of gates in a loop of its own."""

    def __init__(self, num_heads, model_dim):
        super().__init__()
        self.w = nn.Linear(model_dim, num_heads)

    def forward(self, q, k, x):
        gates = torch.sigmoid(self.w(x[0]))
        rows = []
        for i in range(len(gates)):
            rows.append(torch.stack([gates[j + 1 : i + 1].log().sum(0) for j in range(len(gates))]))
        return q @ k.mT / math.sqrt(q.shape[-1]) + torch.stack(rows).permute(2, 0, 1)


class Inkling(nn.Module):
    """Cell by cell."""

    def __init__(self, num_heads, train_length, model_dim, rank, extent):
        super().__init__()
        self.profiles = nn.Parameter(torch.zeros(rank, extent))
        self.w_r = nn.Linear(model_dim, num_heads * rank, bias=False)
        self.heads, self.length = num_heads, train_length

    def forward(self, q, k, x):
        r = self.w_r(x[0]).view(len(x[0]), self.heads, -1)
        rows = []
        for i in range(len(r)):
            tau = 1 + 0.1 * math.log(max(1, (i + 1) / self.length))
            scores = torch.einsum("hd,htd->ht", q[0, :, i], k[0]) / math.sqrt(q.shape[-1])
            extent, zero = self.profiles.shape[1], torch.zeros_like(r[i, :, 0])
            near = [r[i] @ self.profiles[:, i - j] if 0 <= i - j < extent else zero for j in range(len(r))]
            rows.append(tau * (scores + torch.stack(near, dim=-1)))
        return torch.stack(rows, dim=1).unsqueeze(0)


RIGHT = {
    "rerope": (ReRope, {}),
    "self-extend": (SelfExtend, {}),
    "talking-heads": (TalkingHeads, {}),
    "multi-token": (MultiToken, {}),
    "fox": (Fox, {}),
    "inkling": (Inkling, {}),
    "nope": (nope, {}),
    "sinusoidal": (sinusoidal, {}),
    "learned": (Learned, {}),
    "rope": (rope, {}),
    "pi": (pi, {}),
    "yarn": (yarn, {}),
    "t5": (T5, {}),
    "alibi": (Alibi, {}),
    "kerple": (Kerple, {}),
    "kerple-power": (KerplePower, {}),
    "sandwich": (sandwich, {}),
    "fire": (Fire, {}),
    "transformer-xl": (transformer_xl, {"names": {"W": "w_r.weight"}}),
    "cope": (Cope, {}),
    "dape-nope": (Dape, {}),
    "dape-alibi": (DapeAlibi, {}),
    "dape-kerple": (DapeKerple, {}),
    "dape-fire": (DapeFire, {}),
    "dape-t5": (DapeT5, {}),
    "dape-v2-kerple": (DapeV2Kerple, {}),
}
"""By the name of the encoding: the implementation, and what `dape.verify` must be told."""
