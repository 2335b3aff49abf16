"""Damaged files of every kind that is read: bits flipped, cut off, made longer, values of other types, swapped.

A reader refuses a file in words that name it, or gives what it would have given of the undamaged one. Files without
checksums, which people write and edit themselves (settings, questions, text, result rows), may also say something else.
"""

import contextlib
import gzip
import hashlib
import json
import os
import resource
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before the library is imported, which reads it once

import numpy as np
import pytest
import torch
from hypothesis import event, given, note
from hypothesis import strategies as st

pytest.importorskip("transformers")

from tests.fuzz.cases import fuzzed
from tests.hf.adapter.models import make

from dape.actions.extend_folder import begun_with
from dape.actions.extend_plan import ExtendOptions
from dape.actions.report import claims_of, section_of
from dape.cli import main
from dape.data.documents import Reading, Tally, read_documents
from dape.data.sources import expand
from dape.data.store import Corpus
from dape.data.tokenizer import load_tokenizer
from dape.errors import UsageError
from dape.evaluation.map_files import STAGES, BiasMaps, read_maps, write_maps
from dape.experiments.grid import saved_settings
from dape.experiments.job import read_job, write_job
from dape.experiments.language import LanguageModelJob
from dape.hf import DapeForCausalLM, adapter_parameters, extend, load_adapter, remove, save_adapter
from dape.hf.convert import quiet, read_origin
from dape.hf.folder import open_model
from dape.hf.harness.questions import read_questions
from dape.hf.tokenizer import open_exported
from dape.hf.tune import Tuner, Tuning
from dape.reading import sealed, unsealed
from dape.results.records import Row, read_rows, rows_text
from dape.tasks.base import Batch, Loss
from dape.training import checkpoint as checkpoints
from dape.training.description import find
from dape.training.run import RunConfig

SECONDS, MEMORY = 20, 1 << 30
VALUES = [None, True, -1, 0, 10**18, 10**400, 0.5, "", "x", "\ud800", "../../x", [], [[]], {}, {"a": 1}, float("nan")]
TEXTS = [
    b"",
    b"[" * 20_000,
    b"{" * 3000,
    b"&a [*a]",
    b"- " * 2000,
    b"\xff\xfe",
    b"null",
    b"1" * 5000,
    b'{"a": 1, "a": 2}',
]
SHAPE = ["--layers", "1", "--width", "16", "--heads", "2", "--train-length", "8", "--batch", "2", "--threads", "1"]


@dataclass(frozen=True)
class Kind:
    """A folder of files and how it is read."""

    folder: str
    files: tuple[str, ...]
    read: Callable[[Path], Any]
    exact: bool = True
    """What is accepted must be what was written."""


def tensors_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """Of names, types, shapes and every bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# Readers -------------------------------------------------------------------------------------------------------------


def read_checkpoint(folder: Path) -> Any:
    description = checkpoints.describe(folder)
    model = checkpoints.load_model(folder, description, torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints.restore_optimizer(folder, model, optimizer)
    averages = {f"{n} {key}": t for n, state in enumerate(optimizer.state.values()) for key, t in state.items()}
    tokenizer = checkpoints.tokenizers.load_tokenizer(folder)
    return asdict(description), tensors_hash(model.state_dict()), tensors_hash(averages), tokenizer.fingerprint


def read_corpus(folder: Path) -> Any:
    corpus = Corpus.open(folder)
    streams = [corpus.train, corpus.validation]
    return corpus.hash, corpus.tokenizer.fingerprint, [stream.read(0, len(stream)).tobytes() for stream in streams]


def read_export(folder: Path) -> Any:
    with quiet():
        model = DapeForCausalLM.from_pretrained(folder, local_files_only=True)
    origin, config = read_origin(folder), model.config.for_decoder()
    return tensors_hash(model.state_dict()), asdict(config), open_exported(folder).fingerprint, origin.get("step")


HOST: Any = None


def read_adapter(folder: Path) -> Any:
    global HOST
    HOST = HOST or make("llama")
    load_adapter(HOST, folder)
    found = tensors_hash({str(n): p for n, p in enumerate(adapter_parameters(HOST))})
    remove(HOST)
    return found


def read_tuning(folder: Path) -> Any:
    """A checkpoint of no language model, partly frozen."""
    description, layer = checkpoints.describe(folder), partly_frozen()
    checkpoints.restore_model(folder, layer)
    return asdict(description), tensors_hash(layer.state_dict())


def partly_frozen() -> torch.nn.Module:
    layer = torch.nn.Linear(3, 2)
    torch.nn.init.ones_(layer.weight).requires_grad_(False)
    return layer


class Nothing:
    identity, tokens = {"name": "nothing"}, None

    def batch(self, model: torch.nn.Module, step: int) -> Batch:
        return Batch(loss=lambda part: Loss(sum(p.square().sum() for p in model.parameters()), 1), count=1)


def read_map_folder(folder: Path) -> Any:
    maps = read_maps(folder)
    return maps.facts["layers"], [maps.rows[name].tobytes() for name in STAGES]


def read_extend(folder: Path) -> Any:
    saved = begun_with(ExtendOptions(model=folder, data="x", out=folder)) or {}
    return {name: saved.get(name) for name in ("method", "lengths", "steps")}


def read_texts(name: str) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        source = expand(str(folder / name))
        return [document.text.size for document in read_documents(source.items, Reading(folder=folder), Tally())]

    return read


def read_report(folder: Path) -> Any:
    """Leaves out what cannot be read, and says so."""
    section = section_of(folder, folder)
    return len(section.rows) + len(section.warnings) + len(claims_of(folder / "claims.json"))


KINDS = {
    "checkpoint": Kind(
        "checkpoint",
        ("model.safetensors", "optimizer.safetensors", "checkpoint.json", "tokenizer.json"),
        read_checkpoint,
    ),
    "run": Kind("run", ("config.yaml",), RunConfig.read, exact=False),
    "settings": Kind("settings", ("compare.yaml",), lambda f: saved_settings(f, "compare.yaml"), exact=False),
    "job": Kind("job", ("job.json",), lambda f: asdict(read_job(f))),
    "corpus": Kind("data", (), read_corpus),
    "rows": Kind("rows", ("rows.jsonl",), lambda f: len(read_rows(f / "rows.jsonl")), exact=False),
    "maps": Kind("maps", ("maps.json", "maps.npz", "images.npz"), read_map_folder),
    "adapter": Kind("adapter", ("adapter_config.json", "adapter_model.safetensors"), read_adapter),
    "tuning": Kind("tuning", ("model.safetensors", "optimizer.safetensors", "checkpoint.json"), read_tuning),
    "extend": Kind("extend", ("extend.json",), read_extend),
    "export": Kind(
        "export",
        (
            "model.safetensors",
            "config.json",
            "dape.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "dape-checksums.json",
        ),
        read_export,
    ),
    "model": Kind("llama", ("config.json", "model.safetensors"), open_model, exact=False),
    "questions": Kind("inputs", ("questions.jsonl",), lambda f: read_questions(f / "questions.jsonl"), exact=False),
    **{
        name: Kind("inputs", (name,), read_texts(name), exact=False)
        for name in ("text.txt", "text.txt.gz", "lines.jsonl", "table.parquet", "text.txt.zst")
    },
    "report": Kind("report", ("results.jsonl", "claims.json", "maps.json", "README.md"), read_report, exact=False),
}


# The world -----------------------------------------------------------------------------------------------------------


def fill(folder: Path) -> None:
    words = "some words of a text that is long enough to be split\n" * 60
    (folder / "text.txt").write_text(words)
    train = ["train", "--data", "text.txt", *SHAPE, "--steps", "2", "--out", "trained"]
    for argv in (["prepare", "text.txt", "--out", "data"], train, ["export", "trained", "--out", "export"]):
        assert main(argv) == 0
    find(Path("trained")).rename(folder / "checkpoint")
    (folder / "run").mkdir()
    Path("trained/config.yaml").rename("run/config.yaml")
    config = RunConfig.read(Path("run"))
    for name in ("settings", "job", "rows", "extend", "inputs", "report", "maps"):
        (folder / name).mkdir()
    (folder / "settings/compare.yaml").write_text("methods: [alibi]\nseeds: 2\ndata: text.txt\ntrain: {steps: 3}\n")
    from dape.evaluation.config import EvalConfig

    write_job(
        folder / "job",
        LanguageModelJob(
            run=config, evaluation=EvalConfig(lengths=(8,), last_k=4), data_hash="x", device="cpu", threads=1
        ),
    )
    rows = [_row(length) for length in (64, 128, 256)]
    (folder / "rows/rows.jsonl").write_text(rows_text(rows))
    (folder / "extend/extend.json").write_text(json.dumps(sealed({"method": "alibi", "lengths": [8, 16], "steps": 3})))
    save_adapter(extend(make("llama")), folder / "adapter")
    make("llama").save_pretrained(folder / "llama")
    tuner = Tuner(partly_frozen(), Nothing(), Tuning(length=2, steps=2), folder / "tuner")
    tuner.take_step()
    tuner.save().rename(folder / "tuning")
    for place in ("maps", "report"):
        facts = {"samples": [{"id": 1, "text": "x"}], "layers": [1], "heads": [1, 2], "length": 5, "method": "rope"}
        shown = {name: np.ones((1, 1, 2, 5), np.float32) for name in STAGES}
        write_maps(folder / place, BiasMaps(facts, shown, {name: np.ones((1, 2, 3, 3)) for name in STAGES}))
    (folder / "report/results.jsonl").write_text(rows_text(rows))
    (folder / "report/claims.json").write_text(json.dumps([{"id": "C1", "statement": "so"}]))
    (folder / "report/README.md").write_text("# Title\n\nWords.\n")
    _inputs(folder / "inputs", words)


def _row(length: int) -> Row:
    common = {"seed": 0, "train_length": 64, "metric": "perplexity", "scored_tokens": 9, "protocol": "last_k"}
    return Row(run="a", method="alibi", length=length, value=7.5, data_hash="x", **common)


def _inputs(folder: Path, words: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "questions.jsonl").write_text('{"question": "The sky is", "choices": ["blue", "tin"], "answer": 0}\n' * 3)
    (folder / "text.txt").write_text(words)
    (folder / "text.txt.gz").write_bytes(gzip.compress(words.encode()))
    (folder / "text.txt.zst").write_bytes(pa.compress(words.encode(), codec="zstd", asbytes=True))
    (folder / "lines.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in words.splitlines()))
    pq.write_table(pa.table({"text": words.splitlines()}), folder / "table.parquet")


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[Path]:
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DAPE_DEBUG", raising=False)
        patch.chdir(folder)
        torch.manual_seed(0)
        fill(folder)
        yield folder


@pytest.fixture(scope="module")
def pristine(world) -> dict[str, str]:
    return {name: digest(kind.read(world / kind.folder)) for name, kind in KINDS.items()}


def digest(content: Any) -> str:
    """Short, as hypothesis prints what a test was given."""
    return hashlib.sha256(repr(content).encode("utf-8", "surrogatepass")).hexdigest()


def files_of(world: Path, kind: Kind) -> list[Path]:
    names = kind.files or sorted(path.name for path in (world / kind.folder).iterdir() if path.is_file())
    return [world / kind.folder / name for name in names]


# Damage --------------------------------------------------------------------------------------------------------------


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, int, str, list[int], Any]:
    """Kind, which of its files, how, where (numbers to be taken modulo sizes), and a value."""
    name = draw(st.sampled_from(sorted(KINDS)))
    how = draw(st.sampled_from(["flip", "flip", "cut", "longer", "zeros", "field", "field", "drop", "text", "swap"]))
    places = draw(st.lists(st.integers(0, 1 << 30), min_size=3, max_size=3))
    return name, draw(st.integers(0, 20)), how, places, draw(st.sampled_from(VALUES))


def damaged(content: bytes, how: str, places: list[int], value: Any, others: list[Path]) -> bytes:
    at, bit, count = places[0] % max(len(content), 1), places[1] % 8, places[2] % 64 + 1
    if how == "flip" and content:
        return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
    if how == "cut":
        return content[:at]
    if how == "longer":
        return content + bytes([bit]) * count + content[:at]
    if how == "zeros":
        return content[:at] + bytes(count) + content[at + count :]
    if how == "text":
        return TEXTS[places[0] % len(TEXTS)]
    if how == "swap":
        return others[places[0] % len(others)].read_bytes()
    return _with_field(content, how, places, value)


def _with_field(content: bytes, how: str, places: list[int], value: Any) -> bytes:
    """Another value of one field, or without it; sealed again, as by somebody who knows how."""
    try:
        given = json.loads(content)
    except ValueError:
        return content + b"\n" + json.dumps({"x": repr(value)}).encode()
    inside, names = given, list(given) if isinstance(given, dict) else []
    for place in places:
        if not names:
            break
        name = names[place % len(names)]
        if isinstance(inside[name], dict) and inside[name] and place % 2:
            inside, names = inside[name], list(inside[name])
            continue
        if how == "drop":
            del inside[name]
        else:
            inside[name] = value
        break
    if isinstance(given, dict) and "checksum" in given:
        with contextlib.suppress(ValueError):
            given = sealed(given)
    return json.dumps(given).encode("utf-8", "surrogatepass")


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    def alarm(*_: object) -> None:
        raise AssertionError("it does not end")

    before = signal.signal(signal.SIGALRM, alarm)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# The property --------------------------------------------------------------------------------------------------------


@fuzzed(0.25)
@given(case=damages())
def test_a_damaged_file_is_refused_by_name_or_read_as_it_was(world, pristine, case):
    name, which, how, places, value = case
    kind = KINDS[name]
    files = files_of(world, kind)
    path = files[which % len(files)]
    others = [other for each in KINDS.values() for other in files_of(world, each)]
    whole = path.read_bytes()
    changed = damaged(whole, how, places, value, others)
    note(f"{path.relative_to(world)}: {how}, {len(whole)} -> {len(changed)} bytes")
    check(kind, path, changed, pristine[name], knows_how=how in ("field", "drop"))


def check(kind: Kind, path: Path, changed: bytes, expected: str, *, knows_how: bool) -> None:
    """``knows_how``: what was changed has its checksum again, which nothing can notice."""
    whole, memory = path.read_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path.write_bytes(changed)
    try:
        with in_time(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = kind.read(path.parent)
    except (ValueError, OSError, MemoryError) as error:
        assert path.name in str(error) or str(path.parent) in str(error), f"does not name {path}: {error!r}"
        event("refused")
    else:
        event("accepted")
        assert not kind.exact or knows_how or digest(found) == expected, f"{path} says something else"
    finally:
        path.write_bytes(whole)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024 < MEMORY


def test_the_kind_of_a_job_may_be_anything(world, tmp_path):
    """Found with seed 2029."""
    job = unsealed(json.loads((world / "job" / "job.json").read_text()))
    (tmp_path / "job.json").write_text(json.dumps(sealed({**job, "kind": []})))
    with pytest.raises(ValueError, match=r"job\.json: kind \[\] is not known"):
        read_job(tmp_path)


def test_a_tokenizer_that_is_no_text(tmp_path):
    """Found with seed 2030."""
    (tmp_path / "tokenizer.json").write_bytes(b"\xff{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer \('utf-8' codec"):
        load_tokenizer(tmp_path)


def test_what_an_adapter_is_are_not_settings_of_its_training(world, tmp_path):
    """Found with seed 2028: adapter_config.json in place of extend.json has a method too."""
    shutil.copy(world / "adapter" / "adapter_config.json", tmp_path / "extend.json")
    with pytest.raises(UsageError, match=r"extend\.json is damaged \(it has about, so these are no settings"):
        read_extend(tmp_path)
