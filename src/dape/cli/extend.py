"""``dape extend``: train an adapter that lets an existing model read longer contexts."""

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
    """Extend a model to longer contexts: train a small adapter, keep every weight of the model.

    MODEL is a folder of the transformers library (Llama, Mistral, Qwen, Gemma, Phi-3, OLMo 2, SmolLM3, StarCoder2,
    Falcon, GPT-NeoX, GPT-2, OPT; Bloom and MPT with --method dape-alibi) with its tokenizer.json. GPT-2 and OPT read
    no further than their table of positions, with an adapter or without.

    YaRN rescales the model's rotation for greater lengths (--rope keep leaves it as it is), and DAPE is added to each
    attention layer, at first without any effect. Then the few thousand parameters of DAPE are trained on the text of
    --data, at a length a little greater than the model was trained for. Perplexity is measured on the same tokens at
    every length: of the model itself, with YaRN before training, and with the trained adapter.

    OUT/adapter (kilobytes) is the adapter; dape.hf.load_adapter(model, folder) puts it into the model.
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    options: Annotated[dict[str, Any], KEY_VALUES] = field(default_factory=dict)
    """Options of the encoding, such as hidden=16, or variant=bias_map for f(B) without content (best with --rope
    keep)."""


def run(config: Extend) -> int:
    use_offline()
    found = extend_with(config)
    if not found.finished:
        raise KeyboardInterrupt
    code = show(found)
    print(f"in Python: dape.hf.load_adapter(model, {str(found.adapter)!r})")
    return code
