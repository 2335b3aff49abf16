"""Tokens for the tiny models."""

import pytest
import torch


@pytest.fixture
def tokens():
    return torch.randint(0, 101, (2, 37), generator=torch.Generator().manual_seed(0))
