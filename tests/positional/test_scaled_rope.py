"""Scaled rotations against those of transformers, and by hand."""

import math

import pytest
import torch

import dape
from dape import Grid

HEADS, WIDTH, LONGEST = 2, 16, 64
SHORT, LONG = [1.0 + 0.1 * m for m in range(8)], [1.5 + m for m in range(8)]
PARAMETERS = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 4.0, "partial_rotary_factor": 0.5, "rope_theta": 500.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 3.0, "partial_rotary_factor": 0.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 50.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "truncate": False, "beta_fast": 4.0},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "attention_factor": 1.25},
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "mscale": 0.7, "mscale_all_dim": 1.0},
    {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 32},
    {"rope_type": "longrope", "short_factor": SHORT[:4], "long_factor": LONG[:4], "partial_rotary_factor": 0.5,
     "original_max_position_embeddings": 32, "factor": 3.0, "attention_factor": 1.1},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 32, "rope_theta": 300.0},
    {"rope_type": "proportional", "partial_rotary_factor": 0.75, "factor": 2.0},
]  # fmt: skip


def spectrum(pe, length):
    at = torch.arange(length)
    frequencies, amplitude = pe.spectra(Grid.at(at, at, causal=True), torch.float64)[1]
    amplitude = torch.as_tensor(amplitude, dtype=torch.float64)
    return frequencies.reshape(-1, frequencies.shape[-1])[0], amplitude.reshape(-1)[0].item()


def build(given):
    sizes = {"num_heads": HEADS, "head_dim": WIDTH, "max_position_embeddings": LONGEST}
    return dape.rotation_of(given, **sizes)


@pytest.mark.parametrize("length", [16, 64, 65, 300])
@pytest.mark.parametrize("given", PARAMETERS, ids=lambda g: g["rope_type"])
def test_frequencies_are_those_of_transformers(given, length):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    sizes = {"hidden_size": HEADS * WIDTH, "num_attention_heads": HEADS, "max_position_embeddings": LONGEST}
    config = LlamaConfig(**sizes, head_dim=WIDTH, rope_parameters={"rope_theta": 10000.0, **given})
    theirs, factor = ROPE_INIT_FUNCTIONS[given["rope_type"]](config, torch.device("cpu"), seq_len=length)
    ours, amplitude = spectrum(build(given), length)
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-6, atol=1e-9)
    assert amplitude == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize("given", PARAMETERS, ids=lambda g: g["rope_type"])
def test_turned_as_a_model_of_transformers_turns(given):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {"hidden_size": HEADS * WIDTH, "num_attention_heads": HEADS, "max_position_embeddings": LONGEST}
    config = LlamaConfig(**sizes, head_dim=WIDTH, rope_parameters={"rope_theta": 10000.0, **given})
    q, k = torch.randn(2, 1, HEADS, 100, WIDTH)
    cos, sin = LlamaRotaryEmbedding(config)(q, torch.arange(100).unsqueeze(0))
    width = cos.shape[-1]
    turned = [torch.cat([a, b[..., width:]], -1) for a, b in zip(
        apply_rotary_pos_emb(q[..., :width], k[..., :width], cos, sin), (q, k), strict=True)]  # fmt: skip
    for ours, theirs in zip(build(given).rotate(q, k, Grid.of_length(100, 100, causal=True)), turned, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)


def make(name, **options):
    return dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=32, **options)


def test_ntk_slows_the_last_pair_as_interpolation_does():
    frequencies, amplitude = spectrum(make("ntk", scale=4.0), 32)
    assert frequencies[0] == 1 and amplitude == 1
    assert frequencies[-1].item() == pytest.approx(10000 ** (-14 / 16) / 4)
    assert make("ntk", scale=4.0).rotates_once and not make("ntk").rotates_once
    torch.testing.assert_close(spectrum(make("ntk"), 128)[0], frequencies)
    torch.testing.assert_close(spectrum(make("dynamic", factor=1.0), 128)[0], frequencies)


def test_nothing_changes_within_the_training_length():
    plain = spectrum(make("rope"), 32)[0]
    for name in ("ntk", "dynamic"):
        torch.testing.assert_close(spectrum(make(name), 32)[0], plain)


def test_only_a_part_of_the_channels_turns():
    x, grid = torch.randn(1, HEADS, 9, WIDTH), Grid.of_length(9, 9, causal=True)
    turned = make("partial", fraction=0.25).rotate(x, x, grid)[0]
    assert torch.equal(turned[..., 4:], x[..., 4:]) and not torch.equal(turned[..., :4], x[..., :4])
    slow = make("proportional", fraction=0.5).rotate(x, x, grid)[0]
    kept = [4, 5, 6, 7, 12, 13, 14, 15]
    assert torch.equal(slow[..., kept], x[..., kept])
    torch.testing.assert_close(slow[..., [0, 8]], make("rope").rotate(x, x, grid)[0][..., [0, 8]])


def test_llama3_keeps_fast_pairs_and_slows_slow_ones():
    frequencies, plain = spectrum(make("llama3", factor=8.0), 32)[0], spectrum(make("rope"), 32)[0]
    turns = 32 * plain / (2 * math.pi)
    assert frequencies[0] == plain[0] and turns[0] > 4
    torch.testing.assert_close(frequencies[turns < 1], plain[turns < 1] / 8)


def test_bad_options():
    with pytest.raises(ValueError, match="long_factor must be 8 numbers"):
        make("longrope", long_factor=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"fraction=0.2 is 3 channels"):
        make("partial", fraction=0.2)
    with pytest.raises(ValueError, match="low_freq_factor=4 must be below high_freq_factor=4"):
        make("llama3", low_freq_factor=4.0)
    with pytest.raises(ValueError, match="rope_type 'spiral' is not known; known are default, linear"):
        build({"rope_type": "spiral"})
    with pytest.raises(ValueError, match="parameter 'beta_fast' is not known"):
        build({"rope_type": "linear", "factor": 2.0, "beta_fast": 3.0})
