"""An adapter put into its model, trained and measured; what is done is read from the folder."""

from typing import TYPE_CHECKING

from dape.actions.extend_plan import ExtendOptions, rotation_of
from dape.actions.progress import ProgressLine, window_watch
from dape.errors import UsageError
from dape.evaluation.config import EvalConfig
from dape.files import write_text

if TYPE_CHECKING:
    from torch import nn

    from dape.data.store import Corpus
    from dape.hf.tune import HostTextTask, Tuning
    from dape.results.records import Row
    from dape.training.trainer import Progress

BEFORE, UNTUNED, AFTER = "before.jsonl", "untuned.jsonl", "after.jsonl"
ADAPTER = "adapter"


def is_measured_untuned(options: ExtendOptions, model: "nn.Module") -> bool:
    """YaRN alone is what the model is under an adapter that has not learned yet."""
    from dape.hf import adapter_of

    is_new = not (options.out / ADAPTER).is_dir()
    return adapter_of(model).rope == "yarn" and (is_new or (options.out / UNTUNED).is_file())


def is_untrained(model: "nn.Module") -> bool:
    """There is nothing in the adapter to train."""
    from dape.hf.adapter import adapter_parameters

    return next(adapter_parameters(model), None) is None


def adapter_factor(model: "nn.Module") -> float:
    """Of YaRN under the adapter."""
    from dape.hf import adapter_of

    return adapter_of(model).factor


def put_in(options: ExtendOptions, model: "nn.Module", length: int) -> None:
    import torch

    from dape.hf import extend, load_adapter

    saved = options.out / ADAPTER
    try:
        if saved.is_dir():
            load_adapter(model, saved)
        else:
            torch.manual_seed(options.seed)
            extend(model, options.method, **rotation_of(options, model), train_length=length, **options.options)
    except (ValueError, TypeError) as error:
        if saved.is_dir():
            raise UsageError(f"{str(error).removesuffix('.')}. To train it anew, delete {saved}") from error
        raise UsageError(str(error)) from error


def train(options: ExtendOptions, model: "nn.Module", lessons: "HostTextTask", tuning: "Tuning", data: str) -> bool:
    """True if the end was reached."""
    import shutil

    from dape.hf import save_adapter
    from dape.hf.adapter import adapter_parameters
    from dape.hf.tune import Tuner
    from dape.training.interrupt import Interruption

    if is_untrained(model):
        save_adapter(model, options.out / ADAPTER)
        return True
    folder = options.out / "tuning"
    tuner = Tuner(model, lessons, tuning, folder)
    count, rotation = sum(p.numel() for p in adapter_parameters(model)), rotation_of(options, model)
    if rotation["rope"] == "yarn":
        print(f"the rotation is slowed down for {rotation['factor']:g} training lengths (YaRN; rope=keep leaves it)")
    print(f"training {count:,} numbers for {tuning.steps} steps of {tuning.batch} x {tuning.length} tokens", flush=True)
    with Interruption() as interrupted, ProgressLine(tuner.step / tuning.steps) as line:

        def watch(now: "Progress") -> None:
            line.show(f"step {now.step}/{tuning.steps} loss {now.loss:.3f}", now.step / tuning.steps)

        done = tuner.run(watch=watch, stop=interrupted)
    if not done:
        return False
    save_adapter(model, options.out / ADAPTER, about={"tuning": vars(tuning), "data": data})
    shutil.rmtree(folder)
    return True


def measured(
    options: ExtendOptions,
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

    path = options.out / file
    if path.is_file():
        return read_rows(path)
    subject = Subject(
        run=file.removesuffix(".jsonl"),
        method=method,
        seed=options.seed,
        train_length=length,
        step=step,
        data_hash=corpus.hash,
        tokenizer=corpus.tokenizer.name,
        variant=variant,
        extra={**provenance(), "data": corpus.name, "model": options.model.name},
    )

    with ProgressLine() as line:
        watch = window_watch(line, evaluation.lengths)
        found = [
            row
            for measured in measure(Scorer(model), corpus.validation, evaluation, watch=watch)
            for row in as_rows(measured, subject, evaluation)
        ]
    write_text(path, rows_text(found))
    return found
