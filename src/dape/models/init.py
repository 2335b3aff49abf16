"""Weight initialisation of the paper's language models (GPT-NeoX's ``small_init`` and ``wang_init``).

small: variance 2 / (5 width) for embeddings, q/k/v, the first feed-forward layer and the output head;
wang: standard deviation 2 / (layers sqrt(width)) for the projections back into the residual stream; biases 0.
Positional encodings keep their own initialisation.
"""

import math

from torch import nn


def small_init_(layer: nn.Linear | nn.Embedding, width: int) -> None:
    _normal_(layer, math.sqrt(2 / (5 * width)))


def wang_init_(layer: nn.Linear, width: int, layers: int) -> None:
    _normal_(layer, 2 / (layers * math.sqrt(width)))


def _normal_(layer: nn.Linear | nn.Embedding, std: float) -> None:
    nn.init.normal_(layer.weight, std=std)
    if isinstance(layer, nn.Linear) and layer.bias is not None:
        nn.init.zeros_(layer.bias)
