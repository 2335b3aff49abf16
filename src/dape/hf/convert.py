"""Checkpoints of ours into folders of the transformers library and back. Both ways the logits are compared.

DIR/config.json, model.safetensors, generation_config.json    as the library writes them
    modeling_dape.py                                          for programs that do not import us (dape.hf.remote)
    tokenizer.json, tokenizer_config.json                     for AutoTokenizer
    dape.json                                                 the run the model comes from: steps, settings, data
    README.md                                                 model card
    dape-checksums.json                                       by which damage is noticed (dape.hf.checksums)
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import torch
from transformers.utils import logging

from dape._version import __version__
from dape.data.tokenizer import Tokenizer, load_tokenizer
from dape.errors import UsageError
from dape.files import new_folder, write_text
from dape.hf import checksums
from dape.hf.card import card
from dape.hf.config import DapeConfig
from dape.hf.model import DapeForCausalLM
from dape.hf.tokenizer import open_exported, save_tokenizer
from dape.machine import available_bytes
from dape.models.decoder import DecoderLM
from dape.reading import Count, read_record, reading
from dape.training import checkpoint as checkpoints
from dape.training.config import TrainConfig
from dape.training.cost import require_fits
from dape.training.description import CHECKPOINTS, Description
from dape.training.tensors import writing

ORIGIN = "dape.json"
FORMAT = 1
TOLERANCE = 1e-5
"""The largest difference of logits that counts as rounding."""
LONGEST = 256
"""The most tokens of text that logits are compared on."""


def export(checkpoint: Path, run: Path, out: Path) -> float:
    """Write the folder ``out``, which must not exist or be empty. Returns the largest difference of logits."""
    description = checkpoints.describe(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    decoder = checkpoints.load_model(checkpoint, description, torch.device("cpu")).eval()
    with new_folder(out) as folder, quiet():
        with writing(out):
            wrapped(decoder, tokenizer).save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
        write_text(folder / ORIGIN, _origin(description))
        parameters = sum(p.numel() for p in decoder.parameters())
        write_text(folder / "README.md", card(out.resolve().name, description, parameters, run, __version__))
        checksums.note(folder, [ORIGIN], tokenizer=open_exported(folder).fingerprint)
        loaded, report = _load(folder)
        _refuse_gaps(folder, report)
        difference = _compare(decoder, loaded)
    return difference


def wrapped(decoder: DecoderLM, tokenizer: Tokenizer) -> DapeForCausalLM:
    """A model of the library with the decoder's weights. Its generation stops at the tokenizer's end of document."""
    end = tokenizer.eod
    model = DapeForCausalLM(DapeConfig.of(decoder.config, eos_token_id=end, pad_token_id=end))
    model.model.load_state_dict(decoder.state_dict())
    unused = list(range(tokenizer.vocabulary, decoder.config.vocabulary))
    if unused:  # ids of a padded vocabulary, without meaning
        model.generation_config.suppress_tokens = unused
    return model.eval()


def _origin(description: Description) -> str:
    facts = {"step": description.step, "train": asdict(description.train), "data": description.data}
    return json.dumps({"format": FORMAT, "dape": __version__, **facts}, indent=2) + "\n"


def import_(folder: Path, out: Path, tokenizer: Tokenizer) -> tuple[Path, float]:
    """Write a run of one checkpoint into ``out``. Returns the checkpoint's path and the largest difference of
    logits."""
    with quiet():
        model, report = _load(folder)
    _refuse_gaps(folder, report)
    if tokenizer.vocabulary > model.config.vocabulary:
        raise UsageError(
            f"{folder}: the model has {model.config.vocabulary} ids, the tokenizer {tokenizer.name} "
            f"{tokenizer.vocabulary}; give the tokenizer it was trained with"
        )
    description = _description(folder, model.config, tokenizer)
    optimizer = torch.optim.AdamW(model.model.parameters())  # the averages are not kept in the library's folders
    with new_folder(out) as run:
        saved = checkpoints.save(run / CHECKPOINTS, description, model.model, optimizer, tokenizer)
        decoder = checkpoints.load_model(saved, checkpoints.describe(saved), torch.device("cpu")).eval()
        difference = _compare(decoder, model)
        name = saved.relative_to(run)
    return out / name, difference


class Origin(TypedDict):
    """dape.json: the run that an exported folder comes from."""

    format: int
    dape: NotRequired[str]
    step: NotRequired[Count]
    train: NotRequired[TrainConfig]
    data: NotRequired[dict[str, Any]]


def read_origin(folder: Path) -> "Origin | dict[str, Any]":
    """The content of dape.json; empty if there is no such file, as with a model that was trained elsewhere."""
    path = folder / ORIGIN
    return read_record(path, Origin, version=FORMAT) if path.is_file() else {}


def _description(folder: Path, config: DapeConfig, tokenizer: Tokenizer) -> Description:
    """The run that the folder comes from, as far as it says."""
    given = read_origin(folder)
    data = {"name": f"unknown, imported from {folder.resolve().name}", "hash": "unknown", **given.get("data", {})}
    return Description(
        step=given.get("step", 0),
        model=config.for_decoder(),
        train=given.get("train", TrainConfig()),
        data={**data, "tokenizer": tokenizer.name, "tokenizer_fingerprint": tokenizer.fingerprint},
    )


def _load(folder: Path) -> tuple[DapeForCausalLM, dict[str, Any]]:
    checksums.verify(folder)  # a failure of the library is then no damage that is known
    with reading(folder, "cannot be loaded"):
        require_fits(DapeConfig.from_pretrained(folder, local_files_only=True).for_decoder(), available_bytes())
        found: Any = DapeForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    model, report = found
    return model.eval(), report


def _refuse_gaps(folder: Path, report: dict[str, Any]) -> None:
    """Refuse missing and unexpected weights; the library would fill gaps with random numbers and a note."""
    gaps = {what: sorted(str(key) for key in report[f"{what}_keys"]) for what in ("missing", "unexpected")}
    found = [f"{len(keys)} tensors {what} ({', '.join(keys[:3])})" for what, keys in gaps.items() if keys]
    if found:
        raise ValueError(f"{folder}: the weights are not those of its config.json: {'; '.join(found)}")


def _compare(decoder: DecoderLM, model: DapeForCausalLM) -> float:
    """The largest difference of logits on a random text of the training length."""
    length = min(decoder.config.train_length, LONGEST)
    text = torch.randint(decoder.config.vocabulary, (2, length), generator=torch.Generator().manual_seed(0))

    def seed() -> torch.Generator:  # of randomised positions
        return torch.Generator().manual_seed(1)

    with torch.no_grad(), model.drawn(length, seed()):
        expected = decoder(text, encodings=decoder.drawn_encodings(length, seed()))
        difference = (model(text).logits - expected).abs().max().item()
    if not difference <= TOLERANCE:  # NaN too
        raise ValueError(f"logits differ by {difference:.1e} between the two models, more than {TOLERANCE:.0e}")
    return difference


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's progress bars and reports. What matters in them is checked here."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
