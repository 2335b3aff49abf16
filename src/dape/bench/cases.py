"""What ``dape bench attention`` runs: inputs of a given shape, and every implementation as a call without arguments.

Imports torch; ``dape.bench.attention`` imports this module only once there is work to do.
"""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dape.bench import listing
from dape.bench.attention import Pass
from dape.bench.memory import MeasurementError, peak_extra_mb
from dape.ops.attention.bounds import bounds, relative_errors
from dape.positional.base import PositionalEncoding
from dape.positional.build import build
from dape.positional.dape import Dape, DapeWrapper
from dape.positional.names import parse
from dape.positional.randomized import Randomized

WARM_UP_LENGTH = 64


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One attention problem, without its length. Plain values only, so that a child process can receive it."""

    encoding: str
    batch: int
    heads: int
    head_dim: int
    hidden: int
    causal: bool
    dtype: str
    device: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Inputs:
    q: Float[Tensor, "b h t d"]
    k: Float[Tensor, "b h t d"]
    v: Float[Tensor, "b h t d"]
    upstream: Float[Tensor, "b h t d"]
    """The gradient of the output."""
    x: Float[Tensor, "b t m"] | None
    """The layer's input, from which each call computes the features of encodings that read any."""
    pe: PositionalEncoding
    causal: bool

    def differentiable(self) -> dict[str, Tensor]:
        """Everything that receives a gradient, by name."""
        layer_input = {} if self.x is None else {"x": self.x}
        return {"q": self.q, "k": self.k, "v": self.v, **layer_input, **dict(self.pe.named_parameters())}

    def double(self) -> "Inputs":
        given = {n: getattr(self, n) for n in ("q", "k", "v", "upstream", "x")}
        tensors = {n: t.detach().double() for n, t in given.items() if t is not None}
        leaves = {n: x.requires_grad_(n != "upstream") for n, x in tensors.items()}
        return replace(self, pe=copy.deepcopy(self.pe).double(), **leaves)


def make_inputs(shape: Shape, length: int) -> Inputs:
    """Random inputs: the same for the same shape and length, without touching the global random state."""
    dtype, device = getattr(torch, shape.dtype), torch.device(shape.device)
    generator = torch.Generator().manual_seed(shape.seed)
    size = (shape.batch, shape.heads, length, shape.head_dim)
    q, k, v, upstream = (torch.randn(size, generator=generator).to(device, dtype) for _ in range(4))
    pe = _make_encoding(shape, length, generator).to(device)
    if dtype == torch.float64:
        pe = pe.double()
    # In half precision the encoding keeps float32 parameters, as in mixed-precision training.
    x = None
    if pe.needs_features:
        x = torch.randn(shape.batch, length, pe.dims.model_dim, generator=generator).to(device, dtype).requires_grad_()
    for each in (q, k, v):
        each.requires_grad_()
    return Inputs(q=q, k=k, v=v, upstream=upstream, x=x, pe=pe, causal=shape.causal)


def _make_encoding(shape: Shape, length: int, generator: torch.Generator) -> PositionalEncoding:
    options = {"hidden": shape.hidden} if parse(shape.encoding).wrapper else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(shape.seed)
        pe = build(
            shape.encoding, num_heads=shape.heads, head_dim=shape.head_dim, train_length=max(length, 2), **options
        )
    # All calls use one draw of positions, so that implementations can be compared.
    return pe.draw(length, generator) if isinstance(pe, Randomized) else pe


def run_once(impl: str, inputs: Inputs, **more: Any) -> Any:
    """The output [b, h, t, d]."""
    features = {}
    if inputs.x is not None and inputs.pe.needs_features and impl != "sdpa":
        features["features"] = inputs.pe.features(inputs.x)
    return _implementation(impl)(inputs.q, inputs.k, inputs.v, inputs.pe, causal=inputs.causal, **features, **more)


def _implementation(impl: str) -> Callable[..., Any]:
    if impl in ("appendix", "static", "sdpa"):
        return getattr(listing, impl)
    from dape.ops.attention import attention

    return partial(attention, impl=impl)  # pyright: ignore[reportCallIssue]


def why_not(impl: str, shape: Shape) -> str | None:
    """The reason why a kernel cannot run here (no compiler, wrong device, precision or encoding), or None."""
    if impl not in ("fused", "triton"):
        return None
    try:
        run_once(impl, make_inputs(replace(shape, batch=1), 1))
    except ValueError as error:
        return str(error)
    return None


def make_call(impl: str, inputs: Inputs, pass_: Pass) -> Callable[[], None]:
    """The call to time: forward without a graph, or forward and all gradients."""
    wait = torch.cuda.synchronize if inputs.q.is_cuda else (lambda: None)

    def forward() -> None:
        with torch.no_grad():
            run_once(impl, inputs)
        wait()

    def forward_backward() -> None:
        gradients(impl, inputs)
        wait()

    return forward if pass_ == "forward" else forward_backward


def gradients(impl: str, inputs: Inputs, leaves: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The output and the gradient of every leaf. Leaves that the implementation does not use have gradient 0."""
    leaves = inputs.differentiable() if leaves is None else leaves
    out = run_once(impl, inputs)
    found = torch.autograd.grad(out, list(leaves.values()), inputs.upstream, materialize_grads=True, allow_unused=True)
    return {"output": out.detach(), **dict(zip(leaves, found, strict=True))}


# Agreement -----------------------------------------------------------------------------------------------------------

VERIFY_LENGTH, VERIFY_BATCH = 131, 2
CANCELS = 0.1
"""Errors of a small gradient are relative to this fraction of the largest one. The gradient of f's last bias, for
example, is 0 in exact arithmetic, but a sum of rounding errors in floating point."""

IN_LOGITS = {"appendix": 5, "static": 3}
"""Intermediate results that the listings round to half precision: scores, bias, hidden units, f and the sum for
``appendix``; scores, bias and the sum for ``static``."""


def disagreements(shape: Shape, impl: str, passes: tuple[Pass, ...]) -> list[str]:
    """A message for each result of ``impl`` that differs from ``reference`` in float64 on the same inputs.

    The gradients of parameters in a half-precision listing are sums over all cells, of which most cancels; rounding
    errors do not. These gradients are therefore compared in float32.
    """
    shape = replace(shape, batch=min(shape.batch, VERIFY_BATCH))
    if impl not in IN_LOGITS or shape.dtype in ("float32", "float64"):
        return _too_far(shape, impl, make_inputs(shape, VERIFY_LENGTH), passes)
    single = replace(shape, dtype="float32")
    wrong = _too_far(single, impl, make_inputs(single, VERIFY_LENGTH), passes)
    inputs = make_inputs(shape, VERIFY_LENGTH)
    if impl == "appendix":
        inputs = _away_from_kinks(inputs)
    return wrong or _too_far(shape, impl, inputs, passes, only=("output", "q", "k", "v"))


def _too_far(
    shape: Shape, impl: str, inputs: Inputs, passes: tuple[Pass, ...], only: tuple[str, ...] | None = None
) -> list[str]:
    exact = inputs.double()
    oracle = replace(exact, pe=_encoding_of(impl, exact.pe))
    if "forward_backward" in passes:
        found, expected = gradients(impl, inputs), gradients("reference", oracle, exact.differentiable())
    else:
        with torch.no_grad():
            found, expected = {"output": run_once(impl, inputs)}, {"output": run_once("reference", oracle)}
    terms = 2 * shape.head_dim + shape.heads + shape.hidden + (1 + shape.batch) * VERIFY_LENGTH
    allowed = bounds(inputs.q.dtype, terms, in_logits=IN_LOGITS.get(impl, 0))
    errors = relative_errors(
        found, {name: x for name, x in expected.items() if only is None or name in only}, least=CANCELS
    )
    return [
        f"{impl}: {what if what == 'output' else f'gradient of {what}'} is off by {error:.1e} of its largest value "
        f"(allowed {allowed.of(what):.0e})"
        for what, error in errors.items()
        if not error <= allowed.of(what)
    ]


def _encoding_of(impl: str, pe: PositionalEncoding) -> PositionalEncoding:
    """The encoding that an implementation computes: ``sdpa`` leaves positions out, and ``static`` leaves DAPE out."""
    if impl == "sdpa":
        return PositionalEncoding(pe.dims).to(pe.precision)
    if impl == "static" and isinstance(pe, DapeWrapper):
        return pe.base
    return pe


def _away_from_kinks(inputs: Inputs) -> Inputs:
    """Inputs with such large biases in f's first layer, of alternating sign, that no hidden unit is near 0.

    The listing rounds hidden units to half precision. Rounding can change the sign of a unit near 0, and with it the
    slope of the activation. In a row with few keys, one such cell moves a gradient by 1% of its largest value, far more
    than the precision of float16.
    """
    pe = copy.deepcopy(inputs.pe)
    assert isinstance(pe, Dape) and pe.f.first.bias is not None
    with torch.no_grad():
        q, k = inputs.q.float(), inputs.k.float()
        static = listing.bias(pe, q, causal=inputs.causal, features=None if inputs.x is None else pe.features(inputs.x))
        reach = listing.hidden_units(listing.scaled_scores(q, k), static, pe)
        pe.f.first.bias += (
            reach.abs().max() * 1.25 * torch.tensor([1.0, -1.0]).repeat(reach.shape[-1])[: reach.shape[-1]]
        )
    return replace(inputs, pe=pe)


# Memory --------------------------------------------------------------------------------------------------------------


def add_memory(record: dict[str, Any], shape: Shape, impl: str, threads: int) -> list[Any]:
    """Set ``peak_mb`` of the record, or its note if that fails. There are no new records."""
    try:
        record["peak_mb"] = measure_mb(shape, impl, record["length"], record["pass"], threads)
    except MeasurementError as error:
        record["note"] = f"memory not measured: {error}"
    return []


def measure_mb(shape: Shape, impl: str, length: int, pass_: Pass, threads: int) -> float:
    """Most memory that one call held beyond its inputs, in 10^6 bytes, measured in a child process."""
    return peak_extra_mb(
        "dape.bench.cases:prepare", shape=asdict(shape), impl=impl, length=length, pass_=pass_, threads=threads
    )


def prepare(*, shape: dict[str, Any], impl: str, length: int, pass_: Pass, threads: int) -> Callable[[], None]:
    """Runs in the child process: create the inputs, and initialise libraries by a call at a tiny length."""
    torch.set_num_threads(threads)
    given = Shape(**shape)
    make_call(impl, make_inputs(replace(given, batch=1), WARM_UP_LENGTH), pass_)()
    call = make_call(impl, make_inputs(given, length), pass_)
    if torch.device(given.device).type == "cuda":
        call.extra_bytes = partial(_cuda_extra_bytes, call)  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _cuda_extra_bytes(call: Callable[[], None]) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before
