"""``dape.nn.SelfAttention`` against PyTorch's own layer, against one sequence at a time, against its cache."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from dape.nn import LayerCache, SelfAttention

ENCODINGS = ["dape-kerple", "dape-fire", "rope", "alibi", "nope", "transformer-xl"]


def text(batch: int = 2, tokens: int = 13, width: int = 24) -> torch.Tensor:
    return torch.randn(batch, tokens, width, generator=torch.Generator().manual_seed(0))


def make(encoding: str = "dape-kerple", **more) -> SelfAttention:
    torch.manual_seed(1)
    return SelfAttention(24, 4, encoding, train_length=8, **more)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_equal_to_pytorch_without_positions(bias, causal, padded):
    torch.manual_seed(2)
    theirs = nn.MultiheadAttention(24, 4, bias=bias, batch_first=True)
    ours = SelfAttention.from_multihead(theirs, train_length=8, causal=causal)
    x = text().requires_grad_()
    mask = torch.zeros(2, 13, dtype=torch.bool)
    mask[1, 9:] = padded
    hidden = torch.triu(torch.ones(13, 13, dtype=torch.bool), 1) if causal else None
    expected, _ = theirs(x, x, x, key_padding_mask=mask, attn_mask=hidden, need_weights=False)
    found = ours(x, key_padding_mask=mask)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), x) for y in (found, expected)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_padding_changes_nothing(encoding):
    layer, x = make(encoding), text()
    mask = torch.zeros(2, 13, dtype=torch.bool)
    mask[1, 9:] = True
    together = layer(x, key_padding_mask=mask)
    torch.testing.assert_close(together[1:, :9], layer(x[1:, :9]), atol=1e-5, rtol=1e-5)
    assert (layer(x)[1] - together[1]).abs().max() > 1e-4 or layer.causal


@pytest.mark.parametrize("encoding", [*ENCODINGS, "cope"])
def test_a_cache_gives_the_same(encoding):
    layer, x, cache = make(encoding), text(), LayerCache()
    parts = [layer(part, cache=cache) for part in x.split([5, 1, 1, 6], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), layer(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_shared_keys_and_values(encoding):
    """As with all heads, where those of a group have the same projection."""
    few, all_heads, x = make(encoding, num_kv_heads=2), make(encoding), text()
    all_heads.load_state_dict({n: p for n, p in few.state_dict().items() if n[0] not in "kv"}, strict=False)
    for name in ("k", "v"):
        for kind in ("weight", "bias"):
            shared = getattr(getattr(few, name), kind).data.unflatten(0, (2, 6))
            getattr(getattr(all_heads, name), kind).data = shared.repeat_interleave(2, 0).flatten(0, 1)
    torch.testing.assert_close(few(x), all_heads(x), atol=1e-5, rtol=1e-5)


def test_it_learns():
    layer, x = make(), text()
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        loss = (layer(x) - x.roll(1, 1)).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        layer.encoding.project_()
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"width": 25}, "width 25 cannot be divided into 4 heads"),
        ({"num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"num_kv_heads": 0}, "num_heads 4 is not a multiple of num_kv_heads 0"),
        ({"encoding": "dape-kerpel"}, "Did you mean"),
        ({"hiden": 3}, "hiden"),
    ],
)
def test_wrong_settings(settings, words):
    with pytest.raises((ValueError, TypeError), match=words):
        SelfAttention(**{"width": 24, "num_heads": 4, "train_length": 8, **settings})


def test_layers_that_cannot_be_taken_over():
    with pytest.raises(ValueError, match="kdim = vdim = embed_dim"):
        SelfAttention.from_multihead(nn.MultiheadAttention(24, 4, kdim=12, batch_first=True), train_length=8)


def test_a_layer_with_the_batch_in_the_middle():
    layer = nn.MultiheadAttention(24, 4)
    with pytest.raises(ValueError, match=r"takes \[tokens, batch, width\].*set layer.batch_first = True"):
        SelfAttention.from_multihead(layer, train_length=8, causal=False)
    layer.batch_first = True
    ours = SelfAttention.from_multihead(layer, train_length=8, causal=False)
    torch.testing.assert_close(ours(text()), layer(text(), text(), text())[0], atol=1e-5, rtol=1e-5)


def test_the_example_of_the_documentation():
    text = (Path(__file__).parents[1] / "docs" / "adapters.md").read_text()
    names: dict = {}
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[-1], names)
    assert names["y"].shape == (1, 1, 64) and names["cache"].length == 5
    x, old, same = names["x"], names["old"], names["same"]
    torch.testing.assert_close(same(x), old(x, x, x)[0], atol=1e-5, rtol=1e-5)


def test_a_mask_of_pytorch_that_hides_the_future():
    x, future = text(), torch.ones(13, 13, dtype=torch.bool).triu(1)
    floats = torch.zeros(13, 13).masked_fill(future, -torch.inf)
    for mask in (future, floats, nn.Transformer.generate_square_subsequent_mask(13)):
        assert torch.equal(make()(x, attn_mask=mask), make()(x))
        assert torch.equal(make(causal=False)(x, attn_mask=mask), make()(x))
    assert torch.equal(make(causal=False)(x, attn_mask=torch.zeros_like(future)), make(causal=False)(x))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.rand(13, 13), "a bias belongs into the encoding"),
        (torch.zeros(13, 13, dtype=torch.bool), "neither the causal mask of 13 tokens"),
        (torch.ones(12, 12, dtype=torch.bool).triu(1), r"attn_mask of shape \[12, 12\]"),
        (torch.ones(13, 13, dtype=torch.bool).triu(2), "Use key_padding_mask for padding"),
    ],
)
def test_other_masks_of_pytorch_are_answered_by_name(mask, words):
    with pytest.raises(ValueError, match=words):
        make()(text(), attn_mask=mask)
