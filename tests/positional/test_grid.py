from dataclasses import replace

import pytest
import torch

from dape import Draw, Grid


def stretched(length: int, factor: int, *, future: int = 1) -> Draw:
    """Positions times ``factor``, lags to the past times ``factor``, to the future times ``factor * future``."""
    n = torch.arange(length)
    return Draw(positions=factor * n, past=factor * n, future=factor * future * n, pool=factor * length)


def test_without_positions_queries_are_the_last_keys():
    grid = Grid.of_length(2, 5, causal=True)
    assert grid.q_pos.tolist() == [3, 4]
    assert grid.k_pos.tolist() == [0, 1, 2, 3, 4]
    assert grid.offset == 3
    assert grid.lag().tolist() == [[3, 2, 1, 0, -1], [4, 3, 2, 1, 0]]


def test_a_draw_changes_what_is_read_but_not_what_is_visible():
    grid = Grid.of_length(2, 3, causal=True)
    drawn = grid.read_through(stretched(3, 10, future=2))
    assert drawn.q_pos.tolist() == [10, 20]
    assert drawn.k_pos.tolist() == [0, 10, 20]
    assert drawn.lag().tolist() == [[10, 0, -20], [20, 10, 0]]
    assert torch.equal(drawn.visible(), grid.visible())
    assert drawn.read_through(None).lag().tolist() == [[1, 0, -1], [2, 1, 0]]


def test_extreme_lags_causal_reach_back_to_position_zero():
    """Also when the first keys have left the cache."""
    grid = Grid(q_index=torch.tensor([7, 8]), k_index=torch.tensor([5, 6, 7, 8]), causal=True)
    far, near = grid.extreme_lags()
    assert far.tolist() == [7, 8]
    assert near.tolist() == [0, 0]


def test_extreme_lags_bidirectional():
    far, near = Grid.of_length(4, 4, causal=False).extreme_lags()
    assert far.tolist() == [0, 1, 2, 3]
    assert near.tolist() == [-3, -2, -1, 0]
    far, near = Grid.of_length(4, 4, causal=False).read_through(stretched(4, 10, future=2)).extreme_lags()
    assert far.tolist() == [0, 10, 20, 30]
    assert near.tolist() == [-60, -40, -20, 0]


PACKED = {  # two documents of 3 and 2 tokens with their own positions; the last token of the first is padding
    "q_index": torch.tensor([0, 1, 2, 0, 1]),
    "k_index": torch.tensor([0, 1, 2, 0, 1]),
    "q_document": torch.tensor([7, 7, 7, 4, 4]),
    "k_document": torch.tensor([7, 7, 7, 4, 4]),
    "key_padding_mask": torch.tensor([[False, False, True, False, False]]),
}


def test_extreme_lags_count_neither_padding_nor_other_documents():
    far, near = Grid(**PACKED, causal=False).extreme_lags()
    assert far.tolist() == [[0, 1, 2, 0, 1]]
    assert near.tolist() == [[-1, 0, 1, -1, 0]]
    far, near = Grid(**{**PACKED, "key_padding_mask": None}, causal=False).extreme_lags()
    assert far.tolist() == [0, 1, 2, 0, 1]
    assert near.tolist() == [-2, -1, 0, -1, 0]
    padding = torch.tensor([[True, False, False], [False, False, True]])
    far, near = Grid(
        q_index=torch.arange(3), k_index=torch.arange(3), causal=False, key_padding_mask=padding
    ).extreme_lags()
    assert far.tolist() == [[-1, 0, 1], [0, 1, 2]]
    assert near.tolist() == [[-2, -1, 0], [-1, 0, 1]]


def test_longest_is_the_last_position_of_the_own_document():
    q_end, k_end = Grid(**PACKED, causal=True).longest()
    assert q_end.tolist() == k_end.tolist() == [[1, 1, 1, 1, 1]]
    q_end, k_end = Grid(**{**PACKED, "key_padding_mask": None}, causal=True).rows(slice(3)).longest()
    assert q_end.tolist() == [2, 2, 2]
    assert k_end.tolist() == [2, 2, 2, 1, 1]
    q_end, k_end = Grid.of_length(2, 5, causal=True).read_through(stretched(5, 10)).longest()
    assert q_end.item() == k_end.item() == 40


def test_items_of_a_batch():
    n = torch.arange(3)
    per_item = torch.stack([n, n + 10, n + 20])
    part = Grid(q_index=per_item, k_index=n, causal=True, key_padding_mask=per_item > 11).items(1, 3)
    assert part.q_index.tolist() == [[10, 11, 12], [20, 21, 22]]
    assert part.k_index.tolist() == [0, 1, 2]
    assert part.key_padding_mask.tolist() == [[False, False, True], [True, True, True]]


@pytest.mark.parametrize(
    "grid, count",
    [
        (Grid.of_length(4, 4, causal=True), 7),
        (Grid.of_length(2, 6, causal=True), 7),
        (Grid.of_length(6, 6, causal=False).rows(slice(2, 5)), 8),
        (Grid(q_index=torch.tensor([9, 2]), k_index=torch.tensor([0, 3, 4]), causal=False), 6),
        (Grid(q_index=torch.tensor([[4, 5], [1, 2]]), k_index=torch.tensor([[3, 4], [0, 2]]), causal=True), 4),
    ],
    ids=["square", "cache", "row block", "scattered", "batch"],
)
def test_lag_table_lists_every_lag_once(grid, count):
    lags, index = grid.lag_table()
    assert len(lags) == count == len(set(lags.tolist()))
    assert torch.equal(lags[index], grid.q_index.unsqueeze(-1) - grid.k_index.unsqueeze(-2))


def test_lag_table_reads_through_the_draw():
    lags, index = Grid.of_length(3, 3, causal=False).read_through(stretched(3, 10)).lag_table()
    assert lags[index].tolist() == [[0, -10, -20], [10, 0, -10], [20, 10, 0]]


def test_visible():
    assert Grid.of_length(3, 3, causal=False).visible() is None
    assert Grid.of_length(2, 3, causal=True).visible().tolist() == [[True, True, False], [True, True, True]]

    n = torch.arange(3)
    padding = torch.tensor([[True, False, False]])
    grid = Grid(q_index=n, k_index=n, causal=True, key_padding_mask=padding)
    assert grid.visible().tolist() == [[[False] * 3, [False, True, False], [False, True, True]]]

    document = torch.tensor([0, 1, 1])
    grid = Grid(q_index=n, k_index=n, causal=False, q_document=document, k_document=document)
    assert grid.visible().tolist() == [[True, False, False], [False, True, True], [False, True, True]]


@pytest.mark.parametrize("rows", [slice(1, 3), slice(3), slice(2, None), slice(-2, None), slice(-3, -1)])
def test_row_slices_keep_the_lags_and_a_true_offset(rows):
    whole = Grid.of_length(4, 6, causal=True)
    part = whole.rows(rows)
    assert torch.equal(part.lag(), whole.lag()[rows])
    assert part.offset == part.q_index[0] - part.k_index[0]


def test_chosen_rows_and_first_keys():
    n = torch.arange(4)
    grid = Grid(
        q_index=n, k_index=n, causal=True, offset=0, key_padding_mask=n[None] == 0, q_document=n, k_document=n + 1
    )
    part = grid.rows(torch.tensor([3, 1]))
    assert part.q_index.tolist() == part.q_document.tolist() == [3, 1]
    assert part.k_index.tolist() == [0, 1, 2, 3]
    assert part.offset is None, "rows out of order have no offset"

    part = grid.first_keys(2)
    assert part.q_index.tolist() == [0, 1, 2, 3]
    assert part.k_index.tolist() == [0, 1]
    assert part.k_document.tolist() == [1, 2]
    assert part.key_padding_mask.tolist() == [[True, False]]


def test_padding_does_not_count_among_negative_positions():
    n = torch.arange(3) - 9
    grid = Grid(q_index=n, k_index=n, causal=False, key_padding_mask=torch.tensor([[False, False, True]]))
    assert grid.extreme_lags()[1].tolist() == [[-1, 0, 1]]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.uint16, torch.int32, torch.uint64])
def test_indices_of_any_width_are_held_in_64_bits(dtype):
    q, k = torch.arange(100, 103), torch.arange(2)
    narrow = Grid(
        q_index=q.to(dtype), k_index=k.to(dtype), causal=False, q_document=q.to(dtype), k_document=k.to(dtype)
    )
    assert narrow.lag().tolist() == [[100, 99], [101, 100], [102, 101]]
    assert (Grid.at(k.to(dtype), q.to(dtype), causal=False).lag() < 0).all()
    assert narrow.q_document.dtype == narrow.k_document.dtype == torch.int64
    with pytest.raises(TypeError, match=r"q_index must hold integers, got torch\.float32"):
        Grid(q_index=torch.zeros(3), k_index=k, causal=True)


def test_a_range_of_lags_is_listed_whole_where_it_is_short():
    positions = torch.tensor([0, 1, 4])
    lags, _ = Grid.at(positions, positions, causal=False).lag_table()
    assert lags.tolist() == list(range(-4, 5))


def test_a_gap_costs_no_more_entries_than_there_are_cells():
    grid = Grid.at(torch.tensor([0, 10**12]), torch.tensor([0, 1, 10**12]), causal=False)
    lags, index = grid.lag_table()
    assert len(lags) <= 6
    assert torch.equal(lags[index], grid.lag())


def test_each_item_may_be_packed_in_its_own_way():
    """Documents of 2 and 1 tokens in the first item, of 1 and 2 in the second; one query of each is left out."""
    documents = torch.tensor([[5, 5, 9], [5, 9, 9]])
    index = torch.arange(3)
    grid = Grid(q_index=index[1:], k_index=index, causal=False, q_document=documents[:, 1:], k_document=documents)
    assert grid.visible().int().tolist() == [[[1, 1, 0], [0, 0, 1]], [[0, 1, 1], [0, 1, 1]]]


@pytest.mark.parametrize("field", ["q_index", "k_index", "q_document", "k_document", "key_padding_mask"])
def test_one_field_of_its_own_per_item_makes_items_differ(field):
    n = torch.arange(3)
    shared = Grid(q_index=n, k_index=n, causal=True, q_document=n, k_document=n)
    assert shared.same_for_all_items
    own = n.expand(2, 3) if field != "key_padding_mask" else torch.zeros(2, 3, dtype=torch.bool)
    assert not replace(shared, **{field: own}).same_for_all_items


def test_items_take_their_own_part_of_every_field():
    n = torch.arange(12).view(4, 3)
    fields = {"q_index": n, "k_index": n + 100, "q_document": n + 200, "k_document": n + 300}
    part = Grid(**fields, key_padding_mask=n % 2 == 0, causal=True).items(1, 3)
    assert part.q_index.tolist() == [[3, 4, 5], [6, 7, 8]]
    for name, start in (("k_index", 100), ("q_document", 200), ("k_document", 300)):
        assert (getattr(part, name) - start).tolist() == [[3, 4, 5], [6, 7, 8]]
    assert part.key_padding_mask.tolist() == [[False, True, False], [True, False, True]]
