"""The promises of SECURITY.md that no other test keeps: nothing that is loaded runs code, and nothing goes online."""

import ast
import io
import json
import os
import pickle
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import dape
from dape.cli import main
from dape.data.store import Corpus
from dape.evaluation.map_files import read_maps
from dape.experiments.job import read_job
from dape.results.records import read_rows
from dape.training import checkpoint as checkpoints
from dape.training.description import find
from dape.training.run import RunConfig

SOURCE = Path(dape.__file__).parent
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "torch.load", "joblib.load", "marshal.load",
    "marshal.loads", "shelve.open", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
    "socket.socket", "socket.create_connection", "urllib.request.urlopen", "requests.get", "requests.post",
}  # fmt: skip
EXCEPTIONS = {
    ("reading.py", "yaml.load"): "with a subclass of SafeLoader, which makes plain values only",
    ("training/parallel.py", "socket.create_connection"): "to the first process of a run, which torchrun has named",
    (
        "experiments/executors/ray.py",
        "socket.create_connection",
    ): "to the cluster that the user has named, nothing else",
}
"""Calls that are allowed, and why."""


class Ran(Exception):
    """A file has run code."""


def boom(*_: object) -> None:
    raise Ran


class Hostile:
    def __reduce__(self) -> tuple:
        return boom, ()


# The source ----------------------------------------------------------------------------------------------------------


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield ast.unparse(node.func), node


def forbidden(text: str) -> list[str]:
    """What a source calls that it must not."""
    found = []
    for name, call in calls(ast.parse(text)):
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if name in FORBIDDEN:
            found.append(name)
        if given.get("shell", "False") != "False":
            found.append("shell=True")
        if name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
            found.append("np.load without allow_pickle=False")
        if given.get("trust_remote_code", "False") != "False":
            found.append("trust_remote_code")
    return found


def test_no_source_calls_what_could_run_a_file():
    found = {
        (str(path.relative_to(SOURCE)), name)
        for path in sorted(SOURCE.rglob("*.py"))
        for name in forbidden(path.read_text(encoding="utf-8"))
    }
    assert found == set(EXCEPTIONS)


@pytest.mark.parametrize(
    "text",
    ["eval(x)", "torch.load(p)", "yaml.load(t)", "run(c, shell=True)", "np.load(p)", "f(trust_remote_code=True)"],
)
def test_the_scan_finds_what_it_looks_for(text):
    assert forbidden(text)


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Text, prepared; a run. Made without a socket, as all of this file."""
    folder = tmp_path_factory.mktemp("safe")
    (folder / "text.txt").write_text("some words of a text " * 200)
    shape = ["--layers", "1", "--width", "16", "--heads", "2", "--train-length", "8", "--batch", "2", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        forbid_sockets(patch)
        assert main(["prepare", "text.txt", "--out", "data"]) == 0
        assert main(["train", "--data", "data", *shape, "--steps", "1", "--out", "run"]) == 0
    return folder


def forbid_sockets(patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was asked for")

    patch.setattr(socket.socket, "connect", refuse)
    patch.setattr(socket.socket, "bind", refuse)
    patch.setattr(socket, "getaddrinfo", refuse)


def test_commands_need_no_network(folder, monkeypatch, capsys):
    """Training and preparing did without in the fixture."""
    forbid_sockets(monkeypatch)
    monkeypatch.chdir(folder)
    evaluate = ["eval", "run", "--data", "data", "--lengths", "8", "--last-k", "4", "--windows", "2", "--threads", "1"]
    for argv in (
        ["list"],
        [*evaluate, "--json", "results.jsonl"],
        ["generate", "run", "--tokens", "3", "--threads", "1"],
        ["visualize", "run", "--data", "data", "--length", "16", "--samples", "1", "--window", "0", "--out", "maps"],
        ["export", "run", "--out", "model"],
        ["import", "model", "--out", "back"],
    ):
        assert main(argv) == 0, capsys.readouterr().err
    with pytest.raises(AssertionError, match="a socket was asked for"):
        socket.create_connection(("127.0.0.1", 9))


def pickles() -> list[bytes]:
    import torch

    saved = io.BytesIO()
    torch.save({"model.weight": Hostile()}, saved)
    return [pickle.dumps(Hostile()), pickle.dumps(Hostile(), protocol=0), saved.getvalue()]


@pytest.mark.parametrize("content", pickles(), ids=["pickle", "text", "torch"])
def test_a_pickle_in_place_of_any_file_is_never_run(folder, content, tmp_path):
    with pytest.raises(Ran):
        pickle.loads(pickle.dumps(Hostile()))
    checkpoint = find(folder / "run")
    readers = {
        **dict.fromkeys((p for p in checkpoint.iterdir()), lambda: checkpoints.describe(checkpoint)),
        **dict.fromkeys((p for p in (folder / "data").iterdir() if p.is_file()), lambda: Corpus.open(folder / "data")),
        folder / "run/config.yaml": lambda: RunConfig.read(folder / "run"),
    }
    for path, read in readers.items():
        _never_run(path, content, read)
    for name, read in (
        ("job.json", lambda: read_job(tmp_path)),
        ("rows.jsonl", lambda: read_rows(tmp_path / "rows.jsonl")),
        ("maps.json", lambda: read_maps(tmp_path)),
    ):
        _never_run(tmp_path / name, content, read)


def test_a_pickle_in_a_folder_of_the_library_is_never_run(folder, tmp_path):
    """Weights that transformers would unpickle: it reads tensors alone from them."""
    pytest.importorskip("transformers")
    os.environ["HF_HUB_OFFLINE"] = "1"
    from tests.hf.adapter.models import make

    from dape.hf import load_adapter
    from dape.hf.folder import open_model

    make("llama").save_pretrained(tmp_path / "llama")
    (tmp_path / "adapter").mkdir()
    for content in pickles():
        _never_run(tmp_path / "llama/model.safetensors", content, lambda: open_model(tmp_path / "llama"))
        _never_run(
            tmp_path / "adapter/adapter_config.json", content, lambda: load_adapter(make("llama"), tmp_path / "adapter")
        )
    (tmp_path / "llama/model.safetensors").unlink()
    for content in pickles():
        _never_run(tmp_path / "llama/pytorch_model.bin", content, lambda: open_model(tmp_path / "llama"))
    config = json.loads((tmp_path / "llama/config.json").read_text())
    (tmp_path / "llama/code.py").write_text("raise SystemExit('run')")
    (tmp_path / "llama/config.json").write_text(
        json.dumps(
            {**config, "model_type": "new", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
        )
    )
    with pytest.raises(ValueError, match="llama"):
        open_model(tmp_path / "llama")


def _never_run(path: Path, content: bytes, read) -> None:
    """Whatever the file is: refused in words."""
    whole = path.read_bytes() if path.exists() else None
    path.write_bytes(content)
    try:
        with pytest.raises(ValueError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns before it refuses
            read()
    finally:
        path.write_bytes(whole) if whole is not None else path.unlink()
