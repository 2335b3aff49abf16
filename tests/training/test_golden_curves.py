"""Twenty steps of every kind of training, as they were before there was one loop for all of them (commit d62b608).

``python -m tests.training.test_golden_curves`` prints the curves of the code as it is. tests/golden/curves.json is
replaced only where numbers are meant to move, in the commit that moves them, with a line under *Numerics* in
CHANGELOG.md.
"""

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.thinned import few

from dape.data.corpora import open_data
from dape.data.store import Corpus
from dape.training.trainer import Trainer

CURVES = Path(__file__).parents[1] / "golden" / "curves.json"
STEPS = 20
CPU = torch.device("cpu")


def words(folder: Path) -> Corpus:
    draw, known = random.Random(0), ["the", "cat", "sat", "on", "a", "mat", "and", "ran"]
    text = folder / "words.txt"
    text.write_text("\n".join(" ".join(draw.choices(known, k=8)) for _ in range(300)) + "\n")
    return open_data(str(text), out=folder / "words")


# One function for each kind of training ------------------------------------------------------------------------------


def language_model(folder: Path, encoding: str, **settings: object) -> list[float]:
    from dape.models.config import DecoderConfig
    from dape.training.config import TrainConfig
    from dape.training.language_model import LanguageModelTrainer
    from dape.training.run import RunConfig

    model = DecoderConfig(layers=2, width=16, heads=2, encoding=encoding, train_length=16)
    train = TrainConfig(steps=STEPS, batch=4, **settings)
    config = RunConfig(model=model, train=train, data="words", threads=1)
    return curve_of(LanguageModelTrainer(folder, config, words(folder), device=CPU))


def chomsky(folder: Path, task: str, method: str) -> list[float]:
    from dape.tasks.chomsky.config import CheConfig, Subject
    from dape.training.chomsky import ChomskyTrainer

    config = CheConfig(scale="custom", width=16, layers=2, heads=2, hidden=4, steps=STEPS, batch=8, lengths=(20, 41))
    return curve_of(ChomskyTrainer(folder, config, Subject(task=task, method=method, seed=1, lr=1e-3), CPU))


def recall(folder: Path, method: str) -> list[float]:
    from dape.tasks.recall.config import RecallConfig
    from dape.training.recall import RecallTrainer

    config = RecallConfig(layers=1, width=16, heads=2, steps=STEPS, batch=4, train_length=48, lengths=(48, 96))
    return curve_of(RecallTrainer(folder, config, method=method, seed=2, device=CPU))


def adapter(folder: Path, method: str) -> list[float]:
    from dape.hf.adapter import extend
    from dape.hf.tune import HostTextTask, Tuner, Tuning

    corpus = words(folder)
    model = _llama(corpus.tokenizer.vocabulary)
    torch.manual_seed(5)
    extend(model, method)
    tuning = Tuning(length=24, steps=STEPS, batch=2, seed=3)
    return curve_of(Tuner(model, HostTextTask(corpus, tuning), tuning, folder / "tuning"))


def study(folder: Path, task: str) -> list[float]:
    from dape.experiments.adapters.config import StudyConfig
    from dape.experiments.adapters.tasks import RecallTask, TextTask
    from dape.hf.tune import Tuner, Tuning

    config = StudyConfig(layers=1, width=16, heads=2, train_length=48, task=task)
    learned = RecallTask(config) if task == "recall" else TextTask(config, words(folder))
    model = _llama(learned.vocabulary)
    learned.begin(model)
    tuning = Tuning(length=48, steps=STEPS, batch=2, seed=4, weight_decay=0.1)
    return curve_of(Tuner(model, learned.lessons(tuning, from_scratch=True), tuning, folder / "tuning"))


def _llama(vocabulary: int):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=vocabulary, max_position_embeddings=32, **sizes)
    return transformers.LlamaForCausalLM(config)


def curve_of(trainer: Trainer) -> list[float]:
    losses: list[float] = []
    trainer.run(watch=lambda progress: losses.append(progress.loss), stop=lambda: False)
    return losses


# The curves ----------------------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[Path], list[float]]] = {
    "language model, dape-kerple": lambda f: language_model(f, "dape-kerple"),
    "language model, randomized-dape-fire in two parts": lambda f: language_model(
        f, "randomized-dape-fire", accumulate=2
    ),
    "language model, rope, bf16": lambda f: language_model(f, "rope", precision="bf16", clip=0.0),
    "language model, transformer-xl, fp16": lambda f: language_model(f, "transformer-xl", precision="fp16"),
    "chomsky, even_pairs, dape-alibi": lambda f: chomsky(f, "even_pairs", "dape-alibi"),
    "chomsky, reverse_string, randomized-kerple": lambda f: chomsky(f, "reverse_string", "randomized-kerple"),
    "recall, dape-kerple": lambda f: recall(f, "dape-kerple"),
    "recall, randomized-fire": lambda f: recall(f, "randomized-fire"),
    "adapter, dape-kerple": lambda f: adapter(f, "dape-kerple"),
    "study, text from scratch": lambda f: study(f, "text"),
    "study, recall from scratch": lambda f: study(f, "recall"),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", few(4, KINDS))
def test_the_curve_is_what_it_was(kind, tmp_path):
    expected = json.loads(CURVES.read_text(encoding="utf-8"))[kind]
    # Other processors sum in another order; 20 steps carry that on.
    rounding = 2e-2 if "16" in kind else 1e-4
    assert KINDS[kind](tmp_path) == pytest.approx(expected, rel=rounding)


def main() -> None:
    torch.set_num_threads(1)
    curves = {}
    for kind, curve in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            curves[kind] = curve(Path(folder))
    print(json.dumps(curves, indent=1))


if __name__ == "__main__":
    main()
