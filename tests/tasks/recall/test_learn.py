"""Small models that learn to recall: steps, checkpoints, what the rows say."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dape.evaluation import recall
from dape.evaluation.recall import correct, measure_at, subject_of
from dape.tasks.answers import answer_logits
from dape.tasks.recall.config import RecallConfig
from dape.tasks.recall.sequences import Sequences, evaluation_sequences, training_batch
from dape.training.recall import RecallTrainer
from dape.training.run import read_metrics

TINY = RecallConfig(
    lengths=(40, 80),
    depths=(0.0, 0.5, 1.0),
    test_pairs=(2, 4, 16),
    samples=6,
    train_length=20,
    pairs=4,
    keys=16,
    layers=2,
    width=16,
    heads=2,
    steps=8,
    batch=4,
)


@pytest.fixture
def trainer_in(tmp_path):
    def make(folder: str = "run", config: RecallConfig = TINY, method: str = "kerple", seed: int = 0) -> RecallTrainer:
        (tmp_path / folder).mkdir(exist_ok=True)
        return RecallTrainer(tmp_path / folder, config, method=method, seed=seed, device=torch.device("cpu"))

    return make


def run_until(trainer: RecallTrainer, step: int) -> bool:
    return trainer.run(stop=lambda: trainer.step == step)


def weights(trainer: RecallTrainer) -> dict[str, torch.Tensor]:
    checkpoint = trainer.folder / "checkpoints" / f"step-{trainer.step:08d}"
    return {**load_file(checkpoint / "model.safetensors"), **load_file(checkpoint / "optimizer.safetensors")}


@pytest.mark.parametrize("method", ["dape-kerple", "randomized-rope"])
def test_a_stopped_run_ends_with_the_same_weights(trainer_in, method):
    whole = trainer_in("whole", method=method)
    assert run_until(whole, -1) and whole.step == 8
    first = trainer_in("parts", method=method)
    assert not run_until(first, 3)
    second = trainer_in("parts", method=method)
    assert second.step == 3 and run_until(second, -1)
    a, b = weights(whole), weights(second)
    assert set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)
    assert [line["step"] for line in read_metrics(second.folder)] == [1, 8]


def test_seeds_and_methods(trainer_in):
    """Another encoding starts from the same weights elsewhere and sees the same batches; another seed does not."""
    one, other, seed = trainer_in("a"), trainer_in("b", method="rope"), trainer_in("c", seed=1)
    for name in ("head", "embedding"):
        assert torch.equal(getattr(one.model, name).weight, getattr(other.model, name).weight)
    assert not torch.equal(one.model.head.weight, seed.model.head.weight)


def test_only_answers_count(trainer_in, monkeypatch):
    """The loss of the first step, worked out from all logits of the whole sequences."""
    trainer = trainer_in()
    batch = training_batch(TINY, seed=0, step=0)
    tokens = torch.from_numpy(batch.tokens)
    with torch.no_grad():
        nats = -trainer.model(tokens[:, :-1]).log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    asked = [place for place in range(tokens.shape[1] - 1 - 2 * batch.questions + 1, tokens.shape[1] - 1, 2)]
    assert (tokens[:, asked] // 16 == 1).all() and len(asked) == batch.questions
    assert trainer.take_step()[0].loss == pytest.approx(nats[:, asked].mean().item(), rel=1e-5)


def test_a_loss_that_is_not_a_number_stops_the_run(trainer_in):
    trainer = trainer_in()
    torch.nn.init.constant_(trainer.model.head.weight, float("nan"))
    with pytest.raises(ValueError, match="`lr`"):
        trainer.take_step()


def test_correct_by_hand(trainer_in, monkeypatch):
    """A model that knows the first question of each sequence only."""
    sequences = evaluation_sequences(TINY, length=40, pairs=4)

    def knows_first(model: object, part: Sequences, generator: torch.Generator) -> torch.Tensor:
        answers = torch.from_numpy(part.answers.copy())
        answers[:, 1:] = 0  # noise is never an answer
        return torch.nn.functional.one_hot(answers, 48).float()

    monkeypatch.setattr(recall, "answer_logits", knows_first)
    monkeypatch.setattr(recall, "batch_size", lambda model, length: 4)
    assert correct(trainer_in().model, sequences).tolist() == [[True, False, False, False]] * 6


def test_logits_are_those_of_the_whole_model(trainer_in):
    model = trainer_in(method="dape-kerple").model
    sequences = evaluation_sequences(TINY, length=40, pairs=4)
    with torch.no_grad():
        whole = model(torch.from_numpy(sequences.tokens[:, :-1]))
        part = answer_logits(model, sequences, torch.Generator())
    torch.testing.assert_close(part, whole[:, [33, 35, 37, 39]])


def test_rows(trainer_in, monkeypatch):
    """What is right is known: the pair at depth 0 and no other, and with two pairs every one."""
    trainer = trainer_in()

    def right(model: object, sequences: Sequences) -> np.ndarray:
        return (
            sequences.places == 0
            if sequences.questions == 3
            else np.full(sequences.places.shape, sequences.questions == 2)
        )

    monkeypatch.setattr(recall, "correct", right)
    subject = subject_of(trainer, run="kerple-seed0", extra={"cpu": "x"})
    rows = [row for length in (40, 80) for row in measure_at(trainer.model, trainer.config, subject, length)]
    found = {
        (row.length, row.extra.get("depth"), row.extra.get("pairs")): (row.value, row.scored_tokens) for row in rows
    }
    assert found == {
        **{(length, None, None): (0.0, 24) for length in (40, 80)},
        **{(length, 0.0, None): (1.0, 6) for length in (40, 80)},
        **{(length, depth, None): (0.0, 6) for length in (40, 80) for depth in (0.5, 1.0)},
        **{(length, None, 2): (1.0, 12) for length in (40, 80)},
        **{(length, None, 4): (0.0, 24) for length in (40, 80)},
        (80, None, 16): (0.0, 96),  # 16 pairs and their questions do not fit into 40 tokens
    }
    assert {(row.protocol, row.metric, row.method, row.windows, row.train_length) for row in rows} == {
        ("mqar", "accuracy", "kerple", 6, 20)
    }
    assert all(row.extra["cpu"] == "x" for row in rows) and len({row.data_hash for row in rows}) == 1


def test_the_task_can_be_learned(trainer_in):
    """A little one, in a few seconds: nothing else shows that questions and answers belong together."""
    config = replace(TINY, keys=6, pairs=2, test_pairs=(2,), depths=(0.0, 1.0), lengths=(20,), train_length=12)
    config = replace(config, width=48, heads=2, steps=200, batch=32, lr=3e-3, samples=40)
    trainer = trainer_in(config=config)
    assert run_until(trainer, -1)
    rows = measure_at(trainer.model.eval(), config, subject_of(trainer, run="r", extra={}), 20)
    values = Counter({row.extra.get("depth"): row.value for row in rows})
    assert values[None] > 0.85 and values[0.0] > 0.8 and values[1.0] > 0.8  # by chance 0.17; of the two values, 0.5
