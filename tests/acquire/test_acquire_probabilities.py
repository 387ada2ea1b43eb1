"""Probabilities by the loss: the nearest point of the simplex, or softmax."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import acquire_oracles as oracles
from foretaste.losses import probabilities

rows = st.lists(st.floats(-5, 5), min_size=2, max_size=7)


@settings(max_examples=60, deadline=None)
@given(rows)
def test_l2_is_the_nearest_point_of_the_simplex(row):
    f = torch.tensor([row], dtype=torch.float64)
    p = probabilities(f, "l2")[0]
    assert_close(p, oracles.project(f[0]), rtol=0, atol=1e-12)
    # Optimality itself: for every vertex v, (f − p)·(v − p) ≤ 0.
    assert float(p.min()) >= 0
    assert abs(float(p.sum()) - 1) < 1e-12
    assert float((f[0] - p).max() - (f[0] - p) @ p) < 1e-12


def test_points_of_the_simplex_stay():
    p = torch.tensor([[1.0, 0, 0], [0.2, 0.3, 0.5], [0.5, 0.5, 0]], dtype=torch.float64)
    assert_close(probabilities(p, "l2"), p, rtol=0, atol=1e-15)


def test_no_digits_are_lost_far_out():
    f = torch.tensor([[1e9, 1e9 - 0.5, 0]], dtype=torch.float64)
    assert_close(probabilities(f, "l2"), torch.tensor([[0.75, 0.25, 0]], dtype=torch.float64), rtol=0, atol=1e-12)


def test_ce_is_softmax():
    f = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(probabilities(f, "ce"), f.exp() / f.exp().sum(-1, keepdim=True))
    assert_close(probabilities(f, "l2")[1, 2], oracles.project(f[1, 2]), rtol=0, atol=1e-12)


def test_never_guessed():
    with pytest.raises(ValueError, match="unknown loss 'mse'; known: ce, l2"):
        probabilities(torch.zeros(2, 3), "mse")
    with pytest.raises(ValueError, match="one output has no classes"):
        probabilities(torch.zeros(2, 1), "l2")
