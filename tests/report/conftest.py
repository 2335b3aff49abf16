import math
import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from dape.results.records import Row

Values = Mapping[str, Mapping[int, float | Sequence[float]]]


@pytest.fixture
def make_rows() -> Callable[..., list[Row]]:
    """Rows from {method: {length: perplexity, or one perplexity per seed}}; trained at 128."""

    def make(values: Values, **fields) -> list[Row]:
        rows = []
        for method, by_length in values.items():
            for length, given in by_length.items():
                per_seed = given if isinstance(given, Sequence) else [given]
                rows += [_row(method, seed, length, value, fields) for seed, value in enumerate(per_seed)]
        return rows

    return make


def _row(method: str, seed: int, length: int, value: float, fields: dict) -> Row:
    common = {
        "run": f"{method}-seed{seed}",
        "train_length": 128,
        "metric": "perplexity",
        "scored_tokens": 200 * 64,
        "protocol": "last_k",
        "data_hash": "abcdef0123456789",
        "k": 64,
        "windows": 200,
        "mode": "packed",
        "step": 600,
        "tokenizer": "byte",
    }
    return Row(method=method, seed=seed, length=length, value=value, **{**common, **fields})


@pytest.fixture
def with_windows() -> Callable[[Sequence[Row]], list[Row]]:
    """The same rows with windows that scatter around their mean; windows are hard for all methods alike."""

    def add(rows: Sequence[Row], noise: float = 0.02) -> list[Row]:
        return [_with_windows(row, noise) for row in rows]

    return add


def _with_windows(row: Row, noise: float) -> Row:
    hard = [random.Random(place).gauss(0, 0.5) for place in range(row.windows or 0)]
    own = random.Random(f"{row.run} {row.length}")
    scatter = [difficulty + own.gauss(0, noise) for difficulty in hard]
    shift = math.log(row.value) - sum(scatter) / len(scatter)
    return Row(**{**row.as_dict(), "window_nll": tuple(nats + shift for nats in scatter)})
