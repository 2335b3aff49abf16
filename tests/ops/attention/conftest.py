"""Small inputs that still need many tiles, and several workers to compute them."""

import pytest
import torch

from dape.ops.attention import operator, row_blocks, tiles, tiling


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
