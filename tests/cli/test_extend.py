"""``dape extend`` on a tiny Llama with a byte vocabulary: from a folder to an adapter, stopped and gone on."""

import json
import random
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from dape.cli import main  # noqa: E402
from dape.evaluation.records import read_rows  # noqa: E402
from dape.hf import load_adapter  # noqa: E402
from dape.hf.tune import Tuner  # noqa: E402

SMALL = [
    "--data",
    "words.txt",
    "--out",
    "out",
    "--steps",
    "3",
    "--batch",
    "2",
    "--windows",
    "4",
    "--lengths",
    "16",
    "32",
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("DAPE_DEBUG", raising=False)
    draw = random.Random(0)
    lines = [" ".join(draw.choices(["the", "cat", "sat", "on", "mats"], k=6)) for _ in range(300)]
    (tmp_path / "words.txt").write_text("\n".join(lines))
    new_model("model")


def new_model(folder: str, **more) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**{"vocab_size": 257, "max_position_embeddings": 16, **sizes, **more})
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def extend(*argv: str, expect: int = 0) -> None:
    assert main(["extend", "model", *SMALL, *argv]) == expect


def test_before_and_after(capsys):
    extend("--lr", "0.1")
    rows = read_rows(Path("out/results.jsonl"))
    assert [(r.label, r.length) for r in rows] == [
        (label, length) for label in ("rope", "dape-kerple (adapter)") for length in (16, 32)
    ]
    before, after = rows[:2], rows[2:]
    assert all(a.value != b.value for a, b in zip(before, after, strict=True)) and rows[0].k == 16
    told = capsys.readouterr().out
    assert "training 460 numbers for 3 steps of 2 x 64 tokens" in told and "dape.hf.load_adapter" in told
    model = transformers.AutoModelForCausalLM.from_pretrained("model")
    load_adapter(model, "out/adapter")
    about = json.loads(Path("out/adapter/adapter.json").read_text())["about"]
    assert about["tuning"]["length"] == 64
    assert not Path("out/tuning").exists() and Path("out/curves.png").exists()


def test_finished_work_is_not_done_again(monkeypatch):
    extend()
    files = {p: p.stat().st_mtime_ns for p in Path("out").glob("*.jsonl") if p.name != "results.jsonl"}
    monkeypatch.setattr(Tuner, "run", lambda *_, **__: pytest.fail("trained again"))
    extend()
    assert {p: p.stat().st_mtime_ns for p in files} == files


def test_stopped_and_gone_on(monkeypatch):
    """The same weights as without the stop."""
    extend("--out", "whole")
    real = Tuner.take_step

    def stopping(self: Tuner) -> float:
        if self.step == 2:
            monkeypatch.setattr(Tuner, "take_step", real)
            raise KeyboardInterrupt
        loss = real(self)
        self.save()
        return loss

    monkeypatch.setattr(Tuner, "take_step", stopping)
    extend(expect=130)
    assert json.loads(Path("out/tuning/tuning.json").read_text())["step"] == 2
    extend()
    one, other = (Path(folder, "adapter/adapter.safetensors").read_bytes() for folder in ("whole", "out"))
    assert one == other


def test_the_model_is_not_touched():
    before = Path("model/model.safetensors").read_bytes()
    extend()
    assert Path("model/model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--method dape-kerpel", "Did you mean"),
        ("--method rope", "an adapter is an additive bias or DAPE"),
        ("--length 0", "--length must be at least 1"),
        ("--windows 0", "--windows must be at least 1"),
        ("--lr -1", "--lr must be a positive number"),
        ("--options hiden=3", "hiden"),
        ("--last-k 17", "length 16 is shorter than the 17 tokens to score"),
        ("--data missing.txt", "missing.txt"),
    ],
)
def test_wrong_arguments(argv, words, capsys):
    extend(*argv.split(), expect=2)
    assert words in capsys.readouterr().err


def test_not_a_model(capsys):
    assert main(["extend", "meta-llama/Llama-3", *SMALL]) == 2
    assert "Nothing is downloaded: give a folder on this machine" in capsys.readouterr().err
    assert main(["extend", ".", *SMALL]) == 2
    assert "no config.json in it" in capsys.readouterr().err


def test_an_architecture_without_adapters(capsys):
    config = transformers.OPTConfig(
        vocab_size=257, hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2, word_embed_proj_dim=16
    )
    transformers.OPTForCausalLM(config).save_pretrained("opt")
    assert main(["extend", "opt", *SMALL]) == 2
    assert "opt: adapters exist for gpt2, gpt_neox, llama" in capsys.readouterr().err


def test_too_few_ids(capsys):
    new_model("model", vocab_size=99)
    extend(expect=2)
    assert "its tokenizer has 257 ids, the model knows 99" in capsys.readouterr().err


def test_other_settings_in_the_same_folder(capsys):
    extend()
    extend("--steps", "4", expect=2)
    assert "steps was 3, now 4" in capsys.readouterr().err
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    extend("--out", "mine", expect=2)
    assert "the folder is not empty and holds no adapter" in capsys.readouterr().err
