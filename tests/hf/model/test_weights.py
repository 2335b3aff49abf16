"""Our model's weights in the transformers library: started as ours, saved, loaded, resized."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import dape

pytest.importorskip("transformers")

from tests.hf.model.models import NAMES, continued, settings, tiny, tokens
from transformers import AutoModelForCausalLM

from dape.hf import DapeForCausalLM


@pytest.mark.parametrize("name", NAMES)
def test_a_new_model_is_a_new_decoder(name):
    """Of one seed, bit for bit: the library's own initialisation does not touch it."""
    torch.manual_seed(3)
    decoder = dape.DecoderLM(settings(name).for_decoder()).state_dict()
    torch.manual_seed(3)
    model = DapeForCausalLM(settings(name)).model.state_dict()
    assert list(model) == list(decoder)
    assert all(torch.equal(model[key], decoder[key]) for key in decoder)


@pytest.mark.parametrize("name", NAMES)
def test_saving_and_loading_keep_every_bit(name, folder):
    model = tiny(name)
    path = folder(model)
    assert {p.name for p in path.iterdir()} >= {"config.json", "model.safetensors"}
    for loaded in (
        AutoModelForCausalLM.from_pretrained(path),
        DapeForCausalLM.from_pretrained(path, device_map="cpu"),
    ):
        assert isinstance(loaded, DapeForCausalLM) and not loaded.training
        assert {b.shape for b in loaded.buffers()} <= {torch.Size([0])}, "a buffer with values would need a start"
        with torch.no_grad():
            assert torch.equal(loaded(tokens(2, 30)).logits, model(tokens(2, 30)).logits)


@pytest.mark.parametrize("name", ["dape-kerple", "dape-fire", "transformer-xl", "dape-v2-kerple"])
def test_what_a_file_lacks_starts_as_in_a_new_model(name, folder):
    """The library builds models without memory; what it does not find must not stay as it is there."""
    path = folder(tiny(name))
    weights = load_file(path / "model.safetensors")
    kept = {key: tensor for key, tensor in weights.items() if "encodings" not in key and "norm1" not in key}
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    torch.manual_seed(5)
    found: Any = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    loaded, report = found
    assert set(report["missing_keys"]) == set(weights) - set(kept)
    torch.manual_seed(5)
    fresh = dape.DecoderLM(settings(name).for_decoder()).state_dict()
    for key, tensor in loaded.state_dict().items():
        expected = kept[key] if key in kept else fresh[key.removeprefix("model.")]
        assert torch.equal(tensor, expected), key


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_near(name, folder):
    model = tiny(name)
    path = folder(model)
    half = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        whole, rounded = model(tokens()).logits, half(tokens()).logits
    assert rounded.dtype == torch.bfloat16
    assert (whole - rounded).abs().max() < 0.15 * whole.std()
    assert continued(half, tokens(), 3).shape == (2, 3)


def test_another_vocabulary():
    model = tiny()
    with torch.no_grad():
        before = model(tokens()).logits
        model.resize_token_embeddings(23)
        after = model(tokens()).logits
    assert model.config.vocab_size == model.model.config.vocabulary == 23
    assert model.get_input_embeddings().weight.shape == model.get_output_embeddings().weight.shape == (23, 32)
    assert after.shape == (2, 7, 23) and torch.equal(after[..., :19], before)
    assert after.isfinite().all()


def test_a_resized_model_is_saved_as_it_is(folder):
    model = tiny()
    model.resize_token_embeddings(23)
    loaded = AutoModelForCausalLM.from_pretrained(folder(model))
    with torch.no_grad():
        assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


@pytest.mark.parametrize("implementation", ["sdpa", "flash_attention_2", "flex_attention"])
def test_other_implementations_of_attention_are_refused(implementation, folder):
    with pytest.raises((ValueError, ImportError)):
        AutoModelForCausalLM.from_pretrained(folder(tiny()), attn_implementation=implementation)
