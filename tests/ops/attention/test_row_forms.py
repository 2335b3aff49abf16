"""Forms with kernels of their own kind (relative products, content counts, key convolutions), compiled, against the
definition: outputs and the gradients of q, k, v and every parameter."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.attention.bounds import Exact, Rounding, excess
from tests.ops.attention.test_equivalence import (
    HEADS,
    SITUATIONS,
    WIDTH,
    Inputs,
    assert_half_precision_is_rounded_once,
    assert_near,
    assert_rows_before_the_first_key_are_zero,
    assert_same_bits_every_time,
    assert_same_weights_in_both_passes,
    draw,
    draw_any,
    make,
    outputs_and_gradients,
)
from tests.thinned import thinned
from torch import Tensor

import dape
from dape.ops.attention import LagMemory
from dape.ops.attention.fused.available import why_not_compiled
from dape.positional.base import PositionalEncoding, any_form

LABELS = ["transformer-xl", "cope", "dape-v2-kerple"]
KERNELS = dict(zip(LABELS, ["relative products", "content counts", "key convolutions"], strict=True))
CASES = [(label, causal) for label in LABELS for causal in (True, False) if causal or label != "cope"]
ONE_RUN = [name for name in SITUATIONS if "gaps" not in name and name != "positions of each item"]

pytestmark = [
    pytest.mark.usefixtures("three_workers"),
    pytest.mark.skipif(bool(why_not_compiled(torch.empty(0))), reason="no compiled kernel"),
]


def fits(label: str, inputs: Inputs) -> Inputs:
    if label == "dape-v2-kerple":
        inputs.call.pop("key_padding_mask", None)  # whole rows, see test_what_has_no_kernel_says_so
    return inputs


@pytest.mark.parametrize(("label", "causal", "situation"), thinned(4, CASES, ONE_RUN))
def test_situations(label, causal, situation):
    assert_near(label, fits(label, SITUATIONS[situation]()), impl="fused", causal=causal)


@settings(deadline=None, derandomize=True, max_examples=10)
@given(data=st.data())
def test_any_shape(data):
    label = data.draw(st.sampled_from(LABELS))
    inputs, causal = draw_any(data)
    if not causal and label == "cope":
        label = "transformer-xl"
    assert_near(label, fits(label, inputs), impl="fused", causal=causal)


def with_options(name: str, heads: int, width: int, seed: int = 1, **options):
    """For :func:`assert_near`."""

    def make(label: str, dtype: torch.dtype) -> PositionalEncoding:
        torch.manual_seed(seed)
        pe = dape.build(name, num_heads=heads, head_dim=width, train_length=32, **options)
        with torch.no_grad():
            for parameter in pe.parameters():
                # Less in wide matrices: scores of many numbers of one sign would be larger than the tolerance assumes.
                wide = parameter.shape[-1] if parameter.dim() else 1
                parameter.add_(0.2 * torch.rand_like(parameter) / max(1.0, wide / 16))
        return pe.to(dtype)

    return make


def any_size(
    data: st.DataObject, most_heads: int, most_queries: int, most_keys: int, most_hidden: int
) -> tuple[PositionalEncoding, Inputs, bool]:
    """Other numbers of heads, places, hidden units and taps, and other widths, than the other tests have; and whether
    the call is causal."""
    name = data.draw(st.sampled_from(["transformer-xl", "cope", "dape-v2-kerple", "dape-v2-rope", "dape-v2-t5"]))
    heads, width = data.draw(st.integers(1, most_heads)), 2 * data.draw(st.integers(1, 20))
    keys, batch = data.draw(st.integers(1, most_keys)), data.draw(st.integers(1, 2))
    queries = data.draw(st.integers(1, min(most_queries, keys)))
    options = {}
    if name == "cope":
        options = {"npos": data.draw(st.sampled_from([2, 3, 20, 200]))}
    elif name != "transformer-xl":
        options = {"hidden": data.draw(st.integers(1, most_hidden)), "kernel": data.draw(st.sampled_from([1, 3, 5, 7]))}
    torch.manual_seed(data.draw(st.integers(0, 99)))
    q, k, v = (torch.randn(batch, heads, rows, width) for rows in (queries, keys, keys))
    causal = name == "cope" or data.draw(st.booleans())
    return with_options(name, heads, width, **options)(name, torch.float32), Inputs(q, k, v), causal


@settings(deadline=None, derandomize=True, max_examples=10)
@given(data=st.data())
def test_any_size(data):
    pe, inputs, causal = any_size(data, 3, 60, 80, 9)
    assert_near("", inputs, impl="fused", make=lambda _, dtype: deepcopy(pe).to(dtype), causal=causal)


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=40)
@given(data=st.data())
def test_any_larger_size(data):
    """Within the derived bound: how far off an entry may be depends on how many numbers are summed, which differs from
    one example to the next by a factor of hundreds. The bound is of the worst case; outputs, which do not jump where a
    hidden unit is 0 as gradients do, are also held to ten times what small sizes are allowed."""
    pe, inputs, causal = any_size(data, 14, 110, 300, 40)
    found = outputs_and_gradients("fused", pe, inputs, causal=causal)
    towards = torch.randn(inputs.q.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).float()
    exact = Exact(pe, inputs.q, inputs.k, inputs.v, towards, Rounding(torch.float32), {"causal": causal})
    too_far = {what: ratio for what, ratio in excess(exact, found).items() if not ratio <= 1}
    assert not too_far
    value = exact.values["output"]
    assert (found["output"] - value).abs().max() < 1e-4 * max(1.0, value.abs().max().item())


@pytest.mark.parametrize("mean", [-10.0, -3.0, 10.0])
def test_counts_with_gates_of_any_size(mean):
    """Closed gates never reach the last place, open ones do so within few keys."""
    inputs = draw(40, 160, batch=1)
    inputs.q[..., 0], inputs.k[..., 0] = mean, WIDTH**0.5
    assert_near("cope", inputs, impl="fused")


@pytest.mark.parametrize(("label", "queries", "size"), thinned(4, LABELS, [1, 8, 9, 75], [1.0, 3e4, 1e6]))
def test_both_passes_have_the_same_weights(label, queries, size):
    assert_same_weights_in_both_passes("fused", label, queries, size)


@pytest.mark.parametrize("label", LABELS)
def test_rows_before_the_first_key_are_zero(label):
    assert_rows_before_the_first_key_are_zero("fused", label)


@pytest.mark.parametrize(
    ("label", "dtype"), [*zip(LABELS, [torch.bfloat16, torch.float16, torch.bfloat16], strict=True)]
)
def test_half_precision_is_rounded_once(label, dtype):
    assert_half_precision_is_rounded_once(label, dtype)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("batch", [1, 5])
def test_same_bits_every_time(label, batch):
    assert_same_bits_every_time("fused", label, draw(100, batch=batch, kv_heads=1))


@pytest.mark.parametrize("label", LABELS)
def test_hands_on_nans(label):
    pe, inputs = make(label, torch.float32), draw(121).to(torch.float32)
    inputs.q[0, 1, 117, 2] = torch.nan
    out = dape.attention(inputs.q, inputs.k, inputs.v, pe, impl="fused")
    assert out[0, 1, 117].isnan().all() and out[0, :, :117].isfinite().all() and out[1].isfinite().all()


# Decoding ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [*LABELS, "dape-v2-nope"])
def test_decoding_with_a_memory(label):
    """Tables of the first tokens serve the next ones, until there are more keys than they have room for."""
    pe = with_options(label, HEADS, WIDTH)(label, torch.float32)
    inputs, memory = draw(270).to(torch.float32), LagMemory()
    whole = dape.attention(inputs.q, inputs.k, inputs.v, pe, impl="reference")
    with torch.no_grad():
        for count, keys in ((1, 1), (1, 2), (3, 5), (1, 64), (1, 65), (8, 130), (1, 256), (1, 257), (1, 270)):
            part: list[Tensor] = [inputs.q[:, :, keys - count : keys], inputs.k[:, :, :keys], inputs.v[:, :, :keys]]
            out, choice = dape.attention(*part, pe, memory=memory, explain=True)
            assert (choice.impl, choice.kernel) == ("fused", KERNELS.get(label, "key convolutions"))
            torch.testing.assert_close(out, whole[:, :, keys - count : keys], rtol=0, atol=1e-5)


def test_a_changed_weight_is_noticed_while_decoding():
    for label in ("transformer-xl", "dape-v2-kerple"):
        pe, inputs, memory = make(label, torch.float32), draw(40).to(torch.float32), LagMemory()
        last = (inputs.q[:, :, -1:], inputs.k, inputs.v)
        with torch.no_grad():
            before = dape.attention(*last, pe, memory=memory)
            for parameter in pe.parameters():
                parameter.mul_(1.5)
            after = dape.attention(*last, pe, memory=memory)
            assert not torch.allclose(before, after, atol=1e-3)
            torch.testing.assert_close(after, dape.attention(*last, pe, impl="reference"), rtol=0, atol=1e-5)


# The choice ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", LABELS)
def test_auto_takes_them(label):
    inputs = draw(9).to(torch.float32)
    _, choice = dape.attention(inputs.q, inputs.k, inputs.v, make(label, torch.float32), explain=True)
    assert (choice.impl, choice.kernel) == ("fused", KERNELS[label])


@pytest.mark.parametrize(
    ("label", "options", "call", "words"),
    [
        ("transformer-xl", {}, {"q_pos": torch.arange(9) * 2, "k_pos": torch.arange(9) * 2}, "not one consecutive run"),
        ("cope", {}, {"q_document": torch.arange(9) // 4, "k_document": torch.arange(9) // 4}, "several documents"),
        ("dape-v2-kerple", {}, {"key_padding_mask": torch.zeros(2, 9, dtype=torch.bool)}, "keys are padding"),
        ("dape-v2-kerple", {"kernel": 9}, {}, "at most 7 keys"),
        ("dape-v2-kerple", {"mask_hidden": False}, {}, "no closed form"),
        ("dape-v2-fire", {}, {}, "no closed form"),
    ],
)
def test_what_has_no_kernel_says_so(label, options, call, words, tile_bytes):
    pe, inputs = with_options(label, HEADS, WIDTH, **options)(label, torch.float32), draw(9).to(torch.float32)
    _, small = dape.attention(inputs.q, inputs.k, inputs.v, pe, explain=True, **call)
    assert small.kernel == "whole matrix" and words in small.reason
    tile_bytes(4096)
    out, choice = dape.attention(inputs.q, inputs.k, inputs.v, pe, explain=True, **call)
    assert choice.kernel == "row blocks" and words in choice.reason
    torch.testing.assert_close(out, dape.attention(inputs.q, inputs.k, inputs.v, pe, impl="reference", **call))
    with pytest.raises(ValueError, match=words.removeprefix("no ")):
        dape.attention(inputs.q, inputs.k, inputs.v, pe, impl="fused", **call)


@pytest.mark.parametrize("label", ["transformer-xl", "dape-v2-kerple"])
def test_a_hook_on_a_layer_is_honoured(label):
    pe, calls = make(label, torch.float32), []
    layer = pe.get_submodule("w_r" if label == "transformer-xl" else "second")
    layer.register_forward_hook(lambda *_: calls.append(1))
    assert any_form(pe) is None
    inputs = draw(9).to(torch.float32)
    dape.attention(inputs.q, inputs.k, inputs.v, pe)
    assert calls


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_one_graph_serves_all_lengths(label):
    pe, graphs = make(label, torch.float32), []

    def count(graph, _):
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda q, k, v: dape.attention(q, k, v, pe), dynamic=True, backend=count, fullgraph=True)
    for length in (20, 33, 50):
        inputs = draw(length).to(torch.float32)
        out = compiled(inputs.q, inputs.k, inputs.v)
        torch.testing.assert_close(
            out, dape.attention(inputs.q, inputs.k, inputs.v, pe, impl="fused"), rtol=0, atol=1e-6
        )
    assert len(graphs) == 1
