"""Pixels that several tests write."""

import pytest
import torch


@pytest.fixture
def colours():
    return torch.randint(0, 256, (3, 12, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
