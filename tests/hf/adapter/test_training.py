"""Training: the adapter learns and the model does not, in a loop by hand and in the library's Trainer."""

import pytest
import torch
from torch.utils.data import Dataset

pytest.importorskip("transformers")

import transformers
from tests.hf.adapter.models import CORE, make, shake

from dape.hf import ProjectPositions, adapter_parameters, extend, project_
from dape.hf.adapter import encodings_of


@pytest.mark.parametrize("kind", CORE)
def test_only_the_adapter_learns(kind, tokens):
    model = extend(make(kind), "dape-kerple").train()
    model.generation_config.use_cache = False
    loss = model(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    own = {id(p) for p in adapter_parameters(model)}
    assert own == {id(p) for p in model.parameters() if p.requires_grad}
    assert all(p.grad is None for p in model.parameters() if id(p) not in own)
    assert all(pe.f.second.weight.grad.abs().max() > 0 for pe in encodings_of(model))


def test_gradient_checkpointing_gives_the_same_gradients(tokens):
    def gradients(model):
        model.train()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        return [p.grad.clone() for p in adapter_parameters(model)]

    plain, checkpointed = (extend(make("llama"), "dape-kerple") for _ in range(2))
    for model in (plain, checkpointed):
        shake(model)
    checkpointed.gradient_checkpointing_enable()
    for a, b in zip(gradients(plain), gradients(checkpointed), strict=True):
        torch.testing.assert_close(a, b)


class Texts(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        text = torch.randint(1, 101, (20,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": text, "labels": text}


@pytest.mark.parametrize("more", [{}, {"bf16": True}, {"gradient_checkpointing": True}], ids=["", "bf16", "again"])
def test_the_trainer_changes_the_adapter_alone(more, tmp_path):
    model = extend(make("llama"), "dape-kerple")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **more,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=[ProjectPositions()])
    trainer.train()
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if ".dape." in name}
    assert sum(len(group["params"]) for group in trainer.optimizer.param_groups) == len(changed)


def test_projection(tokens):
    model = extend(make("llama"), "dape-kerple")
    values = [p for name, p in model.named_parameters() if name.endswith("base.r1")]
    for r1 in values:
        r1.data.fill_(-1.0)
    project_(model)
    assert len(values) == 2 and all((r1 >= 0.01).all() for r1 in values)
