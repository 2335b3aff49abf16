"""Adapters in every supported architecture: nothing changes at first, then everything agrees with itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import Dataset

transformers = pytest.importorskip("transformers")

from dape.hf import (  # noqa: E402
    ProjectPositions,
    adapter_of,
    adapter_parameters,
    extend,
    load_adapter,
    project_,
    remove,
    save_adapter,
)
from dape.hf import attention as interface  # noqa: E402
from dape.hf.adapter import encodings_of  # noqa: E402
from dape.hf.hosts import SUPPORTED, attention_layers, describe  # noqa: E402
from dape.hf.weights import fingerprint  # noqa: E402
from dape.ops.attention import operator  # noqa: E402

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
ROTATING = sorted(set(SUPPORTED) - {"gpt2"})


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


@pytest.mark.parametrize("kind", ROTATING)
def test_generation_with_and_without_cache_under_yarn(kind, tokens):
    """Beyond the training length, where the slowed rotation differs from the model's own."""
    model = extend(make(kind), "dape-kerple", rope="yarn", factor=4, train_length=8)
    shake(model)
    text = generate(model, tokens[:1, :9])
    assert torch.equal(text, generate(model, tokens[:1, :9], use_cache=False))
    whole, cached = model(text).logits, model(text[:, :-1], use_cache=True)
    last = model(text[:, -1:], past_key_values=cached.past_key_values).logits
    torch.testing.assert_close(last[:, 0], whole[:, -1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_padding_on_the_left_in_logits(kind, tokens):
    model = extend(make(kind), "dape-kerple")
    shake(model)
    batch = torch.stack([torch.cat([torch.zeros(5, dtype=torch.long), tokens[0, :9]]), tokens[1, :14]])
    mask = torch.ones_like(batch)
    mask[0, :5] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)  # as generate makes them; GPT-2 has a table of them
    together = model(batch, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(together[0, 5:], model(tokens[:1, :9]).logits[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together[1], model(tokens[1:, :14]).logits[0], atol=1e-5, rtol=1e-5)
    unmasked = model(batch, position_ids=positions).logits
    assert (unmasked[0, 5:] - together[0, 5:]).abs().max() > 1e-3


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


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_beams_sampling_and_a_static_cache_in_a_padded_batch(kind, tokens):
    model = extend(make(kind), "dape-kerple")
    shake(model)
    batch = torch.stack([torch.cat([torch.zeros(5, dtype=torch.long), tokens[0, :9]]), tokens[1, :14]])
    mask = torch.ones_like(batch)
    mask[0, :5] = 0
    for way in ({"num_beams": 3, "do_sample": False}, {"do_sample": True, "top_k": 20}, {"do_sample": False}):
        texts = []
        for more in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
            torch.manual_seed(0)
            texts.append(model.generate(batch, attention_mask=mask, max_new_tokens=6, pad_token_id=0, **way, **more))
        assert torch.equal(texts[0], texts[1]) and torch.equal(texts[0], texts[2])


def test_a_pipeline(tokens):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({str(n): n for n in range(101)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", padding_side="left")
    model = extend(make("llama"), "dape-kerple")
    shake(model)
    write = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, batch_size=2)
    settings = {"max_new_tokens": 4, "do_sample": False}
    alone = write("1 2 3", **settings)[0]["generated_text"]
    together = write(["1 2 3", "4 5 6 7 8"], **settings)[0][0]["generated_text"]
    assert together == alone and alone.startswith("1 2 3")


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


class Texts(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        text = torch.randint(1, 101, (20,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": text, "labels": text}


@pytest.mark.parametrize("more", [{}, {"bf16": True}, {"gradient_checkpointing": True}], ids=["", "bf16", "again"])
def test_the_trainer_changes_the_adapter_alone(more, tmp_path):
    model = extend(make("llama"), "dape-kerple")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **more,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=[ProjectPositions()])
    trainer.train()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if ".dape." in name}
    assert sum(len(group["params"]) for group in trainer.optimizer.param_groups) == len(changed)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_mixed_precision_is_near(kind, tokens):
    model = extend(make(kind), "dape-kerple").train()
    shake(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    expected = model(tokens, use_cache=False).logits
    with torch.autocast("cpu", torch.bfloat16):
        found = model(tokens, use_cache=False).logits
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")
def test_compiled(tokens):
    model = extend(make("llama"), "dape-kerple")
    shake(model)
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    compiled = torch.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens).logits, model(tokens).logits, atol=1e-5, rtol=1e-4)
        one, other = (m(tokens, attention_mask=mask).logits[mask.bool()] for m in (compiled, model))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_padding_is_looked_for_once(tokens, monkeypatch):
    """Not in every layer: each look waits for a GPU."""
    model, looks, look = extend(make("llama"), "dape-kerple"), [], torch.Tensor.__bool__
    monkeypatch.setattr(operator, "check_outcome", lambda out, pe: None)  # does nothing on a GPU
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda x: looks.append(x.shape) or look(x))
    model(tokens, attention_mask=torch.ones_like(tokens))
    whole = len(looks)
    model.config.num_hidden_layers, layers = 1, model.model.layers
    model.model.layers = layers[:1]
    looks.clear()
    model(tokens, attention_mask=torch.ones_like(tokens))
    assert len(layers) > 1 and len(looks) == whole == 1


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *((kind, method) for kind in ("llama", "gpt2") for method in [*METHODS, "dape-alibi", "t5"]),
        *((kind, "dape-kerple") for kind in SUPPORTED if kind not in ("llama", "gpt2")),
    ],
)
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


@pytest.mark.parametrize("kind", ROTATING)
def test_saved_and_loaded_without_rotation(kind, tokens, tmp_path):
    model = extend(make(kind), "dape-kerple", rope="remove")
    shake(model)
    expected = model(tokens).logits
    save_adapter(model, tmp_path / "a")
    assert torch.equal(load_adapter(make(kind), tmp_path / "a")(tokens).logits, expected)
    kept = extend(make(kind), "dape-kerple")
    shake(kept)
    assert (kept(tokens).logits - expected).abs().max() > 1e-4


def test_loaded_in_a_new_process(tokens, tmp_path):
    model = extend(make("llama"), "dape-kerple")
    shake(model)
    save_adapter(model, tmp_path / "a")
    remove(model)
    model.save_pretrained(tmp_path / "model")
    program = """
import sys, torch, dape.hf
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
model = dape.hf.load_adapter(AutoModelForCausalLM.from_pretrained(sys.argv[1] + "/model"), sys.argv[1] + "/a")
tokens = torch.randint(0, 101, (2, 37), generator=torch.Generator().manual_seed(0))
torch.save(model(tokens).logits, sys.argv[1] + "/logits")
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True)
    load_adapter(model, tmp_path / "a")
    assert torch.equal(model(tokens).logits, torch.load(tmp_path / "logits"))


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


@pytest.mark.parametrize("kind", ROTATING)
def test_yarn_under_the_adapter(kind, tokens, tmp_path):
    """At first what the library's own YaRN gives; saved, loaded and removed with the adapter."""
    plain = make(kind)
    before = plain(tokens).logits
    scaled = make(kind)
    scaled.config.rope_parameters = {
        **scaled.config.rope_parameters, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8,
    }  # fmt: skip
    (holder,) = [m for m in scaled.modules() if hasattr(m, "rotary_emb")]
    holder.rotary_emb = type(holder.rotary_emb)(scaled.config)
    expected = scaled(tokens).logits
    extend(plain, "dape-kerple", rope="yarn", factor=4, train_length=8)
    torch.testing.assert_close(plain(tokens).logits, expected, atol=1e-5, rtol=1e-5)
    assert (expected - before).abs().max() > 1e-4
    shake(plain)
    found = plain(tokens).logits
    save_adapter(plain, tmp_path / "adapter")
    again = load_adapter(make(kind), tmp_path / "adapter")
    assert torch.equal(again(tokens).logits, found)
    torch.testing.assert_close(remove(plain)(tokens).logits, before, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("llama", {"rope": "yarn"}, "a factor above 1"),
        ("llama", {"factor": 4.0}, "a factor above 1"),
        ("gpt2", {"rope": "yarn", "factor": 4.0}, "gpt2 has no rotation to slow down"),
        ("llama", {"rope": "turn"}, "'keep', 'remove', 'yarn'"),
        ("llama", {"rope": "yarn", "factor": "4"}, "factor is a number.*got '4'"),
        ("llama", {"rope": "yarn", "factor": None}, "factor is a number.*got None"),
        ("llama", {"rope": "yarn", "factor": float("inf")}, "factor is a number.*got inf"),
    ],
)
def test_rotations_that_cannot_be(kind, settings, words):
    with pytest.raises((ValueError, TypeError), match=words):
        extend(make(kind), "dape-kerple", train_length=8, **settings)


def test_a_rotation_is_scaled_once():
    model = make("llama")
    model.config.rope_parameters["rope_type"] = "linear"
    with pytest.raises(ValueError, match=r"scaled already .rope_type 'linear'.; use rope='keep'"):
        extend(model, "dape-kerple", rope="yarn", factor=2, train_length=8)


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
        (lambda m: extend(m, "rope"), "rope: turns queries and keys, but the model has its own rotation"),
        (lambda m: extend(m, "dape-rope"), "use rope='yarn', factor=.*possible: t5, alibi.*dape-X with X one of nope"),
        (lambda m: extend(m, "dape-pi"), "dape-pi: turns queries and keys"),
        (lambda m: extend(m, "dape-yarn", zero_init=False), "dape-yarn: turns queries and keys"),
        (lambda m: extend(m, "dape-v2-rope", zero_init=False), "dape-v2-rope: turns queries and keys"),
        (lambda m: extend(m, "nope"), "nope: an adapter is an additive bias or DAPE"),
        (lambda m: extend(m, None), "a string such as 'dape-kerple'; got None"),
        (lambda m: extend(m, zero_init_out=False), "zero_init_out=False lets f change.*pass zero_init=False"),
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


@pytest.mark.parametrize(
    "call", [lambda m: extend(m, hiden=3), lambda m: extend(m, "dape-v2-kerple"), lambda m: extend(m, train_length=0)]
)
def test_what_is_refused_leaves_the_model_as_it_was(call):
    model = make("llama")
    with pytest.raises((ValueError, TypeError)):
        call(model)
    assert all(p.requires_grad for p in model.parameters()) and not hasattr(attention_layers(model)[0], "dape")
    extend(model)


def test_attention_that_cannot_be_replaced(monkeypatch):
    model = make("llama")
    monkeypatch.setattr(model, "set_attn_implementation", lambda name: None)
    with pytest.raises(ValueError, match="load it with attn_implementation='eager' or 'sdpa'"):
        extend(model)
    assert all(p.requires_grad for p in model.parameters()) and not hasattr(attention_layers(model)[0], "dape")


@pytest.mark.parametrize("kind", SUPPORTED)
def test_dropout_comes_back(kind, tokens):
    model = make(kind, **{"attn_pdrop" if kind == "gpt2" else "attention_dropout": 0.4}).train()

    def twice():
        torch.manual_seed(0)
        return model(tokens, use_cache=False).logits

    before = twice()
    extend(model)
    model(tokens, use_cache=False)
    remove(model)
    assert torch.equal(twice(), before)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_weights_that_do_not_exist_are_not_promised(kind, tokens):
    model = make(kind)
    extend(model, "dape-kerple", train_length=8)
    with pytest.raises(ValueError, match="never whole in memory"):
        model(tokens, output_attentions=True)
    with pytest.raises(ValueError, match="never whole in memory"):
        generate(model, tokens[:, :4], output_attentions=True, return_dict_in_generate=True)
    model(tokens, output_attentions=False)
    remove(model).set_attn_implementation("eager")
    assert model(tokens, output_attentions=True).attentions[0].shape == (2, 4, 37, 37)


@pytest.mark.parametrize("kind", SUPPORTED)
def test_models_of_one_configuration_are_independent(kind, tokens):
    first = make(kind)
    config = first.config
    second = type(first)(config).eval()
    second.load_state_dict(first.state_dict())
    before = first(tokens).logits
    shake(extend(second, "dape-kerple"))
    assert torch.equal(first(tokens).logits, before) and config._attn_implementation == "sdpa"
    assert (second(tokens).logits - before).abs().max() > 1e-3
    later = type(first)(config).eval()
    later.load_state_dict(first.state_dict())
    assert torch.equal(later(tokens).logits, before)
    shake(extend(first, "dape-kerple"))
    assert torch.equal(first(tokens).logits, second(tokens).logits)
    assert torch.equal(remove(second)(tokens).logits, before) and first.config._attn_implementation == "dape"
    assert second.config.to_dict() == config.to_dict() and second.config._attn_implementation == "sdpa"


def test_what_was_frozen_before_stays_frozen():
    model = make("llama")
    model.lm_head.requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    remove(extend(model))
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    remove(extend(model, freeze=False))
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before


@pytest.mark.filterwarnings("ignore")  # of accelerate, about its own files
def test_layers_on_the_disk(tokens, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    expected = extend(make("llama"), "dape-kerple")
    shake(expected)
    model = accelerate.disk_offload(make("llama"), tmp_path / "disk", execution_device=torch.device("cpu"))
    assert all(p.is_meta for p in attention_layers(model)[0].parameters())
    extend(model, "dape-kerple")
    assert all(p.device.type == "cpu" for p in adapter_parameters(model))
    shake(model)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, expected(tokens).logits)
    save_adapter(model, tmp_path / "a")
    load_adapter(make("llama"), tmp_path / "a")  # of the weights nothing is known: no warning


def test_key_heads_that_do_not_divide():
    model = make("llama")
    model.config.num_key_value_heads = 3
    with pytest.raises(ValueError, match="4 query heads cannot share 3 key heads"):
        extend(model)


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


def test_a_model_of_the_same_shape(tmp_path):
    """What an adapter cannot know is refused; other weights may be those of a fine-tuned model."""
    save_adapter(extend(make("llama")), tmp_path / "a")
    turned = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
    with pytest.raises(ValueError, match=r"rope_parameters .*10000.*, the model has .*500\.0"):
        load_adapter(make("llama", **turned), tmp_path / "a")
    more = transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON))
    with pytest.raises(ValueError, match="kv_heads 2, the model has 4"):
        load_adapter(more, tmp_path / "a")
    tuned = make("llama")
    with torch.no_grad():
        tuned.model.layers[1].mlp.up_proj.weight.mul_(1.01)
    with pytest.warns(UserWarning, match=r"made for other weights \(fingerprint \w{8}, the model has \w{8}\)"):
        load_adapter(tuned, tmp_path / "a")
    longer = make("llama")
    longer.resize_token_embeddings(103, mean_resizing=False)
    with pytest.warns(UserWarning, match="vocabulary 101, the model has 103"):
        load_adapter(longer, tmp_path / "a")


def test_the_same_weights_in_another_form(tmp_path):
    """No warning, which would be an error here: in half precision, without a head, with an adapter in it."""
    save_adapter(extend(make("llama")), tmp_path / "a")
    load_adapter(make("llama").to(torch.bfloat16), tmp_path / "a")
    load_adapter(make("llama").model, tmp_path / "a")
    whole = extend(make("llama"))
    assert fingerprint(whole) == fingerprint(make("llama")) == fingerprint(whole.to(torch.bfloat16))


def test_an_adapter_of_an_older_version(tokens, tmp_path):
    model = extend(make("llama"))
    shake(model)
    save_adapter(model, tmp_path / "a")
    facts = json.loads((tmp_path / "a" / "adapter.json").read_text())
    for name in ("kv_heads", "vocabulary", "rope_parameters"):
        del facts["host"][name]
    _facts(host=facts["host"], host_weights=None)(tmp_path / "a")
    other = make("llama")
    other.model.embed_tokens.weight.data.mul_(2)
    load_adapter(other, tmp_path / "a")
    assert torch.equal(load_adapter(make("llama"), tmp_path / "a")(tokens).logits, model(tokens).logits)


WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("kind", "window", "words", "advice"),
    [
        ("mistral", {"sliding_window": 8}, "sliding_window=None", {"sliding_window": None}),
        ("qwen2", WINDOW, r"layer_types=\['full_attention'\] \* 2", {"layer_types": ["full_attention"] * 2}),
        ("qwen3", WINDOW, r"layer_types=\['full_attention'\] \* 2", {"layer_types": ["full_attention"] * 2}),
    ],
)
def test_a_sliding_window_is_refused_and_the_advice_helps(kind, window, words, advice, tokens, tmp_path):
    model = make(kind, **window)
    with pytest.raises(ValueError, match=f"sliding window of 8 tokens.*{words}"):
        extend(model)
    model.save_pretrained(tmp_path)
    advised = extend(transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **advice))
    torch.testing.assert_close(advised(tokens[:, :8]).logits, model(tokens[:, :8]).logits, atol=1e-5, rtol=1e-5)
    advised(tokens)


def _facts(**changes):
    def change(folder: Path) -> None:
        facts = json.loads((folder / "adapter.json").read_text()) | changes
        (folder / "adapter.json").write_text(json.dumps({k: v for k, v in facts.items() if v is not None}))

    return change


def _cut(folder: Path) -> None:
    (folder / "adapter.safetensors").write_bytes((folder / "adapter.safetensors").read_bytes()[:-100])


def _swap(folder: Path) -> None:
    tensors = load_file(folder / "adapter.safetensors")
    del tensors["0.base.r1"]
    save_file(tensors | {"1.f.first.bias": torch.zeros(3), "9.x": torch.zeros(2)}, folder / "adapter.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_cut, "adapter.safetensors is damaged"),
        (lambda folder: (folder / "adapter.safetensors").unlink(), "the adapter is incomplete"),
        (lambda folder: (folder / "adapter.json").write_text("{"), "adapter.json is not JSON"),
        (_facts(host=None), "adapter.json has no 'host'"),
        (_facts(method=None), "adapter.json has no 'method'"),
        (_facts(host=[1]), "is not what save_adapter writes"),
        (_facts(options=[1]), "options is not an object"),
        (_facts(format=9), "not an adapter of format 1"),
        (_facts(options={"hidden": 8}), r"0.f.first.bias is \[32\], dape-kerple has \[8\]"),
        (_swap, r"0.base.r1 is missing, dape-kerple has \[4\]; 1.f.first.bias is \[3\].*9.x is \[2\].*no such tensor"),
    ],
)
def test_damaged_files_leave_the_model_as_it_was(change, words, tmp_path):
    save_adapter(extend(make("llama")), tmp_path / "a")
    change(tmp_path / "a")
    model = make("llama")
    with pytest.raises(ValueError, match=words):
        load_adapter(model, tmp_path / "a")
    assert all(p.requires_grad for p in model.parameters()) and not hasattr(attention_layers(model)[0], "dape")


def test_a_folder_is_not_written_over(tmp_path):
    model = extend(make("llama"))
    save_adapter(model, tmp_path / "a")
    with pytest.raises(FileExistsError, match="an adapter is saved into a new folder"):
        save_adapter(model, tmp_path / "a")


@pytest.mark.parametrize("more", [{"use_cache": False}, {}, {"attention_mask": torch.ones(2, 37, dtype=torch.long)}])
@pytest.mark.parametrize("kind", SUPPORTED)
def test_packed_sequences_are_refused(kind, more, tokens):
    model = extend(make(kind))
    positions = torch.cat([torch.arange(20), torch.arange(17)]).expand(2, -1)
    with pytest.raises(ValueError, match="packed"):
        model(tokens, position_ids=positions, **more)
    whole = torch.arange(37).expand(2, -1)
    torch.testing.assert_close(model(tokens, position_ids=whole, **more).logits, model(tokens).logits)


def test_a_layer_without_adapter_says_so(tokens):
    model = extend(make("llama"))
    del attention_layers(model)[1].dape
    with pytest.raises(ValueError, match="has no adapter; call"):
        model(tokens)


def test_describe():
    assert describe(make("qwen3")).head_dim == 16 and describe(make("gpt2")).rotates is False
