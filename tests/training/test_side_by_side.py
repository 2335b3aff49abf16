"""A batch in parts, side by side: the same gradients as at once, the same bits on any number of threads."""

import time

import numpy as np
import pytest
import torch

from dape.tasks.chomsky import learn
from dape.tasks.chomsky.config import CheConfig, Subject
from dape.tasks.chomsky.learn import parts_of
from dape.training.chomsky import ChomskyTrainer
from dape.training.side_by_side import SideBySide


@pytest.fixture(autouse=True)
def threads():
    """As many as there were."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trainer(folder, *, method: str = "dape-alibi", dropout: float = 0.1) -> ChomskyTrainer:
    config = CheConfig(width=16, layers=2, heads=2, batch=70, steps=3, hidden=4, dropout=dropout)
    subject = Subject(task="reverse_string", method=method, seed=0, lr=1e-3)
    return ChomskyTrainer(folder, config, subject, torch.device("cpu"))


def batch_of(run: ChomskyTrainer):
    sample = run.task.examples.sample(np.random.default_rng(0), run.train.batch, 7)
    return run.task.batch_of(run.model, sample, step=0)


def gradients_of(run: ChomskyTrainer) -> tuple[float, dict[str, torch.Tensor | None]]:
    """Loss and gradients of a step that is not taken."""
    run.model.zero_grad(set_to_none=True)
    loss = sum(part for part, _ in run.updater._backward(batch_of(run)))
    return loss, {name: p.grad for name, p in run.model.named_parameters()}


def test_parts_cover_the_batch():
    assert parts_of(70, 1 << 14) == [slice(0, 64), slice(64, 70)] and parts_of(5, 1) == [slice(0, 5)]
    assert parts_of(70, (1 << 14) + 1) == [slice(0, 32), slice(32, 64), slice(64, 70)]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_order_and_threads(count):
    torch.set_num_threads(4)
    seen = SideBySide()(lambda index: (index, torch.get_num_threads()), count)
    assert [index for index, _ in seen] == list(range(count))
    assert {threads for _, threads in seen} == {4 // min(4, count)} and torch.get_num_threads() == 4


def test_an_error_comes_out_and_the_threads_are_as_before():
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        SideBySide()(lambda index: 1 // (1 - index), 3)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    "method", ["dape-alibi", "dape-fire", "randomized-rope", "randomized-kerple", "learned", "transformer-xl", "fire"]
)
def test_same_gradients_as_at_once(method, tmp_path, monkeypatch):
    run = trainer(tmp_path, method=method, dropout=0.0)
    loss, found = gradients_of(run)
    monkeypatch.setattr(learn, "LARGE", 70)
    whole_loss, expected = gradients_of(run)
    assert batch_of(run).parts == 1 and loss == pytest.approx(whole_loss)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


def test_same_bits_on_any_number_of_threads(tmp_path):
    """Dropout is drawn for a part, not for a thread."""
    after = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        run = trainer(tmp_path / str(threads))
        losses = [run.updater.take(batch_of(run), step=0).loss for _ in range(2)]
        after.append((losses, [p.detach().clone() for p in run.model.parameters()]))
    for losses, weights in after[1:]:
        assert losses == after[0][0] and all(map(torch.equal, weights, after[0][1]))


def test_a_loss_that_is_no_number_changes_nothing(tmp_path, monkeypatch):
    run = trainer(tmp_path)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    monkeypatch.setattr(learn, "mean_loss", lambda logits, targets: logits.sum() * torch.nan)
    with pytest.raises(ValueError, match=r"step 1: the loss is nan.*a lower `lr` \(now 0\.001\)"):
        run.take_step()
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())


def test_all_parts_have_ended_when_an_error_comes_out():
    torch.set_num_threads(2)
    ended = []

    def work(index: int) -> None:
        if index == 0:
            raise RuntimeError("first")
        time.sleep(0.2)
        ended.append(index)

    with pytest.raises(RuntimeError, match="first"):
        SideBySide()(work, 2)
    assert ended == [1] and torch.get_num_threads() == 2
