"""Every encoding with all its hooks, models and layers, with shapes and types checked at every call: a program.

It is one of its own because an import hook must come before the imports, and because ``torch.compile`` and tests that
pass wrong types on purpose cannot live with one.
"""

import sys
from functools import partial

from jaxtyping import TypeCheckError, install_import_hook

HOOKED = ["dape.positional", "dape.models", "dape.nn"]


def main() -> int:
    with install_import_hook(HOOKED, "beartype.beartype"):
        import torch

        import dape
        from dape.models.cache import Cache
        from dape.nn import LayerCache, SelfAttention
        from dape.positional.grid import Grid
    names = sys.argv[1:] or list(dape.encodings())

    def attend(name: str, causal: bool) -> None:
        """Grouped-query attention in which queries are the last of the keys."""
        pe = dape.build(name, num_heads=4, head_dim=8, model_dim=32, train_length=16)
        q, k, v = torch.randn(2, 4, 5, 8, requires_grad=True), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
        features = pe.features(pe.embed(torch.randn(2, 9, 32), torch.arange(9)))
        dape.attention(q, k, v, pe, causal=causal, features=features, impl="reference").sum().backward()
        pe.project_()

    def decode(name: str) -> None:
        model = dape.DecoderLM(dape.DecoderConfig(layers=2, width=32, heads=4, encoding=name, train_length=16)).eval()
        cache = Cache(2)
        with torch.no_grad():
            model(torch.zeros(2, 7, dtype=torch.int64), cache=cache, last=3)
            model(torch.zeros(2, 1, dtype=torch.int64), cache=cache)

    def layer(name: str) -> None:
        made = SelfAttention(model_dim=32, num_heads=4, encoding=name, num_kv_heads=2, train_length=16)
        made(torch.randn(2, 7, 32), key_padding_mask=torch.zeros(2, 7, dtype=torch.bool))
        made(torch.randn(2, 3, 32), cache=LayerCache())

    def wrong() -> None:
        """Scores of one head for queries of four: broadcasting would let it pass."""
        pe = dape.build("kerple", num_heads=4, head_dim=8, train_length=16)
        q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 9, 8)
        pe.logits(torch.randn(2, 1, 5, 9), q, k, Grid.of_length(5, 9, causal=True))

    try:
        wrong()
        failed = ["a wrong shape was not noticed"]
    except TypeCheckError as error:
        failed = [] if "AdditiveBias.logits" in str(error) else [str(error)]
    for name in names:
        directions = (True, False) if dape.encodings()[name].bidirectional else (True,)
        for call in (*(partial(attend, causal=causal) for causal in directions), decode, layer):
            try:
                call(name)
            except Exception as error:
                failed.append(f"{name}: {type(error).__name__} {error}")
    print("\n---\n".join(failed))
    return min(len(failed), 1)


if __name__ == "__main__":
    sys.exit(main())
