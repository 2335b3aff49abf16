"""What other programs put on the layers of our models acts wherever the layers are used, or is refused: also where a
faster way reads weights instead of calling the layer. Expected: the same model with weights changed by hand."""

import copy
import re
from collections.abc import Callable

import pytest
import torch
from tests.wrapping import FACTOR, Times, around, hook
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import dape.nn
from dape.models.cache import Cache
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.models.encoder import Encoder
from dape.tasks.chomsky.catalogue import load
from dape.tasks.chomsky.config import CheConfig
from dape.tasks.chomsky.model import encoder_for


def parametrised(module: nn.Module, name: str) -> None:
    inside = module.get_submodule(name)
    for parameter, _ in list(inside.named_parameters(recurse=False)):
        parametrize.register_parametrization(inside, parameter, Times())


def pruned(module: nn.Module, name: str) -> None:
    """Nothing is pruned, but the weight is now made by a hook, from numbers that then change."""
    inside = module.get_submodule(name)
    for parameter in list(inside._parameters):
        if inside._parameters.get(parameter) is not None:
            prune.identity(inside, parameter)
            with torch.no_grad():
                getattr(inside, f"{parameter}_orig").mul_(FACTOR)


def decoder() -> DecoderLM:
    torch.manual_seed(0)
    config = DecoderConfig(layers=2, width=32, heads=4, vocabulary=11, encoding="dape-kerple", train_length=16)
    return moved(DecoderLM(config))


def encoder(method: str = "randomized-dape-kerple") -> Encoder:
    torch.manual_seed(0)
    config = CheConfig(width=32, layers=2, heads=4, hidden=6, pool=64, lengths=(5, 50))
    return moved(encoder_for(config, load("bucket_sort"), method))


def moved(model):
    with torch.no_grad():  # biases begin at 0, where a factor does not show
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    return model.eval()


def tokens() -> Tensor:
    return torch.randint(0, 5, (2, 9), generator=torch.Generator().manual_seed(1))


def all_tokens(model: DecoderLM) -> Tensor:
    return model(tokens())


def last_tokens(model: DecoderLM) -> Tensor:
    return model(tokens(), last=2)


def token_by_token(model: DecoderLM) -> Tensor:
    cache = Cache(2)
    return torch.cat([model(part, cache=cache) for part in tokens().split(3, dim=1)], dim=1)


def answers(model: Encoder) -> Tensor:
    torch.manual_seed(2)  # of the drawn positions
    return model(tokens(), 3)


MODELS = [(decoder, all_tokens), (decoder, last_tokens), (decoder, token_by_token), (encoder, answers)]


def layers_of(model: nn.Module) -> dict[str, list[str]]:
    """Those of all blocks by their name in a block."""
    found: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding):
            found.setdefault(re.sub(r"blocks\.\d+", "", name), []).append(name)
    return found


@pytest.mark.parametrize("treat", [hook, around, parametrised, pruned])
@pytest.mark.parametrize(("make", "run"), MODELS, ids=lambda f: f.__name__)
def test_what_is_put_on_a_layer_acts(make: Callable, run: Callable, treat: Callable):
    plain = run(make())
    for name, places in layers_of(make()).items():
        model, equivalent = make(), make()
        with torch.no_grad():
            for place in places:
                treat(model, place)
                for parameter in equivalent.get_submodule(place).parameters():
                    parameter.mul_(FACTOR)
            expected = run(equivalent)
            assert not torch.allclose(expected, plain, atol=1e-4), name
            torch.testing.assert_close(run(model), expected, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("run", [all_tokens, last_tokens, token_by_token])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_quantised_layers(run: Callable):
    """f is not among them: it is no layer of tokens."""
    model = decoder()
    quantised = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
    assert type(quantised.blocks[0].attention.qkv) is not nn.Linear
    assert type(quantised.encodings[0].f.first) is type(model.encodings[0].f.first)
    with torch.no_grad():
        found, exact = run(quantised), run(model)
    assert 0 < (found - exact).abs().max() < 0.2 * exact.std()


def test_hooks_on_the_whole_model_run_for_hidden_states_too():
    model, seen = decoder(), []
    model.register_forward_hook(lambda module, args, out: seen.append(out.shape[-1]))
    assert torch.equal(model(tokens(), head=False, last=2), model.hidden(tokens(), last=2))
    assert seen == [32]


@pytest.mark.parametrize("make", [decoder, encoder])
def test_an_encoding_that_is_wrapped_is_refused(make: Callable):
    """It used to be left out, and the encoding of another layer served in its place."""
    model = make()
    model.encodings[1] = Times(model.encodings[1])
    run = answers if make is encoder else all_tokens
    for call in (lambda: run(model), model.project_):
        with pytest.raises(TypeError, match=r"encodings\[1\] must be a positional encoding.*got Times"):
            call()


@pytest.mark.parametrize("treat", [hook, around, parametrised, pruned])
def test_self_attention_for_models_of_ones_own(treat: Callable):
    def run(layer: nn.Module) -> Tensor:
        return layer(torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(1)))

    def make() -> nn.Module:
        torch.manual_seed(0)
        return moved(dape.nn.SelfAttention(32, 4, train_length=16, num_kv_heads=2))

    for name in ("q", "k", "v", "out", "encoding.f.first", "encoding.f.second"):
        layer, equivalent = make(), make()
        treat(layer, name)
        with torch.no_grad():
            for parameter in equivalent.get_submodule(name).parameters():
                parameter.mul_(FACTOR)
            torch.testing.assert_close(run(layer), run(equivalent), rtol=1e-4, atol=1e-4)
            assert not torch.allclose(run(layer), run(make()), atol=1e-4)
    layer = make()
    layer.encoding = Times(layer.encoding)
    with pytest.raises(TypeError, match="got Times"):
        run(layer)
