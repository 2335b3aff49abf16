from functools import partial

import pytest
import torch

import dape


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def make():
    """``dape.build`` for a small attention; any of the dimensions can be given."""
    return partial(dape.build, num_heads=4, head_dim=8, train_length=16)
