"""A run's folder: settings that say everything, metrics without gaps or repetitions."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import yaml

from dape.errors import UsageError
from dape.models.config import DecoderConfig
from dape.training.config import TrainConfig
from dape.training.run import FREE_TO_CHANGE, Metrics, RunConfig, read_metrics


def config(**train) -> RunConfig:
    model = DecoderConfig(layers=3, encoding="dape-kerple", encoding_options={"hidden": 5}, train_length=8)
    return RunConfig(model=model, train=TrainConfig(**{"lr": 1e-5, "eps": 1e-10, **train}), data="words.txt", threads=3)


# config.yaml ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [None, True, False])
def test_settings_come_back(tmp_path, share):
    given = config(precision="bf16", decay_positions=False)
    given = replace(given, model=replace(given.model, share_encoding=share))
    given.write(tmp_path)
    assert RunConfig.read(tmp_path) == given


def test_the_file_is_plain_yaml_without_the_vocabulary(tmp_path):
    config().write(tmp_path)
    settings = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert set(settings) == {"model", "train", "data", "threads"} and "vocabulary" not in settings["model"]
    assert settings["train"]["eps"] == 1e-10 and settings["model"]["encoding_options"] == {"hidden": 5}


ENDS = "train: {}\ndata: x\nthreads: 1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: {}", "has no train, data, threads"),
        (f"model: {{depth: 3}}\n{ENDS}", "model.'depth' is not known"),
        (f"model: {{layers: 0}}\n{ENDS}", "model: `layers` must be at least 1"),
        (f"model: {{layers: 2.5}}\n{ENDS}", "model.layers: found 2.5, expected a whole number"),
        (f"model: {{layers: 1{'0' * 400}}}\n{ENDS}", "model.layers: found 1000.*0000, expected a whole number"),
        (f"model: 3\n{ENDS}", "model: found 3, expected a section"),
        ("model: {}\ntrain: {}\ndata: x\nthreads: many", "threads: found 'many', expected a whole number"),
        (f"model: {{}}\nmodel: {{}}\n{ENDS}", "'model' occurs twice"),
        (f"model: {'[' * 5000}", "is not YAML"),
        (f"model: {'[' * 500}1{']' * 500}", "nested too deeply"),
        ("model: !!bool maybe", "is not YAML"),
        (
            "a: &a [x, x]\n" + "\n".join(f"{c}: &{c} [{', '.join(9 * [f'*{b}'])}]" for b, c in pairwise("abcdefgh")),
            "many",
        ),
    ],
)
def test_settings_of_something_else(tmp_path, text, words):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UsageError, match=words) as error:
        RunConfig.read(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'config.yaml'}: ") and len(str(error.value)) < 1000


# Continuing ----------------------------------------------------------------------------------------------------------

OTHER_TRAIN = {
    "steps": 7, "batch": 2, "accumulate": 2, "lr": 1e-4, "final_lr_share": 0.5, "warmup_share": 0.5, "beta1": 0.5,
    "beta2": 0.5, "eps": 1e-3, "weight_decay": 0.2, "decay_positions": False, "clip": 2.0, "precision": "bf16",
    "compile": True, "seed": 1, "log_every": 3, "validate_every": 3, "save_every": 3, "save_seconds": 9.0,
    "keep": 5,
}  # fmt: skip
OTHER_MODEL = {
    "layers": 2, "width": 64, "heads": 4, "encoding": "rope", "encoding_options": {"hidden": 6}, "train_length": 9,
    "share_encoding": True, "checkpoint_activations": True, "vocabulary": 300,
}  # fmt: skip


def test_every_setting_is_thought_of():
    """A new setting must be added above, with the decision whether a run may be continued with another value."""
    assert set(OTHER_TRAIN) == set(TrainConfig.__dataclass_fields__)
    assert set(OTHER_MODEL) == set(DecoderConfig.__dataclass_fields__)
    assert sorted(FREE_TO_CHANGE) == ["keep", "log_every", "save_every", "save_seconds", "validate_every"]


@pytest.mark.parametrize("name", [*OTHER_TRAIN, *OTHER_MODEL])
def test_what_may_change_when_a_run_continues(tmp_path, name):
    saved = config()
    section, value = ("train", OTHER_TRAIN[name]) if name in OTHER_TRAIN else ("model", OTHER_MODEL[name])
    now = replace(saved, **{section: replace(getattr(saved, section), **{name: value})})
    assert now != saved
    if name in FREE_TO_CHANGE or name == "vocabulary":  # the vocabulary follows from the data
        now.check_continues(saved, tmp_path)
        return
    with pytest.raises(UsageError, match=f"{name} was .* now ") as error:
        now.check_continues(saved, tmp_path)
    assert repr(value) in str(error.value) and str(tmp_path) in str(error.value)


def test_other_data_is_refused_and_other_threads_are_not(tmp_path):
    with pytest.raises(UsageError, match=r"data was 'words.txt', now 'other.txt'"):
        replace(config(), data="other.txt").check_continues(config(), tmp_path)
    replace(config(), threads=1).check_continues(config(), tmp_path)


# metrics.jsonl -------------------------------------------------------------------------------------------------------


def test_metrics_go_on_after_the_checkpoint(tmp_path):
    metrics = Metrics(tmp_path, after_step=0)
    for step in (1, 2, 3):
        metrics.add({"step": step, "loss": step / 7})
    again = Metrics(tmp_path, after_step=2)  # killed after step 3, the checkpoint is of step 2
    again.add({"step": 3, "loss": 5.0})
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 1 / 7}, {"step": 2, "loss": 2 / 7}, {"step": 3, "loss": 5.0}]


def test_a_line_that_was_cut_off(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2.0}]
    Metrics(tmp_path, after_step=1).add({"step": 2, "loss": 1.0})
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]


def test_no_metrics_yet(tmp_path):
    assert read_metrics(tmp_path) == []
    Metrics(tmp_path, after_step=0)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_run_from_the_start_forgets_old_metrics(tmp_path):
    """Killed before its first checkpoint: everything happens once more."""
    Metrics(tmp_path, after_step=0).add({"step": 1, "loss": 2.0})
    Metrics(tmp_path, after_step=0)
    assert read_metrics(tmp_path) == []


def test_what_json_does_not_know(tmp_path):
    Metrics(tmp_path, after_step=0).add({"step": 1, "gradient_norm": float("inf"), "loss": float("nan")})
    assert json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)["loss"] is None


def test_what_a_run_logs(make_trainer, train):
    trainer = make_trainer(steps=5, log_every=2, validate_every=3)
    train(trainer)
    lines = read_metrics(trainer.folder)
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 4, 5]
    assert [line["step"] for line in lines if "validation_loss" in line] == [3, 5]
    first = lines[0]
    assert set(first) == {"step", "loss", "lr", "gradient_norm", "tokens", "tokens_per_second"}
    assert [line["tokens"] for line in lines if "tokens" in line] == [step * 4 * 8 for step in (1, 2, 4, 5)]
    assert all(json.loads(line) for line in (trainer.folder / "metrics.jsonl").read_text().splitlines())
