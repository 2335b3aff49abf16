"""``dape visualize``: bias maps of a trained model."""

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.actions.fields import OfCheckpoint, OnThreads
from dape.actions.progress import ProgressLine
from dape.errors import UsageError, check_counts
from dape.files import check_writable_folder, new_folder
from dape.fitting import wrapped
from dape.results.numbers import count
from dape.training.checks import check_reach
from dape.training.device import set_threads, use_device
from dape.training.run import run_folder

if TYPE_CHECKING:
    import numpy as np

    from dape.data.store import Corpus
    from dape.evaluation.map_files import BiasMaps, Stages
    from dape.models.decoder import DecoderLM
    from dape.training.description import Description

LENGTHS_OF_TRAINING = 4
TEXT_SHOWN = 200
SUMMARY = "summary.md"


@dataclass(frozen=True, kw_only=True)
class VisualizeOptions(OnThreads, OfCheckpoint):
    """Arguments of :func:`visualize`."""

    out: Path | None = None
    """Folder to write; by default maps-LENGTH in the run's folder. Maps of an earlier call are replaced."""
    length: int | None = None
    """Tokens of a window; by default 4 training lengths. The last token is the query."""
    samples: int = 4
    """Windows of held-out text."""
    layers: tuple[int, ...] = ()
    """Layers to show, counted from 1; by default all."""
    heads: tuple[int, ...] = ()
    """Heads to show, counted from 1; by default all."""
    window: int = 256
    """Size of the images over query and key: the last positions of the first sample; 0 for no images."""
    data: str | None = None
    """Text to read (its held-out part), as for `dape train`; by default what the model was trained on."""


def visualize(options: VisualizeOptions) -> Path:
    """Write the maps of a model and print what they show; returns their folder."""
    check_counts(options, "length")
    if options.samples < 1:
        raise UsageError(f"`samples` must be at least 1, got {options.samples}; input dependence needs 2 or more")
    if options.window < 0:
        raise UsageError(f"`window` must be 0 (no images) or more, got {options.window}")
    return _visualize(options)


def _visualize(config: VisualizeOptions) -> Path:
    from dape.evaluation.opening import open_checkpoint

    opened = open_checkpoint(config.checkpoint)
    where, description = opened.where, opened.description
    layers = _chosen(config.layers, description.model.layers, "layer")
    heads = _chosen(config.heads, description.model.heads, "head")
    length = config.length or LENGTHS_OF_TRAINING * description.model.train_length
    out = config.out or _default_out(where, length)
    _check_out(out)
    corpus = opened.corpus(config.data)
    device = use_device(config.device)
    set_threads(config.threads)
    check_reach(description.model, length)
    ends = _ends(corpus, length, config.samples)
    windows = _windows(corpus, ends, length)
    from dape.evaluation.map_files import BiasMaps

    model = opened.model(device)
    rows, images = _look(model, windows, layers, heads, min(config.window, length))
    facts = {
        **_about_model(where, description),
        **_about_text(corpus, ends, windows),
        **_about_maps(model, rows, layers, heads, images),
    }
    _write(out, BiasMaps(facts, rows, images))
    _print(facts, out)
    if len(ends) < config.samples:
        print(f"the held-out text has room for {count(len(ends), 'window')} only, not {config.samples}")
    return out


def _chosen(wanted: tuple[int, ...], available: int, what: str) -> list[int]:
    outside = [number for number in wanted if not 1 <= number <= available]
    if outside:
        given = ", ".join(map(str, outside))
        raise UsageError(
            f"`{what}s` {given}: there is no such {what}; the model has {what}s 1 to {available}, counted from 1"
        )
    return sorted(set(wanted)) or list(range(1, available + 1))


# Reading the model ---------------------------------------------------------------------------------------------------


def _ends(corpus: "Corpus", length: int, samples: int) -> "np.ndarray":
    """Where the windows end. They may overlap: only the last query of each is shown."""
    from dape.data.windows import evaluation_ends

    return evaluation_ends(corpus.validation, reach=length, k=1, windows=samples, same_document=False)


def _windows(corpus: "Corpus", ends: "np.ndarray", length: int) -> "np.ndarray":
    """[sample, length]: windows without the last token, which the last query predicts."""
    from dape.data.windows import evaluation_windows

    return evaluation_windows(corpus.validation, ends, length)[:, :-1]


def _look(
    model: "DecoderLM", windows: "np.ndarray", layers: list[int], heads: list[int], shown: int
) -> "tuple[Stages, Stages | None]":
    from dape.evaluation.bias_maps import last_rows, stages

    with ProgressLine() as line:

        def watch(done: int, total: int) -> None:
            line.show(f"sample {done}/{total}", done / total)

        rows = last_rows(model, windows, layers=layers, heads=heads, watch=watch)
        if not shown:
            return rows, None
        line.show("images")
        return rows, stages(model, windows[0], layers=layers, heads=heads, queries=shown, keys=shown)


def _about_model(where: Path, description: "Description") -> dict[str, Any]:
    from dape.provenance import provenance

    return {
        "run": run_folder(where).name,
        "checkpoint": str(where),
        "step": description.step,
        "seed": description.train.seed,
        "method": description.model.encoding,
        "options": description.model.encoding_options,
        "train_length": description.model.train_length,
        "model_layers": description.model.layers,
        "model_heads": description.model.heads,
        "provenance": provenance(),
    }


def _about_text(corpus: "Corpus", ends: "np.ndarray", windows: "np.ndarray") -> dict[str, Any]:
    texts = [corpus.tokenizer.decode(window)[-TEXT_SHOWN:] for window in windows]
    return {
        "data": corpus.name,
        "data_hash": corpus.hash,
        "tokenizer": corpus.tokenizer.name,
        "length": windows.shape[1],
        "query": windows.shape[1],
        "samples": [
            # The window is [end - length, end) of the held-out tokens.
            {"id": number, "end": int(end) - 1, "text": text}
            for number, (end, text) in enumerate(zip(ends, texts, strict=True), 1)
        ],
    }


def _about_maps(
    model: "DecoderLM", rows: "Stages", layers: list[int], heads: list[int], images: "Stages | None"
) -> dict[str, Any]:
    from dape.evaluation.bias_maps import drawn_once, terms_of
    from dape.evaluation.bias_measures import summarise
    from dape.evaluation.map_files import lags_of

    length = rows["f"].shape[-1]
    terms = terms_of(drawn_once(model, length)[0])
    found = summarise(rows["f"], rows["bias"], lags_of(rows), layers=layers, heads=heads)
    shown = 0 if images is None else images["f"].shape[-1]
    return {
        "variant": terms.variant,
        "terms": {"logits": terms.logits, "f": terms.f, "bias": terms.bias},
        "layers": layers,
        "heads": heads,
        "image": {"sample": 1, "first": length - shown + 1, "last": length} if shown else None,
        "heads_summary": [asdict(head) for head in found],
    }


# Files ---------------------------------------------------------------------------------------------------------------


def _default_out(where: Path, length: int) -> Path:
    from dape.training.run import CONFIG

    run = run_folder(where)
    if not (run / CONFIG).is_file():
        raise UsageError(f"{where} does not belong to a run's folder; name a folder for the maps with `out`")
    return run / f"maps-{length}"


def _check_out(out: Path) -> None:
    """Refuse a folder with files that no earlier call has listed as its own."""
    from dape.evaluation.map_files import read_facts

    check_writable_folder(out, "`out`")
    present = {path.name for path in out.iterdir()} if out.exists() else set()
    ours = set((read_facts(out) or {}).get("files", ())) if present else set()
    strange = sorted(present - ours)
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise UsageError(
            f"`out` {out}: holds {strange[0]}{more}, which `dape visualize` did not write; choose another folder, "
            "or move these files"
        )


def _write(out: Path, maps: "BiasMaps") -> None:
    """Write all files or none: existing maps stay until the new ones are complete."""
    from dape.evaluation.map_files import write_maps
    from dape.report.bias_maps import draw_maps
    from dape.report.bias_summary import bias_summary

    out = out.resolve()
    retired = out.with_name(f".{out.name}.{os.getpid()}.old")
    try:
        with new_folder(out) as temporary:
            with ProgressLine() as line:
                draw_maps(maps, temporary, watch=lambda name: line.show(f"drawing {name}"))
            (temporary / SUMMARY).write_text(bias_summary(maps.facts), encoding="utf-8")
            write_maps(temporary, maps)
            if out.exists():
                out.rename(retired)
    except BaseException:
        if retired.exists() and not out.exists():
            retired.rename(out)
        raise
    shutil.rmtree(retired, ignore_errors=True)


def _print(facts: dict[str, Any], out: Path) -> None:
    from dape.report.bias_summary import sentences

    for sentence in sentences(facts):
        print(wrapped(sentence, shutil.get_terminal_size().columns))
    print(f"wrote {out}: maps.npz, maps.json, {SUMMARY} and figures")
