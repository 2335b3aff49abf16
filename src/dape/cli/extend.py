"""``dape extend``: longer reach for a model that exists, by training an adapter alone."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from dape.actions.extend import ExtendOptions, extend_with
from dape.cli.fields import KEY_VALUES
from dape.cli.offline import use_offline
from dape.cli.show import show


@dataclass(frozen=True, kw_only=True)
class Extend(ExtendOptions):
    """Give a model longer reach: train a small adapter, leave every weight of the model as it is.

    MODEL is a folder of the transformers library (Llama, Mistral, Qwen, Gemma, Phi-3, OLMo 2, SmolLM3, StarCoder2,
    Falcon, GPT-NeoX, GPT-2, OPT; Bloom and MPT with --method dape-alibi) with its tokenizer.json. Its rotation is
    slowed down for greater lengths (YaRN; --rope keep leaves the model exactly as it is), and DAPE goes into each
    attention layer, at first without any effect; then its few thousand numbers are trained on the text of --data
    (without it, on the sources of Python's standard library), at a length a little beyond what the model knows.
    Perplexity is measured on the same tokens at every length: of the model itself, under YaRN before any training, and
    with the trained adapter. OUT/adapter (kilobytes) is put back by dape.hf.load_adapter(model, folder). GPT-2 and OPT
    read no further than their table of positions, with an adapter or without.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """Folder of the model, as save_pretrained writes it."""
    options: Annotated[dict[str, Any], KEY_VALUES] = field(default_factory=dict)
    """Options of the encoding, such as hidden=16; or variant=bias_map for f(B) without content, best with --rope
    keep."""


def run(config: Extend) -> int:
    use_offline()
    found = extend_with(config)
    if not found.finished:
        print("interrupted; continue by giving the same command again", file=sys.stderr)
        return 130
    code = show(found)
    print(f"in Python: dape.hf.load_adapter(model, {str(found.adapter)!r})")
    return code
