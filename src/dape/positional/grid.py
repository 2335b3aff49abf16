"""The positions of one attention call, and how encodings read them.

A :class:`Grid` describes the cells (query, key) of a call: positions of the rows and of the columns, whether a causal
mask applies, which keys are padding, the document of each token, the tokens' features for encodings that read any, and
(optionally) a randomised :class:`Draw` that replaces positions or lags. Every hook gets a grid and never a length, so
that an encoding has the same code for the whole matrix, a block of rows, a decoding step and a left-padded batch.

Visibility always follows the true positions. The draw changes only what an encoding reads.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dape.positional.positions import Draw, as_positions, hold_int64

RowIndex = slice | Int[Tensor, " r"]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The positions of queries and keys of one attention call, and which keys a query sees."""

    q_index: Int[Tensor, "*b q"]
    """True position of every query row."""
    k_index: Int[Tensor, "*b k"]
    """True position of every key column."""
    causal: bool
    """Hide keys whose position is larger than the query's."""
    offset: int | None = None
    """If rows and columns are known to be runs of consecutive integers, the same for the whole batch: the first row's
    position minus the first column's. Then lags are constant along diagonals."""
    key_padding_mask: Bool[Tensor, "b k"] | None = None
    """True marks a key that is padding, as in ``torch.nn.MultiheadAttention``."""
    q_document: Int[Tensor, "*b q"] | None = None
    k_document: Int[Tensor, "*b k"] | None = None
    draw: Draw | None = None
    q_features: Float[Tensor, "b q n"] | None = None
    """Results of :meth:`PositionalEncoding.features` for the queries and for the keys."""
    k_features: Float[Tensor, "b k n"] | None = None

    def __post_init__(self) -> None:
        hold_int64(self, "q_index", "k_index", "q_document", "k_document")

    @staticmethod
    def of_length(queries: int, keys: int, *, causal: bool, device: torch.device | None = None) -> "Grid":
        """Keys 0 ... keys-1; the queries are the last of them, as when decoding with a cache."""
        k_index = torch.arange(keys, device=device)
        q_index = torch.arange(keys - queries, keys, device=device)
        return Grid(q_index=q_index, k_index=k_index, causal=causal, offset=keys - queries)

    @staticmethod
    def at(q_pos: Int[Tensor, "*b q"], k_pos: Int[Tensor, "*b k"], *, causal: bool) -> "Grid":
        """A grid of given positions."""
        return Grid(q_index=as_positions("q_pos", q_pos), k_index=as_positions("k_pos", k_pos), causal=causal)

    # What encodings read ---------------------------------------------------------------------------------------------

    @property
    def q_pos(self) -> Int[Tensor, "*b q"]:
        return self.q_index if self.draw is None else self.draw.position(self.q_index)

    @property
    def k_pos(self) -> Int[Tensor, "*b k"]:
        return self.k_index if self.draw is None else self.draw.position(self.k_index)

    def lag(self) -> Int[Tensor, "*b q k"]:
        """Query position minus key position, positive for the past."""
        return self.read_lag(self.q_index.unsqueeze(-1) - self.k_index.unsqueeze(-2))

    def read_lag(self, lag: Int[Tensor, "*s"]) -> Int[Tensor, "*s"]:
        return lag if self.draw is None else self.draw.lag(lag)

    def extreme_lags(self) -> tuple[Int[Tensor, "*b q"], Int[Tensor, "*b q"]]:
        """Per row, the lag of its farthest past key and of its farthest future key.

        With a causal mask, the farthest past key is position 0, even if that key is no longer in the cache.
        """
        if self.causal:
            return self.read_lag(self.q_index), self.read_lag(torch.zeros_like(self.q_index))
        first, last = self._key_extremes(self.q_document)
        return self.read_lag(self.q_index - first), self.read_lag(self.q_index - last)

    def longest(self) -> tuple[Int[Tensor, "*b #q"], Int[Tensor, "*b #k"]]:
        """For every query and every key, the largest position in its document, as encodings read it."""
        ends = (self._key_extremes(document)[1] for document in (self.q_document, self.k_document))
        q_end, k_end = (end if self.draw is None else self.draw.position(end) for end in ends)
        return q_end, k_end

    def _key_extremes(self, document: Int[Tensor, "*b t"] | None) -> tuple[Int[Tensor, "*b #t"], Int[Tensor, "*b #t"]]:
        """Smallest and largest position among the keys of each token's document, without padding."""
        low = high = self.k_index
        if self.key_padding_mask is not None:
            low = torch.where(self.key_padding_mask, torch.iinfo(low.dtype).max, low)
            high = torch.where(self.key_padding_mask, torch.iinfo(high.dtype).min, high)
        if document is None or self.k_document is None:
            low, high = low.amin(-1, keepdim=True), high.amax(-1, keepdim=True)
        else:
            low, high = self._extremes_by_document(low, high, document, self.k_document)
        nothing = low > high
        return low.masked_fill(nothing, 0), high.masked_fill(nothing, 0)

    @staticmethod
    def _extremes_by_document(
        low: Int[Tensor, "*b k"],
        high: Int[Tensor, "*b k"],
        document: Int[Tensor, "*c t"],
        k_document: Int[Tensor, "*c k"],
    ) -> tuple[Int[Tensor, "*d t"], Int[Tensor, "*d t"]]:
        names, number = torch.unique(torch.cat([k_document, document], dim=-1), return_inverse=True)
        of_key, of_token = number.split([k_document.shape[-1], document.shape[-1]], dim=-1)
        shape = (*torch.broadcast_shapes(of_key.shape[:-1], low.shape[:-1]), len(names))
        of_key = of_key.expand(*shape[:-1], -1)

        def reduced(x: Tensor, how: str) -> Tensor:
            start = torch.zeros(shape, dtype=x.dtype, device=x.device)
            table = start.scatter_reduce(-1, of_key, x.expand_as(of_key), how, include_self=False)
            return table.gather(-1, of_token.expand(*shape[:-1], -1))

        return reduced(low, "amin"), reduced(high, "amax")

    def lag_table(self) -> tuple[Int[Tensor, " n"], Int[Tensor, "*b q k"]]:
        """Every lag of the grid once, and for each cell the index of its lag in that list.

        For consecutive positions the list has q + k - 1 entries and does not depend on values, so that one compiled
        graph serves all lengths. Otherwise it is the range between the extreme lags; or, if a gap in the positions
        makes this range longer than the number of cells, only the lags that occur.
        """
        true_lag = self.q_index.unsqueeze(-1) - self.k_index.unsqueeze(-2)
        q, k = true_lag.shape[-2:]
        if self.offset is not None:
            first, count = self.offset - (k - 1), q + k - 1
        elif true_lag.numel():
            first = int(true_lag.amin())
            count = int(true_lag.amax()) - first + 1
        else:
            first, count = 0, 1
        if self.offset is None and count > true_lag.numel() + 1:
            lags, index = torch.unique(true_lag, return_inverse=True)
            return self.read_lag(lags), index
        lags = first + torch.arange(count, device=true_lag.device)
        return self.read_lag(lags), true_lag - first

    # What is visible -------------------------------------------------------------------------------------------------

    def visible(self) -> Bool[Tensor, "*b #q k"] | None:
        """True where a query sees a key; None if every query sees every key. The same for all heads."""
        conditions = []
        if self.causal:
            conditions.append(self.q_index.unsqueeze(-1) >= self.k_index.unsqueeze(-2))
        if self.key_padding_mask is not None:
            conditions.append(~self.key_padding_mask.unsqueeze(-2))
        if self.q_document is not None and self.k_document is not None:
            conditions.append(self.q_document.unsqueeze(-1) == self.k_document.unsqueeze(-2))
        if not conditions:
            return None
        visible = conditions[0]
        for condition in conditions[1:]:
            visible = visible & condition
        return visible

    # Parts of a grid -------------------------------------------------------------------------------------------------

    def rows(self, index: RowIndex) -> "Grid":
        """The grid of some of the queries and all keys."""
        offset = None
        if self.offset is not None and isinstance(index, slice) and index.step in (None, 1):
            offset = self.offset + index.indices(self.q_index.shape[-1])[0]
        return replace(
            self,
            q_index=self.q_index[..., index],
            q_document=None if self.q_document is None else self.q_document[..., index],
            q_features=None if self.q_features is None else self.q_features[..., index, :],
            offset=offset,
        )

    @property
    def same_for_all_items(self) -> bool:
        """Whether positions, documents and padding are the same throughout the batch."""
        fields_ = (self.q_index, self.k_index, self.q_document, self.k_document, self.key_padding_mask)
        return all(x is None or x.dim() == 1 for x in fields_)

    def items(self, start: int, stop: int) -> "Grid":
        """The grid of some batch items; tensors that all items share are kept."""

        def of_batch(x: Tensor | None, shared: int = 1) -> Tensor | None:
            return x if x is None or x.dim() == shared else x[start:stop]

        def of_tokens(x: Tensor | None) -> Tensor | None:
            return x if x is None or len(x) == 1 else of_batch(x, shared=2)

        return replace(
            self,
            q_index=of_batch(self.q_index),
            k_index=of_batch(self.k_index),
            key_padding_mask=of_batch(self.key_padding_mask),
            q_document=of_batch(self.q_document),
            k_document=of_batch(self.k_document),
            q_features=of_tokens(self.q_features),
            k_features=of_tokens(self.k_features),
        )

    def first_keys(self, count: int) -> "Grid":
        """The grid of all queries and the first ``count`` keys, for causal grids that hide the later keys."""
        padding = self.key_padding_mask
        return replace(
            self,
            k_index=self.k_index[..., :count],
            key_padding_mask=None if padding is None else padding[..., :count],
            k_document=None if self.k_document is None else self.k_document[..., :count],
            k_features=None if self.k_features is None else self.k_features[..., :count, :],
        )

    def read_through(self, draw: Draw | None) -> "Grid":
        return replace(self, draw=draw)
