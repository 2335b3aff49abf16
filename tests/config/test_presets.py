"""Every preset loads, builds (on no device) and has the size it promises."""

import dataclasses

import pytest
import torch

from dape.cli import app
from dape.cli.commands import COMMANDS
from dape.cli.train import Train
from dape.config.load import preset_names
from dape.models.decoder import DecoderLM
from dape.training.optim import learning_rate

# Parameters with nope; GPT-2's vocabulary rounded up for the paper's models, bytes for ours.
SIZES = {
    "tiny": (257, 0.86e6, 0.02),
    "small": (257, 10.8e6, 0.02),
    "125m": (50304, 162.3e6, 5e-4),
    "350m": (50304, 405.3e6, 5e-4),
    "2.7b": (50304, 2.775e9, 5e-4),
    "6.7b": (50304, 6.856e9, 5e-4),
}


def preset(name: str) -> Train:
    config = app._parse(next(each for each in COMMANDS if each.name == "train"), ["--preset", name])
    assert isinstance(config, Train)
    return config


def parameters(config: Train, **changes) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in DecoderLM(dataclasses.replace(config.model, **changes)).parameters())


def test_no_preset_is_forgotten():
    assert list(SIZES) == preset_names()


@pytest.mark.parametrize("name", SIZES)
def test_size(name):
    vocabulary, expected, tolerance = SIZES[name]
    config = preset(name)
    config.train.check()
    config.model.check()
    assert parameters(config, vocabulary=vocabulary, encoding="nope") == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "layers", "width", "heads", "lr"),
    [
        ("125m", 12, 768, 12, 6e-4),
        ("350m", 24, 1024, 16, 3e-4),
        ("2.7b", 32, 2560, 32, 1.6e-4),
        ("6.7b", 32, 4096, 32, 1.2e-4),
    ],
)
def test_the_papers_settings(name, layers, width, heads, lr):
    model, train = (config := preset(name)).model, config.train
    assert (model.layers, model.width, model.heads, model.train_length) == (layers, width, heads, 512)
    assert (train.steps, train.batch, train.lr) == (50_000, 256, lr)
    assert (train.beta1, train.beta2, train.eps, train.weight_decay, train.clip) == (0.9, 0.95, 1e-8, 0.1, 1.0)
    assert train.decay_positions
    assert [learning_rate(step, train) for step in (499, 49_999)] == pytest.approx([lr, lr / 10])
