"""Which implementation ``impl="auto"`` takes for each encoding of the catalogue, and why."""

import torch

from dape.doctor.facts import gpus
from dape.doctor.section import Section, section
from dape.ops.attention.check import make_grid
from dape.ops.attention.operator import Choice, choose
from dape.ops.attention.triton_kernels.trust import only_remembered
from dape.positional.base import any_form
from dape.positional.build import build
from dape.positional.catalogue import encodings

HEADS, WIDTH, TOKENS = 12, 64, 1024


def choices() -> list[Section]:
    """A section for the CPU and one for each GPU. Computes nothing and does not start checks of Triton kernels."""
    return [_on(torch.device("cpu"), torch.float32), *(_on(gpu, torch.bfloat16) for gpu in gpus())]


def _on(device: torch.device, dtype: torch.dtype) -> Section:
    names_by_choice: dict[tuple[str, str], list[str]] = {}
    with only_remembered():
        for name in encodings():
            choice = choice_for(name, device, dtype)
            names_by_choice.setdefault((f"{choice.impl}, {choice.kernel}", choice.reason), []).append(name)
    shape = f"{HEADS} heads of {WIDTH}, {TOKENS} tokens, {str(dtype).removeprefix('torch.')}, causal"
    lines = [(impl, f"{', '.join(names)}: {reason}") for (impl, reason), names in names_by_choice.items()]
    return section(f"What auto takes on {device} ({shape})", lines)


def choice_for(name: str, device: torch.device, dtype: torch.dtype) -> Choice:
    q = torch.zeros(1, dtype=dtype, device=device).expand(1, HEADS, TOKENS, WIDTH)
    with torch.random.fork_rng(devices=[]):
        pe = build(name, num_heads=HEADS, head_dim=WIDTH, train_length=TOKENS)
    grid = make_grid(q, q, causal=True)
    return choose(q, q, q, grid, any_form(pe), "auto")
