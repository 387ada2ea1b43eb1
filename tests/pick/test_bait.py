"""BAIT equals a loop that inverts M for every set of points."""

import pytest
import torch
from torch import nn

import foretaste as ft
import oracles
import strategy_oracles as slow
from foretaste.losses import probabilities
from foretaste.pick.bait import FisherTrace, fisher_factors

G = torch.Generator().manual_seed(4)
NET = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double().eval()
for parameter in NET.parameters():
    parameter.data = torch.randn(parameter.shape, generator=G, dtype=torch.float64)
X = torch.randn(19, 4, generator=G, dtype=torch.float64)
L = 5


def ask(net=NET, labelled=L, **settings):
    x_L, y_L = (X[:labelled], torch.arange(labelled) % 3) if labelled else (None, None)
    return ft.query(net, x_L, y_L, X[labelled:], strategy="bait", **{"batch_size": 3, "loss": "ce"} | settings)


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("labelled", [0, L])
@pytest.mark.parametrize("prior", [1.0, 0.01])
def test_picks_are_those_of_all_inverses(loss, labelled, prior):
    p, h = probabilities(oracles.f(NET, X), loss), NET[:2](X).detach()
    info = [slow.fisher(p[i], h[i]) for i in range(len(X))]
    q = ask(labelled=labelled, loss=loss, options={"prior": prior})
    assert q.info["fisher"] == "full"
    assert q.indices.tolist() == slow.bait(info, labelled, 3, prior)
    if loss == "ce":  # else points of which the network is certain are ties
        q = ask(labelled=labelled, loss=loss, batch_size=9, options={"prior": prior})  # 2b is more than there are
        assert q.indices.tolist() == slow.bait(info, labelled, 9, prior)


def test_binary_is_the_likeliest_class_against_the_rest():
    p, h = probabilities(oracles.f(NET, X), "ce"), NET[:2](X).detach()
    info = [float(row.max() * (1 - row.max())) * torch.outer(v, v) for row, v in zip(p, h)]
    assert ask(options={"fisher": "binary"}).indices.tolist() == slow.bait(info, L, 3, 1.0)


def test_regression_has_the_features_alone():
    net = nn.Sequential(*NET[:2], nn.Linear(5, 1).double()).eval()
    nn.init.ones_(net[2].weight)
    h = NET[:2](X).detach()
    q = ft.query(net, X[:L], X[:L, 0], X[L:], strategy="bait", batch_size=3)
    assert q.indices.tolist() == slow.bait([torch.outer(v, v) for v in h], L, 3, 1.0)


def test_a_point_that_comes_and_goes_leaves_nothing():
    p, h = probabilities(oracles.f(NET, X), "ce"), NET[:2](X).detach()
    trace = FisherTrace(fisher_factors(p, "full"), h, L, 3, 0.01)
    before = [t.clone() for t in (trace.inverse_PP, trace.spread_PP, trace.A_URR, trace.T_URR)]
    trace.change(4, 1.0)
    V = trace.S_URC[:, :, :, None] * trace.h_UD[:, None, None]
    V = V.flatten(2)
    torch.testing.assert_close(trace.A_URR, V @ trace.inverse_PP @ V.mT)
    torch.testing.assert_close(trace.T_URR, V @ trace.spread_PP @ V.mT)
    assert not torch.allclose(trace.T_URR, before[3])
    trace.change(4, -1.0)
    for now, then in zip((trace.inverse_PP, trace.spread_PP, trace.A_URR, trace.T_URR), before):
        torch.testing.assert_close(now, then)


def test_what_is_refused():
    with pytest.raises(ValueError, match="fisher='fll' of strategy 'bait'; did you mean 'full'"):
        ask(options={"fisher": "fll"})
    with pytest.raises(ValueError, match="prior of strategy 'bait' is 0"):
        ask(options={"prior": 0})
    with pytest.raises(ValueError, match=r'3 classes and 5 features takes 9 kB .*options={"fisher": "binary"}'):
        ask(options={"fisher": "full"}, budget="5KB")
    assert ask(budget="5KB").info["fisher"] == "binary"
