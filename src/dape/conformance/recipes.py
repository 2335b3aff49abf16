"""The cases of an encoding, and their inputs.

Inputs and parameters are multiples of 1/64, which float16 and bfloat16 represent exactly, so that every precision
starts from the same numbers. The name of a case says how it differs from the others, and therefore on what an error
depends.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dape.conformance.case import Case
from dape.positional.base import AttentionDims, PositionalEncoding
from dape.positional.build import build
from dape.positional.catalogue import find
from dape.positional.names import parse

FAR_ROWS, FAR_KEYS = (3, 40, 2047), (0, 1, 2, 3, 33, 40, 511, 1800, 2047)


@dataclass(frozen=True, kw_only=True)
class Shape:
    says: str
    heads: int
    length: int
    head_dim: int = 8
    train_length: int = 8
    rows: tuple[int, ...] | None = None
    """None for all of them."""
    causal: bool = True
    content: bool = True
    gradients: bool = False


SHAPES = {
    "short": Shape(says="within the training length, all rows", heads=4, length=5, gradients=True),
    "long": Shape(says="three times the training length, two rows", heads=2, length=24, rows=(8, 23)),
    "both": Shape(says="without causal mask", heads=2, length=5, causal=False),
    "heads": Shape(says="twelve heads, no power of two", heads=12, length=3),
    "far": Shape(says="the bias alone, at distant positions", heads=4, length=2048, rows=FAR_ROWS, content=False),
    "clamp": Shape(says="the bias alone, parameters out of range", heads=4, length=7, rows=(0, 6), content=False),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "cope": {"npos": 8},
    "learned": {"max_positions": 24},
    "fire": {"mlp_width": 6},
    "inkling": {"rank": 3, "extent": 6},
    "multi-token": {"kernel": 3},
    "rerope": {"window": 2},
    "self-extend": {"window": 3, "group": 2},
}
WRAPPER_OPTIONS = {"dape-": {"hidden": 6}, "dape-v2-": {"hidden": 4}}
"""Small networks. Other options have their defaults."""
SMALL_INSIDE = ("inkling",)
"""Bases that keep their options under a wrapper."""
WIDE = {"yarn": {"long": {"head_dim": 32, "train_length": 12}}}
"""Number of channels for which YaRN's ramp has a channel between its ends."""
OUT_OF_RANGE = {
    "kerple": {"r1": (0.5, -0.25, 0.0, 1.0), "r2": (-0.5, 0.5, 1.0, 0.00390625)},
    "kerple-power": {"r1": (0.5, -0.25, 0.0, 1.0), "r2": (-0.5, 3.0, 1.0, 0.00390625)},
}
"""Values as an optimizer step may leave them: kerple clamps them to at least 0.01 (and the power to at most 2)."""


POSITIVE = ("r1", "r2", "c", "threshold_multiplier")
"""Parameters that must be above 0."""


def blank_cases(name: str) -> Iterator[tuple[Case, PositionalEncoding]]:
    """Every case of the encoding with its inputs, without expected values, and the encoding that computes them."""
    for case_name, shape in SHAPES.items():
        if _has(name, case_name):
            wide = WIDE.get(parse(name).base, {}).get(case_name, {})
            yield _case(name, case_name, replace(shape, **wide))


def build_for(name: str, case: Case) -> PositionalEncoding:
    """The encoding of the catalogue in float64, of the shape and with the options of the case."""
    dims = case.dims
    return build(
        name,
        num_heads=dims.num_heads,
        head_dim=dims.head_dim,
        train_length=dims.train_length,
        model_dim=dims.model_dim,
        **case.options,
    ).double()


def reference(name: str, case: Case) -> PositionalEncoding:
    """:func:`build_for` with the parameters of the case."""
    pe = build_for(name, case)
    pe.load_state_dict(dict(case.parameters))
    return pe


def acts_on_embeddings(name: str) -> bool:
    return "embed" in find(name).hook


def _has(name: str, case: str) -> bool:
    entry = find(name)
    match case:
        case "both":
            return entry.bidirectional and not acts_on_embeddings(name)
        case "heads":
            return find(parse(name).base).hook == "bias"
        case "far":
            return (entry.hook == "bias" and not entry.features) or name == "sinusoidal"
        case "clamp":
            return name in OUT_OF_RANGE
    return True


def _case(name: str, case_name: str, shape: Shape) -> tuple[Case, PositionalEncoding]:
    drawn = torch.Generator().manual_seed(1 + list(SHAPES).index(case_name))
    dims = AttentionDims(
        num_heads=shape.heads,
        head_dim=shape.head_dim,
        train_length=shape.train_length,
        model_dim=shape.heads * shape.head_dim,
    )
    rows = torch.tensor(shape.rows if shape.rows is not None else range(shape.length))
    embeds = acts_on_embeddings(name)
    has_content = shape.content and not embeds
    q, k = (_draw(drawn, shape.heads, shape.length, shape.head_dim) if has_content else None for _ in "qk")
    blank = Case(
        name=case_name,
        dims=dims,
        options=options_for(name),
        causal=shape.causal,
        q_pos=rows,
        k_pos=torch.tensor(FAR_KEYS) if case_name == "far" else torch.arange(shape.length),
        parameters={},
        x=_draw(drawn, len(rows), dims.model_dim) if embeds else None,
        q=q,
        k=k,
        entering=_draw(drawn, shape.length, dims.model_dim) if find(name).features else None,
    )
    started = build_for(name, blank).state_dict()
    parameters = {n: _parameter(n, p, drawn, name, case_name) for n, p in started.items()}
    size = (len(rows), dims.model_dim) if embeds else (shape.heads, len(rows), len(blank.k_pos))
    weight = 4 * _draw(drawn, *size) if shape.gradients else None
    case = replace(blank, parameters=parameters, weight=weight)
    return case, reference(name, case)


def options_for(name: str) -> dict[str, Any]:
    parsed = parse(name)
    own = OPTIONS.get(parsed.base, {})
    if not parsed.wrapper:
        return own
    return WRAPPER_OPTIONS[parsed.wrapper] | (own if parsed.base in SMALL_INSIDE else {})


def _draw(drawn: torch.Generator, *size: int) -> Tensor:
    return torch.randint(-96, 97, size, generator=drawn).double() / 64


def _parameter(name: str, started: Tensor, drawn: torch.Generator, encoding: str, case: str) -> Tensor:
    if case == "clamp":
        return torch.tensor(OUT_OF_RANGE[encoding][name], dtype=torch.float64)
    values = torch.randint(-64, 65, started.shape, generator=drawn).double() / 64
    return values.abs() + 1 / 16 if name.rpartition(".")[2] in POSITIVE else values
