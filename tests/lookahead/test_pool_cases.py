"""When could the pool mislead? Noise, rare and unseen classes, outliers, copies across classes, a shifted pool."""

import numpy as np
import pytest
import torch

import foretaste as ft
from foretaste.lookahead import PoolKernel, PoolState
from foretaste.lookahead.graph import weigh_ridges
from foretaste.losses import sharpened
from foretaste.network import MLP

C, D, N, L = 3, 8, 300, 24


def clusters(seed, share=(1, 1, 1), far=4.0, n=N):
    g = np.random.default_rng(seed)
    y = g.choice(C, n, p=np.array(share) / sum(share))
    y[: 4 * C] = np.arange(4 * C) % C  # each class among the first
    centres = far * g.normal(size=(C, D)) / np.sqrt(D)
    return torch.from_numpy(centres[y] + g.normal(size=(n, D))), torch.from_numpy(y)


def with_pool(x, y_L, classes=C, **graph):
    torch.manual_seed(0)
    net = MLP(D, [8], classes).double().eval()
    return ft.linearize(net, x[: len(y_L)], y_L, x[len(y_L) :], pool=ft.Graph(**graph))


def alone(x, y_L, classes=C):
    """The mean of the same regression with γ = 0 on all points, λ by leave-one-out."""
    n, theta = len(y_L), PoolKernel(x).theta_GG
    e = torch.eye(classes, dtype=torch.float64)[y_L] - 1 / classes
    _, ridge, _ = weigh_ridges(theta[:n, :n], e, y_L)
    return 1 / classes + theta[n:, :n] @ torch.linalg.solve(theta[:n, :n] + ridge * torch.eye(n), e)


def right(mean, y):
    return float((mean.argmax(1) == y).double().mean())


def compare(make, labels=L, seeds=range(8), **graph):
    """Accuracies on the unlabelled points with the pool (without where it is off) and without, (seeds, 2)."""
    found = []
    for seed in seeds:
        x, y, y_L = make(seed)
        state, plain = with_pool(x, y_L[:labels], **graph), alone(x, y_L[:labels])
        on = isinstance(state, PoolState)
        found.append((right(state.pool_mean if on else plain, y[labels:]), right(plain, y[labels:])))
    return np.array(found)


def noisy(seed):
    x, y = clusters(seed)
    g, y_L = np.random.default_rng(seed + 1), y.clone()
    wrong = g.random(N) < 0.15
    y_L[wrong] = (y_L[wrong] + 1) % C
    return x, y, y_L


def unbalanced(seed):
    x, y = clusters(seed, (20, 4, 1))
    return x, y, y


def outliers(seed):
    x, y = clusters(seed)
    g = torch.Generator().manual_seed(seed)
    x[-15:] = 1000 * torch.randn(15, D, generator=g, dtype=torch.float64)
    return x, y, y


def arcs(seed):
    """Three arcs of points, one inside the other: near points are of one class, and classes are no clusters."""
    g = np.random.default_rng(seed)
    y = np.arange(N) % C
    angle, radius = g.uniform(0, 4, N), 1.0 + y + 0.1 * g.normal(size=N)
    x = np.zeros((N, D))
    x[:, 0], x[:, 1] = radius * np.cos(angle), radius * np.sin(angle)
    return torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(y)


@pytest.mark.parametrize("make", [noisy, unbalanced, outliers, arcs])
def test_the_pool_does_not_harm(make):
    found = compare(make)
    assert np.isfinite(found).all()
    assert found[:, 0].mean() >= found[:, 1].mean() - 0.005
    assert (found[:, 0] >= found[:, 1] - 0.08).all()


def test_arcs_are_neighbours_in_their_inputs():
    found = compare(arcs, of="inputs")
    assert found[:, 0].mean() >= found[:, 1].mean() + 0.05
    assert found[:, 0].mean() > 0.95


def test_few_labels_do_more_with_the_pool():
    found = compare(lambda seed: (*clusters(seed), clusters(seed)[1]), labels=2 * C)
    assert found[:, 0].mean() >= found[:, 1].mean() + 0.01


def test_a_class_without_a_label_is_found_by_elimination():
    """What is unlike all labels is of the one class that has none; with two such classes nobody can tell which."""
    for seed in range(4):
        x, y = clusters(seed, far=6.0)
        first = torch.cat([(y != 2).nonzero()[:10, 0], (y == 2).nonzero()[:, 0], (y != 2).nonzero()[10:, 0]])
        x, y = x[first], y[first]
        state = with_pool(x, y[:10])
        mean = state.pool_mean if isinstance(state, PoolState) else alone(x, y[:10])
        claimed, unseen = mean.argmax(1) == 2, y[10:] == 2
        assert float(unseen[claimed].double().mean()) > 0.95
        four = with_pool(x, y[:10], classes=4)
        if isinstance(four, PoolState):
            assert torch.allclose(four.pool_mean[:, 2], four.pool_mean[:, 3])


def test_near_copies_across_classes_are_not_believed():
    """Each point has a near copy of another class: leave-one-out sees it where copies are labelled."""
    for seed in range(4):
        x, _ = clusters(seed, far=0.0, n=N // 2)
        g = torch.Generator().manual_seed(seed)
        x = torch.stack([x, x + 1e-3 * torch.randn(x.shape, generator=g, dtype=torch.float64)], 1).flatten(0, 1)
        y = torch.arange(N) % 2
        state = with_pool(x, y[:40], classes=2)
        assert state.pool.hits_without < 0.6  # nothing to learn
        assert state.pool.hits is None or state.pool.hits < 0.7
        assert torch.isfinite(state.pool_mean).all()


def test_a_pool_from_elsewhere_has_its_own_neighbourhoods():
    """Labels on one side, candidates on the other: nothing follows, and nothing breaks."""
    x, y = clusters(0, far=6.0)
    x[L:] += 200
    state = with_pool(x, y[:L])
    if isinstance(state, PoolState):
        assert sharpened(state.pool_mean).amax(1).mean() < 0.9
    assert torch.isfinite(state.pool_mean).all()


def test_copies_and_points_in_one_place():
    x, y = clusters(0)
    x[L:] = x[L]
    assert torch.isfinite(with_pool(x, y[:L]).pool_mean).all()
    assert torch.isfinite(with_pool(torch.ones(N, D, dtype=torch.float64), y[:L]).pool_mean).all()
