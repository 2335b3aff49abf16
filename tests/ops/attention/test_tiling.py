import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dape.ops.attention import tiling
from dape.ops.attention.parallel import balanced_shares
from dape.ops.attention.tiling import MIN_ROWS, Tile, plan_tiles

SIZES = [1, 2, 7, 8, 9, 64, 129]


def visible_cells(batch: int, queries: int, keys: int, offset: int | None) -> torch.Tensor:
    lag_to_first_key = torch.arange(queries)[:, None] + (keys if offset is None else offset)
    return (torch.arange(keys) <= lag_to_first_key).expand(batch, queries, keys)


def check_cover(tiles: list[Tile], batch: int, queries: int, keys: int, offset: int | None) -> None:
    visits, rows = torch.zeros(batch, queries, keys), torch.zeros(batch, queries)
    for tile in tiles:
        visits[tile.b0 : tile.b1, tile.i0 : tile.i1, : tile.keys] += 1
        rows[tile.b0 : tile.b1, tile.i0 : tile.i1] += 1
    assert (visits[visible_cells(batch, queries, keys, offset)] == 1).all()
    assert (visits <= 1).all()
    assert (rows == 1).all(), "every row is written once, also one that sees nothing"


@pytest.mark.parametrize("queries", SIZES)
@pytest.mark.parametrize("keys", [1, 7, 129])
@pytest.mark.parametrize("shift", [None, -200, -3, 0, 5, 200])
def test_every_visible_cell_is_in_one_tile(queries, keys, shift):
    offset = None if shift is None else keys - queries + shift
    for budget in (1, 4096, 1 << 20):
        tiles = plan_tiles(batch=5, queries=queries, keys=keys, offset=offset, planes=16, itemsize=4, budget=budget)
        check_cover(tiles, 5, queries, keys, offset)


@settings(deadline=None, derandomize=True)
@given(
    batch=st.integers(0, 9),
    queries=st.integers(0, 70),
    keys=st.integers(1, 70),
    offset=st.none() | st.integers(-80, 80),
    planes=st.integers(1, 40),
    budget=st.integers(1, 1 << 18),
)
def test_tiles_cover_and_keep_to_their_budget(batch, queries, keys, offset, planes, budget):
    tiles = plan_tiles(batch=batch, queries=queries, keys=keys, offset=offset, planes=planes, itemsize=4, budget=budget)
    check_cover(tiles, batch, queries, keys, offset)
    for tile in tiles:
        size = tile.cells * planes * 4
        assert size <= budget or (tile.items == 1 and tile.rows <= MIN_ROWS)


def test_causal_tiles_leave_out_keys_none_of_their_rows_sees():
    queries = 4 * MIN_ROWS + 8
    budget = 4 * (queries + 10) * MIN_ROWS
    tiles = plan_tiles(batch=1, queries=queries, keys=queries + 10, offset=10, planes=1, itemsize=4, budget=budget)
    assert len(tiles) > 3
    for tile in tiles:
        assert tile.keys == tile.i1 + 10


def test_small_items_share_a_tile():
    tiles = plan_tiles(batch=7, queries=5, keys=5, offset=None, planes=4, itemsize=4, budget=4 * 4 * 25 * 3)
    assert [(t.b0, t.b1) for t in tiles] == [(0, 3), (3, 6), (6, 7)]


def test_several_items_share_a_causal_tile_of_few_rows():
    length, planes = 4 * MIN_ROWS, 4
    budget = 4 * planes * 3 * MIN_ROWS * length
    tiles = plan_tiles(
        batch=7, queries=length, keys=length, offset=0, planes=planes, itemsize=4, budget=budget, most_items=None
    )
    check_cover(tiles, 7, length, length, 0)
    assert {(t.b0, t.b1) for t in tiles} == {(0, 3), (3, 6), (6, 7)}, "the same items for all rows"
    assert {t.rows for t in tiles} == {MIN_ROWS}


def test_items_of_a_tile_can_be_limited():
    plan = {"batch": 7, "queries": 5, "keys": 5, "offset": 0, "planes": 1, "itemsize": 4, "budget": 1 << 20}
    assert [t.items for t in plan_tiles(**plan)] == [7]
    assert [t.items for t in plan_tiles(**plan, most_items=4)] == [4, 3]


@pytest.mark.parametrize("cells", [1, 5, 11, 25, 1000])
@pytest.mark.parametrize("items", [1, 3])
def test_strips_are_the_tile_from_the_last_row_up(items, cells):
    tile = Tile(b0=2, b1=2 + items, i0=10, i1=17, keys=5)
    plane = torch.arange(tile.cells).view(items, tile.rows, tile.keys)  # of one head, rows reversed
    seen = []
    for strip, columns in tile.strips(cells):
        first = tile.i1 - strip.i1
        assert torch.equal(plane.flatten()[columns], plane[:, first : first + strip.rows].flatten())
        assert (strip.b0, strip.b1, strip.keys) == (tile.b0, tile.b1, tile.keys)
        assert items > 1 or strip.cells <= max(cells, tile.keys)
        seen += range(strip.i0, strip.i1)
    assert sorted(seen) == list(range(tile.i0, tile.i1))


def test_default_budget_is_the_cache_share(monkeypatch):
    plan = {"batch": 1, "queries": 4 * MIN_ROWS, "keys": 64, "offset": None, "planes": 1, "itemsize": 4}
    monkeypatch.setattr(tiling, "cache_share", lambda: 4 * 64 * MIN_ROWS)
    assert [t.rows for t in plan_tiles(**plan)] == [MIN_ROWS] * 4


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [({3: "32768K", 2: "512K"}, 32 << 20), ({2: "512K"}, 512 << 10), ({3: "?", 2: "1K"}, 1 << 10)],
)
def test_the_last_level_of_the_cache_that_the_system_tells(sizes, expected, monkeypatch):
    def read_text(path) -> str:
        level = int(path.parent.name.removeprefix("index"))
        if level not in sizes:
            raise FileNotFoundError(path)
        return f"{sizes[level]}\n"

    monkeypatch.setattr(tiling.Path, "read_text", read_text)
    assert tiling.last_level_cache() == expected


def test_cache_share_is_a_sensible_number_of_bytes():
    assert 1 << 20 <= tiling.cache_share() <= 8 << 20


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_shares_hold_every_job_once_and_are_balanced(workers):
    jobs = list(range(1, 30))
    shares = balanced_shares(jobs, float, workers)
    assert sorted(job for share in shares for job in share) == jobs
    assert len(shares) == workers
    loads = [sum(share) for share in shares]
    assert max(loads) - min(loads) <= max(jobs)
    assert balanced_shares(jobs, float, workers) == shares


def test_shares_of_equal_jobs_do_not_depend_on_anything_but_their_order():
    assert balanced_shares("abcd", lambda _: 1.0, 2) == [["a", "c"], ["b", "d"]]


def test_there_is_a_share_even_without_jobs_and_no_more_shares_than_jobs():
    assert balanced_shares([], float, 4) == [[]]
    assert balanced_shares([3, 5], float, 4) == [[5], [3]]
