"""Tables kept between the tokens of a text: the same results as without, made seldom, never of other parameters."""

from dataclasses import replace

import pytest
import torch

from dape import attention, build
from dape.ops.attention import LagMemory
from dape.ops.attention.engines.cpp import laid_out
from dape.ops.attention.fused.available import why_not_compiled
from dape.ops.attention.memory import FEW_QUERIES, LEAST_ROOM

HEADS, WIDTH = 3, 8
ENCODINGS = ["nope", "alibi", "kerple", "t5", "sandwich", "fire", "rope", "dape-kerple", "dape-nope", "dape-v2-alibi"]


def make(encoding: str, **options):
    torch.manual_seed(0)
    pe = build(encoding, num_heads=HEADS, head_dim=WIDTH, train_length=16, **options)
    with torch.no_grad():
        for p in pe.parameters():  # f is 0 in parts at first
            p.add_(0.1 * torch.rand_like(p))
    return pe


def tensors(keys: int, queries: int = 1, groups: int = HEADS, batch: int = 2):
    generator = torch.Generator().manual_seed(keys)
    shapes = ((batch, HEADS, queries, WIDTH), (batch, groups, keys, WIDTH), (batch, groups, keys, WIDTH))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def counted(pe, monkeypatch) -> list[int]:
    """How many lags each evaluation of the bias was for."""
    sizes: list[int] = []
    form = type(pe).score_form

    def watched(self):
        found = form(self)
        at = found.source.at

        def spy(lags, *, causal):
            sizes.append(len(lags))
            return at(lags, causal=causal)

        return replace(found, source=replace(found.source, at=spy))

    monkeypatch.setattr(type(pe), "score_form", watched)
    return sizes


@pytest.mark.parametrize("impl", ["auto", "blocked"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_growing_text(encoding, impl):
    """Token by token, several at once, across the first growth of the tables, and with fewer keys again."""
    pe, memory = make(encoding), LagMemory()
    with torch.no_grad():
        for keys, queries in (
            (1, 1),
            (5, 2),
            (37, 1),
            (LEAST_ROOM, 8),
            (LEAST_ROOM + 1, 1),
            (700, 3),
            (9, 9),
            (300, 1),
        ):
            q, k, v = tensors(keys, queries)
            found = attention(q, k, v, pe, memory=memory, impl=impl)
            exact = attention(q, k, v, pe, impl="reference")
            torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)


def test_tables_are_made_once(monkeypatch):
    pe, memory = make("dape-kerple"), LagMemory()
    sizes = counted(pe, monkeypatch)
    with torch.no_grad():
        for keys in range(200, 600):
            attention(*tensors(keys, batch=1), pe, memory=memory)
    assert sizes == [room + FEW_QUERIES - 1 for room in (256, 512, 1024)]


@pytest.mark.skipif(why_not_compiled(torch.empty(0)) is not None, reason="the kernel cannot be compiled here")
def test_tables_are_laid_out_once_for_the_compiled_kernel(monkeypatch):
    pe, memory, rooms = make("dape-kerple"), LagMemory(), []
    seen = lambda *given: (rooms.append(given[-1]), laid_out(*given))[1]  # noqa: E731
    monkeypatch.setattr("dape.ops.attention.memory.laid_out", seen)
    with torch.no_grad():
        for keys in range(250, 262):
            attention(*tensors(keys, batch=1), pe, memory=memory, impl="fused")
    assert rooms == [256, 512]


@pytest.mark.parametrize("change", ["in place", "loaded", "another"])
def test_changed_parameters_are_noticed(change):
    pe, memory = make("dape-kerple"), LagMemory()
    q, k, v = tensors(50)
    with torch.no_grad():
        before = attention(q, k, v, pe, memory=memory)
        if change == "in place":
            for p in pe.parameters():
                p.mul_(1.5)
        elif change == "loaded":
            pe.load_state_dict({name: 1.5 * p for name, p in pe.state_dict().items()})
        else:
            pe = make("dape-kerple", hidden=5)
        after = attention(q, k, v, pe, memory=memory)
        torch.testing.assert_close(after, attention(q, k, v, pe, impl="reference"), atol=1e-5, rtol=1e-5)
    assert (after - before).abs().max() > 1e-3


def test_other_calls_do_not_use_it(monkeypatch):
    """Gradients, two directions, positions of one's own, a randomised draw: as without memory."""
    pe, memory = make("dape-kerple"), LagMemory()
    q, k, v = tensors(20, 4)
    attention(q, k, v, pe, memory=memory).sum().backward()
    assert all(p.grad is not None for p in pe.parameters())
    random = build("randomized-alibi", num_heads=HEADS, head_dim=WIDTH, train_length=16).draw(40)
    with torch.no_grad():
        for encoding, more in (
            (pe, {"causal": False}),
            (pe, {"q_pos": torch.arange(4) + 90, "k_pos": torch.arange(20)}),
            (random, {}),
        ):
            found = attention(q, k, v, encoding, memory=memory, **more)
            exact = attention(q, k, v, encoding, impl="reference", **more)
            torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)
    assert memory._tables is None


def test_padding_and_groups():
    pe, memory = make("dape-kerple"), LagMemory()
    hidden = torch.zeros(2, 31, dtype=torch.bool)
    hidden[1, :7] = True
    q, k, v = tensors(31, 2, groups=1)
    with torch.inference_mode():
        found = attention(q, k, v, pe, key_padding_mask=hidden, memory=memory)
        exact = attention(q, k, v, pe, key_padding_mask=hidden, impl="reference")
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)
    assert memory._tables is not None
