# %% [markdown]
# # DAPE in my PyTorch model
#
# `dape.nn.SelfAttention` stands where `nn.MultiheadAttention` would. It knows positions by itself, so that the model has no
# positional embedding; `encoding=` is any name of `dape list`.

# %%
import torch
from torch import nn

from dape.nn import SelfAttention

WIDTH, HEADS, LENGTH, VOCABULARY = 64, 4, 32, 20


class Decoder(nn.Module):
    def __init__(self, encoding):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(SelfAttention(WIDTH, HEADS, encoding, train_length=LENGTH) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x))
        return self.head(x)


# %% [markdown]
# A task that needs to look back: four random tokens, again and again. After each optimizer step `project_()` puts parameters with a
# range back into it (Kerple's r1 and r2 are positive).


# %%
def loss_of(model, length, generator):
    tokens = torch.randint(VOCABULARY, (16, 4), generator=generator).repeat(1, length // 4)
    logits = model(tokens[:, :-1])[:, 3:]
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 4:].flatten())


def train(encoding, steps=120):
    torch.manual_seed(0)
    model, generator = Decoder(encoding), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = loss_of(model, LENGTH, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for layer in model.layers:
            layer.encoding.project_()
    return model


# %% [markdown]
# Trained at 32 tokens, tested at up to 512:

# %%
models = {name: train(name) for name in ("rope", "kerple", "dape-kerple")}
with torch.no_grad():
    for name, model in models.items():
        losses = [loss_of(model, length, torch.Generator().manual_seed(1)).item() for length in (32, 128, 512)]
        print(f"{name:12}", *(f"{loss:8.3f}" for loss in losses))

# %% [markdown]
# One step below, attention itself: `[batch, heads, tokens, width]` in and out. `explain=True` tells which implementation ran, and why.

# %%
import dape

pe = dape.build("dape-kerple", num_heads=8, head_dim=32, train_length=128)
q, k, v = torch.randn(3, 1, 8, 300, 32)
out, choice = dape.attention(q, k, v, pe, explain=True)
print(out.shape, choice.impl, choice.reason, sep="\n")
