"""NoPE, and what every encoding inherits."""

import pytest
import torch

import dape
from dape.positional.base import RelativeBias, asymmetric_distance, closed_form, project_, require_positive


def tensors(dtype=torch.float32):
    return torch.randn(2, 4, 5, 5, dtype=dtype), torch.randn(2, 4, 5, 8, dtype=dtype)


def test_nope_changes_nothing_anywhere(make):
    pe, grid = make("nope"), dape.Grid.of_length(5, 5, causal=True)
    scores, q = tensors()
    x = torch.randn(2, 5, 32)
    assert pe.embed(x, torch.arange(5)) is x
    assert pe.rotate(q, q, grid) == (q, q)
    assert pe.logits(scores, q, q, grid) is scores
    assert pe.settle(grid) == (pe, grid)
    assert not list(pe.parameters())
    assert not pe.state_dict(), "nothing to store, so checkpoints of parameter-free encodings fit each other"


@pytest.mark.parametrize(
    "module_dtype, wanted",
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_positions_are_evaluated_in_float32_or_better(make, module_dtype, wanted):
    pe = make("alibi").to(module_dtype)
    assert pe.precision == wanted
    assert pe.bias(torch.arange(3), torch.arange(3)).dtype == wanted


class Ramp(RelativeBias):
    """Lag times head number: enough to see which axis is which."""

    def bias_at(self, lag, *, causal):
        return torch.arange(1.0, 5.0).view(-1, *(1,) * lag.dim()) * lag * (1 if causal else -1)


def ramp():
    return Ramp(dape.AttentionDims(num_heads=4, head_dim=8, train_length=16, model_dim=32))


def test_a_relative_bias_is_one_method():
    bias = ramp().bias(torch.tensor([7, 9]), torch.tensor([2, 4, 6]))
    assert bias.shape == (4, 2, 3)
    assert bias[2].tolist() == [[15, 9, 3], [21, 15, 9]]  # head 3 of 1..4: 3 (i - j)
    assert ramp().bias(torch.tensor([7]), torch.tensor([2]), causal=False)[2].item() == -15


def test_positions_of_their_own_per_batch_row():
    bias = ramp().bias(torch.tensor([[7], [3]]), torch.tensor([[2, 4], [0, 1]]))
    assert bias.shape == (2, 4, 1, 2)
    assert bias[:, 0, 0].tolist() == [[5, 3], [3, 2]]


def test_logits_add_the_bias_to_the_scores():
    scores, q = tensors()
    i, j = torch.arange(5)[:, None], torch.arange(5)
    logits = ramp().logits(scores, q, q, dape.Grid.of_length(5, 5, causal=True))
    expected = scores + torch.stack([(i - j) * (h + 1.0) for h in range(4)])
    torch.testing.assert_close(logits, expected)


def test_project_reaches_wrapped_encodings(make):
    pe = make("randomized-dape-kerple")
    with torch.no_grad():
        pe.base.base.r1.fill_(-3.0)
    pe.project_()
    torch.testing.assert_close(pe.base.base.r1.detach(), torch.full((4,), 0.01))


def test_every_encoding_of_a_model_is_projected(make):
    layers = torch.nn.ModuleList([make("kerple"), make("kerple")])
    with torch.no_grad():
        for layer in layers:
            layer.r1.fill_(-3.0)
    project_(layers)
    assert all((layer.get_parameter("r1") > 0).all() for layer in layers)


@pytest.mark.parametrize(
    ("causal", "form", "expected"),
    [
        (True, "past_bonus", [0, 0, 0, 1, 2]),
        (False, "tril", [0, 0, 0, 1, 2]),
        (False, "symmetric", [2, 1, 0, 1, 2]),
        (False, "past_bonus", [2, 1, 0, 0.5, 1.5]),
    ],
)
def test_distances_by_hand(causal, form, expected):
    distance = asymmetric_distance(torch.arange(-2, 3), causal=causal, form=form, dtype=torch.float64)
    assert distance.dtype == torch.float64
    assert distance.tolist() == expected


def test_what_counts_as_positive():
    assert [require_positive("scale", x) for x in (1e-9, 0.5, 1, 7.5)] == [1e-9, 0.5, 1, 7.5]
    for wrong in (0, 0.0, -1, float("inf"), float("nan"), True, "1", None):
        with pytest.raises(ValueError, match="scale must be a positive number"):
            require_positive("scale", wrong)


def test_dropout_has_no_closed_form_while_it_is_random(make):
    pe = make("dape-kerple")
    pe.dropout = torch.nn.Dropout(0.5)
    assert closed_form(pe) is None
    assert closed_form(pe.eval()) is not None
    pe.dropout.p = 0.0
    assert closed_form(pe.train()) is not None
