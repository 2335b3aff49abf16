"""Training through the transformers library: checkpointed gradients, and its Trainer."""

import pytest
import torch

pytest.importorskip("transformers")

from tests.hf.model.models import RANDOM, settings, tiny, tokens
from transformers import Trainer, TrainingArguments

from dape.hf import DapeForCausalLM, ProjectPositions


@pytest.mark.parametrize("name", ["dape-kerple", "learned", RANDOM])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(name, reentrant):
    text, grads = tokens(2, 12), []
    for lean in (False, True):
        model = tiny(name).train()
        if lean:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(0)  # of the draw
        model(text, labels=text).loss.backward()
        grads.append([p.grad for p in model.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_gradient_checkpointing_computes_blocks_twice():
    model, calls = tiny().train(), []
    model.gradient_checkpointing_enable()
    model.model.blocks[0].attention.qkv.register_forward_hook(lambda *_: calls.append(1))
    model(tokens(), labels=tokens()).loss.backward()
    assert len(calls) == 2
    cache = tiny()(tokens()).past_key_values
    with pytest.raises(ValueError, match="would store twice"):
        model(tokens(), past_key_values=cache, attention_mask=torch.ones(2, 14))
    calls.clear()
    model.gradient_checkpointing_disable()
    model(tokens(), labels=tokens()).loss.backward()
    assert len(calls) == 1


class Repeating(torch.utils.data.Dataset):
    """Three tokens, again and again."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        text = tokens(1, 3, seed=index)[0].repeat(6)[:16]
        return {"input_ids": text, "labels": text}


def trainer(model: DapeForCausalLM, path, steps: int) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(path),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=4,
        save_strategy="steps",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    return Trainer(model=model, args=arguments, train_dataset=Repeating(), callbacks=[ProjectPositions()])


def losses(run: Trainer) -> list[float]:
    return [line["loss"] for line in run.state.log_history if "loss" in line]


def test_the_trainer_learns_and_resumes(tmp_path):
    torch.manual_seed(0)
    model = DapeForCausalLM(settings("dape-kerple"))
    run = trainer(model, tmp_path / "a", 12)
    run.train()
    assert sum(losses(run)[-3:]) < 0.9 * sum(losses(run)[:3])
    torch.manual_seed(1)
    again = DapeForCausalLM(settings("dape-kerple"))
    resumed = trainer(again, tmp_path / "a", 12)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-8"))
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_trainer_keeps_parameters_in_range(tmp_path):
    model = DapeForCausalLM(settings("kerple"))
    with torch.no_grad():
        for pe in model.model.encodings:
            pe.r2.fill_(-1.0)
    trainer(model, tmp_path, 1).train()
    assert all(bool(pe.r2.gt(0).all()) for pe in model.model.encodings)
