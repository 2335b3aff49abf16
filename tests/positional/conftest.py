from functools import partial

import pytest
import torch

import dape


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    """Tensors here are tiny: on a busy machine a second thread is mostly waited for."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make():
    """``dape.build`` for a small attention; any of the dimensions can be given."""
    return partial(dape.build, num_heads=4, head_dim=8, train_length=16)
