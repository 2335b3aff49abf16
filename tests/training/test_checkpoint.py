"""Checkpoints: what comes back is what was saved, nothing else is accepted, and a failing save harms nothing."""

import dataclasses
import errno
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from dape.data.corpora import open_data
from dape.errors import UsageError
from dape.reading import sealed
from dape.training import checkpoint, tensors
from dape.training.checkpoint import check_continues, load_model, prune, restore_optimizer
from dape.training.description import checkpoints, describe, find
from dape.training.language_model import LanguageModelTrainer
from dape.training.optim import make_optimizer

FILES = ["checkpoint.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json"]
CPU = torch.device("cpu")


@pytest.fixture
def trainer(make_trainer, train) -> LanguageModelTrainer:
    """Stopped and saved after three of six steps."""
    trainer = make_trainer(encoding="dape-kerple", save_every=0)
    assert not train(trainer, 3)
    return trainer


@pytest.fixture
def saved_at_3(trainer) -> Path:
    (only,) = checkpoints(trainer.folder / "checkpoints")
    return only


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Round trip ----------------------------------------------------------------------------------------------------------


def test_files(saved_at_3):
    assert saved_at_3.name == "step-00000003" and names_in(saved_at_3) == FILES


def test_weights_and_optimizer_come_back_bit_for_bit(trainer, saved_at_3):
    description = describe(saved_at_3)
    model = load_model(saved_at_3, description, CPU)
    optimizer = make_optimizer(model, description.train)
    restore_optimizer(saved_at_3, model, optimizer)
    pairs = list(zip(trainer.model.parameters(), model.parameters(), strict=True))
    for before, after in pairs:
        assert torch.equal(before, after) and before.dtype == after.dtype
        old, new = trainer.optimizer.state[before], optimizer.state[after]
        assert set(old) == set(new) == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(old[key], new[key]) and old[key].dtype == new[key].dtype for key in old)
    assert pairs and float(trainer.optimizer.state[pairs[0][0]]["step"]) == 3


def test_description_comes_back(trainer, saved_at_3, corpus):
    description = describe(saved_at_3)
    assert description.step == 3
    assert description.model == trainer.config.model and description.model.encoding == "dape-kerple"
    assert description.train == trainer.train
    assert description.data == {
        "name": corpus.name,
        "hash": corpus.hash,
        "tokenizer": "bytes",
        "tokenizer_fingerprint": corpus.tokenizer.fingerprint,
    }


def test_encoding_options_come_back(make_trainer, train):
    options = {"hidden": 5, "variant": "concat"}
    trainer = make_trainer(encoding="dape-kerple", encoding_options=options, share_encoding=True)
    train(trainer, 1)
    description = describe(find(trainer.folder))
    assert description.model.encoding_options == options and description.model.share_encoding is True
    assert len(load_model(find(trainer.folder), description, CPU).encodings) == 1


def test_saving_a_step_again_leaves_it_alone(trainer, saved_at_3):
    before = {path.name: path.stat().st_mtime_ns for path in saved_at_3.iterdir()}
    assert trainer.save() == saved_at_3
    assert {path.name: path.stat().st_mtime_ns for path in saved_at_3.iterdir()} == before


# Damage --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "other bytes"])
def test_damage_is_found_and_named(make_trainer, saved_at_3, name, damage):
    path = saved_at_3 / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(content) // 2
        changed = bytes([content[middle] ^ 255])  # in JSON: no UTF-8 any more
        path.write_bytes(
            {
                "truncated": content[:middle],
                "empty": b"",
                "other bytes": content[:middle] + changed + content[middle + 1 :],
            }[damage]
        )
    with pytest.raises(ValueError, match=name) as error:
        describe(saved_at_3)
    assert str(saved_at_3) in str(error.value)
    with pytest.raises(ValueError, match=name):
        make_trainer(encoding="dape-kerple")


def test_the_checkpoint_before_a_damaged_one_is_taken_and_said(make_trainer, train, saved, same_bits, capsys):
    whole = make_trainer("whole")
    train(whole)
    trainer = make_trainer(keep=3)
    train(trainer)
    newest = find(trainer.folder)
    (newest / "model.safetensors").write_bytes(b"")
    again = make_trainer()
    said = capsys.readouterr().err
    assert "step-00000006/model.safetensors: damaged" in said and "going on from step-00000004" in said
    assert not newest.exists() and newest.with_name("damaged-step-00000006").is_dir()
    assert again.step == 4 and train(again)
    same_bits(saved(find(again.folder)), saved(find(whole.folder)))


def test_when_all_checkpoints_are_damaged_none_is_touched(make_trainer, train):
    trainer = make_trainer(keep=3)
    train(trainer)
    found = checkpoints(trainer.folder / "checkpoints")
    for each in found:
        (each / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"step-00000006/model\.safetensors: damaged"):
        make_trainer()
    assert checkpoints(trainer.folder / "checkpoints") == found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "format 2, while this version of dape reads format 1"),
        ({"model": {"layers": 2, "depth": 3}}, "'depth' is not known"),
        ({"model": {"layers": "2"}}, "model.layers: found '2', expected a whole number"),
        ({"model": {"width": 9, "heads": 2}}, "`width` 9 cannot be divided"),
        ({"train": None}, "train: found None, expected a section"),
        ({"train": {"clip": 10**400}}, "train.clip: found 1000.*0000, expected a number below 1e308"),
        ({"train": {"lr": -1.0}}, "train: `lr` must be a positive number, got -1.0"),
        ({"step": -1}, "step: found -1, expected 0 to"),
        ({"step": 5}, "step: found 5, expected that of its folder step-00000003"),
        ({"sha256": 3}, "sha256: found 3"),
        ({"sha256": {}}, "sha256: has no model.safetensors, optimizer.safetensors, tokenizer.json"),
        ({"sha256": {"../model.safetensors": "0" * 64}}, "a name: found '../model.safetensors'"),
        ({"secret": 3}, "'secret' is not known"),
    ],
    ids=str,
)
def test_a_description_that_is_not_ours(saved_at_3, change, words):
    rewrite(saved_at_3, **change)
    with pytest.raises(ValueError, match=words) as error:
        describe(saved_at_3)
    assert str(saved_at_3) in str(error.value)


def rewrite(saved: Path, **change: object) -> None:
    """As in the days before descriptions had a checksum of their own."""
    path = saved / "checkpoint.json"
    given = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({name: value for name, value in given.items() if name != "checksum"}))


def test_checkpoints_from_before_there_was_a_checksum(saved_at_3):
    before = describe(saved_at_3)
    rewrite(saved_at_3)
    assert describe(saved_at_3) == before


@pytest.mark.parametrize(("old", "new"), [('"clip": 1.0', '"clip": 9.0'), ('"step": 3', '"step": 2'), ('"lr"', '"Lr"')])
def test_a_description_that_was_changed_is_refused(saved_at_3, old, new):
    path = saved_at_3 / "checkpoint.json"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=r"checkpoint\.json: .* changed since it was written: its checksum differs"):
        describe(saved_at_3)


@pytest.mark.parametrize("text", ["[]", "3", "null", "{}", '{"format": 1}', "[" * 100000, '{"format": 1, "format": 1}'])
def test_json_that_is_no_description(saved_at_3, text):
    (saved_at_3 / "checkpoint.json").write_text(text)
    with pytest.raises(ValueError, match=r"checkpoint\.json: ."):
        describe(saved_at_3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clip": 9.0}, "clip was 1.0, now 9.0"),
        ({"seed": 7, "lr": 1e-3}, "lr was 0.002, now 0.001; seed was 0, now 7"),
        ({"encoding_options": {"hidden": 8}}, "encoding_options was {}, now {'hidden': 8}"),
    ],
    ids=str,
)
def test_a_checkpoint_goes_on_with_its_own_settings_only(make_trainer, saved_at_3, settings, words):
    with pytest.raises(UsageError, match=words) as error:
        make_trainer(**{"encoding": "dape-kerple", "save_every": 0, **settings})
    assert str(saved_at_3) in str(error.value)


def test_what_does_not_touch_the_weights_may_change(make_trainer, saved_at_3):
    assert make_trainer(encoding="dape-kerple", save_every=1, log_every=3, keep=5).step == 3


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_is_executed(saved_at_3, tmp_path, monkeypatch):
    """Pickles in place of every file, checksums adjusted: refused, and torch.load and pickle are not even tried."""
    trap = tmp_path / "executed"
    for name in ("model.safetensors", "optimizer.safetensors", "tokenizer.json"):
        torch.save({"weights": Trap(trap)}, saved_at_3 / name)
    path = saved_at_3 / "checkpoint.json"
    given = json.loads(path.read_text())
    checksums = {name: checkpoint.sha256(saved_at_3 / name) for name in given["sha256"]}
    path.write_text(json.dumps(sealed({**given, "sha256": checksums})))

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("unpickling")

    for module, name in ((torch, "load"), (pickle, "load"), (pickle, "loads")):
        monkeypatch.setattr(module, name, refuse)
    description = describe(saved_at_3)
    with pytest.raises(ValueError, match=r"model\.safetensors: is damaged"):
        load_model(saved_at_3, description, CPU)
    assert not trap.exists()


# Failing to save -----------------------------------------------------------------------------------------------------


def full_disk_in_safetensors(monkeypatch, name: str) -> None:
    real = tensors.save_file

    def save_file(given: dict, path: Path, metadata: dict | None) -> None:
        if path.name == name:
            path.write_bytes(b"the first bytes")
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        real(given, path, metadata)

    monkeypatch.setattr(tensors, "save_file", save_file)


def full_disk_in_python(monkeypatch, name: str) -> None:
    """Writing the description, and giving the folder its name."""

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint.json, "dumps", fail) if name == "description" else monkeypatch.setattr(
        os, "rename", fail
    )


@pytest.mark.parametrize(
    ("fill", "name"),
    [
        (full_disk_in_safetensors, "model.safetensors"),
        (full_disk_in_safetensors, "optimizer.safetensors"),
        (full_disk_in_python, "description"),
        (full_disk_in_python, "rename"),
    ],
    ids=["model", "optimizer", "description", "rename"],
)
def test_a_failing_save_leaves_what_was_there(make_trainer, train, saved, same_bits, monkeypatch, fill, name):
    trainer = make_trainer()
    train(trainer, 4)
    folder = trainer.folder / "checkpoints"
    before = {path.name: saved(path) for path in checkpoints(folder)}
    assert list(before) == ["step-00000002", "step-00000004"]
    with monkeypatch.context() as patch:
        fill(patch, name)
        with pytest.raises(OSError, match="No space left"):
            train(trainer)
    assert names_in(folder) == list(before)
    for path in checkpoints(folder):
        describe(path)
        same_bits(saved(path), before[path.name])
    again, whole = make_trainer(), make_trainer("whole")
    assert train(again) and train(whole)
    same_bits(saved(find(again.folder)), saved(find(whole.folder)))


def test_a_save_that_is_interrupted_leaves_no_half_folder(make_trainer, train, monkeypatch):
    trainer = make_trainer(save_every=0)
    train(trainer, 1)

    def interrupt(path: Path) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "sha256", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(trainer, 1)
    assert names_in(trainer.folder / "checkpoints") == ["step-00000001"]


# Keeping the newest --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "expected"), [(1, [6]), (2, [5, 6]), (3, [4, 5, 6]), (6, [1, 2, 3, 4, 5, 6]), (50, [1, 2, 3, 4, 5, 6])]
)
def test_only_the_newest_are_kept(make_trainer, train, keep, expected):
    trainer = make_trainer(save_every=1, keep=keep)
    assert train(trainer)
    assert names_in(trainer.folder / "checkpoints") == [f"step-{step:08d}" for step in expected]


@pytest.mark.parametrize(("every", "expected"), [(0, [6]), (4, [4, 6]), (3, [3, 6]), (100, [6])])
def test_when_checkpoints_are_written(make_trainer, train, every, expected):
    trainer = make_trainer(save_every=every, keep=9)
    assert train(trainer)
    assert names_in(trainer.folder / "checkpoints") == [f"step-{step:08d}" for step in expected]


def test_leftovers_are_removed_and_never_taken_for_checkpoints(trainer, saved_at_3):
    folder = saved_at_3.parent
    for name in (".step-00000009.123.tmp", ".step-00000001.old", "step-12", "step-00000007.bak"):
        shutil.copytree(saved_at_3, folder / name)
    (folder / "step-00000010").write_text("a file")
    assert checkpoints(folder) == [saved_at_3] and find(folder.parent) == saved_at_3
    prune(folder, 1)
    assert names_in(folder) == ["step-00000003", "step-00000007.bak", "step-00000010", "step-12"]


def test_step_numbers_of_any_size_are_in_order(tmp_path):
    for step in (99_999_999, 100_000_000, 5):
        (tmp_path / f"step-{step:08d}").mkdir()
    prune(tmp_path, 1)
    assert names_in(tmp_path) == ["step-100000000"]


# Finding -------------------------------------------------------------------------------------------------------------


def test_find(trainer, saved_at_3, tmp_path):
    assert find(trainer.folder) == find(trainer.folder / "checkpoints") == find(saved_at_3) == saved_at_3
    (tmp_path / "empty").mkdir()
    for path, words in (
        (tmp_path / "nowhere", "there is no such checkpoint or run"),
        (tmp_path / "empty", "holds no checkpoint; give the folder of a run"),
        (saved_at_3 / "checkpoint.json", "holds no checkpoint"),
    ):
        with pytest.raises(UsageError, match=words) as error:
            find(path)
        assert str(path) in str(error.value)


def test_other_data_is_refused(make_trainer, saved_at_3, corpus, tmp_path):
    (tmp_path / "other.txt").write_text("something else " * 500)
    other = open_data(str(tmp_path / "other.txt"), out=tmp_path / "other")
    with pytest.raises(UsageError, match="a run is continued on its own data only") as error:
        make_trainer(encoding="dape-kerple", corpus=other)
    assert corpus.hash[:12] in str(error.value) and f"other ({other.hash[:12]})" in str(error.value)
    saved = describe(saved_at_3)
    check_continues(saved, dataclasses.replace(saved, data={**saved.data, "name": "renamed"}), saved_at_3)
