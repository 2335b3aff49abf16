"""Windows whose rows several processes share: the nats of one process, for every encoding.

Threads stand for processes here; tests/training/test_parallel.py and tests/cli/test_eval.py start real ones."""

import threading
from typing import Any

import pytest
import torch

from dape.evaluation.context_parallel import SharedWindows, _Window
from dape.evaluation.perplexity import window_nll
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.ops.attention import operator
from dape.positional.catalogue import encodings

SMALL = {"layers": 2, "width": 16, "heads": 2, "vocabulary": 11, "train_length": 8}


class Threads:
    """A group of threads, of which this is one."""

    def __init__(self, rank: int, world: int, meeting: threading.Barrier, table: dict[int, Any]) -> None:
        self.rank, self.world, self._meeting, self._table = rank, world, meeting, table

    def _told(self, what: Any) -> dict[int, Any]:
        self._table[self.rank] = what
        self._meeting.wait(60)
        found = dict(self._table)
        self._meeting.wait(60)
        return found

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        tensor.copy_(self._told(tensor.clone())[source])

    def all_reduce(self, tensor: torch.Tensor) -> None:
        tensor.copy_(torch.stack(list(self._told(tensor.clone()).values())).sum(0))


def shared_nll(model: DecoderLM, tokens: torch.Tensor, scored: int, world: int) -> list[torch.Tensor]:
    """What every process finds."""
    meeting, table, found = threading.Barrier(world), {}, {}

    def work(rank: int) -> None:
        try:
            reader = SharedWindows(Threads(rank, world, meeting, table))  # pyright: ignore
            found[rank] = reader.nll(model, tokens, scored, seed=3)
        except BaseException:
            meeting.abort()
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == world
    return [found[rank] for rank in range(world)]


def model_of(encoding: str, **options: Any) -> DecoderLM:
    torch.manual_seed(0)
    return DecoderLM(DecoderConfig(encoding=encoding, encoding_options=options, **SMALL)).eval()


NAMES = [*encodings(), "randomized-rope", "randomized-dape-fire", "dape-v2-kerple"]


@pytest.mark.parametrize("encoding", dict.fromkeys(NAMES))
def test_as_one_process(encoding):
    model = model_of(encoding, **({"max_positions": 64} if encoding == "learned" else {}))
    tokens = torch.randint(11, (2, 38), generator=torch.Generator().manual_seed(1))
    expected = window_nll(model, tokens, 37, seed=3)
    for found in shared_nll(model, tokens, 37, 3):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("length", "scored", "world"), [(64, 9, 2), (33, 33, 4), (5, 2, 4), (1, 1, 2), (40, 7, 1)])
def test_odd_lengths_and_more_slices_than_tokens(length, scored, world):
    model, tokens = model_of("dape-kerple"), torch.randint(11, (2, length + 1))
    expected = window_nll(model, tokens, scored, seed=3)
    for found in shared_nll(model, tokens, scored, world):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_every_row_belongs_to_one_process_and_all_see_equally_many_keys(world):
    groups = [Threads(rank, world, threading.Barrier(1), {}) for rank in range(world)]
    own = [_Window(16 * world, group, torch.device("cpu")).own for group in groups]  # pyright: ignore
    assert sorted(torch.cat(own).tolist()) == list(range(16 * world))
    assert len({int((rows + 1).sum()) for rows in own}) == 1


@pytest.mark.parametrize("offset", [0, 5])
def test_masks_in_blocks_of_rows(offset, monkeypatch):
    """Plain scores with the queries anywhere among the keys, as a share of a window has them."""
    model = model_of("rope")
    pe, draw = model.encodings[0], torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 8, generator=draw) for n in (9, 17, 17))
    at = {"q_pos": torch.arange(offset, offset + 9), "k_pos": torch.arange(17)}
    whole = operator.attention(q, k, v, pe, impl="reference", **at)  # pyright: ignore
    monkeypatch.setattr(operator, "MASK_CELLS", 40)
    torch.testing.assert_close(operator.attention(q, k, v, pe, impl="sdpa", **at), whole)  # pyright: ignore
