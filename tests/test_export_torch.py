"""``torch.export``: the layer, our model and a model with an adapter, at the length of the example and at others."""

import pytest
import torch
from torch.export import Dim, export

from dape import DecoderConfig, DecoderLM
from dape.nn import SelfAttention

LENGTHS = Dim("length", min=4, max=4096)  # from 3 on, and not the size of the batch
ENCODINGS = ["dape-kerple", "alibi", "rope", "fire"]
SOME = [pytest.param(name, marks=() if name == "dape-kerple" else pytest.mark.slow) for name in ENCODINGS]


def same(program, module, *inputs: tuple) -> None:
    with torch.no_grad():
        for given in inputs:
            torch.testing.assert_close(program.module()(*given), module(*given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoding", SOME)
def test_a_layer(encoding):
    torch.manual_seed(0)
    layer, x = SelfAttention(32, 4, encoding, train_length=16).eval(), torch.randn(2, 24, 32)
    program = export(layer, (x,), dynamic_shapes={"x": {1: LENGTHS}})
    same(program, layer, (x,), (torch.randn(2, 77, 32),))
    assert not any("dape" in str(node.target) for node in program.graph.nodes), "operations that every runtime has"


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_layer_of_fixed_length(encoding):
    torch.manual_seed(0)
    layer, x = SelfAttention(32, 4, encoding, train_length=16).eval(), torch.randn(2, 24, 32)
    same(export(layer, (x,)), layer, (x,))


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_language_model(encoding):
    torch.manual_seed(0)
    model = DecoderLM(
        DecoderConfig(encoding=encoding, layers=2, width=32, heads=4, vocabulary=19, train_length=16)
    ).eval()
    tokens, longer = torch.randint(19, (2, 24)), torch.randint(19, (2, 77))
    same(export(model, (tokens,)), model, (tokens,))
    same(export(model, (tokens,), dynamic_shapes=({1: LENGTHS},)), model, (tokens,), (longer,))


class Logits(torch.nn.Module):
    """A model of the library as a function of tensors."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens, mask=None):
        logits = self.model(tokens, attention_mask=mask, use_cache=False).logits
        return logits if mask is None else logits * mask.unsqueeze(-1)  # at padding they mean nothing


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dape-kerple", "dape-fire"])
@pytest.mark.parametrize("masked", [True, False])
def test_a_model_with_an_adapter(method, masked):
    pytest.importorskip("transformers")
    from tests.hf.adapter.models import make, shake

    from dape.hf import extend

    model = extend(make("llama"), method, train_length=16)
    shake(model)
    module = Logits(model).eval()

    def given(length: int) -> tuple:
        tokens = torch.randint(101, (2, length), generator=torch.Generator().manual_seed(length))
        mask = torch.ones_like(tokens)
        mask[1, : length // 3] = 0
        return (tokens, mask) if masked else (tokens,)

    same(export(module, given(24)), module, given(24))
    shapes = ({1: LENGTHS}, {1: LENGTHS}) if masked else ({1: LENGTHS},)
    same(export(module, given(24), dynamic_shapes=shapes), module, given(24), given(60))


@pytest.mark.slow
def test_our_model_in_the_library():
    pytest.importorskip("transformers")
    from tests.hf.model.models import tiny, tokens

    module = Logits(tiny()).eval()
    program = export(module, (tokens(2, 24),), dynamic_shapes=({1: LENGTHS},))
    same(program, module, (tokens(2, 24),), (tokens(2, 60),))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of torch's exporter
@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_onnx(encoding, tmp_path):
    """In a runtime that is not torch."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    layer = SelfAttention(32, 4, encoding, train_length=16).eval()
    program = torch.onnx.export(layer, (torch.randn(2, 24, 32),), dynamo=True, dynamic_shapes={"x": {1: LENGTHS}})
    program.save(tmp_path / "layer.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "layer.onnx")
    for length in (24, 77):
        x = torch.randn(2, length, 32)
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), layer(x).detach(), rtol=1e-4, atol=1e-5)
