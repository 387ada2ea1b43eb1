"""A small network and a pool for BADGE."""

import torch
from torch import nn

from foretaste.pick import query


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64).to(dtype)


def network(C=3, dtype=torch.float64, seed=0):
    net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, C)).to(dtype)
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(normal(*p.shape, seed=seed + i) / 2)
    return net.eval()


NET, X_U = network(), normal(20, 4, seed=9)


def ask(net=NET, x_U=X_U, **settings):
    return query(net, None, None, x_U, strategy="badge", **{"batch_size": 6, **settings})
