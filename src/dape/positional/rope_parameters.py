"""The rotation of a model of the transformers library, from its ``rope_parameters``. Does not import that library."""

import math
from collections.abc import Mapping
from typing import Any

from dape.positional.build import build
from dape.positional.rope import Rope

ROTATIONS = {
    "default": ("rope", {}),
    "linear": ("pi", {"factor": "scale"}),
    "dynamic": ("dynamic", {"factor": "factor"}),
    "yarn": ("yarn", {"factor": "scale"} | {n: n for n in ("beta_fast", "beta_slow", "attention_factor", "truncate")}),
    "longrope": ("longrope", {n: n for n in ("short_factor", "long_factor", "factor", "attention_factor")}),
    "llama3": ("llama3", {n: n for n in ("factor", "low_freq_factor", "high_freq_factor")}),
    "proportional": ("proportional", {"factor": "factor"}),
}
"""For each ``rope_type``, our name of the rotation and our names of its parameters."""
_EVERYWHERE = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}
_ONLY_FOR_YARN = {"mscale", "mscale_all_dim"}


def rotation_of(
    rope_parameters: Mapping[str, Any], *, num_heads: int, head_dim: int, max_position_embeddings: int
) -> Rope:
    """The encoding that rotates as a model with these ``config.rope_parameters`` does.

    Args:
        rope_parameters: as in ``config.json``, of one kind of layer where a model has several.
        num_heads: query heads.
        head_dim: width of a head.
        max_position_embeddings: of the configuration; the training length unless the parameters say the original one.

    Returns:
        The rotation: ``.rotate(q, k, grid)``.

    Raises:
        ValueError: a type or a number that is not known here: a rotation that is nearly right is wrong.

    Examples:
        >>> slower = {"rope_type": "linear", "factor": 4.0}
        >>> rotation_of(slower, num_heads=2, head_dim=8, max_position_embeddings=64).scale
        4.0
    """
    given = {name: value for name, value in rope_parameters.items() if value is not None}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ROTATIONS:
        raise ValueError(f"rope_type {kind!r} is not known; known are {', '.join(ROTATIONS)}")
    name, ours = ROTATIONS[kind]
    unknown = sorted(set(given) - _EVERYWHERE - set(ours) - (_ONLY_FOR_YARN if kind == "yarn" else set()))
    if unknown:
        raise ValueError(f"rope_type {kind!r}: the parameter {unknown[0]!r} is not known; known are {', '.join(ours)}")
    original = given.get("original_max_position_embeddings", max_position_embeddings)
    if kind in ("yarn", "longrope"):
        given.setdefault("factor", max_position_embeddings / original)
    options = {ours[name]: value for name, value in given.items() if name in ours}
    if "mscale" in given and "mscale_all_dim" in given:
        options.setdefault("attention_factor", _mscale(given, "mscale") / _mscale(given, "mscale_all_dim"))
    options |= {"base": given["rope_theta"]} if "rope_theta" in given else {}
    options |= {"fraction": given["partial_rotary_factor"]} if "partial_rotary_factor" in given else {}
    length = max_position_embeddings if kind == "dynamic" else original
    pe = build(name, num_heads=num_heads, head_dim=head_dim, train_length=length, **options)
    assert isinstance(pe, Rope)
    return pe


def _mscale(given: Mapping[str, Any], name: str) -> float:
    """One of DeepSeek's two factors of YaRN's amplitude; the amplitude is their quotient."""
    return 0.1 * given[name] * math.log(given["factor"]) + 1 if given["factor"] > 1 else 1.0
