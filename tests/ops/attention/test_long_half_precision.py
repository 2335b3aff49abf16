"""float16 and bfloat16 against float64 for every encoding, with as many keys as long contexts have.

Few queries, the last of them, so that a case takes seconds; outputs and all gradients, within the derived bound.
``python -m tests.ops.attention.test_long_half_precision`` prints the table of docs/numerics.md.
"""

from typing import Any

import pytest
import torch
from tests.ops.attention.bounds import FEATURES, Exact, Rounding, excess, named_parameters, unit
from torch import Tensor

import dape
from dape.ops.attention.fused.available import why_not_compiled
from dape.positional.base import PositionalEncoding
from dape.positional.catalogue import ENTRIES, encodings
from dape.positional.names import parse

HEADS, WIDTH, QUERIES, KEYS = 4, 16, 2, 32768
HALF = [torch.bfloat16, torch.float16]
pytestmark = pytest.mark.slow


def make(name: str) -> PositionalEncoding:
    torch.manual_seed(0)
    options = {"hidden": 8} if name.startswith("dape-") else {}
    pe = dape.build(name, num_heads=HEADS, head_dim=WIDTH, train_length=512, model_dim=16, **options)
    if name == "cope":
        with torch.no_grad():
            pe.table.add_(0.1 * torch.randn(pe.table.shape))  # it starts at zero
    return pe


def run(name: str, dtype: torch.dtype, impl: str, keys: int = KEYS) -> tuple[Exact, dict[str, Tensor], str]:
    pe, generator = make(name), torch.Generator().manual_seed(1)
    q, k, v, towards = (
        torch.randn(1, HEADS, t, WIDTH, generator=generator).to(dtype) for t in (QUERIES, keys, keys, QUERIES)
    )
    call: dict[str, Any] = {}
    if pe.needs_features:
        made = pe.features(torch.randn(1, keys, 16, generator=generator))
        assert made is not None
        call["features"] = tuple(x.detach().requires_grad_() for x in (made[:, -QUERIES:], made))
    read = dict(zip(FEATURES, call.get("features", ()), strict=False))
    wanted = {"q": q, "k": k, "v": v, **read, **named_parameters(pe)}
    for x in (q, k, v):
        x.requires_grad_()
    out, choice = dape.attention(q, k, v, pe, impl=impl, explain=True, **call)
    found = torch.autograd.grad(out, list(wanted.values()), towards, allow_unused=True)
    zeros = (torch.zeros_like(x) if g is None else g for x, g in zip(wanted.values(), found, strict=True))
    exact = Exact(pe, q, k, v, towards, Rounding(dtype, weights=choice.impl == "sdpa"), call)
    return exact, {"output": out.detach(), **dict(zip(wanted, zeros, strict=True))}, choice.impl


def turns_otherwise(name: str) -> bool:
    """DAPE on rotations differs from dape-rope by their angles alone."""
    parsed = parse(name)
    return bool(parsed.wrapper) and ENTRIES[parsed.base].hook == "rotate" and parsed.base != "rope"


CASES = [
    (name, impl, HALF[(n + (impl == "auto")) % 2])
    for n, name in enumerate(sorted(encodings()))
    for impl in (["auto"] if turns_otherwise(name) else ["auto", "blocked", "fused"])
    if impl != "fused" or make(name).score_form() is not None
]
"""What ``auto`` chooses in one of the two, usually ``fused``, and ``fused`` and ``blocked`` in the other."""


@pytest.mark.parametrize(("name", "impl", "dtype"), CASES)
def test_within_the_bound_at_32768_keys(name, impl, dtype):
    if impl == "fused" and why_not_compiled(torch.empty(0)):
        pytest.skip("no compiler")
    exact, actual, _ = run(name, dtype, impl)
    too_far = {what: ratio for what, ratio in excess(exact, actual).items() if not ratio <= 1}
    assert not too_far


def measured(name: str, dtype: torch.dtype) -> list[float]:
    """Largest errors of ``auto`` in units of u, each of the largest entry: of the output; of the worst of the gradients
    of q, k and v; of those of the parameters, for which the largest entry is that of all of them (a row's gradients of
    logits add up to 0, and so does the gradient of a bias of f)."""
    exact, actual, _ = run(name, dtype, "auto")
    errors = {what: float((actual[what].double() - x).abs().max()) for what, x in exact.values.items()}
    sizes = {what: float(x.abs().max()) for what, x in exact.values.items()}
    parameters = [what for what in errors if what.startswith("pe.")]
    largest = max((sizes[what] for what in parameters), default=0.0)
    relative = [errors["output"] / sizes["output"], max(errors[what] / sizes[what] for what in "qkv")]
    relative.append(max(errors[what] for what in parameters) / largest if largest else 0.0)
    return [x / unit(dtype) for x in relative]


if __name__ == "__main__":
    print("| encoding | bfloat16: output | q, k, v | parameters | float16: output | q, k, v | parameters |")
    print("|---|---|---|---|---|---|---|")
    for name in sorted(encodings()):
        row = [f"{x:.2g}" for dtype in HALF for x in measured(name, dtype)]
        print(f"| {name} | {' | '.join(row)} |", flush=True)
