"""That tests here see it when memory is read that nobody has written: the fixture of conftest.py against defects."""

import pytest
import torch
from tests.ops.attention.kernels import NAN_SCRATCH, built, with_defect

import dape
from dape.ops.attention import tiles
from dape.ops.attention.fused import library
from dape.ops.attention.fused.available import why_not_compiled

compiled = pytest.mark.skipif(why_not_compiled(torch.empty(0)) is not None, reason="no compiled kernel")


def out_and_gradient(impl: str, *, queries: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    pe = dape.build("dape-kerple", num_heads=2, head_dim=8, train_length=16)
    q, k, v = (torch.randn(1, 2, t, 8, requires_grad=True) for t in (queries, 12, 12))
    out = dape.attention(q, k, v, pe, impl=impl)
    out.sum().backward()
    assert k.grad is not None
    return out.detach(), k.grad


def test_new_memory_is_nan():
    like = torch.ones(2)
    for x in (torch.empty(3), torch.empty_like(like), like.new_empty(2), torch.empty_strided((2,), (1,))):
        assert x.isnan().all()


@pytest.mark.parametrize("impl", ["blocked", pytest.param("fused", marks=compiled)])
def test_the_operator_reads_nothing_that_it_has_not_written(impl):
    assert all(x.isfinite().all() for x in out_and_gradient(impl))


def test_a_tile_that_is_not_written_shows(monkeypatch):
    monkeypatch.setattr(tiles, "_forward_tile", lambda *_: None)
    assert out_and_gradient("blocked")[0].isnan().any()


@compiled
def test_sums_that_do_not_begin_at_zero_show(monkeypatch):
    monkeypatch.setattr(library, "zeros", library.empty)
    assert out_and_gradient("fused")[1].isnan().any()


@compiled
@pytest.mark.slow
def test_scratch_that_is_not_cleared_shows(tmp_path, monkeypatch):
    right = "  std::memset(p.O, 0, 4 * c.heads * s.rows * padded(c.value_width));\n"
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    kernel = library.opened(built(NAN_SCRATCH, source=with_defect(tmp_path, right, "")))
    monkeypatch.setattr(library, "load", lambda: kernel)
    assert out_and_gradient("fused")[0].isnan().any()
