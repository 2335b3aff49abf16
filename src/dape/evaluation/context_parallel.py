"""Context parallelism: several processes read one window, each its share of the rows against all keys and values.

N processes cut a window into 2N slices of consecutive tokens. Process r takes slices r and 2N-1-r, which together see
equally many keys for every r. Residual stream, queries, feed-forward and logits of a row exist in one process only;
keys and values are gathered for one layer at a time. The operator is exact on any rows, so the nats are those of one
process, for every encoding.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dape.evaluation.perplexity import Reader, nats
from dape.models.decoder import Block, DecoderLM
from dape.models.readable import Readable
from dape.ops.attention import attention
from dape.positional.base import PositionalEncoding
from dape.positional.grid import Grid


class Processes(Protocol):
    """The methods of :class:`dape.training.parallel.Group` that are used here."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Fill the tensor in every process with that of process ``source``."""
        ...

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace the tensor by its sum over all processes."""
        ...

    def from_first(self, work: Callable[[], str]) -> str:
        """Call ``work`` in the first process, and return its result in all."""
        ...


class SharedWindows(Reader):
    """A reader for every process of a group, which all read the same windows."""

    def __init__(self, group: Processes) -> None:
        self.group = group

    def size(self, model: Readable, length: int) -> int:
        return int(self.group.from_first(lambda: str(super(SharedWindows, self).size(model, length))))

    def nll(self, model: DecoderLM, tokens: Int[Tensor, "b t"], scored: int, *, seed: int) -> Float[Tensor, "b s"]:
        length = tokens.shape[1] - 1
        with torch.inference_mode():
            encodings = model.drawn_encodings(length, torch.Generator().manual_seed(seed))
            hidden, rows = self._hidden(model, tokens[:, :-1], encodings, scored)
            found = torch.zeros(len(tokens), scored, device=tokens.device)
            if len(rows):
                found[:, rows - (length - scored)] = nats(model, hidden, tokens[:, rows + 1])
            self.group.all_reduce(found)
        return found

    def _hidden(
        self, model: DecoderLM, tokens: Int[Tensor, "b t"], encodings: list[PositionalEncoding], scored: int
    ) -> tuple[Float[Tensor, "b r m"], Int[Tensor, " r"]]:
        """Final states of this process's scored tokens, and their positions."""
        window = _Window(tokens.shape[1], self.group, tokens.device)
        rows = window.own
        x = encodings[0].embed(model.embedding(tokens[:, rows]), rows)
        for index, block in enumerate(model.blocks):
            assert isinstance(block, Block)
            if index == len(model.blocks) - 1:  # the last block needs queries of scored tokens only
                rows = rows[rows >= window.length - scored]
            x = _read_block(block, x, encodings[index % len(encodings)], window, len(rows))
        return model.norm(x), rows


class _Window:
    """How the tokens of a window are divided among the processes."""

    def __init__(self, length: int, group: Processes, device: torch.device) -> None:
        self.length, self.group, self.world = length, group, group.world
        self.positions = torch.arange(length, device=device)
        self.slices = self.positions.tensor_split(2 * self.world)
        self.own = torch.cat([self.slices[number] for number in (group.rank, 2 * self.world - 1 - group.rank)])

    def features(self, x: Float[Tensor, "b r m"], pe: PositionalEncoding) -> Float[Tensor, "b t n"] | None:
        """Features of all tokens. Slices are computed in order, as features may depend on the tokens before."""
        kind = pe.features(x[:, :1])
        if kind is None:
            return None
        whole = kind.new_empty(self.length, len(x), kind.shape[-1])
        for number, positions in enumerate(self.slices):
            if not len(positions):
                continue
            source, begin, end = min(number, 2 * self.world - 1 - number), int(positions[0]), int(positions[-1]) + 1
            if source == self.group.rank:
                past = whole[begin - 1] if begin else None
                found = pe.features(x[:, (self.own >= begin) & (self.own < end)], past=past)
                assert found is not None
                whole[begin:end] = found.transpose(0, 1)
            if self.world > 1:
                self.group.broadcast(whole[begin:end], source)
        return whole.transpose(0, 1)

    def with_own(self, k: Float[Tensor, "b g r d"], v: Float[Tensor, "b g r d"]) -> Float[Tensor, "t b n g d"]:
        """A tensor for keys and values of all tokens, filled with those of this process. The token axis is the first,
        so that the rows of a process are contiguous and can be received in place."""
        whole = k.new_empty(self.length, len(k), 2, k.shape[1], k.shape[3])
        whole[self.own, :, 0], whole[self.own, :, 1] = k.permute(2, 0, 1, 3), v.permute(2, 0, 1, 3)
        return whole

    def gather(self, whole: Float[Tensor, "t b n g d"]) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens, in order."""
        for number, positions in enumerate(self.slices):
            if len(positions) and self.world > 1:
                source = min(number, 2 * self.world - 1 - number)
                self.group.broadcast(whole[int(positions[0]) : int(positions[-1]) + 1], source)
        keys, values = whole.permute(2, 1, 3, 0, 4)
        return keys, values


def _read_block(
    block: Block, x: Float[Tensor, "b r m"], pe: PositionalEncoding, window: _Window, last: int
) -> Float[Tensor, "b s m"]:
    """Compute a block on this process's rows; only the ``last`` of them have queries."""
    first = x.shape[1] - last
    features = window.features(block.norm1(x), pe)
    q, whole = _projected(block, x, pe, window, first, features)
    k, v = window.gather(whole)
    y = _attend(q, k, v, pe, window.own[first:], window.positions, features)
    del q, k, v, whole  # frees memory for the feed-forward
    x = x[:, first:] + block.attention.out(y.transpose(1, 2).flatten(2))
    return x + block.feed_forward(block.norm2(x))


def _projected(
    block: Block,
    x: Float[Tensor, "b r m"],
    pe: PositionalEncoding,
    window: _Window,
    first: int,
    features: Float[Tensor, "b t n"] | None,
) -> tuple[Tensor, Tensor]:
    """Queries, and the tensor of keys and values. Copies, so that the projection itself can be freed."""
    q, k, v = block.attention.project(block.norm1(x), None)
    if pe.rotates_once:  # then each process rotates its own keys only
        own = None if features is None else features[:, window.own]
        grid = Grid.at(window.own, window.own, causal=True)
        q, k = pe.rotate(q, k, replace(grid, q_features=own, k_features=own))
    return q[:, :, first:].clone(), window.with_own(k, v)


def _attend(
    q: Float[Tensor, "b h r d"],
    k: Float[Tensor, "b g t d"],
    v: Float[Tensor, "b g t e"],
    pe: PositionalEncoding,
    rows: Int[Tensor, " r"],
    positions: Int[Tensor, " t"],
    features: Float[Tensor, "b t n"] | None,
) -> Float[Tensor, "b h r e"]:
    """Attention for each run of consecutive rows, for which the operator can use tables over lags."""
    ends = (torch.nonzero(rows.diff() != 1).flatten() + 1).tolist()
    runs = zip(q.tensor_split(ends, dim=2), rows.tensor_split(ends), strict=True)
    found = [
        attention(
            queries,
            k,
            v,
            pe,
            q_pos=at,
            k_pos=positions,
            features=None if features is None else (features[:, at], features),
            rotated=pe.rotates_once,
        )
        for queries, at in runs
        if len(at)
    ]
    return torch.cat(found, dim=2) if found else q.new_empty(*q.shape[:3], v.shape[3])
