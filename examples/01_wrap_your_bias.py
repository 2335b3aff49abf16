"""Wrap a bias of your own in DAPE, in eight lines (the README's example), then look at what f did.

python examples/01_wrap_your_bias.py
"""

import torch

import dape


class Window(dape.RelativeBias):
    """b(i, j) = 0 within 64 tokens, -1 beyond: a soft window."""

    def bias_at(self, lag, *, causal):
        return -(lag.abs() >= 64).float().expand(self.dims.num_heads, *lag.shape)


dape.register("window", Window)
pe = dape.build("dape-window", num_heads=8, head_dim=32, train_length=128)
q, k, v = (torch.randn(1, 8, 300, 32) for _ in range(3))

out, choice = dape.attention(q, k, v, pe, explain=True)
print(f"output {tuple(out.shape)}, computed by {choice.kernel}: {choice.reason}")

row = dape.intermediates(q, k, pe, rows=[-1])
assert row.bias is not None and row.f is not None
print(f"last query, head 0, nearest 3 keys: A {row.scores[0, 0, 0, -3:].tolist()}")
print(f"                                    B {row.bias[0, 0, -3:].tolist()}")
print(f"                              f(A, B) {row.f[0, 0, 0, -3:].tolist()}")
