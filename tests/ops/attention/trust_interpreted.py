"""Run by test_triton.py, interpreted: the self-check on the kernels themselves, as they are and with defects put in."""

import functools

import pytest
import torch

import dape
from dape.ops.attention.engines import triton
from dape.ops.attention.triton_kernels import run, trust, verify
from dape.ops.attention.triton_kernels.shape_class import ShapeClass, class_of
from dape.positional.base import closed_form
from dape.positional.grid import Grid

CPU = torch.device("cpu")
TENSORS = ["output", "q", "k", "v", "static", "wa", "pre", "w2"]
ODD = verify.Case("odd sizes", 3, 19, gradients=True, shared=False, heads_beside=True)
DECODING = verify.Case("one row", 1, 75, gradients=False, shared=True, heads_beside=True)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(verify, "cases", lambda: [ODD])
    monkeypatch.setattr(run, "SPLIT_KEYS", 32)


def a_class(**given) -> ShapeClass:
    usual = {"dtype": "float16", "heads": 2, "group": 1, "width": 16, "values": 16, "hidden": 4}
    return ShapeClass(**{**usual, "tables": True, "causal": True, "static": True, "padding": False, **given})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"dtype": "float32", "causal": False, "padding": True, "group": 2, "values": 8},
        {"dtype": "bfloat16", "tables": False, "causal": False, "padding": True},
        {"tables": False, "hidden": 0},
        {"kinks": 5, "dtype": "float32"},
        {"kinks": 17, "hidden": 0, "causal": False, "padding": True},
        {"hidden": 0, "static": False},
    ],
    ids=str,
)
def test_kernels_as_they_are_pass(given):
    found = verify.findings(a_class(**given), CPU)
    assert all(each.ok for each in found), [str(each) for each in found if not each.ok]
    absent = {"static"} if not given.get("static", True) else set()
    absent |= {"wa", "pre", "w2"} if given.get("hidden") == 0 else set()
    ramp = {"table", "rows"} if "kinks" in given else set()
    assert {each.tensor for each in found} == {*TENSORS, *ramp} - absent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tables", "causal", "padding", "hidden", "kinks"),
    [
        ("float16", True, True, False, 8, 0),
        ("bfloat16", True, False, True, 0, 0),
        ("float32", False, True, True, 8, 0),
        ("bfloat16", False, False, False, 8, 0),
        ("float16", True, True, True, 8, 33),
        ("float32", True, False, False, 0, 33),
    ],
)
def test_every_case_of_many_classes(dtype, tables, causal, padding, hidden, kinks, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(run, "SPLIT_KEYS", 32)
    flags = {"tables": tables, "causal": causal, "padding": padding, "kinks": kinks}
    shape = a_class(dtype=dtype, hidden=hidden, heads=4, group=2, **flags)
    found = verify.findings(shape, CPU)
    assert len({each.case for each in found}) == 3 and [str(each) for each in found if not each.ok] == []


@functools.cache
def launched(tables: bool) -> dict[str, torch.Tensor]:
    return verify._Example(a_class(tables=tables), ODD, 0).launched(CPU)


@pytest.mark.parametrize("tables", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tensor", TENSORS)
def test_one_wrong_entry_of_any_tensor_is_found(tables, tensor, monkeypatch):
    """By 2% of the largest."""
    found = {name: x.clone() for name, x in launched(tables).items()}
    assert set(found) == {*TENSORS}
    found[tensor][(-1,) * found[tensor].dim()] += 0.02 * found[tensor].abs().max()
    monkeypatch.setattr(verify._Example, "launched", lambda self, device: found)
    outcome = trust.checked(a_class(tables=tables), CPU)
    what = "the output" if tensor == "output" else f"the gradient of {tensor}"
    assert not outcome.ok and f"{what} is off by 0.02 of its largest entry (odd sizes)" in outcome.words
    assert "1 of 8 comparisons fail" in outcome.words


def test_not_a_number_is_wrong(monkeypatch):
    found = {**launched(True), "wa": torch.full_like(launched(True)["wa"], torch.nan)}
    monkeypatch.setattr(verify._Example, "launched", lambda self, device: found)
    outcome = trust.checked(a_class(), CPU)
    assert not outcome.ok and "the gradient of wa is off by inf" in outcome.words


def test_wrong_parts_of_the_keys_are_found(monkeypatch):
    """Where decoding puts parts together."""
    monkeypatch.setattr(verify, "cases", lambda: [DECODING])
    assert trust.checked(a_class(hidden=0), CPU).ok
    monkeypatch.setattr(run, "_join", lambda outs, sums, out, softmax: out.copy_(outs.mean(0)))
    assert "the output is off by" in trust.checked(a_class(hidden=0), CPU).words


def test_a_kernel_that_ignores_padding_is_found(monkeypatch):
    right = triton.Triton.attention
    without = lambda self, call: right(self, call._replace(key_padding_mask=None))  # noqa: E731
    monkeypatch.setattr(triton.Triton, "attention", without)
    assert not trust.checked(a_class(padding=True, hidden=0), CPU).ok


def test_products_in_tf32_are_found(monkeypatch):
    """Whose operands have 11 digits, as float16 has."""
    shape = a_class(dtype="float32", hidden=0)
    monkeypatch.setattr(verify._Example, "_laid_out", lambda self, x: x.half().float())
    assert not trust.checked(shape, CPU).ok


def test_what_a_launch_raises_is_an_outcome(monkeypatch):
    def launch(*_, **__):
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(run.Attention, "_launch", launch)
    assert str(trust.checked(a_class(), CPU)) == "out of resource: shared memory"


def test_nothing_of_the_caller_reaches_a_check_or_is_changed(monkeypatch):
    """Inference mode, autocast, the default dtype, random numbers, a backward pass that is under way."""
    seen = []

    def watching(shape, device):
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))
        return findings(shape, device)

    findings = verify.findings
    monkeypatch.setattr(verify, "findings", watching)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert trust.checked(a_class(hidden=0), CPU).ok
        assert torch.is_inference_mode_enabled() and torch.is_autocast_enabled("cpu")
    torch.set_default_dtype(torch.float64)
    try:
        assert trust.checked(a_class(hidden=0), CPU).ok
    finally:
        torch.set_default_dtype(torch.float32)

    class Within(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, *grads):
            assert trust.checked(a_class(hidden=0), CPU).ok
            return grads[0]

    Within.apply(torch.ones(1, requires_grad=True)).sum().backward()
    assert torch.equal(torch.get_rng_state(), before) and seen == [(True, False, False)] * 3


def test_auto_on_a_pretended_gpu(monkeypatch, tmp_path):
    """All the way: the first call checks, the kernels run, and the answer says so."""
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path))
    monkeypatch.setattr(triton, "serves", lambda device: True)
    monkeypatch.setattr(trust, "INTERPRETED", False)
    trust.forget()
    pe = dape.build("dape-kerple", num_heads=2, head_dim=16, train_length=8, hidden=4)
    q = torch.randn(1, 2, 5, 16)
    out, choice = dape.attention(q, q, q, pe, explain=True)
    assert choice.impl == "triton" and "verified against the reference on this GPU (largest error 0.0" in choice.reason
    torch.testing.assert_close(out, dape.attention(q, q, q, pe, impl="reference"), rtol=1e-4, atol=1e-5)
    assert len(list(tmp_path.glob("verified/interpreter-*.json"))) == 1
    trust.forget()


def test_class_fields_are_the_constants_of_the_kernels():
    """For every class: what the check launches is compiled for the same constants as the call."""
    seen = []
    grid = Grid.of_length(3, 5, causal=True, device=CPU)
    for label in ("kerple", "dape-kerple", "fire", "dape-fire", "nope"):
        pe = dape.build(label, num_heads=2, head_dim=16, train_length=8)
        q, k = torch.randn(1, 2, 3, 16), torch.randn(1, 1, 5, 16)
        form = closed_form(pe)
        shape = ShapeClass(**class_of(q, k, k, grid, form, tables=True))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                run.Attention, "_launch", lambda of, kernel, g, a, terms, more: seen.append(of.constants(terms))
            )
            dape.attention(q, k, k, pe, impl="triton")
            verify._Example(shape, DECODING, 0).launched(CPU)
    for call, check in zip(seen[::2], seen[1::2], strict=True):
        assert call == check
    assert len(seen) == 10
