"""Division of a call into tiles: some batch items x some query rows x all keys that these rows can see."""

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

MIN_ROWS = 32
"""With fewer rows, matrix products are less efficient than with tiles larger than the cache (docs/lab-notes.md)."""
DEFAULT_CACHE = 32 << 20


@dataclass(frozen=True)
class Tile:
    b0: int
    b1: int
    i0: int
    i1: int
    keys: int
    """Keys 0 ... keys-1 are in the tile. A causal tile leaves out keys that none of its rows can see."""

    @property
    def items(self) -> int:
        return self.b1 - self.b0

    @property
    def rows(self) -> int:
        return self.i1 - self.i0

    @property
    def cells(self) -> int:
        return self.items * self.rows * self.keys

    def strips(self, cells: int) -> Iterator[tuple["Tile", slice]]:
        """The tile in parts of about ``cells`` cells, with their columns in a plane of the tile. The first part has the
        last rows, because rows are stored in reversed order. Tiles of several items are small, and are not cut."""
        step = self.rows if self.items > 1 else min(self.rows, max(1, cells // max(1, self.keys)))
        width = self.items * self.keys
        for done in range(0, self.rows, step):
            rows = min(step, self.rows - done)
            strip = replace(self, i0=self.i1 - done - rows, i1=self.i1 - done)
            yield strip, slice(done * width, (done + rows) * width)


def plan_tiles(
    *,
    batch: int,
    queries: int,
    keys: int,
    offset: int | None,
    planes: int,
    itemsize: int,
    budget: int | None = None,
    most_items: int | None = None,
) -> list[Tile]:
    """Tiles of about ``budget`` bytes, if a cell takes ``planes`` numbers of ``itemsize`` bytes.

    The batch is cut at the same items for all rows: every ``tiles[0].items`` items. ``offset`` is the first query's
    position minus the first key's in a causal call with consecutive positions: row i sees the first offset + i + 1
    keys. None: all rows see all keys.
    """
    cells = max(1, (budget or cache_share()) // (planes * itemsize))
    items = min(batch, most_items or batch)
    # Tiles of several items can have fewer rows, and then have fewer hidden cells if they are causal.
    rows = MIN_ROWS if items > 1 and offset is not None and 2 * MIN_ROWS * keys <= cells else None
    blocks = list(_row_blocks(queries, keys, offset, cells, rows))
    largest = max(((i1 - i0) * seen for i0, i1, seen in blocks), default=1)
    items = max(1, min(items, cells // max(1, largest)))
    return [Tile(b0, min(b0 + items, batch), *block) for block in blocks for b0 in range(0, batch, items)]


def _row_blocks(
    queries: int, keys: int, offset: int | None, cells: int, fixed: int | None
) -> Iterator[tuple[int, int, int]]:
    """Blocks of rows as (first row, end, keys), from the last row up: the last row of a block sees the most keys, which
    decide the number of rows."""
    i1 = queries
    while i1 > 0:
        seen = keys if offset is None else max(0, min(keys, offset + i1))
        rows = min(i1, fixed or max(MIN_ROWS, cells // max(1, seen) // MIN_ROWS * MIN_ROWS))
        yield i1 - rows, i1, seen
        i1 -= rows


@functools.lru_cache(maxsize=1)
def cache_share() -> int:
    """Bytes of a worker's tile: an eighth of the last-level cache, which was fastest (2 to 8 MB of 32 MB). Hidden units
    are written once and read twice, and should stay in the cache."""
    return min(max(last_level_cache() // 8, 1 << 20), 8 << 20)


def last_level_cache() -> int:
    """The size in bytes, or a common value if the system does not report it."""
    for index in (3, 2):
        path = Path(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size")
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.endswith("K") and text[:-1].isdigit():
            return int(text[:-1]) << 10
    sysconf = os.sysconf_names.get("SC_LEVEL3_CACHE_SIZE") if hasattr(os, "sysconf_names") else None
    size = os.sysconf(sysconf) if sysconf is not None else 0
    return size if size > 0 else DEFAULT_CACHE
