"""Our model's configuration in the transformers library: its names and ours, saved whole, checked."""

import json

import pytest
import torch

import dape

pytest.importorskip("transformers")

from huggingface_hub.errors import StrictDataclassError
from tests.hf.model.models import settings, tiny, tokens
from transformers import AutoConfig

from dape.hf import DapeConfig


def test_the_librarys_names():
    config = DapeConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, vocab_size=19)
    assert (config.width, config.layers, config.heads, config.vocabulary) == (32, 3, 4, 19)
    config.vocab_size = 20
    assert config.for_decoder() == dape.DecoderConfig(layers=3, width=32, heads=4, vocabulary=20)


def test_a_decoder_there_and_back():
    options = {"hidden": 8, "variant": "concat"}
    decoder = dape.DecoderConfig(encoding="dape-alibi", encoding_options=options, train_length=9, share_encoding=True)
    assert DapeConfig.of(decoder, eos_token_id=3).for_decoder() == decoder


def test_the_length_is_a_hint():
    assert settings("rope").max_position_embeddings == 16
    assert settings("rope", max_position_embeddings=4096).max_position_embeddings == 4096
    with torch.no_grad():
        assert tiny("rope")(tokens(1, 50)).logits.shape == (1, 50, 19)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"layres": 2}, "no field 'layres'. Did you mean 'layers'"),
        ({"hiden_size": 32}, "Did you mean 'hidden_size'"),
        ({"encodingoptions": {}}, "Did you mean 'encoding_options'"),
        ({"layers": "2"}, "'layers' expected int, got str"),
        ({"hidden_size": "32"}, "'width' expected int, got str"),
        ({"encoding_options": 3}, "expected a dict, got int"),
        ({"train_length": 0}, "train_length must be at least 1, got 0"),
        ({"width": 30}, "width 30 cannot be divided into 8 heads"),
        ({"encoding": "ropee"}, "Did you mean 'rope'"),
        ({"tie_word_embeddings": True}, "not tied to the embeddings"),
    ],
)
def test_what_cannot_be_meant_is_refused(given, words):
    with pytest.raises((ValueError, StrictDataclassError)) as error:
        DapeConfig(**given)
    assert words in str(error.value)


def test_configurations_are_saved_whole(tmp_path):
    """Defaults too: they may be others in a later version."""
    settings("dape-fire", encoding_options={"hidden": 8}).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "dape" and saved["encoding_options"] == {"hidden": 8} and "share_encoding" in saved
    found = AutoConfig.from_pretrained(tmp_path)
    assert (
        isinstance(found, DapeConfig)
        and found.for_decoder() == settings("dape-fire", encoding_options={"hidden": 8}).for_decoder()
    )


def test_options_reach_the_encoding():
    assert tiny("dape-kerple", encoding_options={"hidden": 5}).model.encodings[0].f.first.out_features == 5
    with pytest.raises(TypeError, match="hiden"):
        tiny("dape-kerple", encoding_options={"hiden": 5})
