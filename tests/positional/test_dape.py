"""DAPE, against the concatenation written out with nn.Linear."""

import pytest
import torch
from torch import nn

from dape import Dape, Grid

VARIANTS = ["concat_residual", "concat", "add_residual", "bias_only", "bias_map"]
BASES = ["t5", "alibi", "kerple", "kerple-power", "sandwich", "fire"]
LENGTH = 7


def inputs(length=LENGTH):
    return torch.randn(2, 4, length, length).double(), torch.randn(2, 4, length, 8).double()


def f(pe, x):
    """f on heads-last data; the module's linear layers are used as linear layers."""
    return pe.f.second(nn.functional.leaky_relu(pe.f.first(x.movedim(-3, -1)), 0.01)).movedim(-1, -3)


def by_definition(pe, scores, bias, variant):
    bias = bias.expand_as(scores)
    match variant:
        case "concat_residual":
            return scores + bias + f(pe, torch.cat([scores, bias], dim=-3))
        case "concat":
            return scores + f(pe, torch.cat([scores, bias], dim=-3))
        case "add_residual":
            return scores + bias + f(pe, scores + bias)
        case "bias_only":
            return scores + bias + f(pe, bias)
        case "bias_map":
            return scores + f(pe, bias)


def zero_(pe):
    for p in pe.f.parameters():
        nn.init.zeros_(p)
    return pe


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("base", BASES)
def test_item_7_split_w1_equals_the_concatenation(make, base, variant, causal):
    """Spec section 6, item 7; the default variant is concat_residual."""
    pe = make(f"dape-{base}", variant=variant).double()
    scores, q = inputs()
    n = torch.arange(LENGTH)
    expected = by_definition(pe, scores, pe.base.bias(n, n, causal=causal), variant)
    grid = Grid.of_length(LENGTH, LENGTH, causal=causal)
    torch.testing.assert_close(pe.logits(scores, q, q, grid), expected)
    assert make(f"dape-{base}").variant == "concat_residual"


@pytest.mark.parametrize("base", ["nope", "rope", "pi", "yarn"])
def test_without_a_bias_f_sees_the_scores_alone(make, base):
    pe = make(f"dape-{base}").double()
    assert pe.f.first.weight.shape == (32, 4)
    scores, q = inputs()
    grid = Grid.of_length(LENGTH, LENGTH, causal=True)
    torch.testing.assert_close(pe.logits(scores, q, q, grid), scores + f(pe, scores))


def test_the_base_still_rotates(make):
    _, q = inputs()
    grid = Grid.of_length(LENGTH, LENGTH, causal=True)
    torch.testing.assert_close(
        make("dape-rope", base=50.0).rotate(q, q, grid), make("rope", base=50.0).rotate(q, q, grid)
    )
    assert make("dape-alibi").rotate(q, q, grid) == (q, q)


@pytest.mark.parametrize("variant", VARIANTS)
def test_item_4_zero_f_leaves_the_static_encoding(make, variant):
    """Spec section 6, item 4: A + B, or A for concat."""
    pe, (scores, q), n = zero_(make("dape-alibi", variant=variant)).double(), inputs(), torch.arange(LENGTH)
    logits = pe.logits(scores, q, q, Grid.of_length(LENGTH, LENGTH, causal=True))
    distance = (n[:, None] - n).clamp(min=0)
    bias = torch.stack([-(2.0 ** (-2 * h)) * distance for h in range(1, 5)]).double()
    torch.testing.assert_close(logits, scores if variant in ("concat", "bias_map") else scores + bias)


def test_item_4_zero_f_without_bias(make):
    scores, q = inputs()
    for pe in (zero_(make("dape-nope")), make("dape-nope", zero_init_out=True)):
        logits = pe.double().logits(scores, q, q, Grid.of_length(LENGTH, LENGTH, causal=True))
        torch.testing.assert_close(logits, scores)


def test_zero_init_out_starts_static_and_learns(make):
    pe, (scores, q), n = make("dape-kerple", zero_init_out=True).double(), inputs(), torch.arange(LENGTH)
    logits = pe.logits(scores, q, q, Grid.of_length(LENGTH, LENGTH, causal=True))
    torch.testing.assert_close(logits, scores + pe.base.bias(n, n))
    assert pe.f.first.weight.any(), "only the output layer is zero, otherwise f could never start"
    logits.square().sum().backward()
    assert pe.f.second.weight.grad.any()


def test_item_5_add_residual_is_concat_residual_with_equal_halves(make):
    """Spec section 6, item 5."""
    summed, concatenated = make("dape-kerple", variant="add_residual"), make("dape-kerple")
    state = summed.state_dict()
    state["f.first.weight"] = torch.cat([state["f.first.weight"]] * 2, dim=1)
    concatenated.load_state_dict(state)
    (scores, q), grid = inputs(), Grid.of_length(LENGTH, LENGTH, causal=True)
    one, two = (pe.double().logits(scores, q, q, grid) for pe in (summed, concatenated))
    torch.testing.assert_close(one, two)


def test_item_6_permuting_heads_permutes_the_output(make):
    """Spec section 6, item 6."""
    pe, permuted = make("dape-kerple").double(), make("dape-kerple").double()
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        permuted.base.r1.copy_(pe.base.r1[order])
        permuted.base.r2.copy_(pe.base.r2[order])
        permuted.f.first.weight.copy_(pe.f.first.weight[:, torch.cat([order, 4 + order])])
        permuted.f.first.bias.copy_(pe.f.first.bias)
        permuted.f.second.weight.copy_(pe.f.second.weight[order])
        permuted.f.second.bias.copy_(pe.f.second.bias[order])
    (scores, q), grid = inputs(), Grid.of_length(LENGTH, LENGTH, causal=True)
    logits = pe.logits(scores, q, q, grid)
    torch.testing.assert_close(permuted.logits(scores[:, order], q, q, grid), logits[:, order])
    assert not torch.allclose(logits[:, order], logits), "heads do differ"


def test_item_7_rows_one_by_one_equal_all_rows(make):
    """Spec section 6, item 7, in float32."""
    pe, grid = make("dape-fire", threshold=3.0), Grid.of_length(LENGTH, LENGTH, causal=True)
    scores, q = (x.float() for x in inputs())
    whole = pe.logits(scores, q, q, grid)
    for i in range(LENGTH):
        row = pe.logits(scores[:, :, i : i + 1], q[:, :, i : i + 1], q, grid.rows(slice(i, i + 1)))
        torch.testing.assert_close(row, whole[:, :, i : i + 1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_f_alone_is_what_it_adds(make, variant):
    """``mixed`` is for looking inside: logits minus scores minus the bias, where that is kept."""
    pe, (scores, q), n = make("dape-kerple", variant=variant).double(), inputs(), torch.arange(LENGTH)
    grid = Grid.of_length(LENGTH, LENGTH, causal=True)
    static = scores if variant in ("concat", "bias_map") else scores + pe.base.bias(n, n)
    torch.testing.assert_close(pe.mixed(scores, grid).expand_as(scores), pe.logits(scores, q, q, grid) - static)


def test_positions_of_their_own_per_batch_row(make):
    pe, (scores, q) = make("dape-kerple").double(), inputs()
    n = torch.stack([torch.arange(LENGTH), 3 * torch.arange(LENGTH)])
    both = pe.logits(scores, q, q, Grid(q_index=n, k_index=n, causal=True))
    for b in range(2):
        expected = by_definition(pe, scores[b], pe.base.bias(n[b], n[b]), "concat_residual")
        torch.testing.assert_close(both[b], expected)


def test_parameters_of_the_paper(make):
    """h = 12, D = 32: 1196 for f; PyTorch's initialisation, uniform in +-1/sqrt(inputs)."""
    pe = make("dape-alibi", num_heads=12)
    assert sum(p.numel() for p in pe.parameters()) == 24 * 32 + 32 + 32 * 12 + 12 == 1196
    for layer in (pe.f.first, pe.f.second):
        bound = layer.in_features**-0.5
        for p in (layer.weight, layer.bias):
            assert 0.75 * bound < p.abs().max() <= bound
    assert make("dape-alibi", hidden=5).f.first.weight.shape == (5, 8)
    assert make("dape-alibi", variant="bias_only").f.first.weight.shape == (32, 4)


def test_the_bias_is_that_of_the_base(make):
    n = torch.arange(3)
    bias = make("dape-alibi", num_heads=8).bias(n, n)
    assert bias[0].tril().tolist() == [[0, 0, 0], [-0.5, 0, 0], [-1, -0.5, 0]]
    with pytest.raises(TypeError, match="no additive bias"):
        make("dape-rope").bias(n, n)


def test_gradients_reach_the_base_directly_and_through_f(make):
    """In ``concat`` the only way is through f."""
    for variant in VARIANTS:
        pe, (scores, q) = make("dape-kerple", variant=variant).double(), inputs()
        pe.logits(scores, q, q, Grid.of_length(LENGTH, LENGTH, causal=True)).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in pe.parameters())


def test_refusals(make):
    for variant in VARIANTS[1:]:
        with pytest.raises(ValueError, match=f"variant '{variant}' needs a bias"):
            make("dape-nope", variant=variant)
    base = make("cope")
    with pytest.raises(TypeError, match="Cope is none of these"):
        Dape(base.dims, base)
