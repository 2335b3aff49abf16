"""FoX against sums of gates in numpy, its gates without content, and long texts."""

import copy

import numpy as np
import pytest
import torch

import dape

HEADS, WIDTH, MODEL = 4, 8, 32


def forgetting(q, k, v, x, w, b):
    """The definition, in float64 and loops: [h, t, d] and what enters the layer [t, m]."""
    gates = 1 / (1 + np.exp(-(x @ w.T + b)))
    out = np.zeros_like(v)
    for h, i in np.ndindex(q.shape[:2]):
        logits = [q[h, i] @ k[h, j] / q.shape[-1] ** 0.5 + np.log(gates[j + 1 : i + 1, h]).sum() for j in range(i + 1)]
        weights = np.exp(logits - np.max(logits))
        out[h, i] = weights / weights.sum() @ v[h, : i + 1]
    return out


def make(name="fox", **options):
    return dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=16, **options)


def filled(pe):
    with torch.no_grad():
        for p in pe.parameters():
            p.normal_(std=0.3)
    return pe


@pytest.mark.parametrize("impl", ["reference", "blocked", "auto"])
def test_equals_loops_over_gates(impl):
    pe = filled(make()).double()
    q, k, v = (torch.randn(1, HEADS, 23, WIDTH, dtype=torch.float64) for _ in range(3))
    x = torch.randn(1, 23, MODEL, dtype=torch.float64)
    expected = forgetting(
        *(t[0].numpy() for t in (q, k, v, x)), pe.w.weight.detach().numpy(), pe.w.bias.detach().numpy()
    )
    out = dape.attention(q, k, v, pe, features=pe.features(x), impl=impl)
    np.testing.assert_allclose(out[0].detach().numpy(), expected, rtol=1e-10, atol=1e-12)


def test_starts_as_the_authors_do():
    pe = make()
    assert not pe.w.bias.any() and 0.015 < pe.w.weight.std() < 0.025
    found = pe.features(torch.zeros(1, 5, MODEL))
    torch.testing.assert_close(found[0, :, 0], -torch.arange(1, 6).double() * np.log(2), rtol=1e-6, atol=0)


def test_gates_without_content():
    """Decay times of 2, 8, 32 and 128 tokens: after so many, e times less is left."""
    for gate in ("bias", "fixed"):
        pe = make(gate=gate)
        assert not pe.needs_features and pe.features(torch.randn(1, 3, MODEL)) is None
        bias = pe.bias(torch.tensor([128]), torch.tensor([0, 120, 126, 128]))
        expected = -torch.tensor([[128, 8, 2, 0]]) / torch.tensor([2.0, 8.0, 32.0, 128.0]).unsqueeze(1)
        torch.testing.assert_close(bias[:, 0], expected, rtol=1e-6, atol=1e-6)
    assert [name for name, _ in make(gate="bias").named_parameters()] == ["b"]
    assert not list(make(gate="fixed").parameters())


def test_a_gate_that_reads_nothing_is_the_gate_of_a_bias():
    """Content with w = 0 against tables over lags."""
    full, bias = make("dape-fox"), make("dape-fox", gate="bias")
    with torch.no_grad():
        full.base.w.weight.zero_()
        full.base.w.bias.copy_(bias.base.b)
    bias.f.load_state_dict(full.f.state_dict())
    q, k, v = (torch.randn(2, HEADS, 70, WIDTH) for _ in range(3))
    out = dape.attention(q, k, v, full, features=full.features(torch.randn(2, 70, MODEL)))
    torch.testing.assert_close(out, dape.attention(q, k, v, bias), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fox", "dape-fox"])
def test_far_into_a_text(name):
    """c is near -7e6 here, where float32 counts in halves; differences are as at its beginning."""
    pe, far = filled(make(name)), torch.full((1, HEADS), -7.0e6, dtype=torch.float64)
    q, k, v = (torch.randn(1, HEADS, 40, WIDTH) for _ in range(3))
    x = torch.randn(1, 40, MODEL)
    near = dape.attention(q, k, v, pe, features=pe.features(x))
    for impl in ("reference", "blocked", "auto"):
        torch.testing.assert_close(
            dape.attention(q, k, v, pe, features=pe.features(x, past=far), impl=impl), near, rtol=1e-4, atol=1e-5
        )


def test_gates_are_not_rounded_by_autocast():
    pe, x = filled(make()), torch.randn(1, 300, MODEL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = pe.features(x)
    assert torch.equal(under, pe.features(x))


@pytest.mark.parametrize("variant", ["concat_residual", "concat", "add_residual", "bias_only", "bias_map"])
def test_every_variant_of_dape_with_gradients(variant):
    """Those without scores have no kernel: whole rows."""
    pe, found = filled(make("dape-fox", variant=variant, hidden=5)), []
    given = [torch.randn(2, HEADS, 29, WIDTH) for _ in range(3)] + [torch.randn(2, 29, MODEL)]
    for impl, dtype in (("blocked", torch.float32), ("reference", torch.float64)):
        q, k, v, x = (t.to(dtype).requires_grad_() for t in given)
        own = copy.deepcopy(pe).to(dtype)
        out = dape.attention(q, k, v, own, features=own.features(x), impl=impl)
        towards = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
        gradients = torch.autograd.grad(out, [q, k, v, x, *own.parameters()], towards)
        found.append([t.double() for t in (out, *gradients)])
    for mine, exact in zip(*found, strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-3, atol=1e-4 * max(1.0, float(exact.detach().abs().max())))


def test_bad_input_is_told():
    pe = make("dape-fox")
    q, x = torch.randn(2, HEADS, 9, WIDTH), torch.randn(2, 9, MODEL)
    with pytest.raises(ValueError, match=r"Fox reads features of every token, and none were given"):
        dape.attention(q, q, q, pe)
    with pytest.raises(ValueError, match=r"Fox reads features"):
        pe.bias(torch.arange(3), torch.arange(3))
    with pytest.raises(ValueError, match=r"features must be \[2, 9, numbers\].* got \[2, 8, 4\]"):
        dape.attention(q, q, q, pe, features=pe.features(x)[:, 1:])
    with pytest.raises(TypeError, match=r"floating tensor.* got str"):
        dape.attention(q, q, q, pe, features="x")
    with pytest.raises(ValueError, match="features were given, but Alibi reads none"):
        dape.attention(q, q, q, make("dape-alibi"), features=pe.features(x))
    with pytest.raises(ValueError, match="gate='half' is not possible"):
        make(gate="half")
    with pytest.raises(ValueError, match="longest=1 is below shortest=2"):
        make(longest=1.0)
