"""What holds for every test."""

import random

import pytest
import torch

torch.manual_seed(0)  # for networks that a test file makes when it is imported


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same random numbers for a test on every machine, in any order and beside any others."""
    torch.manual_seed(0)
    random.seed(0)
