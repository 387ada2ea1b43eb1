"""Strategies that spread a batch over contested points equal literal loops."""

import pytest
import torch
from torch import nn

import foretaste as ft
import oracles
import strategy_oracles as slow
from foretaste.losses import probabilities
from foretaste.pick.clusters import seed_centres
from foretaste.pick.space import VectorSpace
from query_cases import NET, X_L, X_U, Y_L, ask, points

U, BATCH = len(X_U), 5
LOSSES = pytest.mark.parametrize("loss", ["l2", "ce"])


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn_by(generator):
    """The draws of the fast path: the largest of weight / e, with U exponentials e."""

    def draw(weights):
        e_U = torch.empty(U, dtype=torch.float64).exponential_(generator=generator).tolist()
        return max(weights, key=lambda i: weights[i] / e_U[i])

    return draw


def spread(x_UD, contested, generator):
    """k-means on the contested points, in the random order and with the seeds of the fast path; then random ones."""
    order = torch.randperm(U, generator=generator).tolist()
    at = [j for j in order if j in contested]
    if len(at) > BATCH:
        x_nD = slow.unit_rows(x_UD[at])
        seeds = seed_centres(VectorSpace("", 0, x_nD - x_nD.mean(0), 1e-13), BATCH, generator).tolist()
        at = [at[i] for i in slow.kmeans(x_nD, 0, BATCH, seeds)]
    rest = [j for j in torch.randperm(U, generator=generator).tolist() if j not in at]
    return at + rest[: BATCH - len(at)]


@pytest.mark.parametrize("space", ["inputs", "last"])
@pytest.mark.parametrize("settings", [{}, {"rate": 0.5, "candidates": 1}, {"draws": 5, "rate": 0.2, "candidates": 0}])
def test_dropquery_is_a_literal_loop(space, settings):
    o = {"draws": 3, "rate": 0.75, "candidates": 25} | settings
    h, head = (X_U, NET) if space == "inputs" else (NET[:2](X_U).detach(), NET[2])
    sizes = []
    for seed in range(3):
        g = rng(seed)
        masks = [(torch.rand(h.shape, generator=g) >= o["rate"]).double() for _ in range(o["draws"])]
        contested = slow.dropquery_contested(head, h, masks, o["rate"], BATCH, o["candidates"])
        q = ask(strategy="dropquery", options=settings | {"space": space}, seed=seed)
        assert q.info["contested"] == len(contested)
        assert q.indices.tolist() == spread(h, contested, g)
        sizes.append(len(contested))
    if space == "inputs" and "draws" in settings:
        assert min(sizes) <= BATCH  # random points fill up


def test_dropquery_takes_what_points_have():
    last = ask(strategy="dropquery", options={"space": "last"})
    image = X_U.view(U, 1, 2, 2)
    net = nn.Sequential(nn.Flatten(), *NET).eval()
    how = {"strategy": "dropquery", "batch_size": 5}
    q = ft.query(net, X_L.view(-1, 1, 2, 2), Y_L, image, **how)
    assert q.indices.tolist() == last.indices.tolist()  # "auto": images are no vectors
    inputs = ask(strategy="dropquery")
    q = ft.query(
        net, X_L.view(-1, 1, 2, 2), Y_L, image, strategy="dropquery", batch_size=5, options={"space": "inputs"}
    )
    assert q.indices.tolist() == inputs.indices.tolist()


@LOSSES
@pytest.mark.parametrize("step", [0.2, 0.5, 1.0])
def test_alfamix_is_a_literal_loop(loss, step):
    z_U, z_L = NET[:2](X_U).detach(), NET[:2](X_L).detach()
    last = (NET[2].weight.detach(), NET[2].bias.detach())
    for seed, y_L in enumerate([Y_L, torch.where(Y_L == 2, 0, Y_L)]):  # once, class 2 has no label
        contested = slow.alfamix_contested(z_U, z_L, y_L.tolist(), *last, loss, BATCH, step)
        q = ft.query(
            NET, X_L, y_L, X_U, strategy="alfamix", batch_size=BATCH, loss=loss, seed=seed, options={"step": step}
        )
        assert q.info["contested"] == len(contested)
        assert q.indices.tolist() == spread(z_U, contested, rng(seed))


def test_alfamix_does_not_move_features_that_are_equal():
    """Unit 3 is 0 at every point, as a ReLU leaves it: no mixing can move it."""
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    for n, p in enumerate(net.parameters()):
        p.data = torch.randn(p.shape, generator=rng(n), dtype=torch.float64)
    with torch.no_grad():
        net[0].weight[3], net[0].bias[3] = 0, -1
        net[0].bias[0] = 5  # no point has all units at 0
        net[2].weight[:, 3] *= 20
    z_U, z_L = net[:2](X_U).detach(), net[:2](X_L).detach()
    last = (net[2].weight.detach(), net[2].bias.detach())
    contested = slow.alfamix_contested(z_U, z_L, Y_L.tolist(), *last, "ce", 5, 0.2)
    q = ft.query(net, X_L, Y_L, X_U, strategy="alfamix", batch_size=BATCH, loss="ce")
    assert q.indices.tolist() == spread(z_U, contested, rng())


@LOSSES
@pytest.mark.parametrize("settings", [{}, {"candidates": 1.6}, {"candidates": 10, "cluster_size": 4}])
def test_clustermargin_is_a_literal_loop(loss, settings):
    o = {"candidates": 3, "cluster_size": 10} | settings
    L, x = len(X_L), torch.cat([X_L, X_U])
    p = probabilities(oracles.f(NET, X_U), loss)
    clusters = [{j - L for j in c if j >= L} for c in slow.average_linkage(x, int(len(x) / o["cluster_size"]))]
    for seed in range(3):
        g = rng(seed)
        order = torch.randperm(U, generator=g).tolist()
        near = sorted(order, key=lambda j: slow.gap(p[j]))[: min(U, int(o["candidates"] * BATCH))]

        def choose(size, g=g):
            return int(torch.randint(size, (1,), generator=g))

        q = ask(strategy="clustermargin", options=settings, loss=loss, seed=seed)
        assert q.indices.tolist() == slow.clustermargin(near, clusters, BATCH, choose)
        assert torch.allclose(q.scores, -torch.tensor([slow.gap(row) for row in p], dtype=torch.float64))


@LOSSES
@pytest.mark.parametrize("gamma", [0, 1, 10, 300])
def test_falcun_is_a_literal_loop(loss, gamma):
    p = probabilities(oracles.f(NET, X_U), loss)
    for seed in range(3):
        q = ask(strategy="falcun", options={"gamma": gamma}, loss=loss, seed=seed)
        assert q.indices.tolist() == slow.falcun(p, BATCH, gamma, drawn_by(rng(seed)))


def test_falcun_of_certain_points_is_random():
    net = nn.Linear(4, 2, bias=False).double().eval()
    net.weight.data = torch.tensor([[1e4, 0, 0, 0], [0, 0, 0, 0.0]], dtype=torch.float64)
    x = points(12, 3)
    x[:, 0] = 1
    picks = [ft.query(net, x[:2], [0, 1], x[2:], strategy="falcun", batch_size=3, seed=s).indices for s in range(8)]
    assert len({tuple(p) for p in picks}) > 4


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("dropquery", {"rate": 1.0}, "rate=1.0 of strategy 'dropquery'"),
        ("dropquery", {"space": "tangent"}, "has nothing to drop"),
        ("dropquery", {"space": "input"}, "did you mean 'inputs'"),
        ("alfamix", {"step": 0}, "step=0 of strategy 'alfamix'"),
        ("clustermargin", {"candidates": 0.5}, "candidates=0.5 of strategy 'clustermargin'; expected at least 1"),
        ("falcun", {"gamma": -1}, "gamma of strategy 'falcun' is -1"),
    ],
)
def test_wrong_options(strategy, options, message):
    with pytest.raises(ValueError, match=message):
        ask(strategy=strategy, options=options)


def test_what_is_refused():
    softmax = nn.Sequential(*NET, nn.Softmax(1)).eval()
    for name, options in (("alfamix", None), ("dropquery", {"space": "last"})):
        with pytest.raises(ValueError, match=f"'{name}' needs a network that ends in an nn.Linear"):
            ft.query(softmax, X_L, Y_L, X_U, strategy=name, batch_size=2, options=options)
    with pytest.raises(ValueError, match=r"average linkage of 31 points takes .* and the budget is 5 kB"):
        ask(strategy="clustermargin", budget="5KB")
