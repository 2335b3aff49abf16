import random
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dape.data.corpora import open_data
from dape.data.store import Corpus
from dape.models.config import DecoderConfig
from dape.training.config import TrainConfig
from dape.training.language_model import LanguageModelTrainer
from dape.training.run import RunConfig

TINY = {"layers": 2, "width": 16, "heads": 2, "encoding": "rope", "train_length": 8, "steps": 6, "batch": 4}
OFTEN = {"log_every": 1, "save_every": 2, "keep": 2}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory) -> Path:
    """Lines of a few words: something to learn."""
    draw, words = random.Random(0), ["the", "cat", "sat", "on", "a", "mat", "and", "ran"]
    lines = [" ".join(draw.choices(words, k=8)) for _ in range(300)]
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def corpus(text_file, tmp_path_factory) -> Corpus:
    return open_data(str(text_file), out=tmp_path_factory.mktemp("corpus") / "words")


def run_config(**settings: Any) -> RunConfig:
    settings = {**TINY, **OFTEN, **settings}
    names = {f.name for f in fields(DecoderConfig)}
    model = {name: value for name, value in settings.items() if name in names}
    train = {name: value for name, value in settings.items() if name not in names}
    return RunConfig(model=DecoderConfig(**model), train=TrainConfig(**train), data="words", threads=1)


@pytest.fixture
def make_trainer(tmp_path, corpus) -> Callable[..., LanguageModelTrainer]:
    """A trainer of a tiny model in a folder of ``tmp_path``; keyword arguments are settings of either section."""

    def make(folder: str = "run", corpus: Corpus = corpus, **settings: Any) -> LanguageModelTrainer:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        return LanguageModelTrainer(path, run_config(**settings), corpus, device=torch.device("cpu"))

    return make


@pytest.fixture
def train() -> Callable[..., bool]:
    """Run a trainer to its end, or until it has taken some steps; whether it reached the end."""

    def run(trainer: LanguageModelTrainer, steps: int | None = None) -> bool:
        last = trainer.step + steps if steps is not None else None
        return trainer.run(watch=lambda progress: None, stop=lambda: trainer.step == last)

    return run


@pytest.fixture
def saved() -> Callable[[Path], dict[str, torch.Tensor]]:
    """All tensors of a checkpoint: weights, and the optimizer's averages and step counts."""

    def read(checkpoint: Path) -> dict[str, torch.Tensor]:
        return {**load_file(checkpoint / "model.safetensors"), **load_file(checkpoint / "optimizer.safetensors")}

    return read


@pytest.fixture
def same_bits() -> Callable[..., None]:
    """Compare tensors by name, bit for bit."""

    def check(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
        assert a and set(a) == set(b)
        different = [name for name in a if a[name].dtype != b[name].dtype or not torch.equal(a[name], b[name])]
        assert not different

    return check
