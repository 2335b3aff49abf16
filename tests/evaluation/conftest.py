"""Texts to ask about, made of a few words."""

from collections.abc import Callable

import numpy as np
import pytest

from dape.data.store import TokenStream
from dape.data.tokenizer import ByteTokenizer, Tokenizer
from dape.evaluation.questions import TextTask
from dape.tasks.recall.config import TextConfig

WORDS = ["The", "quick", "brown", "fox", "jumps", "over", "12", "lazy", "dogs,", '"quoted"', "or", "until", "1999.\n"]


@pytest.fixture(scope="session")
def held_out() -> str:
    return " ".join(np.random.default_rng(0).choice(WORDS, 3000))


@pytest.fixture
def task_of(held_out) -> Callable[..., TextTask]:
    """A task on some text; keyword arguments are settings."""

    def make(name: str = "passkey", text: str = held_out, tokenizer: Tokenizer | None = None, **settings) -> TextTask:
        tokenizer = tokenizer or ByteTokenizer()
        config = TextConfig(**{"tasks": (name,), "lengths": (128,), "samples": 5, **settings})
        tokens = np.append(tokenizer.encode(text).astype(np.int64), tokenizer.eod)
        return TextTask(name, config, TokenStream([tokens], np.array([len(tokens)])), tokenizer)

    return make
