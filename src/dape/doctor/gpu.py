"""``dape doctor --gpu``: the self-check of the Triton kernels for many shape classes, and whole calls of attention."""

from collections.abc import Callable, Iterator
from itertools import product

import torch

from dape.doctor.comparisons import Problem, against_definition
from dape.doctor.section import Line, Section, section
from dape.ops.attention.triton_kernels.plan import Gpu, Sizes, gpu_of
from dape.ops.attention.triton_kernels.shape_class import NAMES, ShapeClass
from dape.ops.attention.triton_kernels.trust import recheck

SHAPES = [(12, 1, 64, 32), (16, 1, 64, 32), (8, 1, 32, 64), (32, 1, 80, 32), (32, 4, 128, 32)]
"""Heads, query heads per key head, width, hidden units: the paper's models, the encoder of `dape che`, and a large
model with grouped heads."""
KINDS = [
    {"tables": True, "causal": True, "padding": False},
    {"tables": True, "causal": False, "padding": True},
    {"tables": False, "causal": True, "padding": True},
    {"tables": False, "causal": False, "padding": False},
]
ENCODINGS = ("kerple", "dape-kerple", "dape-nope", "fire", "dape-fire")
CALLS = [(12, 12, 64, 200, 200), (8, 2, 80, 75, 301), (16, 16, 128, 64, 64), (32, 8, 128, 70, 70), (12, 4, 64, 1, 2000)]
"""Heads, key heads, width, queries and keys of whole calls of attention."""


def classes() -> list[ShapeClass]:
    """All shape classes to check, each with f and without."""
    found = []
    for dtype, (heads, group, width, hidden), kind in product(NAMES.values(), SHAPES, KINDS):
        for units in (hidden, 0):
            shape = ShapeClass(
                dtype=dtype, heads=heads, group=group, width=width, values=width, hidden=units, static=True, **kind
            )
            found.append(shape)
    return found


def examine(gpu: torch.device, say: Callable[[str], None]) -> Iterator[Section]:
    """Yield the sections about a GPU; ``say`` is called with what happens next. Outcomes go into the cache."""
    yield _checked(gpu, say)
    for dtype in NAMES:
        name = str(dtype).removeprefix("torch.")
        say(f"whole calls in {name}")
        problems = [
            Problem(
                encoding=encoding,
                heads=heads,
                key_heads=key_heads,
                width=width,
                queries=queries,
                keys=keys,
                causal=causal,
                dtype=dtype,
                device=str(gpu),
            )
            for (heads, key_heads, width, queries, keys), encoding, causal in product(CALLS, ENCODINGS, (True, False))
        ]
        yield section(f"Attention on {gpu} in {name}, impl='triton'", against_definition("triton", problems))


def _checked(gpu: torch.device, say: Callable[[str], None]) -> Section:
    lines, kind, every = [], gpu_of(gpu), classes()
    for number, shape in enumerate(every, 1):
        if kind is None or not _fits(shape, kind):
            lines.append(Line(f"class {number}", f"{shape}: does not fit into the shared memory of this GPU"))
            continue
        say(f"{number} of {len(every)}: {shape}")
        outcome = recheck(shape, gpu)
        lines.append(Line(f"class {number}", f"{shape}: {outcome.words}", outcome.ok))
    return section(f"Self-check of the Triton kernels on {gpu}", lines)


def _fits(shape: ShapeClass, gpu: Gpu) -> bool:
    sizes = Sizes(
        heads=shape.heads,
        group=shape.group,
        width=shape.width,
        values=shape.values,
        hidden=max(1, shape.hidden),
        item_bytes=4 if shape.dtype == "float32" else 2,
        gpu=gpu,
    )
    return sizes.fits
