"""Where scikit-activeml has the same definition, it makes the same batch."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import foretaste as ft
from foretaste.lookahead import KernelSettings
from foretaste.pick import Request, draw_networks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pool = pytest.importorskip("skactiveml.pool")

L, U = 12, 80


def points():
    return torch.randn(L + U, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def theirs(strategy, n):
    y = np.r_[np.arange(L) % 3, np.full(U, np.nan)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [int(j) - L for j in strategy.query(points().numpy(), y, batch_size=n)]


def ours(strategy, n, **options):
    x = points()
    how = {"strategy": strategy, "batch_size": n, "options": {"space": "inputs", **options}}
    return ft.query(nn.Linear(5, 3).double().eval(), x[:L], torch.arange(L) % 3, x[L:], **how).indices.tolist()


def test_core_set():
    assert ours("coreset", 20) == theirs(pool.CoreSet(random_state=0), 20)


@pytest.mark.parametrize("unit_length", [True, False])
def test_maxherding_covers_as_much(unit_length):
    """Pick by pick. Two points far from all others are a tie, which both break at random."""
    x = nn.functional.normalize(points()) if unit_length else points()
    k = torch.exp(-((torch.cdist(x, x) / 1.5) ** 2))

    def covered(batch):
        return [float(k[:, [*range(L), *(L + j for j in batch[: n + 1])]].amax(1).sum()) for n in range(len(batch))]

    other = pool.MaxHerding(random_state=0, normalize_samples=unit_length, metric_dict={"gamma": 1 / 1.5**2})
    a, b = ours("maxherding", 20, radius=1.5, unit_length=unit_length), theirs(other, 20)
    assert a[:9] == b[:9]
    assert covered(a) == pytest.approx(covered(b))


def test_probcover_covers_as_much():
    """Ties are broken at random by both."""

    def covered(batch):
        x = points()
        return int((torch.cdist(x, x[[*range(L), *(L + j for j in batch)]]).amin(1) <= 1.4).sum())

    a = ours("probcover", 10, radius=1.4)
    b = theirs(pool.ProbCover(random_state=0, n_classes=3, deltas=[1.4]), 10)
    assert covered(a[:1]) == covered(b[:1])
    assert abs(covered(a) - covered(b)) <= 2


def test_batchbald():
    """While labels are enumerated: four picks of three classes need 27."""
    net = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3)).double().eval()
    g = torch.Generator().manual_seed(1)
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=g, dtype=torch.float64)
    x = points()
    request = Request(net, None, None, x[L:], 4, torch.Generator().manual_seed(0), KernelSettings(loss="ce"))
    p_KUC = draw_networks(request, 30, None, None, "batchbald").numpy()
    utilities = pool.batch_bald(p_KUC, 4, n_MC_samples=1000, random_state=0)
    how = {"strategy": "batchbald", "batch_size": 4, "options": {"samples": 30}, "loss": "ce"}
    assert ft.query(net, None, None, x[L:], **how).indices.tolist() == [int(np.nanargmax(u)) for u in utilities]
