"""Adapters in folders: what comes back is what was saved, for the model it was made for and no other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers")

import transformers
from tests.hf.adapter.models import COMMON, CORE, METHODS, ROTATING, make, shake

from dape.hf import adapter_of, extend, load_adapter, remove, save_adapter
from dape.hf.hosts import attention_layers
from dape.hf.weights import fingerprint


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *((kind, method) for kind in ("llama", "gpt2") for method in [*METHODS, "dape-alibi", "t5"]),
        *((kind, "dape-kerple") for kind in CORE if kind not in ("llama", "gpt2")),
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
    assert json.loads((tmp_path / "a" / "adapter_config.json").read_text())["about"] == {"note": "mine"}


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


@pytest.mark.slow
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


def test_a_folder_is_not_written_over(tmp_path):
    model = extend(make("llama"))
    save_adapter(model, tmp_path / "a")
    with pytest.raises(FileExistsError, match="an adapter is saved into a new folder"):
        save_adapter(model, tmp_path / "a")


def test_another_model(tmp_path):
    save_adapter(extend(make("llama")), tmp_path / "a")
    with pytest.raises(ValueError, match="another model: model_type llama, the model has gpt2"):
        load_adapter(make("gpt2"), tmp_path / "a")
    wider = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**COMMON, "num_hidden_layers": 3}))
    with pytest.raises(ValueError, match="layers 2, the model has 3"):
        load_adapter(wider, tmp_path / "a")
    with pytest.raises(ValueError, match=r"holds no adapter \(no adapter_config.json"):
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


def _facts(**changes):
    def change(folder: Path) -> None:
        """As a version without checksums would have written it."""
        before = {"sha256": None, "checksum": None}
        facts = json.loads((folder / "adapter_config.json").read_text()) | before | changes
        (folder / "adapter_config.json").write_text(json.dumps({k: v for k, v in facts.items() if v is not None}))

    return change


def test_an_adapter_of_an_older_version(tokens, tmp_path):
    model = extend(make("llama"))
    shake(model)
    save_adapter(model, tmp_path / "a")
    facts = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    for name in ("kv_heads", "vocabulary", "rope_parameters"):
        del facts["host"][name]
    _facts(host=facts["host"], host_weights=None)(tmp_path / "a")
    other = make("llama")
    other.model.embed_tokens.weight.data.mul_(2)
    load_adapter(other, tmp_path / "a")
    assert torch.equal(load_adapter(make("llama"), tmp_path / "a")(tokens).logits, model(tokens).logits)


def _cut(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes((folder / "adapter_model.safetensors").read_bytes()[:-100])


def _swap(folder: Path) -> None:
    _facts()(folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    layers = "base_model.model.model.layers"
    del tensors[f"{layers}.0.self_attn.dape.base.r1"]
    more = {f"{layers}.1.self_attn.dape.f.first.bias": torch.zeros(3), f"{layers}.9.self_attn.dape.x": torch.zeros(2)}
    save_file(tensors | more, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_cut, "adapter_model.safetensors: damaged, it is not what was written"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "adapter_model.safetensors: is missing"),
        (
            lambda folder: (folder / "adapter_config.json").write_text("{"),
            "adapter_config.json: is not what it should be",
        ),
        (_facts(method=None), "adapter_config.json: has no method"),
        (_facts(host=[1]), r"adapter_config.json: host: found \[1\], expected a section"),
        (_facts(options=[1]), r"options: found \[1\], expected names and values"),
        (_facts(format=9), "not an adapter of format 2 or 1"),
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
