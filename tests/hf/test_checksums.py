"""Checksums of folders: a flipped bit is noticed, and whoever saves again leaves no note that is wrong."""

import json
import os
import random
import shutil
from dataclasses import asdict
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before the library is imported, which reads it once

import pytest
import torch

pytest.importorskip("transformers")

from safetensors.torch import save_file
from tests.hf.adapter.models import make
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from dape.cli import main
from dape.errors import UsageError
from dape.hf import DapeConfig, DapeForCausalLM, checksums, extend, load_adapter, save_adapter
from dape.hf.checksums import NOTES
from dape.hf.folder import open_model
from dape.hf.tokenizer import open_exported
from dape.hf.tune import Tuner, Tuning
from dape.tasks.base import Batch, Loss

SHAPE = {"layers": 1, "width": 16, "heads": 2, "train_length": 8}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    """An export. Tests change copies."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "text.txt").write_text("some words of a text " * 200)
    shape = [word for name, value in SHAPE.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    train = ["train", "--data", str(folder / "text.txt"), *shape, "--batch", "2", "--steps", "1", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAPE_CACHE", str(folder / "cache"))
        assert main([*train, "--out", str(folder / "run")]) == 0
        assert main(["export", str(folder / "run"), "--out", str(folder / "model")]) == 0
    return folder / "model"


@pytest.fixture
def model(pristine, tmp_path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(content)


def spread(path: Path, count: int) -> list[int]:
    """Bits of header, middle and end."""
    bits, draw = 8 * path.stat().st_size, random.Random(path.name)
    return [0, 8 * 8 + 3, 8 * 60, bits // 2, bits - 1, *(draw.randrange(bits) for _ in range(count))]


# Exports -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "dape.json", NOTES])
def test_a_flipped_bit_is_noticed(model, name):
    whole = (model / name).read_bytes()
    for bit in spread(model / name, 20):
        flip(model / name, bit)
        with pytest.raises(ValueError, match=str(model)) as error:
            DapeForCausalLM.from_pretrained(model)
        assert name in str(error.value) and "delete its dape-checksums.json" in str(error.value), bit
        (model / name).write_bytes(whole)
    DapeForCausalLM.from_pretrained(model)


def test_what_is_said(model, tmp_path, capsys):
    """File, expected, found, and what to do; nothing is written."""
    expected = json.loads((model / NOTES).read_text())["sha256"]["model.safetensors"]
    flip(model / "model.safetensors", 8 * 3000)
    assert main(["import", str(model), "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    found = checksums.sha256(model / "model.safetensors")
    for words in (str(model / "model.safetensors"), expected[:16], found[:16], "export the folder again", NOTES):
        assert words in said
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="checksums differ"):
        AutoModelForCausalLM.from_pretrained(model)
    with pytest.raises(ValueError, match="checksums differ"):
        open_model(model)


def test_a_changed_tokenizer_is_noticed(model):
    content = json.loads((model / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (model / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="the tokenizer is not the one that was saved"):
        open_exported(model)


def test_folders_without_checksums_are_loaded(model):
    noted, vocabulary = DapeForCausalLM.from_pretrained(model).state_dict(), open_exported(model).vocabulary
    (model / NOTES).unlink()
    found = DapeForCausalLM.from_pretrained(model).state_dict()
    assert found.keys() == noted.keys() and all(torch.equal(found[name], noted[name]) for name in noted)
    assert open_exported(model).vocabulary == vocabulary


def test_missing_and_unknown_weights(model):
    shutil.copy(model / "model.safetensors", model / "model-00001-of-00002.safetensors")
    with pytest.raises(ValueError, match="does not know this file"):
        DapeForCausalLM.from_pretrained(model)
    (model / "model-00001-of-00002.safetensors").unlink()
    (model / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors: is missing"):
        DapeForCausalLM.from_pretrained(model)


# Saved again ---------------------------------------------------------------------------------------------------------


def test_weights_in_several_files(tmp_path):
    saved = DapeForCausalLM(DapeConfig(**SHAPE))
    saved.save_pretrained(tmp_path, max_shard_size="10KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    checksums.verify(tmp_path)
    for path in (*shards, tmp_path / "model.safetensors.index.json"):
        flip(path, 8 * 200)
        with pytest.raises(ValueError, match=path.name):
            DapeForCausalLM.from_pretrained(tmp_path)
        flip(path, 8 * 200)
    loaded = DapeForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in saved.state_dict().items())
    saved.save_pretrained(tmp_path)  # in one file; the library removes the others
    DapeForCausalLM.from_pretrained(tmp_path)


def test_saved_again_over_an_export(model):
    """By model, configuration or tokenizer, in any order: what is noted is right."""
    loaded = DapeForCausalLM.from_pretrained(model)
    AutoTokenizer.from_pretrained(model).save_pretrained(model)
    open_exported(model)
    with torch.no_grad():
        loaded.model.norm.bias += 1
    loaded.config.max_position_embeddings = 99
    loaded.config.save_pretrained(model)
    assert DapeForCausalLM.from_pretrained(model).config.max_position_embeddings == 99
    loaded.save_pretrained(model)
    assert torch.equal(DapeForCausalLM.from_pretrained(model).model.norm.bias, loaded.model.norm.bias)
    checksums.verify(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(model)
    assert open_exported(model).vocabulary == 258


def test_saving_does_not_hide_damage(model):
    """Of files that are not saved."""
    config = DapeConfig.from_pretrained(model)
    flip(model / "model.safetensors", 8 * 3000)
    config.save_pretrained(model)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        DapeForCausalLM.from_pretrained(model)


def test_saving_over_damaged_notes(model):
    loaded = DapeForCausalLM.from_pretrained(model)
    (model / NOTES).write_text("{")
    loaded.save_pretrained(model)
    flip(model / "model.safetensors", 8 * 3000)
    with pytest.raises(ValueError, match=r"model\.safetensors"):  # the new notes are right
        DapeForCausalLM.from_pretrained(model)


def test_the_trainer_saves_right_checksums(model, tmp_path):
    texts = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
    arguments = TrainingArguments(
        output_dir=str(model), max_steps=2, save_steps=1, report_to=[], use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(DapeForCausalLM.from_pretrained(model), arguments, train_dataset=texts)
    trainer.train()
    trainer.save_model()  # over the export itself
    for folder in (model, model / "checkpoint-1"):
        checksums.verify(folder)
        assert (folder / NOTES).is_file()
        DapeForCausalLM.from_pretrained(folder)
    assert main(["import", str(model), "--out", str(tmp_path / "run")]) == 0


# Adapters ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_flipped_bit_of_an_adapter_is_noticed(tmp_path, name):
    save_adapter(extend(make("llama")), tmp_path / "a")
    path = tmp_path / "a" / name
    whole, host = path.read_bytes(), make("llama")
    for bit in spread(path, 20):
        flip(path, bit)
        with pytest.raises(ValueError, match=str(path)):
            load_adapter(host, tmp_path / "a")
        assert not hasattr(host, "_dape_adapter")
        path.write_bytes(whole)
    load_adapter(host, tmp_path / "a")


def test_adapters_from_before_have_no_checksums(tmp_path):
    save_adapter(extend(make("llama")), tmp_path / "a")
    facts = json.loads((tmp_path / "a/adapter_config.json").read_text())
    del facts["sha256"], facts["checksum"]
    (tmp_path / "a/adapter_config.json").write_text(json.dumps(facts))
    load_adapter(make("llama"), tmp_path / "a")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "checkpoint.json"])
def test_a_flipped_bit_of_a_training_that_was_stopped_is_noticed(tmp_path, name):
    begun = tuner(tmp_path)
    begun.take_step()
    path = begun.save() / name
    whole = path.read_bytes()
    for bit in spread(path, 40):
        flip(path, bit)
        try:
            again = tuner(tmp_path)
        except ValueError as error:
            assert str(tmp_path) in str(error)
        else:  # the name of the checksum itself
            assert again.step == 1 and torch.equal(again.model.weight, begun.model.weight), bit
        path.write_bytes(whole)
    assert tuner(tmp_path).step == 1


class Nothing:
    identity, tokens = {"name": "nothing"}, None

    def batch(self, model: torch.nn.Module, step: int) -> Batch:
        return Batch(loss=lambda part: Loss(sum(p.square().sum() for p in model.parameters()), 1), count=1)


def tuner(folder: Path) -> Tuner:
    return Tuner(torch.nn.Linear(3, 2), Nothing(), Tuning(length=2, steps=2), folder)


@pytest.mark.parametrize("known", [{}, {"step": "1"}], ids=["in the file beside", "with the weights"])
def test_an_adapter_of_version_0_1_that_was_in_training(tmp_path, known):
    """The step of the weights counts: killed between two files, they are newer than the file beside."""
    weights = {"p.weight": torch.full((2, 3), 7.0), "p.bias": torch.zeros(2), "step.bias": torch.tensor(1.0)}
    save_file(weights, tmp_path / "tuning.safetensors", known)
    state = {"step": 0 if known else 1, **asdict(Tuning(length=2, steps=2))}
    (tmp_path / "tuning.json").write_text(json.dumps(state))
    found = tuner(tmp_path)
    assert found.step == 1 and torch.equal(found.model.weight, weights["p.weight"])
    (tmp_path / "tuning.json").write_text(json.dumps({**state, "lr": 0.5}))
    with pytest.raises(UsageError, match=r"lr was 0\.5, now 0\.01"):
        tuner(tmp_path)
