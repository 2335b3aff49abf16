# %% [markdown]
# # Add an encoding
#
# Most encodings are a bias that depends on the distance alone. Such a one is a class with one method, `bias_at`: lags `i - j` of any
# shape in, `[heads, *shape]` out. Its parameters are parameters of the model; the number of heads and the like are in `dims`.

# %%
import torch

import dape


class Saturating(dape.RelativeBias):
    """b_h(i, j) = -c_h |i - j| / (1 + |i - j|), c_h learned: far tokens are all equally far."""

    def __init__(self, dims):
        super().__init__(dims)
        self.c = torch.nn.Parameter(torch.linspace(1, 4, dims.num_heads))

    def bias_at(self, lag, *, causal):
        distance = lag.long().abs()  # lags may be integers of any width
        c = self.c.reshape(-1, *[1] * lag.ndim)
        return -c * distance / (1 + distance)


dape.register("saturating", Saturating)

# %% [markdown]
# At position 3, for keys 0, 2 and 3, it should be -3/4 c, -1/2 c and 0:

# %%
pe = dape.build("saturating", num_heads=4, head_dim=16, train_length=64)
print(pe.bias(torch.tensor([3]), torch.tensor([0, 2, 3])).squeeze(1))

# %% [markdown]
# By its name it can do what every other encoding can: be drawn, trained, compared, read through randomised positions, and DAPE goes on
# top of it.

# %%
dape.draw("saturating", "dape-saturating", train_length=32, heads=4, head_dim=16)

# %% [markdown]
# Is it computed rightly, forward and backward? The fast implementations against the definition, in float64 where that is possible:

# %%
pe = dape.build("dape-saturating", num_heads=4, head_dim=16, train_length=64)
q, k, v = (torch.randn(1, 4, 200, 16, requires_grad=True) for _ in range(3))
out, choice = dape.attention(q, k, v, pe, explain=True)
exact = dape.attention(q.double(), k.double(), v.double(), pe.double(), impl="reference")
print(choice.impl, choice.kernel, f"largest difference {(out - exact).abs().max().item():.1e}")

# %% [markdown]
# To put it into the package: one file and one line, and the conformance tests find it by themselves
# ([Contributing](../../CONTRIBUTING.md#add-an-encoding)).
