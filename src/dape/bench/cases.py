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
from dape.bench.memory import peak_extra_mb
from dape.ops.attention.bounds import bounds, relative_errors
from dape.positional.base import PositionalEncoding
from dape.positional.build import build
from dape.positional.dape import Dape, DapeWrapper
from dape.positional.names import parse
from dape.positional.randomized import Randomized

WARM_UP_LENGTH = 64


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One attention problem, but for its length. Plain values, so that it can be sent to a child process."""

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
    """The gradient of the output, where the backward pass starts."""
    x: Float[Tensor, "b t m"] | None
    """What enters the layer, for encodings that read features; making these is part of the call."""
    pe: PositionalEncoding
    causal: bool

    def differentiable(self) -> dict[str, Tensor]:
        """Everything that receives a gradient, by name."""
        entering = {} if self.x is None else {"x": self.x}
        return {"q": self.q, "k": self.k, "v": self.v, **entering, **dict(self.pe.named_parameters())}

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
    # One draw for all calls: implementations could not be compared otherwise.
    return pe.draw(length, generator) if isinstance(pe, Randomized) else pe


def run_once(impl: str, inputs: Inputs, **more: Any) -> Any:
    """The output [b, h, t, d]."""
    features = {}
    if inputs.x is not None and inputs.pe.needs_features and impl != "sdpa":
        features["features"] = inputs.pe.features(inputs.x)
    return _implementation(impl)(inputs.q, inputs.k, inputs.v, inputs.pe, causal=inputs.causal, **features, **more)


def _implementation(impl: str) -> Callable[..., Tensor]:
    if impl in ("appendix", "static", "sdpa"):
        return getattr(listing, impl)
    from dape.ops.attention import attention

    operator: Callable[..., Any] = attention
    return partial(operator, impl=impl)


def why_not(impl: str, shape: Shape) -> str | None:
    """Why a kernel cannot run here: no compiler, another device or precision, no closed form."""
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
    """Output, and the gradient of everything differentiable: 0 where an implementation does not use it."""
    leaves = inputs.differentiable() if leaves is None else leaves
    out = run_once(impl, inputs)
    found = torch.autograd.grad(out, list(leaves.values()), inputs.upstream, materialize_grads=True, allow_unused=True)
    return {"output": out.detach(), **dict(zip(leaves, found, strict=True))}


# Agreement -----------------------------------------------------------------------------------------------------------

VERIFY_LENGTH, VERIFY_BATCH = 131, 2
CANCELS = 0.1
"""The gradient of f's last bias is 0, and rounding leaves the sum of what cancels: small gradients are judged relative
to this part of the largest."""

IN_LOGITS = {"appendix": 5, "static": 3}
"""Results that the listings keep in half precision: scores, bias, hidden units, f, and their sum; scores, bias, sum."""


def disagreements(shape: Shape, impl: str, passes: tuple[Pass, ...]) -> list[str]:
    """Where ``impl`` departs from ``reference`` in float64 on the same inputs, in words; empty when it agrees.

    A listing in half precision adds up as many rounded numbers for a gradient of a parameter as there are cells, and
    most of it cancels: those gradients are compared in float32.
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
    """The encoding that an implementation computes: the baselines leave DAPE, or positions, out."""
    if impl == "sdpa":
        return PositionalEncoding(pe.dims).to(pe.precision)
    if impl == "static" and isinstance(pe, DapeWrapper):
        return pe.base
    return pe


def _away_from_kinks(inputs: Inputs) -> Inputs:
    """With biases of f so large that no hidden unit is near 0, every other one below it.

    The listing rounds hidden units to half precision, and where one is within that of 0, rounding decides its slope.
    One cell of a row with few keys then moves a gradient by a hundredth of its largest value, in float16 (3e-4 of
    which is its rounding) as in bfloat16.
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


def measure_mb(shape: Shape, impl: str, length: int, pass_: Pass, threads: int) -> float:
    """Peak extra memory of one call, in a child process."""
    return peak_extra_mb(
        "dape.bench.cases:prepare", shape=asdict(shape), impl=impl, length=length, pass_=pass_, threads=threads
    )


def prepare(*, shape: dict[str, Any], impl: str, length: int, pass_: Pass, threads: int) -> Callable[[], None]:
    """In the child: inputs exist and libraries are initialised (at a tiny length) before anything is measured."""
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
