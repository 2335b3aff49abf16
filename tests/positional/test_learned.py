import pytest
import torch


def test_adds_the_rows_of_the_positions(make):
    pe, x = make("learned", model_dim=6, max_positions=9), torch.randn(2, 3, 6)
    positions = torch.tensor([[0, 1, 2], [6, 7, 8]])
    out = pe.embed(x, positions)
    for b in range(2):
        for t in range(3):
            torch.testing.assert_close(out[b, t], x[b, t] + pe.table[positions[b, t]])
    out.sum().backward()
    assert pe.table.grad.sum(1).tolist() == [6, 6, 6, 0, 0, 0, 6, 6, 6]


def test_size_and_initial_spread(make):
    table = make("learned", model_dim=64).table
    assert table.shape == (2048, 64)
    assert table.std().item() == pytest.approx((2 / (5 * 64)) ** 0.5, rel=0.02)
    assert make("learned", train_length=3000).table.shape == (3000, 32), "a longer training length raises it"


def test_beyond_the_table_is_refused(make):
    pe, x = make("learned", model_dim=6, max_positions=4), torch.zeros(5, 6)
    with pytest.raises(ValueError, match=r"from 0 to 3, but position 4 .*max_positions=5"):
        pe.embed(x, torch.arange(5))
    with pytest.raises(ValueError, match="position -1"):
        pe.embed(x, torch.arange(-1, 4))
    with pytest.raises(ValueError, match="max_positions must be a positive whole number, got 0"):
        make("learned", max_positions=0)


def test_empty_input(make):
    assert make("learned", model_dim=6).embed(torch.zeros(2, 0, 6), torch.arange(0)).shape == (2, 0, 6)


def test_keeps_the_dtype_of_the_embeddings(make):
    assert make("learned", model_dim=6).embed(torch.zeros(3, 6).bfloat16(), torch.arange(3)).dtype == torch.bfloat16
