"""What other programs put on the modules of an encoding acts, in every implementation, or is refused: hooks, pruning,
parametrisation, layers put in place of others, weights swapped for a call. The names come from the catalogue.

What is expected comes from the same encoding with weights changed by hand to what the treatment amounts to.
"""

import copy
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from tests.positional.test_conformance import IMPLS, NAMES, assert_near, layer, make, project, tokens
from tests.wrapping import FACTOR, Times, around, hook, larger, replace
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import dape
from dape.ops.attention.memory import LagMemory
from dape.positional.base import PositionalEncoding, closed_form
from dape.positional.dape import DapeWrapper
from dape.positional.layers import Affine, RowConvolution
from dape.positional.randomized import Randomized

LENGTH = 9


def layers_of(pe: PositionalEncoding) -> list[str]:
    """Names of the modules that are no encodings and have weights of their own."""
    return [n for n, m in pe.named_modules() if not isinstance(m, PositionalEncoding) and [*m.parameters(False)]]


LAYERED = [name for name in NAMES if layers_of(make(name))]
every_layered = pytest.mark.parametrize("name", LAYERED)


def outcome(pe: PositionalEncoding, impl: str = "reference", **call) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Output and gradients of an attention layer."""
    x = tokens(2, LENGTH).requires_grad_()
    out = layer(pe, x, impl=impl, **call)
    pe.zero_grad()
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    assert x.grad is not None
    return out.detach(), x.grad, {n: p.grad.clone() for n, p in pe.named_parameters() if p.grad is not None}


def assert_acts(pe: PositionalEncoding, equivalent: PositionalEncoding, **call) -> None:
    """Output and gradients of the inputs are those of weights changed by hand, the others those of autograd."""
    out, dx, _ = outcome(equivalent, **call)
    reference, blocked = (outcome(pe, impl, **call) for impl in IMPLS)
    for found in (reference, blocked):
        assert_near(found[0], out)
        assert_near(found[1], dx)
    assert reference[2] and reference[2].keys() == blocked[2].keys()
    for name, grad in reference[2].items():
        assert_near(blocked[2][name], grad)


def pre_hook(pe: nn.Module, name: str) -> None:
    pe.get_submodule(name).register_forward_pre_hook(lambda module, args: (FACTOR * args[0],))


def own_forward(pe: nn.Module, name: str) -> None:
    """As accelerate does it."""
    module: nn.Module = pe.get_submodule(name)
    before = module.forward
    module.forward = lambda x: FACTOR * before(x)


def parametrised(pe: nn.Module, name: str) -> None:
    parametrize.register_parametrization(pe.get_submodule(name), "weight", Times())


def weight_norm(pe: nn.Module, name: str) -> None:
    module: nn.Module = parametrizations.weight_norm(pe.get_submodule(name))
    with torch.no_grad():
        module.parametrizations.weight.original0.mul_(FACTOR)


def old_weight_norm(pe: nn.Module, name: str) -> None:
    with pytest.warns(FutureWarning):
        module: nn.Module = nn.utils.weight_norm(pe.get_submodule(name))
    with torch.no_grad():
        module.weight_g.mul_(FACTOR)


def scaled(pe: nn.Module, name: str, *parts: str) -> None:
    with torch.no_grad():
        for part, parameter in pe.get_submodule(name).named_parameters():
            if part in parts:
                parameter.mul_(FACTOR)


BOTH, WEIGHT = ("weight", "bias"), ("weight",)
COMMON = {hook: BOTH, parametrised: WEIGHT, around: BOTH}
"""What is multiplied by which treatment."""
RARE = {pre_hook: WEIGHT, own_forward: BOTH, weight_norm: WEIGHT, old_weight_norm: WEIGHT}
SOME = ["fire", "transformer-xl", "dape-nope", "dape-kerple", "dape-fire", "dape-v2-fire", "randomized-dape-kerple"]
some_layered = pytest.mark.parametrize("name", SOME)
CASES = [(t, n) for t in COMMON for n in LAYERED] + [(t, n) for t in RARE for n in SOME]


@pytest.mark.parametrize(("treat", "name"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_what_is_put_on_a_layer_acts(name: str, treat: Callable):
    parts = {**COMMON, **RARE}[treat]
    pe, equivalent = make(name), make(name)
    for part in layers_of(pe):
        treat(pe, part)
        scaled(equivalent, part, *parts)
    assert_acts(pe, equivalent)


@every_layered
def test_every_layer_matters(name: str):
    """Else the others could not fail."""
    plain = layer(make(name), tokens(2, 13))
    for part in layers_of(make(name)):
        pe = make(name)
        scaled(pe, part, *WEIGHT)
        assert not torch.allclose(layer(pe, tokens(2, 13)), plain, rtol=1e-4), part


@every_layered
def test_pruned_layers_stay_pruned_while_they_learn(name: str):
    """Pruning is a hook that makes the weight when the layer is called: read without a call it would be an old one."""
    pe, equivalent = make(name), make(name)
    parts = layers_of(pe)
    for part in parts:
        pruned, plain = pe.get_submodule(part), equivalent.get_submodule(part)
        prune.random_unstructured(pruned, "weight", amount=0.5)
        with torch.no_grad():
            pruned.weight_orig.mul_(FACTOR)
            plain.weight.mul_(FACTOR * pruned.weight_mask)
    assert_acts(pe, equivalent)
    grads = outcome(pe)[2]
    for part in parts:
        assert not grads[f"{part}.weight_orig"][pe.get_submodule(part).weight_mask == 0].any()
        prune.remove(pe.get_submodule(part), "weight")
    assert_acts(pe, equivalent)


class LowRank(nn.Module):
    """LoRA by hand, with its dropout."""

    def __init__(self, inner: Affine, dropout: float = 0.0) -> None:
        super().__init__()
        outputs, inputs = inner.weight.shape
        self.inner, self.dropout = inner, nn.Dropout(dropout)
        self.a, self.b = (nn.Parameter(torch.randn(*s, dtype=torch.float64)) for s in ((inputs, 2), (2, outputs)))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.dropout(x) @ self.a @ self.b


@some_layered
def test_low_rank_updates_act_as_if_merged(name: str):
    pe, equivalent = make(name), make(name)
    for part in layers_of(pe):
        if isinstance(pe.get_submodule(part), RowConvolution):
            continue
        wrapped = LowRank(pe.get_submodule(part))
        replace(pe, part, wrapped)
        with torch.no_grad():
            equivalent.get_submodule(part).weight.add_((wrapped.a @ wrapped.b).T)
    assert_acts(pe, equivalent)


@pytest.mark.parametrize("name", ["dape-kerple", "fire", "transformer-xl"])
def test_dropout_around_a_layer_is_the_same_in_the_backward_pass(name: str):
    """A forward pass that is computed again must draw what it drew; what cannot is not used."""
    pe = make(name)
    part = layers_of(pe)[0]
    replace(pe, part, LowRank(pe.get_submodule(part), dropout=0.5))
    x = tokens(1, 13).requires_grad_()

    def loss(values: Tensor) -> Tensor:
        torch.manual_seed(5)
        return layer(pe, values, impl="blocked").square().sum()

    loss(x).backward()
    direction = torch.randn_like(x)
    with torch.no_grad():
        slope = (loss(x + 1e-6 * direction) - loss(x - 1e-6 * direction)) / 2e-6
    assert x.grad is not None
    assert_near((x.grad * direction).sum(), slope, 1e-6)


@pytest.mark.parametrize("variant", ["concat_residual", "concat", "add_residual", "bias_only", "bias_map"])
def test_hooks_act_in_every_variant_of_dape(variant: str):
    for part in ("f.first", "f.second", "f"):
        pe, equivalent = (make("dape-kerple", variant=variant) for _ in range(2))
        pe.get_submodule(part).register_forward_hook(larger)
        scaled(equivalent, "f.second" if part == "f" else part, *BOTH)
        assert_acts(pe, equivalent)


def test_another_network_in_place_of_f():
    class Other(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return (a * b).tanh()

    pe = make("dape-kerple")
    pe.f = Other()
    q, k, v = project(tokens(2, 13))
    scores = q @ k.transpose(-1, -2) / 8**0.5
    bias = pe.bias(torch.arange(13), torch.arange(13))
    logits = (scores + bias + (scores * bias).tanh()).masked_fill(torch.ones(13, 13).triu(1).bool(), -torch.inf)
    for impl in (*IMPLS, "auto"):
        assert_near(dape.attention(q, k, v, pe, impl=impl), logits.softmax(-1) @ v)


def test_backward_hooks_run():
    pe, seen = make("dape-kerple"), []
    pe.f.first.register_full_backward_hook(lambda module, d_in, d_out: seen.append(d_out[0].abs().sum().item()))
    for impl in IMPLS:
        seen.clear()
        outcome(pe, impl)
        assert seen and all(seen)


def test_a_hook_does_not_lower_the_precision_of_half_precision_weights():
    plain, hooked = (make("dape-kerple", dtype=torch.bfloat16) for _ in range(2))
    for part in layers_of(hooked):
        hooked.get_submodule(part).register_forward_hook(lambda module, args, out: None)
    x = tokens(1, 13, dtype=torch.float32)
    assert_near(layer(hooked, x), layer(plain, x), 1e-5)


@pytest.mark.parametrize("impl", ["fused", "triton"])
def test_a_kernel_that_cannot_call_layers_says_why(impl: str):
    pe, x = make("dape-kerple", dtype=torch.float32), tokens(1, 13, dtype=torch.float32)
    hook(pe, "f.first")
    with pytest.raises(ValueError, match="hooks or was replaced"):
        layer(pe, x, impl=impl)


def test_the_choice_of_plain_layers_is_the_fast_one():
    pe = make("dape-kerple")
    assert closed_form(pe) is not None
    parametrised(pe, "f.first")
    assert closed_form(pe) is not None
    handle = pe.f.first.register_forward_hook(lambda module, args, out: None)
    assert closed_form(pe) is None
    handle.remove()
    assert closed_form(pe) is not None


# The encodings themselves --------------------------------------------------------------------------------------------


def own_parameters(pe: PositionalEncoding) -> list[tuple[str, str]]:
    """Those of encodings, not of their layers: names of the module and of the parameter."""
    encodings = [(n, m) for n, m in pe.named_modules() if isinstance(m, PositionalEncoding)]
    return [(n, p) for n, m in encodings for p, _ in m.named_parameters(recurse=False)]


@pytest.mark.parametrize("name", [name for name in NAMES if own_parameters(make(name))])
def test_parametrised_encodings(name: str):
    apart = torch.arange(LENGTH) * 3
    pe, equivalent = make(name), make(name)
    for module, parameter in own_parameters(pe):
        parametrize.register_parametrization(pe.get_submodule(module), parameter, Times())
        with torch.no_grad():
            equivalent.get_submodule(module).get_parameter(parameter).mul_(FACTOR)
    assert_acts(pe, equivalent)
    assert_acts(pe, equivalent, positions=apart)


def test_a_parametrisation_between_two_tokens_is_noticed():
    pe, memory = make("dape-kerple"), LagMemory()
    q, k, v = project(tokens(1, 13))

    def decode(kept: LagMemory | None) -> Tensor:
        with torch.no_grad():
            return dape.attention(q[:, :, -1:], k, v, pe, memory=kept, impl="blocked")

    before = decode(memory)
    parametrize.register_parametrization(pe.base, "r1", Times())
    assert not torch.allclose(decode(memory), before)
    assert_near(decode(memory), decode(None))


def encodings_in(name: str) -> list[str]:
    return [n for n, m in make(name).named_modules() if isinstance(m, PositionalEncoding)]


@pytest.mark.parametrize("name", NAMES)
def test_hooks_on_an_encoding_are_refused(name: str):
    """It is never called, so they would never run."""
    pe, x = make(name), tokens(1, 5)
    for module in encodings_in(name):
        for register in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"):
            handle = getattr(pe.get_submodule(module), register)(lambda *args: None)
            with pytest.raises(ValueError, match=rf"{type(pe).__name__}(\.{module})? has forward or backward hooks"):
                layer(pe, x)
            handle.remove()
    layer(pe, x)


@pytest.mark.parametrize(("name", "parameter"), [("kerple", "r1"), ("t5", "table"), ("cope", "table")])
def test_pruning_an_encoding_is_refused_until_it_is_permanent(name: str, parameter: str):
    pe, x = make(name), tokens(1, 13)
    prune.random_unstructured(pe, parameter, amount=0.5)
    q, k, _ = project(x)
    for call in (lambda: layer(pe, x), lambda: dape.intermediates(q, k, pe)):
        with pytest.raises(ValueError, match=r"prune\.remove"):
            call()
    prune.remove(pe, parameter)
    assert_near(layer(pe, x), layer(pe, x, impl="reference"))


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(make(name), DapeWrapper | Randomized)])
def test_a_wrapper_around_a_base_is_refused(name: str):
    """It used to look like a base without a bias."""
    pe = make(name)
    pe.base = Times(pe.base)
    with pytest.raises(TypeError, match=r"base must be a positional encoding.*got Times"):
        dape.attention(*project(tokens(1, 5)), pe)
    with pytest.raises(TypeError, match=r"pe must be a positional encoding.*got Times"):
        dape.attention(*project(tokens(1, 5)), Times(make(name)))


# Weights -------------------------------------------------------------------------------------------------------------


class Attends(nn.Module):
    def __init__(self, pe: PositionalEncoding) -> None:
        super().__init__()
        self.pe = pe

    def forward(self, x: Tensor, impl: str) -> Tensor:
        return layer(self.pe, x, impl=impl)


@pytest.mark.parametrize("name", [name for name in NAMES if [*make(name).parameters()]])
def test_weights_swapped_for_a_call_are_used(name: str):
    """And get the gradients, also after the call, when the encoding has its own weights again."""
    pe, other = Attends(make(name)), Attends(make(name, seed=3))
    x = tokens(2, LENGTH)
    expected = outcome(other.pe)[2]
    for impl in IMPLS:
        weights = {n: p.detach().clone().requires_grad_() for n, p in other.named_parameters()}
        out = torch.func.functional_call(pe, weights, (x, impl))
        assert_near(out.detach(), other(x, "reference").detach())
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        for n, grad in expected.items():
            assert_near(weights[f"pe.{n}"].grad, grad)
        assert all(p.grad is None for p in pe.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_programs_that_look_for_linear_layers_find_none(name: str):
    assert not [n for n, m in make(name).named_modules() if isinstance(m, nn.Linear)]


def test_state_dicts_have_the_names_they_always_had():
    def names(encoding: str) -> set[str]:
        return set(dape.build(encoding, num_heads=4, head_dim=8, train_length=16).state_dict())

    mlp = {f"{layer}.{part}" for layer in ("first", "second") for part in ("weight", "bias")}
    assert names("dape-kerple") == {f"f.{n}" for n in mlp} | {"base.r1", "base.r2"}
    assert names("fire") == mlp | {"c", "threshold_multiplier"}
    assert names("dape-v2-kerple") == mlp | {"base.r1", "base.r2"}
    assert names("transformer-xl") == {"u", "v", "w_r.weight"}


@pytest.mark.parametrize("bias", [True, False])
def test_layers_start_and_compute_as_those_of_torch(bias: bool):
    torch.manual_seed(0)
    own = Affine(5, 3, bias=bias)
    torch.manual_seed(0)
    theirs = nn.Linear(5, 3, bias=bias)
    assert own.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(own.state_dict()[n], t) for n, t in theirs.state_dict().items())
    x = torch.randn(2, 5)
    assert torch.equal(own(x), theirs(x)) and own(x.double()).dtype == torch.float64
    assert "5, 3" in repr(own)
    torch.manual_seed(0)
    row = RowConvolution(4, 3, 5)
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 3, (1, 5), padding=(0, 2))
    assert torch.equal(row(x := torch.randn(2, 4, 3, 7)), conv(x))


def test_copies_keep_what_was_put_on(tmp_path):
    """A deep copy, as every trainer makes one, has the hooks and the parametrisation too."""
    pe, equivalent = make("dape-fire"), make("dape-fire")
    hook(pe, "f.first")
    parametrised(pe, "base.first")
    scaled(equivalent, "f.first", *BOTH)
    scaled(equivalent, "base.first", *WEIGHT)
    assert_acts(copy.deepcopy(pe), equivalent)


def test_what_is_no_module_is_refused():
    with pytest.raises(TypeError, match="got SimpleNamespace"):
        dape.attention(*project(tokens(1, 5)), SimpleNamespace(dims=None))
