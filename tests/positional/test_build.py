import pytest
import torch

import dape
from dape import build
from dape.positional.catalogue import find

DIMS = {"num_heads": 4, "head_dim": 8, "train_length": 16}


def test_names_compose_from_the_outside_in():
    pe = build("randomized-dape-fire", **DIMS, pool=99, hidden=7, threshold=5.0)
    assert isinstance(pe, dape.Randomized) and pe.pool == 99
    assert isinstance(pe.base, dape.Dape) and pe.base.f.first.out_features == 7
    assert isinstance(pe.base.base, dape.AdditiveBias) and pe.base.base.threshold == 5
    assert isinstance(build("dape-v2-rope", **DIMS), dape.DapeV2)
    assert type(build("nope", **DIMS)) is dape.PositionalEncoding


def test_dims_reach_the_encoding():
    dims = build("alibi", **DIMS).dims
    assert (dims.num_heads, dims.head_dim, dims.train_length, dims.model_dim) == (4, 8, 16, 32)
    assert build("learned", **DIMS, model_dim=10, max_positions=3).table.shape == (3, 10)


def test_an_option_named_like_the_wrapped_base_reaches_rope():
    """``base`` is rope's frequency base, not the encoding that dape wraps."""
    assert build("dape-rope", **DIMS, base=500.0).base.base == 500.0
    assert build("randomized-rope", **DIMS, base=500.0).base.base == 500.0


@pytest.mark.parametrize(
    "name, suggestion",
    [("kerpel", "kerple"), ("dape_kerple", "dape-kerple"), ("randomized-dape-kerpel", "dape-kerple"), ("rop", "rope")],
)
def test_unknown_name_suggests_the_nearest_and_lists_all(name, suggestion):
    with pytest.raises(ValueError, match=f"Did you mean '{suggestion}'.*Known: alibi, cope, .*yarn.*dape list"):
        build(name, **DIMS)


@pytest.mark.parametrize("name", ["", "xyzzy", "dape-", "randomized-", "dape-dape-alibi"])
def test_names_that_mean_nothing(name):
    with pytest.raises(ValueError, match="unknown positional encoding"):
        build(name, **DIMS)


@pytest.mark.parametrize("base", ["sinusoidal", "learned", "transformer-xl", "cope"])
@pytest.mark.parametrize("prefix", ["dape-", "dape-v2-", "randomized-dape-"])
def test_dape_over_something_without_a_bias(prefix, base):
    with pytest.raises(
        ValueError, match=f"dape cannot be put on '{base}'.* alibi, .*fire, fox, inkling, kerple, .*yarn"
    ):
        build(prefix + base, **DIMS)


@pytest.mark.parametrize(
    "name, option, suggestion",
    [
        ("dape-kerple", "hiden", "hidden"),
        ("t5", "num_bucket", "num_buckets"),
        ("randomized-rope", "pools", "pool"),
        ("yarn", "scaling", "scale"),
    ],
)
def test_unknown_option_suggests_the_nearest(name, option, suggestion):
    with pytest.raises(TypeError, match=f"'{name}' has no option '{option}'. Did you mean '{suggestion}'.*options: "):
        build(name, **DIMS, **{option: 3})


def test_unknown_option_lists_those_of_every_part():
    with pytest.raises(TypeError, match="Its options: both_sides, hidden, pool, variant, zero_init_out"):
        build("randomized-dape-alibi", **DIMS, colour="red")
    with pytest.raises(TypeError, match="Its options: none"):
        build("alibi", **DIMS, colour="red")


@pytest.mark.parametrize("name", ["alibi", "dape-kerple", "randomized-rope"])
def test_causal_is_no_option_of_an_encoding(name):
    with pytest.raises(TypeError, match=r"'causal' is not an option.*attention\(\) or bias\(\)"):
        build(name, **DIMS, causal=True)


@pytest.mark.parametrize(
    "name, option, value, listed",
    [
        ("dape-alibi", "variant", "residual", "'concat_residual', 'concat', 'add_residual', 'bias_only', 'bias_map'"),
        ("fire", "activation", "gelu", "'relu', 'leaky_relu'"),
        ("t5", "bias_scale", 1, "'sqrt_d', 'one'"),
        ("kerple", "bidirectional", True, "'past_bonus', 'symmetric', 'tril'"),
    ],
)
def test_a_wrong_choice_lists_the_right_ones(name, option, value, listed):
    with pytest.raises(ValueError, match=f"{option}={value!r} is not possible; choose one of {listed}"):
        build(name, **DIMS, **{option: value})


@pytest.mark.parametrize(
    "name, option",
    [("dape-alibi", "hidden"), ("fire", "mlp_width"), ("t5", "num_buckets"), ("cope", "npos"), ("sandwich", "width")],
)
@pytest.mark.parametrize("value", [0, -3, 2.5, "8", True])
def test_sizes_must_be_positive_whole_numbers(name, option, value):
    with pytest.raises(ValueError, match=f"{option} must be a positive whole number, got {value!r}"):
        build(name, **DIMS, **{option: value})


@pytest.mark.parametrize("what", ["num_heads", "head_dim", "train_length", "model_dim"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "4", True])
def test_dimensions_must_be_positive_whole_numbers(what, value):
    with pytest.raises(ValueError, match=f"{what} must be a positive whole number, got {value!r}"):
        build("alibi", **{**DIMS, what: value})


def test_dimensions_are_needed():
    with pytest.raises(TypeError, match="train_length"):
        build("alibi", num_heads=4, head_dim=8)


def test_building_draws_parameters_from_the_default_generator():
    torch.manual_seed(3)
    one = build("dape-kerple", **DIMS).state_dict()
    torch.manual_seed(3)
    two = build("dape-kerple", **DIMS).state_dict()
    assert all(torch.equal(one[n], two[n]) for n in one)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("fire", "threshold", float("nan")),
        ("rope", "base", -3.0),
        ("rope", "base", float("inf")),
        ("rope", "base", "x"),
    ],
)
def test_options_that_cannot_be_computed_with_are_refused(make, name, option, value):
    with pytest.raises(ValueError, match=f"{option} must be a positive number"):
        make(name, **{option: value})


@pytest.mark.parametrize(("wrong", "right"), [("ALiBi", "alibi"), ("randomised-alibi", "randomized-alibi")])
def test_suggestions_see_through_case_and_spelling(make, wrong, right):
    with pytest.raises(ValueError, match=f"Did you mean '{right}'"):
        make(wrong)


def test_a_name_must_be_text(make):
    with pytest.raises(TypeError, match="by its name"):
        make(None)


def test_randomized_stands_once():
    with pytest.raises(ValueError, match="may each stand in front of a name once"):
        build("randomized-randomized-rope", **DIMS)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("dape-kerple", "variant", "x"), ("t5", "bias_scale", "x"), ("fire", "activation", "x")],
)
def test_choices_are_checked_by_the_class_itself(make, name, option, value):
    with pytest.raises(ValueError, match=f"{option}='x' is not possible; choose one of"):
        make(name, **{option: value})


def test_a_causal_only_base_stays_causal_inside_dape():
    class Backward(dape.RelativeBias):
        supports_bidirectional = False

        def bias_at(self, lag, *, causal):
            return -lag.float().expand(self.dims.num_heads, *lag.shape)

    pe = dape.Dape(make_dims(), Backward(make_dims()))
    q = torch.zeros(1, 4, 3, 8)
    with pytest.raises(ValueError, match="causal=True"):
        dape.attention(q, q, q, pe, causal=False)


def make_dims() -> dape.AttentionDims:
    return dape.AttentionDims(num_heads=4, head_dim=8, train_length=16, model_dim=32)


def test_f_of_the_bias_alone_has_a_name_of_its_own():
    torch.manual_seed(0)
    named = dape.build("bias-only-dape-kerple", **DIMS, hidden=8)
    torch.manual_seed(0)
    by_option = dape.build("dape-kerple", **DIMS, hidden=8, variant="bias_only")
    q, k, v = torch.randn(3, 1, DIMS["num_heads"], 5, DIMS["head_dim"])
    assert torch.equal(dape.attention(q, k, v, named), dape.attention(q, k, v, by_option))
    assert find("logn-bias-only-dape-kerple").equation == "A + B + f(B), B of kerple"
    with pytest.raises(ValueError, match="variant='bias_only' already, and was given 'concat'"):
        dape.build("bias-only-dape-kerple", **DIMS, variant="concat")
    with pytest.raises(
        ValueError, match=r"cannot be put on 'rope': it has no additive bias\. Possible: .*X one of alibi, .*kerple"
    ):
        dape.build("bias-only-dape-rope", **DIMS)
    with pytest.raises(ValueError, match="unknown positional encoding 'bias-only-kerple'"):
        find("bias-only-kerple")
