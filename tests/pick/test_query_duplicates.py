"""Copies in the pool are legal, and no two of them are taken while others carry information."""

import pytest
import torch

from foretaste.lookahead import from_kernels, linearize
from foretaste.pick import query
from foretaste.pick.select import find_spent
from query_cases import LABELLED, NET, X_L, Y_L, network, points


def doubled(dtype=torch.float64):
    """Twelve points, three times each."""
    return points(12, 7).repeat(3, 1).to(dtype)


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("select", ["greedy", "fantasy", "sequential"])
@pytest.mark.parametrize("strategy", LABELLED)
def test_no_two_copies(strategy, select, loss):
    oracle = (lambda j: j % 12 % 3) if select == "sequential" else None
    q = query(NET, X_L, Y_L, doubled(), strategy=strategy, select=select, batch_size=12, loss=loss, oracle=oracle)
    assert sorted(j % 12 for j in q.indices.tolist()) == list(range(12))


@pytest.mark.parametrize("ridge", [1e-8, 1.0, 100.0])
@pytest.mark.parametrize("strategy", ["gain", "mlmoc", "entropy"])
def test_whatever_the_noise_of_a_label(strategy, ridge):
    q = query(NET, X_L, Y_L, doubled(), strategy=strategy, select="greedy", batch_size=12, ridge=ridge)
    assert len({j % 12 for j in q.indices.tolist()}) == 12


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("strategy", ["gain", "mlmoc", "entropy"])
def test_in_float32(strategy, loss):
    net = network().float()
    q = query(
        net, X_L.float(), Y_L, doubled(torch.float32), strategy=strategy, select="greedy", batch_size=12, loss=loss
    )
    assert len({j % 12 for j in q.indices.tolist()}) == 12


@pytest.mark.parametrize("strategy", ["gain", "entropy"])
def test_with_the_full_kernel_and_a_watched_set(strategy):
    q = query(
        NET, X_L, Y_L, doubled(), strategy=strategy, select="greedy", batch_size=12, output="full", watch=points(5, 9)
    )
    assert len({j % 12 for j in q.indices.tolist()}) == 12


@pytest.mark.parametrize("strategy", ["gain", "entropy"])
def test_when_only_copies_are_left_they_are_taken(strategy):
    q = query(NET, X_L, Y_L, doubled(), strategy=strategy, select="greedy", batch_size=20)
    assert len({j % 12 for j in q.indices[:12].tolist()}) == 12
    assert len(set(q.indices.tolist())) == 20


def test_no_candidate_is_asked_for_twice():
    """Neither a skipped nor a picked one, when only copies are left."""
    x_U, asked = points(6, 7).repeat(3, 1), []

    def oracle(j):
        asked.append(j)
        return None if j % 4 == 0 else j % 3

    for strategy in ("gain", "entropy"):
        asked.clear()
        q = query(NET, X_L, Y_L, x_U, strategy=strategy, select="sequential", batch_size=18, oracle=oracle)
        assert sorted(asked) == list(range(18))
        assert sorted(q.indices.tolist()) == [j for j in range(18) if j % 4]


def test_a_copy_of_a_labelled_point_comes_last():
    x_U = torch.cat([points(8, 7), X_L[:2]])
    q = query(NET, X_L, Y_L, x_U, batch_size=8)
    assert sorted(q.indices.tolist()) == list(range(8))


def test_close_is_not_a_copy():
    x_U = points(12, 7)
    x_U[1] = x_U[0] + 0.05
    q = query(NET, X_L, Y_L, x_U, strategy=lambda s: torch.arange(s.U, 0, -1).double(), select="greedy", batch_size=2)
    assert q.indices.tolist() == [0, 1]


@pytest.mark.parametrize("larger", [1.0, 1e4, 1e6])
def test_one_huge_point_does_not_make_the_others_look_spent(larger):
    """Its variance is ``larger``² times that of the others, of which each still has its own."""
    x = points(14, 7)
    x[5] *= larger
    state = linearize(NET, X_L, Y_L, x, ridge=1e-3)
    before, state = state, state.condition(3)
    spent = find_spent(state, before, 3)
    assert spent[3]
    assert spent.sum() == 1


def test_zero_variance_is_spent_whatever_the_others_have():
    """The kernel of x xᵀ has none at x = 0."""
    x = points(8, 7)
    x[2] = 0
    none, f = x.new_empty(0, 8), torch.zeros(8, 3, dtype=x.dtype)
    before = from_kernels(none[:, :0], None, none.T, x @ x.T, None, f[:0], None, f, [], ridge=1e-3)
    state = before.condition(4)
    assert find_spent(state, before, 4).nonzero()[:, 0].tolist() == [2, 4]
