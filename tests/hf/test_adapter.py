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

from dape.hf import ProjectPositions, adapter_of, extend, load_adapter, remove, save_adapter  # noqa: E402
from dape.hf import attention as interface  # noqa: E402
from dape.hf.adapter import adapter_parameters, encodings_of, project_  # noqa: E402
from dape.hf.hosts import SUPPORTED, attention_layers, describe  # noqa: E402
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


@pytest.mark.parametrize("kind", sorted(set(SUPPORTED) - {"gpt2"}))
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
    ],
)
def test_rotations_that_cannot_be(kind, settings, words):
    with pytest.raises(ValueError, match=words):
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


@pytest.mark.parametrize("kind", sorted(set(SUPPORTED) - {"gpt2"}))  # it keeps the question to itself
def test_weights_that_do_not_exist_are_not_promised(kind, tokens):
    model = make(kind)
    extend(model, "dape-kerple", train_length=8)
    with pytest.raises(ValueError, match="never whole in memory"):
        model(tokens, output_attentions=True)


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
