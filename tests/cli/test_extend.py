"""``dape extend`` on a tiny Llama with a byte vocabulary: from a folder to an adapter, stopped and gone on."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.texts import random_words

transformers = pytest.importorskip("transformers")

from dape.cli import main  # noqa: E402
from dape.extras import install_command  # noqa: E402
from dape.hf import load_adapter  # noqa: E402
from dape.hf.tune import Tuner  # noqa: E402
from dape.results.records import read_rows  # noqa: E402

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
def elsewhere(isolated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "words.txt").write_text(random_words(300))
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
    assert [(r.label, r.length, r.step) for r in rows] == [
        (label, length, step)
        for label, step in (("rope", 0), ("yarn (untuned, factor 2)", 0), ("dape-kerple (adapter)", 3))
        for length in (16, 32)
    ]
    values = [row.value for row in rows]
    assert len(set(values)) == 6 and rows[0].k == 16
    told = capsys.readouterr().out
    assert "yarn (untuned, factor 2)" in told and "yarn (untuned, factor 2)" in Path("out/table.md").read_text()
    assert "training 460 numbers for 3 steps of 2 x 64 tokens" in told and "dape.hf.load_adapter" in told
    model = transformers.AutoModelForCausalLM.from_pretrained("model")
    load_adapter(model, "out/adapter")
    about = json.loads(Path("out/adapter/adapter_config.json").read_text())["about"]
    assert about["tuning"]["length"] == 64
    assert not Path("out/tuning").exists() and Path("out/curves.png").exists()


def test_in_place_of_the_rotation_nothing_is_trained(monkeypatch, capsys):
    monkeypatch.setattr(Tuner, "run", lambda *_, **__: pytest.fail("trained"))
    extend("--method", "self-extend")
    rows = {(row.label, row.length): row for row in read_rows(Path("out/results.jsonl"))}
    assert {label for label, _ in rows} == {"rope", "self-extend (untrained)"}
    assert rows["self-extend (untrained)", 16].value == pytest.approx(rows["rope", 16].value, rel=1e-5)
    assert rows["self-extend (untrained)", 32].value != rows["rope", 32].value
    model = transformers.AutoModelForCausalLM.from_pretrained("model")
    assert load_adapter(model, "out/adapter") is model
    extend("--method", "self-extend")  # everything is there
    extend("--method", "rerope", "--rope", "yarn", "--out", "other", expect=2)
    assert "rope='yarn' means nothing" in capsys.readouterr().err


def test_yarn_untuned_is_the_librarys_yarn():
    """The middle rows: what `from_pretrained` with YaRN in the configuration gives, measured by itself."""
    extend()
    untuned = [row.value for row in read_rows(Path("out/untuned.jsonl"))]
    yarn = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 16}
    new_model("model", rope_parameters=yarn)
    extend("--out", "theirs")
    theirs = [row.value for row in read_rows(Path("theirs/before.jsonl"))]
    assert untuned == pytest.approx(theirs, rel=1e-5) and not Path("theirs/untuned.jsonl").exists()
    new_model("model")
    extend("--out", "kept", "--rope", "keep")
    assert {row.label for row in read_rows(Path("kept/results.jsonl"))} == {"rope", "dape-kerple (adapter)"}


def other_text() -> None:
    Path("words.txt").write_text(Path("words.txt").read_text().replace("cat", "dog"))


def other_weights() -> None:
    """One number of one tensor."""
    tensors = load_file("model/model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] += 1e-3
    save_file(tensors, "model/model.safetensors", {"format": "pt"})


def other_rotation() -> None:
    config = json.loads(Path("model/config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 500.0
    Path("model/config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "words", "stopped"),
    [
        (other_text, "the text of --data changed (sha256 was ", True),
        (other_text, "the text of --data changed (sha256 was ", False),
        (other_weights, "the weights of MODEL changed (sha256 was ", True),
        (other_weights, "the weights of MODEL changed (sha256 was ", False),
        (other_rotation, "MODEL/config.json changed (sha256 was ", True),
    ],
)
def test_what_is_behind_a_path_may_change(change, words, stopped, capsys, monkeypatch):
    """Results of before are not shown for something else, nor is half an adapter trained on with it."""
    with monkeypatch.context() as patch:
        if stopped:
            patch.setattr("dape.training.interrupt.Interruption.__call__", lambda self: True)
        extend(expect=130 if stopped else 0)
    change()
    extend(expect=2)
    told = capsys.readouterr().err
    assert words in told and "use another --out" in told


def test_a_folder_of_an_older_version(capsys):
    extend()
    settings = json.loads(Path("out/extend.json").read_text())
    del settings["weights_hash"], settings["checksum"]
    Path("out/extend.json").write_text(json.dumps(settings))
    extend(expect=2)
    assert "the weights of MODEL changed (sha256 was not noted by an older dape" in capsys.readouterr().err


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

    def stopping(self: Tuner):
        if self.step == 2:
            monkeypatch.setattr(Tuner, "take_step", real)
            raise KeyboardInterrupt
        done = real(self)
        self.save()
        return done

    monkeypatch.setattr(Tuner, "take_step", stopping)
    extend(expect=130)
    assert [path.name for path in Path("out/tuning/checkpoints").iterdir()] == ["step-00000002"]
    extend()
    one, other = (Path(folder, "adapter/adapter_model.safetensors").read_bytes() for folder in ("whole", "out"))
    assert one == other


def test_dropout_of_the_model_goes_on_too(monkeypatch):
    """GPT-2 drops hidden states while it is trained: which ones depends on the step alone."""
    config = transformers.GPT2Config(
        vocab_size=257, n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=None, eos_token_id=None
    )
    transformers.GPT2LMHeadModel(config).save_pretrained("model")
    test_stopped_and_gone_on(monkeypatch)


def test_yarn_under_the_adapter_reaches_as_far_as_is_measured():
    """32 training lengths by default; what is loaded again has the same rotation."""
    extend("--rope", "yarn")
    facts = json.loads(Path("out/adapter/adapter_config.json").read_text())
    longest = max(row.length for row in read_rows(Path("out/after.jsonl")))
    assert facts["rope"] == "yarn" and facts["factor"] == longest / facts["train_length"] > 1
    extend("--rope", "yarn", "--factor", "0.5", "--out", "other", expect=2)


def rotation(out: str) -> tuple[str, float]:
    facts = json.loads(Path(out, "adapter/adapter_config.json").read_text())
    return facts["rope"], facts["factor"]


def test_yarn_is_the_default_where_it_is_possible(capsys):
    extend()
    assert rotation("out") == ("yarn", 2.0) and "slowed down for 2 training lengths" in capsys.readouterr().out
    extend("--factor", "8", "--out", "eight")
    assert rotation("eight") == ("yarn", 8.0)
    extend("--rope", "keep", "--out", "kept")
    assert rotation("kept") == ("keep", 1.0) and "slowed" not in capsys.readouterr().out.splitlines()[-1]
    extend("--train-length", "32", "--out", "near")
    assert rotation("near") == ("keep", 1.0)
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    new_model("model", rope_parameters=scaled)
    extend("--out", "scaled")
    assert rotation("scaled") == ("keep", 1.0)
    extend("--out", "other", "--factor", "4", expect=2)
    assert "scaled already (rope_type 'linear')" in capsys.readouterr().err
    extend("--out", "other", "--rope", "keep", "--factor", "4", expect=2)
    assert "rope='yarn' goes with a factor" in capsys.readouterr().err


def test_the_model_is_not_touched():
    before = Path("model/model.safetensors").read_bytes()
    extend()
    assert Path("model/model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--method dape-kerpel", "Did you mean"),
        ("--method rope", "--method rope: turns queries and keys, but the model has its own rotation"),
        ("--method dape-rope", "`dape extend --rope yarn --factor ...`"),
        ("--method nope", "--method nope: an adapter is an additive bias or DAPE"),
        ("--length 0", "--length must be at least 1"),
        ("--windows 0", "--windows must be at least 1"),
        ("--lr -1", "--lr must be a positive number"),
        ("--options hiden=3", "hiden"),
        ("--last-k 17", "length 16 is shorter than the 17 tokens to score"),
        ("--data missing.txt", "missing.txt"),
        ("--length 9999", "the training text has"),
        ("--lengths 9999", "the held-out text has"),
        ("--steps 0", "--steps must be at least 1"),
        ("--seed -1", "--seed must lie between"),
    ],
)
def test_wrong_arguments(argv, words, capsys, monkeypatch):
    """Nothing is measured, and the right ones may follow in the same folder."""
    monkeypatch.setattr("dape.evaluation.perplexity.measure", lambda *_, **__: pytest.fail("measured"))
    extend(*argv.split(), expect=2)
    assert words in capsys.readouterr().err
    assert not Path("out/extend.json").exists()


def test_not_a_model(capsys):
    assert main(["extend", "meta-llama/Llama-3", *SMALL]) == 2
    assert "download it first: `hf download meta-llama/Llama-3" in capsys.readouterr().err
    assert main(["extend", ".", *SMALL]) == 2
    assert "has no config.json" in capsys.readouterr().err


def test_an_architecture_without_adapters(capsys):
    config = transformers.GPTJConfig(vocab_size=257, n_embd=16, n_layer=1, n_head=2, rotary_dim=4)
    transformers.GPTJForCausalLM(config).save_pretrained("gptj")
    assert main(["extend", "gptj", *SMALL]) == 2
    assert "gptj: adapters exist for bloom, falcon, gemma" in capsys.readouterr().err


def test_other_architectures_without_a_length(capsys):
    """Before anything is loaded: BERT has no head that predicts."""
    Path("bert").mkdir()
    Path("bert", "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert main(["extend", "bert", *SMALL]) == 2
    assert "bert: adapters exist for bloom, falcon, gemma" in capsys.readouterr().err


def test_a_model_with_alibi(capsys):
    config = transformers.BloomConfig(vocab_size=257, hidden_size=16, n_layer=1, n_head=2)
    transformers.BloomForCausalLM(config).save_pretrained("model")
    extend("--method", "dape-alibi", expect=2)
    assert "does not say how long the texts of the model were: give --train-length" in capsys.readouterr().err
    extend("--train-length", "16", expect=2)
    assert "bloom was trained with ALiBi, which becomes the base of its adapter" in capsys.readouterr().err
    extend("--method", "dape-alibi", "--train-length", "16")
    assert {row.label for row in read_rows(Path("out/results.jsonl"))} == {"alibi", "dape-alibi (adapter)"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_attention_heads": 5}, "hidden size (16) is not a multiple of the number of attention heads (5)"),
        ({"hidden_size": "x"}, "Field 'hidden_size' expected int, got str"),
        ({"num_attention_heads": 0}, "modulo by zero"),
        ({"model_type": None}, "Should have a `model_type` key"),
    ],
)
def test_a_configuration_that_cannot_be(change, words, capsys):
    config = json.loads(Path("model/config.json").read_text()) | change
    Path("model/config.json").write_text(json.dumps({name: v for name, v in config.items() if v is not None}))
    extend(expect=2)
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


def test_a_length_from_the_configuration(capsys):
    new_model("model", max_position_embeddings=131072)
    small = SMALL[: SMALL.index("--lengths")]
    assert main(["extend", "model", *small]) == 2
    told = capsys.readouterr().err
    assert "too few for evaluation length 4194304" in told
    assert "131072 was taken from the model's config.json (max_position_embeddings)" in told
    assert "--train-length" in told and "--lengths" in told
    assert main(["extend", "model", *small, "--train-length", "16", "--lengths", "16", "32"]) == 0


def test_weights_that_are_not_all_there(capsys):
    tensors = load_file("model/model.safetensors")
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    save_file(tensors, "model/model.safetensors", {"format": "pt"})
    extend(expect=2)
    assert "1 tensors missing (model.layers.0.self_attn.q_proj.weight)" in capsys.readouterr().err
    Path("model/model.safetensors").write_bytes(b"short")
    extend(expect=2)
    assert "dape: model: " in capsys.readouterr().err
    new_model("model")
    config = json.loads(Path("model/config.json").read_text())
    Path("model/config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    extend(expect=2)
    assert "lm_head.weight is [257, 16], the model has [300, 16]" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_model_saved_for_flash_attention(key):
    config = json.loads(Path("model/config.json").read_text())
    Path("model/config.json").write_text(json.dumps(config | {key: "flash_attention_3"}))
    extend()


def test_a_model_that_needs_another_library(capsys, monkeypatch):
    def fail(*_, **__):
        raise ImportError("Using `bitsandbytes` 4-bit quantization requires bitsandbytes:\n`pip install bitsandbytes`")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fail)
    extend(expect=2)
    assert "needs a library that is not installed: Using `bitsandbytes` 4-bit" in capsys.readouterr().err


def test_a_sliding_window(capsys):
    config = transformers.MistralConfig(
        vocab_size=257, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16, sliding_window=8,
    )  # fmt: skip
    transformers.MistralForCausalLM(config).save_pretrained("model")
    extend()
    assert "dape-kerple (adapter)" in capsys.readouterr().out


def test_a_table_of_positions(capsys):
    config = transformers.GPT2Config(
        vocab_size=257, n_embd=16, n_layer=1, n_head=2, n_positions=40, bos_token_id=None, eos_token_id=None
    )
    transformers.GPT2LMHeadModel(config).save_pretrained("model")
    small = [*SMALL[: SMALL.index("--lengths")], "--train-length", "16"]
    assert main(["extend", "model", *small]) == 0
    assert "steps of 2 x 40 tokens" in capsys.readouterr().out
    assert {row.length for row in read_rows(Path("out/results.jsonl"))} == {16, 32}
    assert main(["extend", "model", *small, "--out", "far", "--length", "64"]) == 2
    assert "a table of 40 positions, and 64 tokens were asked for" in capsys.readouterr().err


def test_a_model_without_tokenizer(capsys):
    new_model("model", vocab_size=5000)
    extend(expect=2)
    assert "model has no tokenizer.json" in capsys.readouterr().err
    assert main(["prepare", "words.txt", "--out", "prepared"]) == 0
    extend("--data", "prepared")


def test_the_end_of_a_document_is_the_models(capsys):
    """Llama 3 calls it <|end_of_text|>; a mark of ours would be one id too many."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"?": 0, "the": 1, "cat": 2, "<|end_of_text|>": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    new_model("model", vocab_size=4)
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|end_of_text|>").save_pretrained("model")
    extend()
    assert main(["prepare", "words.txt", "--out", "prepared"]) == 0
    extend("--data", "prepared", "--out", "other", expect=2)
    assert "was prepared with the tokenizer bytes, not with that of model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("adapter/adapter_model.safetensors", "adapter_model.safetensors: damaged, it is not what was written"),
        ("adapter/adapter_config.json", "adapter_config.json: is not what it should be"),
        ("extend.json", "extend.json is damaged"),
    ],
)
def test_damaged_results(file, words, capsys):
    extend()
    Path("out", file).write_bytes(Path("out", file).read_bytes()[:50])
    extend(expect=2)
    told = capsys.readouterr().err
    assert words in told and "delete" in told


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "checkpoint.json"])
def test_damaged_training(file, capsys, monkeypatch):
    monkeypatch.setattr("dape.training.interrupt.Interruption.__call__", lambda self: True)
    extend(expect=130)
    path = Path("out/tuning/checkpoints/step-00000000", file)
    path.write_bytes(path.read_bytes()[:5])
    extend(expect=1)
    assert f"{path}: " in capsys.readouterr().err


def test_without_the_extra(capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "transformers" else real(name, *a)
    )
    extend(expect=2)
    assert f"dape extend needs the transformers library: {install_command('hf')}" in capsys.readouterr().err


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
