"""Implementations of attention compared with the definition in float64: outputs and all gradients."""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dape.doctor.section import Line, Section, section
from dape.ops.attention.bounds import bounds, relative_errors, steady_rows
from dape.ops.attention.check import make_grid
from dape.ops.attention.fused.available import why_not_compiled
from dape.ops.attention.operator import Impl, attention
from dape.positional.base import PositionalEncoding, closed_form, share_heads
from dape.positional.build import build

ON_PROCESSORS = ("alibi", "kerple", "t5", "fire", "cope", "dape-kerple", "dape-fire", "dape-rope", "dape-v2-kerple")
"""Encodings on which ``blocked`` is compared."""
IN_CLOSED_FORM = ("alibi", "kerple", "t5", "fire", "dape-kerple", "dape-fire", "dape-rope")
"""Encodings on which ``fused`` is compared."""

CANCELS = 0.1
"""Errors count relative to at least this part of the largest gradient. Softmax ignores a constant such as f's last
bias, so its exact gradient is 0, and rounding errors remain where the summands cancel."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A call that implementations are compared on."""

    encoding: str
    heads: int = 4
    key_heads: int = 4
    width: int = 16
    queries: int = 29
    keys: int = 53
    causal: bool = True
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def terms(self) -> int:
        """Terms in all sums that an output or a gradient goes through; f has 32 hidden units."""
        return 2 * self.width + self.heads + 32 + self.keys + 2 * self.queries

    def __str__(self) -> str:
        heads = f"{self.heads}/{self.key_heads} heads of {self.width}"
        size = f"{self.queries} x {self.keys}{' causal' if self.causal else ''}"
        return f"{self.encoding}, {heads}, {size}, {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True)
class Compared:
    problem: Problem
    worst: float
    """The largest error, relative to the allowed error."""
    tensor: str
    """Name of the output or gradient with that error."""

    @property
    def ok(self) -> bool:
        return self.worst <= 1


def compare(problem: Problem, impl: Impl) -> Compared:
    """Compare outputs and gradients with the reference in float64.

    Raises:
        ValueError: if the implementation does not support the call.
    """
    pe, given = _inputs(problem)
    exact = _outcome("reference", copy.deepcopy(pe).double(), {name: x.double() for name, x in given.items()}, problem)
    on_device = {name: x.to(problem.device) for name, x in given.items()}
    found = _outcome(impl, pe.to(problem.device), on_device, problem)
    allowed = bounds(problem.dtype, problem.terms)
    errors = relative_errors({name: x.cpu() for name, x in found.items()}, exact, least=CANCELS)
    parts = {name: error / allowed.of(name) for name, error in errors.items()}
    tensor = max(parts, key=lambda name: parts[name])
    return Compared(problem, parts[tensor], tensor)


def _inputs(problem: Problem) -> tuple[PositionalEncoding, dict[str, Tensor]]:
    """An encoding, q, k, v and the gradient of the output, on the CPU: the same numbers on every machine. The caller's
    random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pe = build(problem.encoding, num_heads=problem.heads, head_dim=problem.width, train_length=32).float()
        with torch.no_grad():
            for parameter in pe.parameters():
                parameter.add_(0.2 * torch.rand(parameter.shape))  # cope's table is initialised with zeros
        shapes = [(problem.heads, problem.queries), *[(problem.key_heads, problem.keys)] * 2]
        shapes.append((problem.heads, problem.queries))
        q, k, v, gradient = (torch.randn(2, *shape, problem.width).to(problem.dtype) for shape in shapes)
    return pe, {"q": q, "k": k, "v": v, "gradient": gradient * _steady(pe, q, k, problem).to(gradient.dtype)}


def _steady(pe: PositionalEncoding, q: Tensor, k: Tensor, problem: Problem) -> Tensor:
    """1 for queries to compare; 0 where rounding could switch a hidden unit of f, and gradients jump with it."""
    form = closed_form(pe)
    if form is None or form.mix is None:
        return torch.ones(1, 1, 1, 1)
    grid, mix = make_grid(q, k, causal=problem.causal), form.mix
    with torch.no_grad():
        q, k = pe.rotate(q.double(), k.double(), grid)
        k = share_heads(k, problem.heads)
        pre = mix.b1.double()[:, None, None]
        if form.source is not None and mix.wb is not None:
            pre = pre + torch.einsum("Dh,hqk->Dqk", mix.wb.double(), form.source.on(form.source.module, grid).double())
        q = q / math.sqrt(problem.width)
        return steady_rows(q, k, mix.wa.double(), pre, operands=problem.dtype, terms=problem.terms)


def _outcome(impl: Impl, pe: PositionalEncoding, given: dict[str, Tensor], problem: Problem) -> dict[str, Tensor]:
    with torch.enable_grad():
        q, k, v = (given[name].detach().requires_grad_() for name in ("q", "k", "v"))
        out = attention(q, k, v, pe, causal=problem.causal, impl=impl)
        wanted = {"q": q, "k": k, "v": v, **dict(pe.named_parameters())}
        gradients = torch.autograd.grad(out, list(wanted.values()), given["gradient"], allow_unused=True)
    found = {name: g for name, g in zip(wanted, gradients, strict=True) if g is not None}
    return {"output": out.detach(), **found}


# Sections ------------------------------------------------------------------------------------------------------------


def self_test() -> Section:
    """Check the implementations for CPUs; takes a few seconds."""
    lines = against_definition("blocked", [Problem(encoding=name) for name in ON_PROCESSORS])
    if why_not := why_not_compiled(torch.empty(0, device="cpu")):
        lines += [Line("fused", f"not tested: {why_not}")]
    else:
        lines += against_definition("fused", [Problem(encoding=name) for name in IN_CLOSED_FORM])
    return section("Self-test: outputs and all gradients against the definition in float64", lines)


def against_definition(impl: Impl, problems: list[Problem]) -> list[Line]:
    """One line for all problems that agree, one for each that does not."""
    good, lines = [], []
    for problem in problems:
        try:
            compared = compare(problem, impl)
        except (ValueError, RuntimeError, OSError) as error:
            lines.append(Line(impl, f"{problem}: {type(error).__name__}: {error}", ok=False))
            continue
        if compared.ok:
            good.append(compared)
        else:
            what = f"the error of {compared.tensor} is {compared.worst:.3g} times the allowed error"
            lines.append(Line(impl, f"{problem}: {what}", ok=False))
    if good:
        worst = max(good, key=lambda each: each.worst)
        most = f"largest error {worst.worst:.2g} of the allowed error, {worst.tensor} of {worst.problem.encoding}"
        lines.insert(0, Line(impl, f"{len(good)} of {len(problems)} agree; {most}"))
    return lines
