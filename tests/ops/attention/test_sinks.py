"""Sinks in every implementation against a further key, and against gpt-oss."""

import copy

import pytest
import torch

import dape
from dape.ops.attention.fused.available import why_not_compiled
from dape.ops.attention.memory import LagMemory
from dape.ops.attention.reference import masked_softmax

HEADS, WIDTH, MODEL = 4, 8, 32
NAMES = ["sink-nope", "sink-kerple", "sink-dape-kerple", "sink-fire", "sink-dape-fox", "sink-cope", "sink-logn-rope"]


def make(name):
    torch.manual_seed(0)
    pe = dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=16)
    with torch.no_grad():
        for p in pe.parameters():
            p.add_(0.2 * torch.randn_like(p))
        pe.sink.copy_(torch.tensor([-3.0, 0.0, 1.0, 40.0]))  # of which the last takes nearly all
    return pe


def results(pe, given, **call):
    q, k, v, x = (t.to(pe.sink.dtype).requires_grad_() for t in given)
    out = dape.attention(q, k, v, pe, features=pe.features(x), **call)
    towards = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    wanted = {"q": q, "k": k, "v": v, **dict(pe.named_parameters())}
    found = torch.autograd.grad(out, list(wanted.values()), towards, allow_unused=True, materialize_grads=True)
    return {"out": out, **dict(zip(wanted, found, strict=True))}


def call_of(kind):
    document = torch.tensor([[0] * 20 + [1] * 21] * 2)
    mask = torch.zeros(2, 41, dtype=torch.bool)
    mask[1, :9] = True
    return {
        "causal": {},
        "padded": {"key_padding_mask": mask},
        "documents": {"q_document": document, "k_document": document},
    }[kind]


@pytest.mark.parametrize("kind", ["causal", "padded", "documents"])
@pytest.mark.parametrize("impl", ["blocked", "fused"])
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_those_of_the_definition(name, impl, kind):
    if impl == "fused" and (why_not_compiled(torch.empty(0)) or "cope" in name):
        pytest.skip("no kernel")
    given = [torch.randn(2, HEADS, 41, WIDTH) for _ in range(3)] + [torch.randn(2, 41, MODEL)]
    pe = make(name)
    found = results(pe, given, impl=impl, **call_of(kind))
    exact = results(copy.deepcopy(pe).double(), given, impl="reference", **call_of(kind))
    largest = max(float(x.detach().abs().max()) for n, x in exact.items() if n not in ("out", "q", "k", "v"))
    for n, x in exact.items():
        size = float(x.detach().abs().max()) if n in ("out", "q", "k", "v") else largest
        torch.testing.assert_close(
            found[n].double(), x, rtol=0, atol=1e-4 * max(size, 0.25), msg=lambda m, n=n: f"{n}: {m}"
        )


def test_the_definition_is_a_key_without_value():
    """Against plain attention over one more key, whose logit is the sink and whose value is 0."""
    logits, v = torch.randn(2, HEADS, 5, 9, dtype=torch.float64), torch.randn(2, HEADS, 9, 3, dtype=torch.float64)
    sinks = torch.tensor([-2.0, 0.0, 1.5, 30.0], dtype=torch.float64)
    weights = torch.cat([logits, sinks.view(1, -1, 1, 1).expand(2, -1, 5, 1)], dim=-1).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    expected = weights @ torch.cat([v, torch.zeros(2, HEADS, 1, 3)], dim=2)
    torch.testing.assert_close(masked_softmax(logits, None, sinks) @ v, expected)


def test_as_gpt_oss():
    modeling = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    pe = make("sink-nope")
    q, k, v = (torch.randn(2, HEADS, 11, WIDTH) for _ in range(3))
    layer = torch.nn.Module()
    layer.sinks, layer.num_key_value_groups, layer.training = pe.sink, 1, False
    mask = torch.full((11, 11), torch.finfo(torch.float32).min).triu(1).expand(2, 1, 11, 11)
    theirs, _ = modeling.eager_attention_forward(layer, q, k, v, mask, scaling=WIDTH**-0.5)
    torch.testing.assert_close(dape.attention(q, k, v, pe), theirs.transpose(1, 2), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_decoding_with_tables():
    for name in ("sink-kerple", "sink-dape-kerple"):
        pe, memory = make(name), LagMemory()
        q, k, v = (torch.randn(1, HEADS, 70, WIDTH) for _ in range(3))
        whole = dape.attention(q, k, v, pe, impl="reference")
        for t in (1, 2, 64, 70):
            out = dape.attention(q[:, :, t - 1 : t], k[:, :, :t], v[:, :, :t], pe, memory=memory)
            torch.testing.assert_close(out, whole[:, :, t - 1 : t], rtol=1e-4, atol=1e-5)


def test_a_gpu_computes_them_in_tiles(monkeypatch):
    """The choice alone, for which no GPU is needed."""
    from dape.ops.attention import operator
    from dape.ops.attention.engines.catalogue import ENGINES

    monkeypatch.setattr(operator, "_first_engine", lambda q: ENGINES["triton"])
    q, grid = torch.randn(1, HEADS, 9, WIDTH), dape.Grid.of_length(9, 9, causal=True)
    for name in ("sink-kerple", "sink-dape-kerple"):
        choice = operator.choose(q, q, q, grid, make(name).score_form(), "auto", sinks=True)
        assert (choice.impl, choice.kernel) == ("blocked", "lag tables")
        assert choice.reason.endswith("its kernels do not support sinks")


def test_explained_and_refused():
    q = torch.randn(1, HEADS, 9, WIDTH)
    with pytest.raises(ValueError, match="without sinks"):
        dape.attention(q, q, q, make("sink-nope"), impl="sdpa")
    with pytest.raises(ValueError, match="do not support sinks"):
        dape.attention(q, q, q, make("sink-cope"), impl="fused")
