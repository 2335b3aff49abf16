"""What ``dape bench model`` runs: models that differ in encoding and depth, on one set of weights. Imports torch.

Six copies of two layers of the 6.7B model with their optimizers would take 80 GB. But they differ only in their
encodings. All of them, at all depths, therefore share the embedding, blocks and head of one model, and one optimizer.
That is possible because AdamW skips parameters without a gradient, and a step of one model leaves no gradient behind.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from dape.bench.train_cases import Trainee, Workload, adamw, make_model
from dape.models.decoder import DecoderLM, new_encodings


def make_trunk(workload: Workload, length: int) -> DecoderLM:
    """The model whose weights the others use, as deep as the deepest of them."""
    trunk = make_model("nope", workload, length)
    assert isinstance(trunk, DecoderLM)
    return trunk.to(workload.device)


def make_trainees(
    trunk: DecoderLM, encodings: Sequence[str], depths: Sequence[int], workload: Workload, length: int
) -> dict[tuple[str, int], Trainee]:
    """By encoding and depth. Depths of one encoding are timed next to each other, under equal load."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(workload.seed)
        models = {
            (encoding, depth): make_view(trunk, encoding, depth, length) for encoding in encodings for depth in depths
        }
    for model in models.values():
        model.to(workload.device)
    # Without repeats: several models share a parameter.
    optimizer = adamw(list(dict.fromkeys(p for model in models.values() for p in model.parameters())))
    return {case: Trainee(model, workload, length, optimizer) for case, model in models.items()}


def make_view(trunk: DecoderLM, encoding: str, layers: int, length: int) -> DecoderLM:
    """A model with the given encoding and depth on the weights of ``trunk``."""
    config = replace(trunk.config, encoding=encoding, layers=layers, train_length=max(length, 2))
    with torch.device("meta"):  # takes no memory: all weights are replaced
        model = DecoderLM(config)
    model.embedding, model.norm, model.head = trunk.embedding, trunk.norm, trunk.head
    model.blocks = trunk.blocks[:layers]
    model.encodings = nn.ModuleList(new_encodings(config))
    return model
