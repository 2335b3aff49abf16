"""``dape harness``: lm-eval's numbers against hand-made ones and against our own, without a network."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before the library is imported, which reads it once

import pytest
import torch

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

import transformers

import dape.hf
from dape.actions.model_text import model_corpus
from dape.cli import main
from dape.data.tokenizer import ByteTokenizer, Tokenizer, train_bpe
from dape.evaluation.config import EvalConfig
from dape.evaluation.perplexity import measure as our_measure
from dape.extras import install_command
from dape.hf.convert import quiet
from dape.hf.harness.questions import read_questions
from dape.hf.harness.reader import Reader
from dape.hf.harness.run import Subject, measure, open_subject
from dape.hf.harness.tasks import Tokens, choices_task, last_k_task
from dape.hf.scorer import Scorer
from dape.hf.tokenizer import save_tokenizer
from dape.results.records import Row, read_rows

HERE = Path(__file__).parent / "harness"
QUESTIONS, TEXT = str(HERE / "questions.jsonl"), str(HERE / "text.txt")
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = {"max_position_embeddings": 16, "bos_token_id": None, "eos_token_id": None, **SIZES}
OURS = {"layers": 2, "width": 16, "heads": 2, "train_length": 16}
LAST = ["--text", TEXT, "--lengths", "16", "40", "--last-k", "8", "--windows", "5"]


def sharpened(model):
    """Weights of a new model are so small that it finds all tokens alike; then many mistakes would not show."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(6 if p.ndim > 1 else 1)
    return model


def save(model, tokenizer: Tokenizer, folder: Path) -> None:
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Models of both kinds, one of them on a BPE; adapters that do nothing and something."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(1)
    with quiet():
        ours = dape.hf.DapeConfig(**OURS, vocabulary=257, encoding="dape-kerple", eos_token_id=256, pad_token_id=256)
        save(sharpened(dape.hf.DapeForCausalLM(ours)), ByteTokenizer(), folder / "ours")
        bpe = train_bpe(290, [Path(TEXT).read_text()])
        pieces = dape.hf.DapeConfig(**OURS, vocabulary=290, encoding="rope", eos_token_id=0, pad_token_id=0)
        save(sharpened(dape.hf.DapeForCausalLM(pieces)), bpe, folder / "bpe")
        llama = sharpened(transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=257, **LLAMA)))
        save(llama, ByteTokenizer(), folder / "llama")
    dape.hf.extend(llama, "dape-kerple")
    dape.hf.save_adapter(llama, folder / "zero")
    with torch.no_grad():
        for p in dape.hf.adapter.adapter_parameters(llama):
            p.add_(0.3 * torch.randn_like(p))
    dape.hf.project_(llama)
    dape.hf.save_adapter(llama, folder / "adapter")
    return folder


@pytest.fixture(autouse=True)
def apart(made, tmp_path, monkeypatch):
    """A copy of nothing, a cache of its own, and no way out: a connection that is only tried fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    # Another test may have imported the libraries before this file could set the variable they read then.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.delenv("DAPE_DEBUG", raising=False)
    for name in ("ours", "bpe", "llama", "zero", "adapter"):
        (tmp_path / name).symlink_to(made / name)
    tried: list[object] = []

    def refuse(*args: object, **_: object) -> None:
        tried.append(args)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not tried


def subject(folder: str, adapter: str | None = None) -> Subject:
    return open_subject(Path(folder), Path(adapter) if adapter else None, torch.device("cpu"))


def harness(*argv: str, expect: int = 0) -> list[Row]:
    shutil.rmtree("out", ignore_errors=True)
    assert main(["harness", *argv, "--out", "out", "--threads", "1"]) == expect
    return read_rows(Path("out/rows.jsonl")) if expect == 0 else []


def values(rows: list[Row]) -> dict[tuple[str, int], float]:
    return {(row.metric, row.length): row.value for row in rows}


# Questions -----------------------------------------------------------------------------------------------------------


def by_hand(model, question: str, choice: str, window: int) -> float:
    """Log-likelihood of " choice" after the question, the bytes being the ids; the beginning is lost if need be."""
    before, scored = list(question.encode()), list(f" {choice}".encode())
    ids = (before + scored)[-(window + 1) :]
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0].double()
    chosen = logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]]
    return float(chosen[-len(scored) :].sum())


@pytest.mark.parametrize(
    ("folder", "adapter", "window", "batch"),
    [("ours", None, 64, 4), ("ours", None, 17, 1), ("llama", None, 64, 1), ("llama", "adapter", 17, 4)],
)
def test_choices_by_hand(folder, adapter, window, batch):
    who, questions = subject(folder, adapter), read_questions(Path(QUESTIONS))
    selected = choices_task(questions)
    rows, _ = measure(who, selected, length=window, batch=batch, limit=None)
    given = [i.resps[0][0] for i in selected.tasks["questions"].instances]
    expected = [by_hand(who.model, q["question"], c, window) for q in questions.items for c in q["choices"]]
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-4)
    right = {"accuracy": 0, "accuracy_norm": 0}
    for q in questions.items:
        scores = [by_hand(who.model, q["question"], c, window) for c in q["choices"]]
        per_letter = [s / len(c) for s, c in zip(scores, q["choices"], strict=True)]
        for metric, found in (("accuracy", scores), ("accuracy_norm", per_letter)):
            right[metric] += found.index(max(found)) == q["answer"]
    assert {r.metric: r.value for r in rows} == {metric: pytest.approx(n / 10) for metric, n in right.items()}
    assert rows[0].protocol == "lm-eval:multiple_choice" and rows[0].length == window
    lengths = [len(f"{q['question']} {c}".encode()) for q in questions.items for c in q["choices"]]
    assert rows[0].extra["cut"] == sum(n > window + 1 for n in lengths)
    assert rows[0].scored_tokens == sum(len(f" {c}".encode()) for q in questions.items for c in q["choices"])


def test_answers_by_number_and_by_text():
    items = read_questions(Path(QUESTIONS)).items
    assert [q["choices"][q["answer"]] for q in items[:6]] == [
        "harbour",
        "cold and white",
        "Monday",
        "time",
        "violin",
        "baker",
    ]


GOOD = {"question": "a", "choices": ["b", "c"], "answer": 0}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not JSON"),
        ("[1]", "has no question, choices, answer"),
        (json.dumps({**GOOD, "answer": 2}), "answer must be 0 to 1 or the text of a choice, got 2"),
        (json.dumps({**GOOD, "answer": "d"}), "got 'd'"),
        (json.dumps({**GOOD, "answer": True}), "got True"),
        (json.dumps({**GOOD, "choices": ["b"]}), "choices must be a list of two texts or more"),
        (json.dumps({**GOOD, "choices": ["b", ""]}), "choices must be a list of two texts or more"),
        (json.dumps({**GOOD, "choices": ["b", "b"]}), "two choices are the same"),
        (json.dumps({**GOOD, "question": 3}), "question must be a text, got 3"),
    ],
)
def test_bad_questions(line, words, capsys):
    Path("bad.jsonl").write_text(json.dumps(GOOD) + "\n\n" + line + "\n")
    harness("ours", "--choices", "bad.jsonl", expect=2)
    told = capsys.readouterr().err
    assert words in told and "bad.jsonl, line 3" in told


# Text ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("folder", "adapter"), [("ours", None), ("bpe", None), ("llama", None), ("llama", "adapter")])
def test_last_k_equals_ours(folder, adapter):
    """Beyond the training length, on the very tokens, whatever they would become as text."""
    who, corpus = subject(folder, adapter), model_corpus(TEXT, Path(folder), "text")
    config = EvalConfig(lengths=(8, 16, 40), last_k=8, windows=20)
    model = who.model.model if folder in ("ours", "bpe") else Scorer(who.model)
    for expected in our_measure(model, corpus.validation, config):
        selected = last_k_task(corpus, expected.length, k=8, windows=20)
        (row,), _ = measure(who, selected, length=expected.length, batch=2, limit=None)
        assert row.value == pytest.approx(expected.perplexity, rel=1e-5)
        assert row.window_nll == pytest.approx(expected.nll.mean(1), abs=1e-4)
        count = len(expected.nll)
        assert (row.protocol, row.k, row.windows, row.scored_tokens) == ("lm-eval:last_k", 8, count, 8 * count)
        assert row.extra["cut"] == 0


@pytest.mark.parametrize("folder", ["ours", "bpe"])
def test_text_would_be_tokenized_otherwise(folder):
    """That the test above can fail: given as text, lm-eval would score other tokens of some window."""
    who, corpus = subject(folder), model_corpus(TEXT, Path(folder), "text")
    (task,) = last_k_task(corpus, 40, k=8, windows=20).tasks.values()
    reader = Reader(who.model, who.tokenizer, length=40, batch=1)
    halves = [(doc["tokens"][:-8], doc["tokens"][-8:]) for doc in task.eval_docs]
    as_text = [reader._encode_pair(*map(corpus.tokenizer.decode, pair)) for pair in halves]
    assert any(tuple(pair) != other for pair, other in zip(as_text, halves, strict=True))
    as_tokens = [reader._encode_pair(*map(Tokens, pair)) for pair in halves]
    assert [tuple(pair) for pair in as_tokens] == halves


def test_the_same_as_dape_eval(capsys):
    """Both commands, from the same folder and text."""
    assert main(["import", "ours", "--out", "run"]) == 0
    lengths = ["--lengths", "16", "40", "--last-k", "8", "--windows", "5"]
    assert main(["eval", "run", "--data", TEXT, *lengths, "--json", "eval.jsonl", "--threads", "1"]) == 0
    expected = read_rows(Path("eval.jsonl"))
    rows = harness("ours", *LAST)
    assert [r.value for r in rows] == pytest.approx([r.value for r in expected], rel=1e-5)
    assert [r.data_hash for r in rows] == [r.data_hash for r in expected]
    told = capsys.readouterr().out
    assert "window: 16, 40 tokens; lm-eval alone would cut at the model's max_position_embeddings: 16" in told
    assert f"{rows[1].value:.4f}" in told


def test_an_adapter_at_zero_changes_nothing_and_a_trained_one_does():
    argv = ["--choices", QUESTIONS, "--text", TEXT, "--lengths", "40", "--last-k", "8", "--rolling", "--batch", "8"]
    bare, zero, adapted = (
        values(harness("llama", *argv, *more)) for more in ([], ["--adapter", "zero"], ["--adapter", "adapter"])
    )
    assert zero == pytest.approx(bare, rel=1e-4)
    for metric in ("perplexity", "byte_perplexity"):
        assert adapted[metric, 40] != pytest.approx(bare[metric, 40], rel=1e-3)


def test_rolling_by_hand():
    """Windows of lm-eval share no scored token; the first begins with the end-of-document mark."""
    rows = {r.metric: r for r in harness("ours", "--text", TEXT, "--lengths", "40", "--last-k", "8", "--rolling")}
    who, corpus = subject("ours"), model_corpus(TEXT, Path("ours"), "text")
    text = corpus.tokenizer.decode(corpus.validation.read(0, len(corpus.validation)))
    ids, total = [256, *text.encode()], 0.0
    for start in range(0, len(ids) - 1, 40):
        piece = ids[start : start + 41]
        if start and len(piece) < 41:  # the last window is filled up with what came before it
            piece, fresh = ids[-41:], len(piece) - 1
        else:
            fresh = len(piece) - 1
        with torch.no_grad():
            logits = who.model(torch.tensor([piece[:-1]])).logits[0].double()
        total += float(logits.log_softmax(-1)[range(len(piece) - 1), piece[1:]][-fresh:].sum())
    count = len(ids) - 1
    assert rows["byte_perplexity"].value == pytest.approx(float(torch.tensor(-total / count).exp()), rel=1e-4)
    assert rows["byte_perplexity"].scored_tokens == count
    assert rows["byte_perplexity"].protocol == "lm-eval:loglikelihood_rolling"


# Tasks of lm-eval ----------------------------------------------------------------------------------------------------


def write_task(name: str, data: str, **more: object) -> None:
    Path("tasks").mkdir(exist_ok=True)
    lines = {"task": name, "dataset_path": data, "output_type": "multiple_choice", "test_split": "test", **more}
    fields = {"doc_to_text": "question", "doc_to_choice": "choices", "doc_to_target": "answer"}
    Path(f"tasks/{name}.yaml").write_text(
        "".join(f"{key}: {json.dumps(v)}\n" for key, v in {**lines, **fields}.items())
    )


def test_yaml_tasks_and_limit():
    """The same questions as a task of lm-eval's own kind: the same accuracy."""
    items = read_questions(Path(QUESTIONS)).items
    Path("data.jsonl").write_text("".join(json.dumps(q) + "\n" for q in items))
    write_task("mine", "json", dataset_kwargs={"data_files": {"test": str(Path("data.jsonl").resolve())}})
    direct = harness("llama", "--choices", QUESTIONS, "--lengths", "64", "--limit", "7")
    rows = harness("llama", "--tasks", "mine", "--include", "tasks", "--lengths", "64", "--limit", "7")
    assert values(rows) == values(direct) and rows[0].extra["items"] == 7
    (saved,) = Path("out/lm-eval").glob("mine-64-*.json")
    results = json.loads(saved.read_text())
    assert results["results"]["mine"]["acc,none"] == rows[0].value and results["config"]["limit"] == 7


def test_a_task_that_would_download(capsys):
    write_task("distant", "nobody/nothing")
    harness("ours", "--tasks", "distant", "--include", "tasks", expect=2)
    told = capsys.readouterr().err
    assert "--tasks distant: its data is not on this machine, and nothing is downloaded" in told
    assert "Traceback" not in told


def test_a_broken_task(capsys):
    write_task("broken", "json", dataset_kwargs={"data_files": {"test": QUESTIONS}}, output_type="guess")
    harness("ours", "--tasks", "broken", "--include", "tasks", expect=2)
    assert "--tasks broken: cannot be loaded (ValueError: Got invalid output_type 'guess'" in capsys.readouterr().err


# Wrong arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("ours", "nothing to measure: give --choices FILE, --tests NAME, --text TEXT or --tasks NAME"),
        ("ours --choices none.jsonl", "--choices none.jsonl: No such file"),
        ("ours --text none.txt", "none.txt"),
        (f"ours --text {TEXT} --lengths 4", "length 4 is shorter than the 256 tokens to score"),
        (f"ours --text {TEXT} --lengths 9999", "too few for evaluation length 9999"),
        (f"ours --choices {QUESTIONS} {QUESTIONS}", "two tasks are called questions"),
        (f"ours --choices {QUESTIONS} --rolling", "--rolling measures a text"),
        (f"ours --choices {QUESTIONS} --lengths 0", "--lengths must be positive"),
        (f"ours --choices {QUESTIONS} --batch 0", "--batch must be at least 1"),
        (f"ours --choices {QUESTIONS} --include nowhere", "--include nowhere: is not a folder"),
        (f"ours --choices {QUESTIONS} --adapter zero", "adapters exist for"),
        (f"llama --choices {QUESTIONS} --adapter ours", "holds no adapter"),
        (f"meta/llama --choices {QUESTIONS}", "there is no such folder"),
        (
            f"cache --choices {QUESTIONS}",
            "has no config.json; give a folder of transformers, as its save_pretrained writes",
        ),
    ],
)
def test_wrong_arguments(argv, words, capsys):
    Path("cache").mkdir()
    harness(*argv.split(), expect=2)
    assert words in capsys.readouterr().err


def test_a_window_shorter_than_a_choice(capsys):
    harness("ours", "--choices", QUESTIONS, "--lengths", "5", expect=1)
    assert "more than the window of 5; give greater --lengths" in capsys.readouterr().err


def test_a_table_of_positions_that_ends(capsys):
    config = transformers.GPT2Config(
        vocab_size=257, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=256, eos_token_id=256
    )
    with quiet():
        save(transformers.GPT2LMHeadModel(config), ByteTokenizer(), Path("gpt2"))
    harness("gpt2", *LAST, expect=1)
    assert "the model cannot read 40 tokens, its table of positions is shorter" in capsys.readouterr().err


def test_a_model_without_a_length(capsys):
    """Bloom's configuration says nothing of it."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "n_layer": 1,
        "n_head": 2,
        "vocab_size": 257,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    with quiet():
        save(transformers.BloomForCausalLM(transformers.BloomConfig(**sizes)), ByteTokenizer(), Path("bloom"))
    harness("bloom", "--choices", QUESTIONS, expect=2)
    assert "config.json has no max_position_embeddings: give --lengths" in capsys.readouterr().err
    assert {row.train_length for row in harness("bloom", "--choices", QUESTIONS, "--lengths", "64")} == {0}


def test_an_adapter_of_other_weights(capsys):
    torch.manual_seed(9)
    with quiet():
        save(
            transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=257, **LLAMA)),
            ByteTokenizer(),
            Path("other"),
        )
    harness("other", "--adapter", "adapter", "--choices", QUESTIONS, "--lengths", "64")
    told = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(told) == 1 and told[0].startswith("dape: warning: adapter was made for other weights (fingerprint ")


def test_text_of_another_tokenizer(capsys):
    assert main(["prepare", TEXT, "--out", "prepared"]) == 0
    harness("bpe", "--text", "prepared", expect=2)
    assert "was prepared with the tokenizer bytes, not with that of bpe" in capsys.readouterr().err


def test_without_the_extra(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    harness("ours", "--choices", QUESTIONS, expect=2)
    assert install_command("harness") in capsys.readouterr().err


BLOCKED = """
import socket, sys
tried = []
def refuse(*args, **_):
    tried.append(args)
    raise OSError("blocked")
socket.socket.connect = socket.getaddrinfo = refuse
from dape.cli import main
codes = [main(["harness", "ours", "--threads", "1", *argv.split()]) for argv in sys.argv[1:]]
print(codes, tried)
"""


@pytest.mark.slow
def test_a_process_that_was_not_told_to_be_offline():
    """The command itself keeps the libraries from the network, before they are imported."""
    write_task("distant", "nobody/nothing")
    argv = [f"--choices {QUESTIONS} {' '.join(LAST)} --rolling", "--include tasks --tasks distant"]
    environment = {name: v for name, v in os.environ.items() if not name.startswith("HF_")}
    told = subprocess.run(
        [sys.executable, "-c", BLOCKED, *argv], capture_output=True, text=True, env=environment, check=True
    )
    assert told.stdout.splitlines()[-1] == "[0, 2] []", told.stderr
