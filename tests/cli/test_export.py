"""``dape export`` and ``dape import``: the same model, tokenizer and texts on both sides."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before the library is imported, which reads it once

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, AutoTokenizer

import dape.hf
from dape.cli import main
from dape.data.corpora import open_data
from dape.data.tokenizer import LibraryTokenizer, load_tokenizer
from dape.extras import install_command
from dape.hf import convert
from dape.hf.tokenizer import byte_level_json, is_byte_level, open_exported, save_tokenizer
from dape.models.generate import Sampling, generate
from dape.training import checkpoint as checkpoints
from dape.training.description import find

TINY = ["--layers", "2", "--width", "16", "--heads", "2", "--train-length", "8", "--batch", "4", "--threads", "1"]
TEXTS = ["the cat", "", "é ☃\n\n  a", "<|endoftext|> in a text", "\x00 don't  ,  ."]
RUNS = {
    "kerple": ["--encoding", "dape-kerple", "--encoding-options", "hidden=8", "--seed", "3"],
    "learned": ["--encoding", "learned", "--encoding-options", "max_positions=40"],
    "random": ["--encoding", "randomized-rope"],
    "fire": ["--encoding", "dape-fire"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Iterator[Path]:
    """Runs on bytes by name, one on a BPE whose vocabulary is padded, and kerple's perplexities."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAPE_CACHE", str(folder / "cache"))
        make_runs(folder)
        yield folder


def make_runs(folder: Path) -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijkl", k=6)) for _ in range(800)]
    (folder / "words.txt").write_text(" ".join(draw.choices(words, k=4000)))
    train = ["train", "--data", str(folder / "words.txt"), *TINY, "--steps", "3"]
    for name, argv in RUNS.items():
        assert main([*train, *argv, "--out", str(folder / name)]) == 0
    open_data(str(folder / "words.txt"), out=folder / "data-bpe", tokenizer="bpe:1030")
    assert main([*train, "--data", str(folder / "data-bpe"), "--out", str(folder / "bpe")]) == 0
    evaluate = ["eval", str(folder / "kerple"), "--lengths", "8", "16", "--last-k", "4", "--windows", "3"]
    assert main([*evaluate, "--json", str(folder / "kerple/rows.jsonl"), "--threads", "1"]) == 0


@pytest.fixture(scope="module")
def exported(runs, tmp_path_factory):
    """The exported folder of a run, made once. Tests must not change it."""
    folder, done = tmp_path_factory.mktemp("models"), {}

    def of(name: str) -> Path:
        if name not in done:
            assert main(["export", str(runs / name), "--out", str(folder / name)]) == 0
            done[name] = folder / name
        return done[name]

    return of


@pytest.fixture(autouse=True)
def quiet(monkeypatch, capsys):
    monkeypatch.delenv("DAPE_DEBUG", raising=False)


def decoder_of(run: Path) -> dape.DecoderLM:
    where = find(run)
    return checkpoints.load_model(where, checkpoints.describe(where), torch.device("cpu")).eval()


def greedy(model: dape.DecoderLM, prompt: torch.Tensor, allowed: int) -> torch.Tensor:
    return torch.stack(list(generate(model, prompt, 9, sampling=Sampling(temperature=0), allowed=allowed)), dim=1)


# Export --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*RUNS, "bpe"])
def test_the_exported_model_is_the_checkpoints(runs, exported, name):
    model, decoder = AutoModelForCausalLM.from_pretrained(exported(name)), decoder_of(runs / name)
    text = torch.randint(257, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), model.drawn(20, torch.Generator().manual_seed(1)):
        drawn = decoder.drawn_encodings(20, torch.Generator().manual_seed(1))
        torch.testing.assert_close(model(text).logits, decoder(text, encodings=drawn), rtol=0, atol=1e-6)


def test_what_is_said_and_written(runs, exported, tmp_path, capsys):
    out = tmp_path / "new" / "model"
    out.mkdir(parents=True)  # empty is as good as absent
    assert main(["export", str(runs / "fire"), "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "step-00000003 -> " in shown.out and "logits differ by " in shown.out and "import dape.hf" in shown.out
    assert shown.err == ""
    names = {"README.md", "config.json", "dape.json", "generation_config.json", "model.safetensors"}
    names |= {"dape-checksums.json", "modeling_dape.py"}
    assert {p.name for p in out.iterdir()} == names | {"tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize("name", ["kerple", "bpe"])
def test_the_library_reads_text_as_ours_does(runs, exported, name):
    own = load_tokenizer(find(runs / name))
    library = AutoTokenizer.from_pretrained(exported(name))
    for text in [*TEXTS, (runs / "words.txt").read_text()[:3000]]:
        ids = own.encode(text).tolist()
        assert library(text)["input_ids"] == ids
        assert library.decode(ids) == own.decode(ids)
    assert library.eos_token_id == library.pad_token_id == own.eod
    padded = library(["the cat", "on"], padding=True)
    assert padded["attention_mask"][1][-2:] == [1, 1] and not padded["attention_mask"][1][0]
    assert library.model_max_length > 10**9


def test_nothing_is_put_in_front_of_a_text(tmp_path):
    """A tokenizer.json may ask for a token at the start; training never had one."""
    content = json.loads(byte_level_json())
    content["model"]["vocab"]["XY"] = 257
    content["added_tokens"].append({**content["added_tokens"][0], "id": 258, "content": "<s>"})
    piece = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [piece, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [piece, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}},
    }
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    tokenizer = LibraryTokenizer(json.dumps(content), name="file:x", origin="x")
    save_tokenizer(tokenizer, tmp_path)
    assert (
        AutoTokenizer.from_pretrained(tmp_path)("abc")["input_ids"] == tokenizer.encode("abc").tolist() == [97, 98, 99]
    )
    assert load_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("name", ["kerple", "bpe"])
def test_texts_of_the_exported_model(runs, exported, name):
    model, tokenizer = (auto.from_pretrained(exported(name)) for auto in (AutoModelForCausalLM, AutoTokenizer))
    own = load_tokenizer(find(runs / name))
    prompt = tokenizer("abc def", return_tensors="pt")
    found = model.generate(**prompt, max_new_tokens=9, do_sample=False, eos_token_id=None)
    expected = greedy(decoder_of(runs / name), prompt["input_ids"], own.vocabulary)
    assert torch.equal(found[:, prompt["input_ids"].shape[1] :], expected)
    assert model.generation_config.eos_token_id == own.eod


def test_ids_without_meaning_are_never_chosen(runs, exported):
    model = AutoModelForCausalLM.from_pretrained(exported("bpe"))
    own = load_tokenizer(find(runs / "bpe"))
    assert own.vocabulary < model.config.vocab_size
    with torch.no_grad():
        model.get_output_embeddings().weight[own.vocabulary :] = 50 * model.get_output_embeddings().weight[0]
    found = model.generate(torch.full((4, 3), 70), max_new_tokens=20, do_sample=True, temperature=100.0)
    assert found.max() < own.vocabulary


def test_the_model_card(runs, exported):
    text = (exported("kerple") / "README.md").read_text()
    rows = [json.loads(line) for line in (runs / "kerple/rows.jsonl").read_text().splitlines()]
    for row in rows:
        assert f"| {row['length']} | {row['value']:.4f} | 12 | last_k, last 4 |" in text
    losses = [json.loads(line) for line in (runs / "kerple/metrics.jsonl").read_text().splitlines()]
    assert f"{losses[-1]['validation_loss']:.4f} nats" in text
    count = sum(p.numel() for p in decoder_of(runs / "kerple").parameters())
    for words in ("`dape-kerple` (hidden=8)", f"{count:,} parameters", "3 steps of 4 sequences, 96 tokens, seed 3"):
        assert words in text
    assert "Not measured" in (exported("fire") / "README.md").read_text()


@pytest.mark.parametrize("name", ["kerple", "random"])
def test_the_program_on_the_model_card_runs(exported, name, monkeypatch, capsys):
    text = (exported(name) / "README.md").read_text()
    program = text.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(exported(name).parent)
    exec(program, {})
    assert capsys.readouterr().out.startswith("def ")


def test_perplexities_of_other_steps_are_not_shown(runs, tmp_path):
    shutil.copytree(runs / "kerple", tmp_path / "run")
    row = json.loads((runs / "kerple/rows.jsonl").read_text().splitlines()[0])
    (tmp_path / "run/rows.jsonl").write_text(json.dumps({**row, "step": 99}) + "\n")
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model")]) == 0
    assert "Not measured" in (tmp_path / "model/README.md").read_text()


def test_a_full_disk(runs, tmp_path, capsys):
    """A real one: the library that writes the weights has errors of its own for it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only")
    try:
        assert main(["export", str(runs / "kerple"), "--out", str(disk / "out")]) == 1
        told = capsys.readouterr().err
        assert "Traceback" not in told and "pace" in told and str(disk) in told
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_other_logits_are_refused_and_leave_nothing(runs, tmp_path, capsys, monkeypatch):
    real = convert.wrapped

    def wrong(*args):
        model = real(*args)
        with torch.no_grad():
            model.model.norm.bias += 1e-3
        return model

    monkeypatch.setattr(convert, "wrapped", wrong)
    assert main(["export", str(runs / "fire"), "--out", str(tmp_path / "model")]) == 1
    assert "logits differ by " in capsys.readouterr().err and list(tmp_path.iterdir()) == []


# Import --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*RUNS, "bpe"])
def test_there_and_back(runs, exported, name, tmp_path, capsys):
    assert main(["import", str(exported(name)), "--out", str(tmp_path / "back")]) == 0
    assert "step-00000003, logits differ by 0.0e+00" in capsys.readouterr().out
    before, after = (find(path) for path in (runs / name, tmp_path / "back"))
    assert checkpoints.describe(after) == replace(checkpoints.describe(before), threads=None)
    one, other = (load_file(path / "model.safetensors") for path in (before, after))
    assert set(one) == set(other) and all(torch.equal(one[key], other[key]) for key in one)
    assert load_tokenizer(after).fingerprint == load_tokenizer(before).fingerprint


def test_an_imported_run_is_evaluated_and_writes(runs, exported, tmp_path, capsys):
    assert main(["import", str(exported("kerple")), "--out", str(tmp_path / "back")]) == 0
    shown = []
    for run in (runs / "kerple", tmp_path / "back"):
        evaluate = ["eval", str(run), "--data", str(runs / "kerple/data"), "--lengths", "8", "--windows", "3"]
        for argv in ([*evaluate, "--last-k", "4"], ["generate", str(run), "--tokens", "9"]):
            capsys.readouterr()
            assert main([*argv, "--threads", "1"]) == 0
            shown.append(capsys.readouterr().out)
    assert shown[:2] == shown[2:]


def test_a_model_trained_in_the_library(exported, tmp_path):
    """It knows nothing of a run; precision, end-of-document mark and tokenizer are the folder's."""
    model, tokenizer = (auto.from_pretrained(exported("bpe")) for auto in (AutoModelForCausalLM, AutoTokenizer))
    with torch.no_grad():
        model.model.norm.bias += 0.5
    model.to(torch.bfloat16).save_pretrained(tmp_path / "trained")
    tokenizer.save_pretrained(tmp_path / "trained")
    assert main(["import", str(tmp_path / "trained"), "--out", str(tmp_path / "run")]) == 0
    where = find(tmp_path / "run")
    found = checkpoints.describe(where)
    assert (found.step, found.data["tokenizer"]) == (0, "file:trained")
    assert torch.equal(load_file(where / "model.safetensors")["norm.bias"], model.model.norm.bias.float())
    own = load_tokenizer(where)
    assert (
        own.eod == tokenizer.eos_token_id
        and own.encode("abc <|endoftext|>").tolist() == (tokenizer("abc <|endoftext|>")["input_ids"])
    )


@pytest.mark.parametrize("mark", ["<end>", {"content": "<end>", "lstrip": False}])
def test_the_end_of_a_document_is_the_librarys_end_of_text(tmp_path, mark):
    content = json.loads(byte_level_json())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 257, "content": "<end>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": mark}))
    assert open_exported(tmp_path).eod == 257


def test_bytes_are_recognised(exported, tmp_path):
    AutoTokenizer.from_pretrained(exported("fire")).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "tokenizer.json").read_text())
    assert is_byte_level(saved)
    for change in (
        {"model": {**saved["model"], "merges": [["a", "b"]]}},
        {"normalizer": {"type": "Lowercase"}},
        {"added_tokens": []},
        {"model": {**saved["model"], "vocab": {**saved["model"]["vocab"], "a": 98, "b": 97}}},
    ):
        assert not is_byte_level({**saved, **change})


def test_a_tokenizer_for_a_folder_without_one(exported, tmp_path, capsys):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(exported("fire") / name, tmp_path / name)
    argv = ["import", str(tmp_path), "--out", str(tmp_path / "run")]
    assert main(argv) == 2
    assert "has no tokenizer.json" in capsys.readouterr().err
    assert main([*argv, "--tokenizer", "bpe:300"]) == 2
    assert "would train a new tokenizer" in capsys.readouterr().err
    assert main([*argv, "--tokenizer", str(exported("bpe") / "tokenizer.json")]) == 2
    assert "the model has 257 ids, the tokenizer " in capsys.readouterr().err
    assert main([*argv, "--tokenizer", "bytes"]) == 0
    assert load_tokenizer(find(tmp_path / "run")).name == "bytes"


def test_weights_that_do_not_fit_are_refused(exported, tmp_path, capsys):
    shutil.copytree(exported("fire"), tmp_path / "model")
    weights = load_file(tmp_path / "model/model.safetensors")
    kept = {key: tensor for key, tensor in weights.items() if not key.endswith("encodings.1.f.second.bias")}
    save_file({**kept, "model.other": torch.zeros(1)}, tmp_path / "model/model.safetensors", {"format": "pt"})
    (tmp_path / "model/dape-checksums.json").unlink()
    assert main(["import", str(tmp_path / "model"), "--out", str(tmp_path / "run")]) == 1
    shown = capsys.readouterr().err
    assert "1 tensors missing (model.encodings.1.f.second.bias); 1 tensors unexpected (model.other)" in shown
    assert not (tmp_path / "run").exists()


# What cannot be meant ------------------------------------------------------------------------------------------------


def test_wrong_arguments_of_export(runs, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    (tmp_path / "empty").mkdir()
    for run, out, words in (
        (runs / "fire", tmp_path / "full", "exists and is not empty"),
        (runs / "fire", tmp_path / "full/file", "is a file, not a folder"),
        (tmp_path / "empty", tmp_path / "out", "holds no checkpoint"),
        (tmp_path / "nowhere", tmp_path / "out", "there is no such checkpoint or run"),
    ):
        assert main(["export", str(run), "--out", str(out)]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_wrong_arguments_of_import(exported, tmp_path, capsys):
    for name, content in (("gpt", '{"model_type": "gpt2"}'), ("broken", "{"), ("list", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    (tmp_path / "empty").mkdir()
    for model, words in (
        ("someone/some-model", "download it first: `hf download someone/some-model"),
        (tmp_path / "empty", "has no config.json"),
        (tmp_path / "gpt", "is a model of type 'gpt2', and only type 'dape'"),
        (tmp_path / "broken", "config.json: is not what it should be"),
        (tmp_path / "list", "config.json: is not what it should be (found [], expected an object"),
    ):
        assert main(["import", str(model), "--out", str(tmp_path / "out")]) == 2
        assert words in capsys.readouterr().err
    assert main(["import", str(exported("fire")), "--out", str(tmp_path / "gpt")]) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert main(["import", str(exported("fire")), "--out", str(tmp_path / "out"), "--tokenizer", "bytes"]) == 2
    assert "has a tokenizer; --tokenizer is for folders without one" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["export", "import"])
def test_without_the_extra(runs, exported, command, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([command, str(runs / "fire"), "--out", str(tmp_path / "out")]) == 2
    assert f"needs the transformers library: {install_command('hf')}" in capsys.readouterr().err
