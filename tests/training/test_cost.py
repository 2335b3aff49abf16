"""The cost model against real models: their parameters, the products of matrices they form, what they keep."""

import functools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from dape.models import layers
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.ops.attention import attention
from dape.positional.catalogue import encodings
from dape.training import cost
from dape.training.config import TrainConfig

SMALL = DecoderConfig(layers=3, width=48, heads=6, vocabulary=101, train_length=40)


def with_encoding(encoding: str, **changes) -> DecoderConfig:
    return replace(SMALL, encoding=encoding, **changes)


# Parameters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [*encodings(), "randomized-dape-fire"])
def test_parameters_are_those_of_the_model(encoding):
    config = with_encoding(encoding)
    model = DecoderLM(config)
    own = sum(p.numel() for p in model.encodings.parameters())
    assert cost.encoding_parameters(config) == own
    assert cost.dense_parameters(config) == sum(p.numel() for p in model.parameters()) - own
    assert cost.parameters(config) == cost.dense_parameters(config) + own


@pytest.mark.parametrize(
    "changes",
    [{"layers": 1, "width": 24, "heads": 3, "vocabulary": 7}, {"share_encoding": True}, {"train_length": 9}],
)
def test_parameters_of_other_shapes(changes):
    config = with_encoding("dape-fire", encoding_options={"hidden": 5}, **changes)
    assert cost.parameters(config) == sum(p.numel() for p in DecoderLM(config).parameters())


@pytest.mark.parametrize(
    ("shape", "billions"),
    [((12, 768, 12), 0.1623), ((24, 1024, 16), 0.4053), ((32, 2560, 32), 2.775), ((32, 4096, 32), 6.856)],
)
def test_parameters_of_the_papers_models(shape, billions):
    layers, width, heads = shape
    config = DecoderConfig(layers=layers, width=width, heads=heads, vocabulary=50304, encoding="rope")
    assert cost.parameters(config) / 1e9 == pytest.approx(billions, rel=5e-4)


# Operations ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def dense_attention(monkeypatch):
    """The definition, whose products torch can count; it computes every pair."""
    monkeypatch.setattr(layers, "attention", functools.partial(attention, impl="reference"))


def counted(config: DecoderConfig, *, backward: bool) -> int:
    model, tokens = DecoderLM(config), torch.randint(config.vocabulary, (1, config.train_length))
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
        out = model(tokens)
        if backward:
            out.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("encoding", ["nope", "rope", "t5", "kerple", "dape-kerple", "dape-rope", "dape-v2-kerple"])
def test_operations_are_those_that_torch_counts(encoding, checkpoints, dense_attention):
    config = with_encoding(encoding, checkpoint_activations=checkpoints)
    assert cost.forward_flops(config, causal=False) == counted(config, backward=False)
    assert cost.training_flops(config, causal=False) == counted(config, backward=True)


@pytest.mark.parametrize("encoding", ["fire", "dape-fire"])
def test_operations_of_fire(encoding, dense_attention):
    """Its first layer has one input: no product of matrices, but we count it."""
    config = with_encoding(encoding)
    assert cost.training_flops(config, causal=False) == pytest.approx(counted(config, backward=True), rel=0.05)


@pytest.mark.parametrize(("encoding", "missing"), [("transformer-xl", 0.2), ("cope", 0.1)])
def test_what_is_done_per_token_or_lag_is_left_out(encoding, missing, dense_attention):
    config = with_encoding(encoding)
    found = cost.training_flops(config, causal=False) / counted(config, backward=True)
    assert 1 - missing < found < 1


@pytest.mark.parametrize(
    ("encoding", "weights"),
    [
        *[("alibi", 0), ("t5", 0), ("cope", 0)],
        ("transformer-xl", 48),  # a query with one vector per lag, over all channels
        ("fire", 32 + 32 * 6),
        ("dape-alibi", (12 + 6) * 32),
        ("dape-rope", (6 + 6) * 32),
        ("dape-v2-alibi", 3 * (12 + 6) * 32),
    ],
)
def test_weights_applied_at_each_pair(encoding, weights):
    """Six heads of eight channels, 32 hidden units."""
    assert cost.pair_weights(with_encoding(encoding)) == weights


def test_operations_by_hand():
    """Two layers of width 8 with 2 heads, D = 4, five tokens: 15 pairs, f has (4 + 2) x 4 weights."""
    config = DecoderConfig(
        layers=2,
        width=8,
        heads=2,
        vocabulary=11,
        encoding="dape-alibi",
        encoding_options={"hidden": 4},
        train_length=5,
    )
    block = 2 * 5 * 12 * 64 + 15 * 4 * 8 + 15 * 2 * 24
    assert cost.pair_weights(config) == 24
    assert cost.forward_flops(config) == 2 * block + 2 * 5 * 8 * 11
    assert cost.training_flops(config) == 3 * cost.forward_flops(config)


# Memory --------------------------------------------------------------------------------------------------------------


def kept_bytes(config: DecoderConfig, batch: int, half: bool) -> int:
    """What autograd holds of the forward pass, parameters apart."""
    model = DecoderLM(config)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, torch.Tensor] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        if x.untyped_storage().data_ptr() not in own:
            found[x.untyped_storage().data_ptr()] = x  # held, so that the address is not used again
        return x

    tokens = torch.randint(config.vocabulary, (batch, config.train_length))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), torch.autocast("cpu", enabled=half):
        F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    return sum(x.untyped_storage().nbytes() for x in found.values())


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("encoding", ["rope", "kerple", "dape-kerple"])
def test_activations_of_a_layer(encoding, half):
    """The difference of two depths: embedding and head drop out."""
    shapes = [with_encoding(encoding, layers=n, width=64, heads=4, train_length=128) for n in (1, 3)]
    one, three = (kept_bytes(shape, 4, half) for shape in shapes)
    ours = [cost.activation_bytes(shape, batch=4, half=half) for shape in shapes]
    assert ours[1] - ours[0] == pytest.approx(three - one, rel=0.2)


def test_checkpoints_keep_one_tensor_per_layer():
    config = replace(SMALL, layers=5, checkpoint_activations=True)
    lean, full = (cost.activation_bytes(replace(config, checkpoint_activations=c), batch=2) for c in (True, False))
    assert full - lean == 2 * 40 * (4 * 17 * 4 * 48 - 5 * 4 * 48)


# A whole run ---------------------------------------------------------------------------------------------------------


def test_cost_of_a_run():
    config, train = with_encoding("dape-kerple"), TrainConfig(steps=7, batch=6, accumulate=3)
    found = cost.training_cost(config, train)
    assert found.parameters == cost.parameters(config)
    assert found.flops == 7 * 6 * cost.training_flops(config)
    assert found.memory_bytes == 16 * found.parameters + cost.activation_bytes(config, batch=2)
    more = cost.training_cost(config, train, evaluation_tokens=400)
    assert more.flops - found.flops == pytest.approx(10 * cost.forward_flops(config))
    mixed = cost.training_cost(config, replace(train, precision="bf16"))
    assert mixed.memory_bytes == 18 * found.parameters + cost.activation_bytes(config, batch=2, half=True)


def test_six_operations_per_weight_and_token():
    """The rule of thumb, where the sequence is short against the width: 125M on 6.55B tokens."""
    config = DecoderConfig(layers=12, width=768, heads=12, vocabulary=50304, encoding="rope", train_length=512)
    found = cost.training_cost(config, TrainConfig(steps=50_000, batch=256))
    weights = found.parameters - 50304 * 768  # the embedding is looked up
    assert found.flops == pytest.approx(6 * weights * 50_000 * 256 * 512, rel=0.05)


def test_gpu_hours():
    assert cost.gpu_hours(312e12 * 3600) == pytest.approx(2.5)
    assert cost.gpu_hours(312e12 * 3600, peak=156e12) == pytest.approx(5)
