"""Our model's weights in the transformers library: started as ours, saved, loaded, resized."""

import copy
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import dape

pytest.importorskip("transformers")

from tests.hf.model.models import NAMES, continued, settings, tiny, tokens
from transformers import AutoModelForCausalLM, PreTrainedModel

from dape.hf import DapeConfig, DapeForCausalLM


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
    (path / "dape-checksums.json").unlink()
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


def trained(model: DapeForCausalLM) -> DapeForCausalLM:
    """After a step that moves every weight."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tokens(), labels=tokens()).loss.backward()
    optimizer.step()
    return model


def resized(model: DapeForCausalLM, **how) -> DapeForCausalLM:
    model.resize_token_embeddings(23, **how)
    return model


def tied(model: DapeForCausalLM) -> DapeForCausalLM:
    model.model.head.weight = model.model.embedding.weight
    return trained(model)


def with_another_head(model: DapeForCausalLM) -> DapeForCausalLM:
    model.set_output_embeddings(torch.nn.Linear(32, 19, bias=False))
    model.set_input_embeddings(torch.nn.Embedding(19, 32))
    return model


CHANGES = {
    "trained": trained,
    "resized": lambda model: resized(trained(model)),
    "resized, mean_resizing=False": lambda model: resized(trained(model), mean_resizing=False),
    "smaller": lambda model: (model.resize_token_embeddings(11), model)[1],
    "tied": tied,
    "tied and resized": lambda model: resized(tied(model)),
    "copied": copy.deepcopy,
    "another head": with_another_head,
    "half precision": lambda model: trained(model).bfloat16(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "new"])
def test_weights_that_somebody_has_are_never_started_again(change, loaded, folder):
    """The library, and those who build on its models, call ``post_init`` as often as they like."""
    model: Any = tiny("dape-fire")
    model = AutoModelForCausalLM.from_pretrained(folder(model)) if loaded else model
    model = CHANGES[change](model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for call in (
        model.post_init,
        model.init_weights,
        model.initialize_weights,
        lambda: model.apply(model._init_weights),
    ):
        call()
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_inside_another_model_of_the_library_weights_stay(folder):
    class Around(PreTrainedModel):
        config_class = DapeConfig

        def __init__(self, config):
            super().__init__(config)
            self.inside = tiny("dape-kerple")
            self.post_init()

    expected = tiny("dape-kerple").state_dict()
    found = Around(settings("dape-kerple")).inside.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_model_built_without_memory_is_started_when_it_has_some():
    with torch.device("meta"):
        model = DapeForCausalLM(settings("dape-kerple"))
    model.to_empty(device="cpu")
    torch.manual_seed(4)
    model.init_weights()
    torch.manual_seed(4)
    fresh = dape.DecoderLM(settings("dape-kerple").for_decoder()).state_dict()
    assert all(torch.equal(model.model.state_dict()[name], tensor) for name, tensor in fresh.items())


@pytest.mark.parametrize("implementation", ["sdpa", "flash_attention_2", "flex_attention"])
def test_other_implementations_of_attention_are_refused(implementation, folder):
    with pytest.raises((ValueError, ImportError)):
        AutoModelForCausalLM.from_pretrained(folder(tiny()), attn_implementation=implementation)
