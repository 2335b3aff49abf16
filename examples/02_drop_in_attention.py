"""``dape.nn.SelfAttention`` in a plain PyTorch model: any encoding of the catalogue by name.

    python examples/02_drop_in_attention.py

Trains a two-layer decoder for a moment at length 32 (sequences that repeat every four tokens), then runs it at 256 and
decodes with a cache.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dape.nn import LayerCache, SelfAttention

WIDTH, HEADS, LENGTH, VOCABULARY = 64, 4, 32, 20


class Decoder(nn.Module):
    """``SelfAttention`` stands where ``nn.MultiheadAttention`` would; it knows positions, and that it is causal."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(SelfAttention(WIDTH, HEADS, encoding, train_length=LENGTH) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, caches: Sequence[LayerCache | None] = (None, None)) -> Tensor:
        """With caches, the tokens are new ones behind those that the caches hold."""
        x = self.embedding(tokens)
        for layer, norm, cache in zip(self.layers, self.norms, caches, strict=True):
            x = x + layer(norm(x), cache=cache)
        return self.head(x)


def batch(length: int, generator: torch.Generator) -> Tensor:
    """Four random tokens, again and again."""
    return torch.randint(VOCABULARY, (16, 4), generator=generator).repeat(1, length // 4)


def loss_of(model: Decoder, tokens: Tensor) -> Tensor:
    """Mean over the tokens that can be predicted: all after the first four."""
    logits = model(tokens[:, :-1])
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
            layer.encoding.project_()  # keeps Kerple's r1 and r2 positive
        if step % 25 == 0:
            print(f"step {step:3d}  loss at length {LENGTH}: {loss.item():.3f}")

    with torch.no_grad():
        tokens = batch(8 * LENGTH, generator)
        print(f"loss at length {tokens.shape[1]}: {loss_of(model, tokens).item():.3f}")
        whole, caches = model(tokens), [LayerCache(), LayerCache()]
        model(tokens[:, :-1], caches)
        last = model(tokens[:, -1:], caches)
    difference = (whole[:, -1] - last[:, -1]).abs().max().item()
    print(f"cached decoding differs from the full pass by {difference:.1e}")
    assert difference < 1e-4


if __name__ == "__main__":
    main()
