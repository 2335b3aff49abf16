"""Small inputs that still need many tiles, several workers to compute them, and memory that is NaN until written."""

import ctypes
import functools

import pytest
import torch
from tests.ops.attention.kernels import NAN_SCRATCH, built

from dape.ops.attention import operator, row_blocks, tiles, tiling
from dape.ops.attention.fused import kinds, library


@functools.cache
def _kernel_with_nan_scratch() -> ctypes.CDLL | None:
    try:
        return library.opened(built(NAN_SCRATCH))
    except (OSError, RuntimeError):  # no compiler: tests of the kernel are skipped
        return None


@functools.cache
def _kind_with_nan_scratch(kind: str) -> ctypes.CDLL:
    return kinds.opened(kind, built(NAN_SCRATCH, source=kinds.source(kind)))


@pytest.fixture(autouse=True)
def nan_until_written(request, monkeypatch):
    """Fill what ``torch.empty`` and its kin return, within torch too, and the kernel's scratch space. Else there often
    is a 0, or what the same call left a moment ago, and a number that nobody has written goes unseen."""
    if "compile" in request.keywords or request.path.name == "test_fused_build.py":
        yield  # other graphs would be compiled; the tests of building look at the library that is built for users
        return
    assert torch.utils.deterministic.fill_uninitialized_memory
    if (kernel := _kernel_with_nan_scratch()) is not None:
        monkeypatch.setattr(library, "load", lambda: kernel)
        monkeypatch.setattr(kinds, "load", _kind_with_nan_scratch)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def three_workers(one_thread):
    torch.set_num_threads(3)


@pytest.fixture
def tile_bytes(monkeypatch):
    """Sets the size of tiles and row blocks, and lets ``auto`` use them for any size."""

    def set_bytes(count: int) -> None:
        monkeypatch.setattr(tiling, "cache_share", lambda: count)
        monkeypatch.setattr(tiling, "MIN_ROWS", 8)
        monkeypatch.setattr(tiles, "STRIP_BYTES", count // 4)
        monkeypatch.setattr(tiles, "SHORT_CALL", 0)
        monkeypatch.setattr(row_blocks, "BLOCK_BYTES", count)
        monkeypatch.setattr(operator, "SMALL_CELLS", 0)

    return set_bytes
