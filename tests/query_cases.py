"""A small network, labels and a pool, and the query that tests ask of them."""

import torch
from torch import nn

from foretaste.lookahead import linearize
from foretaste.pick import query

LABELLED = ["gain", "variance", "mlmoc", "emoc", "eer", "flips", "entropy", "margin", "least_confidence"]


def network(C=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, C)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64) / 2)
    return net.eval()


def points(n, seed):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


NET, X_L, Y_L, X_U = network(), points(6, 1), torch.tensor([0, 1, 2, 0, 1, 2]), points(25, 2)
RIDGE = 1e-4


def ask(**settings):
    return query(NET, X_L, Y_L, X_U, **{"ridge": RIDGE, "batch_size": 5, **settings})


def lin(x_L=X_L, y_L=Y_L, **settings):
    return linearize(NET, x_L, y_L, X_U, ridge=RIDGE, **settings)


def truth(j):
    return int(j) % 3
