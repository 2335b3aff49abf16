"""The tile engine as a whole: memory and precision."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import dape
from dape.ops.attention import lag_tables, tiles
from dape.ops.attention.fused.available import why_not_compiled

HEADS, WIDTH = 4, 4

every_kernel = pytest.mark.parametrize("name", ["kerple", "dape-kerple", "dape-rope", "fire", "dape-fire", "cope"])


def make(name: str, length: int, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    pe = dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=16, **({"hidden": 4} if "dape" in name else {}))
    return pe, [torch.randn(1, HEADS, length, WIDTH, dtype=dtype, requires_grad=True) for _ in range(3)]


@every_kernel
def test_what_is_saved_for_backward_is_linear_in_the_length(name, tile_bytes):
    tile_bytes(16 << 10)
    largest = {}
    for length in (256, 512):
        pe, inputs = make(name, length)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            dape.attention(*inputs, pe, impl="blocked")
        assert sizes
        largest[length] = max(sizes)
    assert largest[512] <= 2 * largest[256] < 256 * 256


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hidden_units_of_a_cell_lie_an_odd_number_of_cache_lines_apart(dtype):
    x = torch.zeros(1, HEADS, 64, WIDTH, dtype=dtype)
    wa = torch.zeros(8, HEADS, dtype=dtype)
    call = tiles.Call(x, x, x, wa, wa.t(), causal_offset=0)
    scratch = tiles._Scratch(call, call.tiles, head_planes=1, hidden_planes=2)
    for tile in call.tiles:
        for strip, _ in call.strips(tile):
            hidden = scratch.hidden(strip, 1)
            lines, rest = divmod(hidden.stride(0) * dtype.itemsize, tiles.CACHE_LINE)
            assert rest == 0 and lines % 2 == 1
            assert hidden.stride(0) >= strip.cells


@every_kernel
def test_an_empty_batch(name):
    pe, inputs = make(name, 9)
    inputs = [x.detach()[:0].requires_grad_() for x in inputs]
    dape.attention(*inputs, pe, impl="blocked").sum().backward()
    assert all(x.grad is not None and x.grad.shape == x.shape for x in inputs)


class LargestStorage(TorchDispatchMode):
    """The largest tensor that any operation returns, also inside of our own operators."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0
        own = torch.ops.dape
        self.inside = {
            own.lag_attention.default: lag_tables._forward._init_fn,
            own.lag_attention_backward.default: lag_tables._backward._init_fn,
        }

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in self.inside:
            with self:
                return self.inside[func](*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.itemsize)
        return result


@pytest.mark.parametrize("causal", [False, True])
@every_kernel
def test_no_tensor_grows_with_the_square_of_the_length(name, causal, tile_bytes):
    tile_bytes(8 << 10)
    if name == "cope" and not causal:
        return
    largest = {}
    for length in (128, 256):
        pe, inputs = make(name, length)
        with LargestStorage() as seen:
            dape.attention(*inputs, pe, causal=causal, impl="blocked").sum().backward()
        largest[length] = seen.numbers
    assert 0 < largest[256] <= 2.2 * largest[128]
    assert largest[256] < HEADS * 256 * 256 / 2, "much less than one score matrix of all heads"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "impl"),
    [
        *(("dape-kerple", "blocked"), ("dape-fire", "blocked")),
        *((name, "fused") for name in ("transformer-xl", "cope", "dape-v2-kerple")),
    ],
)
def test_peak_memory_is_linear_in_the_length(name, impl):
    if impl == "fused" and (reason := why_not_compiled(torch.empty(0))):
        pytest.skip(reason)
    program = """
import sys, torch, dape
from dape.bench.memory import extra_bytes

def training_step(length):
    q, k, v = (torch.randn(1, 12, length, 64, requires_grad=True) for _ in range(3))
    pe = dape.build(sys.argv[1], num_heads=12, head_dim=64, train_length=512)
    return lambda: dape.attention(q, k, v, pe, impl=sys.argv[3]).sum().backward()

torch.set_num_threads(2)
training_step(64)()
print(extra_bytes(training_step(int(sys.argv[2]))))
"""

    def peak(length: int) -> int:
        arguments = [sys.executable, "-c", program, name, str(length), impl]
        return int(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)

    short, long = peak(1536), peak(3072)
    assert long <= 2.3 * short
    assert long < 4 * 12 * 3072 * 3072, "less than one score matrix of all heads"


@pytest.mark.parametrize("impl", ["blocked", "reference", "auto"])
@every_kernel
def test_autocast_does_not_reach_inside(name, impl, three_workers, tile_bytes):
    tile_bytes(4096)
    pe, inputs = make(name, 65)
    q, k, v = (x.detach() for x in inputs)
    expected = dape.attention(q, k, v, pe, impl=impl)
    with torch.autocast("cpu", torch.bfloat16):
        assert (q @ k.mT).dtype == torch.bfloat16
        out = dape.attention(q, k, v, pe, impl=impl)
        half = dape.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), pe, impl=impl)
    assert out.dtype == torch.float32 and torch.equal(out, expected)
    assert half.dtype == torch.bfloat16


def test_workers_of_the_backward_pass_are_limited(three_workers, tile_bytes, monkeypatch):
    tile_bytes(4096)
    monkeypatch.setattr(tiles, "MAX_BACKWARD_WORKERS", 2)
    counts, right = [], tiles.run_shares
    monkeypatch.setattr(
        tiles, "run_shares", lambda work, shares, **at: counts.append(len(shares)) or right(work, shares, **at)
    )
    pe, inputs = make("dape-kerple", 64)
    dape.attention(*inputs, pe, impl="blocked").sum().backward()
    assert counts == [3, 2]


@pytest.mark.parametrize(("batch", "queries"), [(1, 2), (1, 40), (9, 13)])
@pytest.mark.parametrize("impl", ["blocked", "fused"])
@pytest.mark.parametrize("name", ["kerple-power", "dape-kerple-power"])
def test_one_key_with_all_the_weight_leaves_no_gradient(name, impl, batch, queries):
    """B is -1e7 even at the nearest key, and a residue of 1e-7 in its logit's gradient would be one of 1 in r1's."""
    if impl == "fused" and (why := why_not_compiled(torch.empty(0))):
        pytest.skip(why)
    keys = 70
    torch.manual_seed(0)
    pe = dape.build(name, num_heads=HEADS, head_dim=16, train_length=16)
    with torch.no_grad():
        base = getattr(pe, "base", pe)
        base.r1.fill_(2.0)
        base.r2.fill_(1.5)
    q, k, v, towards = (torch.randn(batch, HEADS, n, 16) for n in (queries, keys, keys, queries))
    positions = {"q_pos": 32768 + torch.arange(queries), "k_pos": torch.arange(keys)}
    dape.attention(q, k, v, pe, impl=impl, **positions).backward(towards)
    assert all(p.grad is not None and not p.grad.any() for p in pe.parameters())


@pytest.mark.parametrize("name", ["kerple", "dape-kerple", "dape-fire"])
def test_autocast_does_not_reach_the_backward_pass_of_tiles(name):
    pe, inputs = make(name, 65)
    expected = torch.autograd.grad(dape.attention(*inputs, pe, impl="blocked").sum(), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        actual = torch.autograd.grad(dape.attention(*inputs, pe, impl="blocked").sum(), inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
