"""Workers: who runs what must not show in results, in settings of the process, or in other threads and processes."""

import multiprocessing
import threading
import warnings

import pytest
import torch
from torch import Tensor

import dape
from dape.ops.attention import tiles
from dape.ops.attention.parallel import balanced_shares, run_shares

HEADS, WIDTH = 4, 8

both_kernels = pytest.mark.parametrize("name", ["dape-kerple", "dape-fire"])  # lag tables, lag ramps


@pytest.fixture(autouse=True)
def many_tiles(tile_bytes):
    tile_bytes(4096)


def make(name: str, dtype: torch.dtype = torch.float64, *, batch: int = 2):
    torch.manual_seed(0)
    pe = dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=16).to(dtype)
    return pe, [torch.randn(batch, HEADS, 65, WIDTH, dtype=dtype, requires_grad=True) for _ in range(3)]


def run(pe, inputs: list[Tensor]) -> list[Tensor]:
    """Output and all gradients."""
    out = dape.attention(*inputs, pe, impl="blocked")
    towards = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, [*inputs, *pe.parameters()], towards)]


def assert_same_bits(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


def threads_of_a_new_thread() -> int:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return seen[0]


@pytest.mark.parametrize(("batch", "bytes_"), [(2, 4096), (7, 1 << 16)])
@both_kernels
def test_same_bits_every_time(name, batch, bytes_, three_workers, tile_bytes):
    """Tiles for every worker; items for more shares than there are workers."""
    tile_bytes(bytes_)
    pe, inputs = make(name, torch.float32, batch=batch)
    first = run(pe, inputs)
    for _ in range(4):
        assert_same_bits(run(pe, inputs), first)


@pytest.mark.parametrize("batch", [2, 7])
@both_kernels
def test_any_number_of_workers_gives_the_same_result(name, batch, tile_bytes):
    tile_bytes(1 << 16)  # several items a tile
    pe, inputs = make(name, batch=batch)
    results = []
    for workers in (1, 2, 3, 7):
        torch.set_num_threads(workers)
        results.append(run(pe, inputs))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("workers", [1, 2, 5])
@both_kernels
def test_thread_settings_are_left_alone(name, workers):
    torch.set_num_threads(workers)
    before = torch.get_num_threads(), threads_of_a_new_thread()
    run(*make(name))
    assert (torch.get_num_threads(), threads_of_a_new_thread()) == before


def spied_tiles(monkeypatch, see, name: str = "dape-kerple") -> set:
    """What ``see`` returns in each thread that computes a tile."""
    seen, original = set(), tiles._forward_tile

    def spy(*args):
        seen.add(see())
        original(*args)

    monkeypatch.setattr(tiles, "_forward_tile", spy)
    run(*make(name))
    return seen


def test_workers_take_part(three_workers, monkeypatch):
    names = spied_tiles(monkeypatch, lambda: threading.current_thread().name)
    assert len(names) > 1 and all(name.startswith("dape") for name in names)


def test_short_calls_without_f_are_split_inside_their_operations(three_workers, monkeypatch):
    monkeypatch.setattr(tiles, "SHORT_CALL", 1 << 23)
    here = threading.current_thread().name
    assert spied_tiles(monkeypatch, lambda: threading.current_thread().name, "kerple") == {here}
    assert here not in spied_tiles(monkeypatch, lambda: threading.current_thread().name, "dape-kerple")


def test_workers_run_on_one_core_each(three_workers, monkeypatch):
    assert spied_tiles(monkeypatch, torch.get_num_threads) == {1}


def test_results_come_in_the_order_of_the_shares(three_workers):
    shares = balanced_shares(list(range(10)), lambda job: 10 - job, 3)
    assert run_shares(list, shares) == shares


def test_errors_of_a_worker_reach_the_caller(three_workers, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of luck")

    pe, inputs = make("dape-kerple")
    monkeypatch.setattr(tiles, "_forward_tile", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        run(pe, inputs)


@both_kernels
def test_inference_mode(name, three_workers):
    pe, inputs = make(name)
    expected = run(pe, inputs)[0]
    with torch.inference_mode():
        out = dape.attention(*inputs, pe, impl="blocked")
        assert out.is_inference()
    assert torch.equal(out, expected)
    with torch.no_grad():
        assert not dape.attention(*inputs, pe, impl="blocked").requires_grad


@both_kernels
def test_called_from_several_threads_at_once(name, three_workers):
    pe, inputs = make(name)
    expected, results = run(pe, inputs), []
    threads = [threading.Thread(target=lambda: results.append(run(pe, inputs))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 4
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-11, atol=1e-11)


def in_a_forked_child(work) -> None:
    """Fails if the child does or if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads in the parent
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
    child.join(60)
    if child.is_alive():
        child.kill()
        pytest.fail("the forked child hangs")
    assert child.exitcode == 0


can_fork = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system cannot fork")


@can_fork
def test_workers_after_fork(three_workers):
    """A forked child has none of its parent's worker threads and needs its own."""
    shares = [[1], [2, 3], [4]]
    assert run_shares(sum, shares) == [1, 5, 4]

    def child() -> None:
        assert run_shares(sum, shares) == [1, 5, 4]

    in_a_forked_child(child)
    assert run_shares(sum, shares) == [1, 5, 4]


@can_fork
@both_kernels
def test_attention_after_fork(name):
    """On one thread, as in a data loader: torch itself hangs in a child whose parent has used several (OpenMP)."""
    pe, inputs = make(name)
    expected = run(pe, inputs)
    in_a_forked_child(lambda: assert_same_bits(run(pe, inputs), expected))
