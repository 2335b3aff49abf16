"""A drop-in self-attention layer for a plain PyTorch model: any encoding of the catalogue by name.

    python examples/02_drop_in_attention.py

Trains a two-layer decoder for a moment at length 32 (sequences that repeat every four tokens), then runs it at 256 and
decodes with a cache.
"""

import torch
from torch import Tensor, nn

import dape

WIDTH, HEADS, LENGTH, VOCABULARY = 64, 4, 32, 20


class SelfAttention(nn.Module):
    """Causal self-attention. Give earlier keys and values to decode with a cache."""

    def __init__(self, width: int, heads: int, encoding: str, train_length: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.pe = dape.build(encoding, num_heads=heads, head_dim=width // heads, train_length=train_length)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        y = dape.attention(q, k, v, self.pe)  # the queries are the last of the keys
        return self.out(y.transpose(1, 2).flatten(2)), (k, v)


class Decoder(nn.Module):
    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(SelfAttention(WIDTH, HEADS, encoding, LENGTH) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, caches: list | None = None) -> tuple[Tensor, list]:
        x, new_caches = self.embedding(tokens), []
        for index, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            y, cache = layer(norm(x), None if caches is None else caches[index])
            x = x + y
            new_caches.append(cache)
        return self.head(x), new_caches


def batch(length: int, generator: torch.Generator) -> Tensor:
    """Four random tokens, again and again."""
    return torch.randint(VOCABULARY, (16, 4), generator=generator).repeat(1, length // 4)


def loss_of(model: Decoder, tokens: Tensor) -> Tensor:
    """Mean over the tokens that can be predicted: all after the first four."""
    logits, _ = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits[:, 3:].flatten(0, 1), tokens[:, 4:].flatten())


def main() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = Decoder("dape-kerple")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(101):
        loss = loss_of(model, batch(LENGTH, generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for layer in model.layers:
            layer.pe.project_()  # keeps Kerple's r1 and r2 positive
        if step % 25 == 0:
            print(f"step {step:3d}  loss at length {LENGTH}: {loss.item():.3f}")

    with torch.no_grad():
        tokens = batch(8 * LENGTH, generator)
        print(f"loss at length {tokens.shape[1]}: {loss_of(model, tokens).item():.3f}")
        whole, _ = model(tokens)
        _, caches = model(tokens[:, :-1])
        last, _ = model(tokens[:, -1:], caches)
    difference = (whole[:, -1] - last[:, -1]).abs().max().item()
    print(f"cached decoding differs from the full pass by {difference:.1e}")
    assert difference < 1e-4


if __name__ == "__main__":
    main()
