"""Adapters in every supported architecture: nothing changes at first, then everything agrees with itself."""

import json

import pytest
import torch

transformers = pytest.importorskip("transformers")

from dape.hf import adapter_of, extend, load_adapter, remove, save_adapter  # noqa: E402
from dape.hf import attention as interface  # noqa: E402
from dape.hf.adapter import adapter_parameters, encodings_of, project_  # noqa: E402
from dape.hf.hosts import SUPPORTED, attention_layers, describe  # noqa: E402

COMMON = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}
FEWER = {"num_key_value_heads": 2}
METHODS = ["dape-kerple", "dape-fire", "kerple", "dape-nope"]


def make(kind: str, **more):
    configs = {
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=101, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None, **more
        ),
        "gpt_neox": lambda: transformers.GPTNeoXConfig(**COMMON, **more),
        "llama": lambda: transformers.LlamaConfig(**COMMON, **FEWER, **more),
        "mistral": lambda: transformers.MistralConfig(**COMMON, **FEWER, **{"sliding_window": None, **more}),
        "qwen2": lambda: transformers.Qwen2Config(**COMMON, **FEWER, **more),
        "qwen3": lambda: transformers.Qwen3Config(**COMMON, **FEWER, head_dim=16, **more),
    }
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(configs[kind]()).eval()


def shake(model) -> None:
    """Adapter weights far from their start, so that it matters."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in adapter_parameters(model):
            p.copy_(
                torch.rand(p.shape, generator=generator) * 0.9 + 0.1
                if p.dim() < 2
                else torch.randn(p.shape, generator=generator) / 2
            )


@pytest.fixture
def tokens():
    return torch.randint(0, 101, (2, 37), generator=torch.Generator().manual_seed(0))


def generate(model, ids, **more):
    return model.generate(ids, max_new_tokens=10, do_sample=False, pad_token_id=0, **more)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", SUPPORTED)
def test_nothing_changes_at_first(kind, method, tokens):
    model = make(kind)
    before = model(tokens).logits
    extend(model, method)
    torch.testing.assert_close(model(tokens).logits, before, atol=1e-5, rtol=1e-5)
    shake(model)
    assert (model(tokens).logits - before).abs().max() > 1e-3
    remove(model)
    assert torch.equal(model(tokens).logits, before)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_the_future_is_hidden(kind, tokens):
    model = extend(make(kind), "dape-kerple")
    shake(model)
    changed = tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 7) % 101
    one, other = model(tokens).logits, model(changed).logits
    torch.testing.assert_close(one[:, :20], other[:, :20], atol=1e-5, rtol=1e-5)
    assert (one[:, 20:] - other[:, 20:]).abs().max() > 1e-3


@pytest.mark.parametrize("method", ["dape-kerple", "dape-fire"])
@pytest.mark.parametrize("kind", SUPPORTED)
def test_generation_with_and_without_cache(kind, method, tokens):
    model = extend(make(kind), method)
    shake(model)
    prompt = tokens[:1, :9]
    text = generate(model, prompt)
    assert torch.equal(text, generate(model, prompt, use_cache=False))
    assert torch.equal(text, generate(model, prompt, cache_implementation="static"))
    assert text.shape[1] == 19


@pytest.mark.parametrize("method", ["dape-kerple", "dape-fire"])
@pytest.mark.parametrize("kind", SUPPORTED)
def test_padding_on_the_left(kind, method, tokens):
    model = extend(make(kind), method)
    shake(model)
    batch = torch.stack([torch.cat([torch.zeros(5, dtype=torch.long), tokens[0, :9]]), tokens[1, :14]])
    mask = torch.ones_like(batch)
    mask[0, :5] = 0
    together = generate(model, batch, attention_mask=mask)
    assert torch.equal(together[0, 5:], generate(model, tokens[:1, :9])[0])
    assert torch.equal(together[1], generate(model, tokens[1:, :14])[0])


@pytest.mark.parametrize("kind", SUPPORTED)
def test_logits_are_the_formula(kind, tokens, monkeypatch):
    """One layer by hand: A + f([A; B]), the scores those of the model itself."""
    model = extend(make(kind), "dape-kerple")
    shake(model)
    seen, inner = {}, interface.attention

    def spy(q, k, v, pe, **more):
        seen.setdefault("first", (q, k, v, pe, inner(q, k, v, pe, **more)))
        return inner(q, k, v, pe, **more)

    monkeypatch.setattr(interface, "attention", spy)
    model(tokens)
    q, k, v, pe, out = seen["first"]
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1).double() for x in (k, v))
    scores = q.double() @ k.mT / q.shape[-1] ** 0.5
    n = torch.arange(37)
    bias = -pe.base.r1.double()[:, None, None] * torch.log1p(
        pe.base.r2.double()[:, None, None] * (n[:, None] - n).clamp(min=0)
    )
    both = torch.cat([scores, bias.expand_as(scores)], 1).movedim(1, -1)
    hidden = torch.nn.functional.leaky_relu(both @ pe.f.first.weight.double().mT + pe.f.first.bias.double(), 0.01)
    added = (hidden @ pe.f.second.weight.double().mT + pe.f.second.bias.double()).movedim(-1, 1)
    hiding = torch.triu(torch.full((37, 37), -torch.inf, dtype=torch.float64), 1)
    expected = (scores + added + hiding).softmax(-1) @ v
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_only_the_adapter_learns(kind, tokens):
    model = extend(make(kind), "dape-kerple").train()
    model.generation_config.use_cache = False
    loss = model(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    own = {id(p) for p in adapter_parameters(model)}
    assert own == {id(p) for p in model.parameters() if p.requires_grad}
    assert all(p.grad is None for p in model.parameters() if id(p) not in own)
    assert all(pe.f.second.weight.grad.abs().max() > 0 for pe in encodings_of(model))


def test_gradient_checkpointing_gives_the_same_gradients(tokens):
    def gradients(model):
        model.train()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        return [p.grad.clone() for p in adapter_parameters(model)]

    plain, checkpointed = (extend(make("llama"), "dape-kerple") for _ in range(2))
    for model in (plain, checkpointed):
        shake(model)
    checkpointed.gradient_checkpointing_enable()
    for a, b in zip(gradients(plain), gradients(checkpointed), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("method", [*METHODS, "dape-alibi", "t5"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_saved_and_loaded(kind, method, tokens, tmp_path):
    model = extend(make(kind), method, train_length=32)
    shake(model)
    expected = model(tokens).logits
    save_adapter(model, tmp_path / "a", about={"note": "mine"})
    assert sum(f.stat().st_size for f in (tmp_path / "a").iterdir()) < 20_000
    fresh = load_adapter(make(kind), tmp_path / "a")
    assert torch.equal(fresh(tokens).logits, expected)
    assert adapter_of(fresh) == adapter_of(model)
    assert json.loads((tmp_path / "a" / "adapter.json").read_text())["about"] == {"note": "mine"}


def test_how_many_numbers():
    """The issue's example: 4 layers of 8 heads, 3,296 numbers; and about 15 thousand for a model of 125M."""
    config = transformers.LlamaConfig(**{**COMMON, "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 64})
    model = extend(transformers.LlamaForCausalLM(config), "dape-kerple")
    assert sum(p.numel() for p in adapter_parameters(model)) == 3296
    with torch.device("meta"):
        large = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    extend(large, "dape-kerple")
    assert 14_000 < sum(p.numel() for p in adapter_parameters(large)) < 16_000


def test_without_rotation(tokens):
    """As if every angle were 0: then the order of earlier tokens does not matter to one layer."""
    model = extend(make("llama", **{}), "dape-nope", rope="remove")
    swapped = tokens.clone()
    swapped[:, [3, 11]] = swapped[:, [11, 3]]
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    last = [model(x).logits[:, -1] for x in (tokens, swapped)]
    torch.testing.assert_close(*last, atol=1e-5, rtol=1e-5)
    kept = extend(make("llama"), "dape-nope")
    assert (kept(tokens).logits[:, -1] - kept(swapped).logits[:, -1]).abs().max() > 1e-3


def test_starting_as_in_a_new_model(tokens):
    model = make("llama")
    before = model(tokens).logits
    extend(model, "dape-kerple", zero_init=False)
    assert encodings_of(model)[0].variant == "concat_residual"
    assert (model(tokens).logits - before).abs().max() > 1e-3


def test_a_map_of_the_bias_needs_no_content(tokens):
    model = extend(make("llama"), "dape-kerple", variant="bias_map", hidden=8)
    before = make("llama")(tokens).logits
    torch.testing.assert_close(model(tokens).logits, before, atol=1e-5, rtol=1e-5)
    assert encodings_of(model)[0].f.first.weight.shape == (8, 4)
    assert encodings_of(model)[0].score_form().mix is None


def test_projection(tokens):
    model = extend(make("llama"), "dape-kerple")
    values = [p for name, p in model.named_parameters() if name.endswith("base.r1")]
    for r1 in values:
        r1.data.fill_(-1.0)
    project_(model)
    assert len(values) == 2 and all((r1 >= 0.01).all() for r1 in values)


def test_half_precision(tokens):
    model = make("llama").to(torch.bfloat16)
    before = model(tokens).logits
    extend(model, "dape-kerple")
    assert all(p.dtype == torch.float32 for p in adapter_parameters(model))
    after = model(tokens).logits
    assert after.dtype == torch.bfloat16
    torch.testing.assert_close(after.float(), before.float(), atol=0.05, rtol=0.05)


# What cannot be meant ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: extend(torch.nn.Linear(2, 2)), "Linear: adapters exist for gpt2, gpt_neox, llama"),
        (lambda m: extend(m, "rope"), "rope: an adapter is an additive bias or DAPE"),
        (lambda m: extend(m, "randomized-alibi"), "an adapter is an additive bias or DAPE"),
        (lambda m: extend(m, "dape-kerpel"), "Did you mean"),
        (lambda m: extend(m, rope="twist"), "choose one of 'keep', 'remove'"),
        (lambda m: extend(m, variant="concat_residual"), "adds B from the start"),
        (lambda m: extend(m, "dape-v2-kerple"), "dape-v2 cannot start as the model"),
        (lambda m: extend(m, hiden=3), "hiden"),
        (lambda m: extend(extend(m)), "has an adapter already"),
        (lambda m: remove(m), "the model has no adapter"),
        (lambda m: save_adapter(m, "nowhere"), "the model has no adapter"),
    ],
)
def test_refused(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call(make("llama"))


def test_gpt2_has_no_rotation():
    with pytest.raises(ValueError, match="gpt2 has no rotation to remove"):
        extend(make("gpt2"), rope="remove")


def test_another_model(tmp_path):
    save_adapter(extend(make("llama")), tmp_path / "a")
    with pytest.raises(ValueError, match="another model: model_type llama, the model has gpt2"):
        load_adapter(make("gpt2"), tmp_path / "a")
    wider = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**COMMON, "num_hidden_layers": 3}))
    with pytest.raises(ValueError, match="layers 2, the model has 3"):
        load_adapter(wider, tmp_path / "a")
    with pytest.raises(ValueError, match=r"holds no adapter \(no adapter.json"):
        load_adapter(make("llama"), tmp_path / "b")


def test_a_sliding_window_is_refused(tokens):
    model = extend(make("mistral", sliding_window=8))
    with pytest.raises(ValueError, match="plain causal attention only"):
        model(tokens)


def test_packed_sequences_are_refused(tokens):
    model = extend(make("llama"))
    positions = torch.cat([torch.arange(20), torch.arange(17)]).expand(2, -1)
    with pytest.raises(ValueError, match="packed"):
        model(tokens, position_ids=positions, use_cache=False)


def test_a_layer_without_adapter_says_so(tokens):
    model = extend(make("llama"))
    del attention_layers(model)[1].dape
    with pytest.raises(ValueError, match="has no adapter; call"):
        model(tokens)


def test_describe():
    assert describe(make("qwen3")).head_dim == 16 and describe(make("gpt2")).rotates is False
