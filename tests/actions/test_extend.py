"""``dape.extend`` does what ``dape extend`` does: the same rows and adapter, in folders that either can go on with."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

import dape  # noqa: E402
from dape.cli import main  # noqa: E402
from dape.extras import install_command  # noqa: E402
from dape.results import read_rows  # noqa: E402

SMALL = {"data": "words.txt", "steps": 2, "batch": 2, "windows": 3, "lengths": (16, 32)}
FLAGS = ["--data", "words.txt", "--steps", "2", "--batch", "2", "--windows", "3", "--lengths", "16", "32"]


@pytest.fixture(autouse=True)
def model(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("words.txt").write_text(" ".join(f"word{n % 7} and {n % 13}" for n in range(1500)))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=257, max_position_embeddings=16, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained("model")


def test_extend_is_the_command(capsys):
    found = dape.extend("model", out="mine", **SMALL)
    assert main(["extend", "model", "--out", "theirs", *FLAGS]) == 0
    theirs = read_rows(Path("theirs/results.jsonl"))
    assert [(row.label, row.length, row.value) for row in found.rows] == [(r.label, r.length, r.value) for r in theirs]
    assert found.finished and found.rows == read_rows(Path("mine/results.jsonl"))
    name = "adapter_model.safetensors"
    ours, other = (Path(folder, name).read_bytes() for folder in (found.adapter, "theirs/adapter"))
    assert ours == other
    assert found.table() == Path("mine/table.md").read_text() == Path("theirs/table.md").read_text()
    assert found.figure().axes and all(Path("mine", name).exists() for name in found.files)
    written = capsys.readouterr().out
    assert "wrote adapter, results.jsonl, table.md, curves.png, curves.svg in theirs" in written


def test_stopped_by_a_call_finished_by_the_command(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("dape.training.interrupt.Interruption.__call__", lambda self: True)
        stopped = dape.extend(Path("model"), out=Path("out"), **SMALL)
    assert not stopped.finished and not stopped.adapter.exists() and not stopped.files
    assert {row.label for row in stopped.rows} == {"rope", "yarn (untuned, factor 2)"}
    assert main(["extend", "model", "--out", "out", *FLAGS]) == 0
    measured = read_rows(Path("out/results.jsonl"))
    assert dape.extend("model", out="out", **SMALL).rows == measured and measured[: len(stopped.rows)] == stopped.rows


def test_a_prepared_text():
    corpus = dape.open_data("words.txt", out=Path("prepared"))
    found = dape.extend("model", out="out", **{**SMALL, "data": corpus, "rope": "keep"})
    assert {row.data_hash for row in found.rows} == {corpus.hash}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "dape-kerpel"}, "`method`: .*Did you mean"),
        ({"method": "nope"}, "`method` nope: an adapter is an additive bias or DAPE"),
        ({"windows": 0}, "`windows` must be at least 1, got 0"),
        ({"lr": -1.0}, "`lr` must be a positive number"),
        ({"length": 99999}, "Give more text .`data`., or less `length`"),
        ({"out": "model"}, "`out` model: the folder is not empty and holds no adapter"),
        ({"model": "nowhere"}, "nowhere: there is no such folder"),
    ],
)
def test_mistakes_name_arguments(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        dape.extend(**{"model": "model", "out": "out", **SMALL, **change})
    assert "--" not in str(caught.value).replace("--local-dir", "")
    assert not Path("out/extend.json").exists()


def test_another_model_behind_the_path():
    dape.extend("model", out="out", **SMALL)
    config = Path("model/config.json")
    config.write_text(config.read_text() + "\n")
    with pytest.raises(ValueError, match=r"begun with other settings: `model`/config\.json changed .* another `out`"):
        dape.extend("model", out="out", **SMALL)


def test_a_model_in_memory_is_for_the_other_function():
    with pytest.raises(TypeError, match=r"`model` must be a folder, not Linear; dape\.hf\.extend"):
        dape.extend(torch.nn.Linear(1, 1))


def test_without_the_extra(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "transformers" else real(name, *a)
    )
    with pytest.raises(ValueError, match=re.escape(f"needs the transformers library: {install_command('hf')}")):
        dape.extend("model", out="out", **SMALL)
