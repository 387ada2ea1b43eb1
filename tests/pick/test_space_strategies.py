"""Strategies that measure distances equal literal loops, in each space, and refuse what they cannot measure."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import foretaste as ft
import foretaste.losses
import oracles
import strategy_oracles as slow
from foretaste.lookahead import KernelSettings
from foretaste.network import MLP, make_head
from foretaste.pick import clusters, cover_greedily
from foretaste.pick.clusters import cluster_points, seed_centres
from foretaste.pick.herding import expected_calibration_error
from foretaste.pick.request import Request
from foretaste.pick.space import COPY_DISTANCE, VectorSpace, find_space

L, U, BATCH = 4, 18, 6


class Problem:
    """A network of one hidden layer and points in no special position."""

    def __init__(self, seed: int = 0, labelled: int = L, C: int = 3):
        g = torch.Generator().manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, C)).double().eval()
        for p in self.net.parameters():
            p.data = torch.randn(p.shape, generator=g, dtype=torch.float64)
        self.x = torch.randn(labelled + U, 3, generator=g, dtype=torch.float64)
        self.L = labelled
        self.y_L = torch.arange(labelled) % C

    def request(self, seed=0, **kwargs):
        x_L, y_L = (self.x[: self.L], self.y_L) if self.L else (None, None)
        generator = torch.Generator().manual_seed(seed)
        return Request(self.net, x_L, y_L, self.x[self.L :], BATCH, generator, KernelSettings(seed=seed, **kwargs))

    def ask(self, strategy, options=None, n=BATCH, **kwargs):
        x_L, y_L = (self.x[: self.L], self.y_L) if self.L else (None, None)
        how = {"strategy": strategy, "options": options, "batch_size": n} | kwargs
        return ft.query(self.net, x_L, y_L, self.x[self.L :], **how)

    def vectors(self, space):
        if space == "inputs":
            return self.x
        return self.net[:2](self.x).detach() if space == "last" else oracles.gradients(self.net, self.x, "sum")


SPACES = ["inputs", "last", "tangent"]


PLACES = pytest.mark.parametrize(("space", "labelled"), [(s, n) for s in SPACES for n in (0, L)])


def check_greedy(k, labelled, picks, weights=None):
    """Each pick adds as much to F as any other candidate would. (A pair far from all others is a tie.)"""
    weights = [1.0] * len(k) if weights is None else weights
    chosen = list(range(labelled))
    for j in picks:
        open_ = [labelled + i for i in range(len(k) - labelled) if labelled + i not in chosen]
        best = max(slow.coverage(k, weights, [*chosen, i]) for i in open_)
        chosen.append(labelled + j)
        assert slow.coverage(k, weights, chosen) == pytest.approx(best, rel=1e-12)


@PLACES
def test_coreset_and_lcmd_are_literal_loops(space, labelled):
    for seed in range(3):
        problem = Problem(seed, labelled)
        x = problem.vectors(space)
        assert problem.ask("coreset", {"space": space}).indices.tolist() == slow.coreset(x, labelled, BATCH)
        x = x if space == "tangent" else x - x.mean(0)  # the longest vector is taken from the mean
        assert problem.ask("lcmd", {"space": space}).indices.tolist() == slow.lcmd(x, labelled, BATCH)


@PLACES
def test_clusters_are_literal_loops(space, labelled):
    for seed in range(2):
        problem = Problem(seed, labelled)
        x, request = problem.vectors(space), problem.request(seed)
        points = find_space(request, space)
        seeds = seed_centres(points, labelled + BATCH, request.generator, labelled).tolist()
        q = problem.ask("kmeans", {"space": space}, seed=seed)
        assert q.indices.tolist() == slow.kmeans(x, labelled, BATCH, seeds)
        seeds = seed_centres(points, labelled + BATCH, torch.Generator().manual_seed(seed)).tolist()
        for least, neighbours in ((5, 20), (1, 2)):
            options = {"space": space, "least_size": least, "neighbours": neighbours}
            q = problem.ask("typiclust", options, seed=seed)
            assert q.indices.tolist() == slow.typiclust(x, labelled, BATCH, seeds, neighbours, least)
        seeds = seed_centres(points, 3, torch.Generator().manual_seed(seed)).tolist()
        options = {"space": space, "most_clusters": 3, "least_size": 0}  # clusters are visited again
        q = problem.ask("typiclust", options, n=U, seed=seed)
        assert q.indices.tolist() == slow.typiclust(x, labelled, U, seeds, least_size=0)


# Points and seeds whose means lose all their points on the way; the first ``fixed`` centres do not move.
EMPTIED = [
    (0, [5, 4, 7, 0], [[15, 6], [20, 28], [14, 25], [0, 16], [12, 7], [26, 13], [0, 29], [10, 5]]),
    (2, [0, 1, 2, 3, 5], [[15, 21], [9, 28], [22, 12], [24, 12], [12, 5], [23, 9], [24, 9], [10, 8]]),
]


@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize(("fixed", "seeds", "x"), EMPTIED)
def test_a_cluster_that_lost_its_points_gets_the_one_farthest_from_its_mean(monkeypatch, fixed, seeds, x, products):
    monkeypatch.setattr(clusters, "seed_centres", lambda *args: torch.tensor(seeds))
    points = torch.tensor(x, dtype=torch.float64)
    space = VectorSpace("inputs", 0, points - points.mean(0), 1e-12)
    found = cluster_points(space.products() if products else space, len(seeds), torch.Generator(), fixed=fixed)
    assert found.of_N.tolist() == slow.lloyd(points, seeds, fixed=fixed)
    assert set(range(fixed, len(seeds))) <= set(found.of_N.tolist())


def test_copies_leave_clusters_empty(monkeypatch):
    monkeypatch.setattr(clusters, "seed_centres", lambda *args: torch.tensor([0, 3, 1, 4]))
    space = VectorSpace("inputs", 0, torch.tensor([-1.0, -1, -1, 1, 1, 1], dtype=torch.float64)[:, None], 1e-12)
    assert cluster_points(space, 4, torch.Generator()).of_N.tolist() == [0, 0, 0, 1, 1, 1]


@PLACES
def test_herding_is_a_literal_loop(space, labelled):
    problem = Problem(1, labelled)
    x = problem.vectors(space)
    k = slow.correlation(x) if space == "tangent" else slow.gaussian(slow.unit_rows(x), 1)
    check_greedy(k, labelled, problem.ask("maxherding", {"space": space}).indices.tolist())
    rows = {"space": space, "unit_length": False}
    k = slow.correlation(x) if space == "tangent" else slow.gaussian(x, slow.spread(x))
    check_greedy(k, labelled, problem.ask("maxherding", rows).indices.tolist())
    radius = 0.4 * slow.spread(x)
    k = slow.gaussian(x, radius)
    q = problem.ask("maxherding", rows | {"radius": radius}, n=U)
    check_greedy(k, labelled, q.indices.tolist())
    ones, before = [1.0] * len(x), list(range(labelled))
    none = slow.coverage(k, ones, before)
    alone = [slow.coverage(k, ones, [*before, labelled + j]) - none for j in range(U)]
    assert torch.allclose(q.scores, torch.tensor(alone, dtype=torch.float64))


@PLACES
def test_probcover_is_greedy_and_its_radius_the_largest_pure_one(space, labelled):
    problem = Problem(2, labelled)
    x, request = problem.vectors(space), problem.request()
    q = problem.ask("probcover", {"space": space, "purity": 0.8}, n=U)
    radius = q.info["radius"]
    labels = slow.lloyd(x, seed_centres(find_space(request, space), 3, request.generator).tolist())
    assert slow.purity(x, labels, radius * (1 - 1e-9)) >= 0.8
    assert slow.purity(x, labels, radius * (1 + 1e-9)) < 0.8
    check_greedy(slow.balls(x, radius * (1 - 1e-9)), labelled, q.indices.tolist())
    q = problem.ask("probcover", {"space": space, "radius": 0.6 * slow.spread(x)})
    check_greedy(slow.balls(x, q.info["radius"]), labelled, q.indices.tolist())


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("space", SPACES)
def test_uncertainty_herding_is_a_literal_loop(space, loss):
    for seed in range(3):
        problem = Problem(seed)
        x = problem.vectors(space)
        p = ft.losses.probabilities(oracles.f(problem.net, problem.x), loss)
        q = problem.ask("uherding", {"space": space}, loss=loss)
        top = p.sort(1, descending=True).values
        k = slow.correlation(x)
        if space != "tangent":
            d = slow.all_distances(slow.unit_rows(x))
            sigma = min(d[i][j] for i in range(L) for j in range(i))
            assert q.info["radius"] == pytest.approx(sigma)
            k = slow.gaussian(slow.unit_rows(x), sigma)
        check_greedy(k, L, q.indices.tolist(), (1 - top[:, 0] + top[:, 1]).tolist())
        if space != "tangent" and loss == "ce":  # under the squared loss a weight may be 0, and picks may be ties
            for T in (1, 0.3):
                q = problem.ask("uherding", {"space": space, "temperature": T}, loss=loss)
                p = (oracles.f(problem.net, problem.x) / T).softmax(1)
                assert q.indices.tolist() == slow.uncertainty_herding(x, p, L, BATCH)
                assert q.info["temperature"] == T


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("data", ["features/cifar10_ft16.npz", "text/banking77.npz"])
def test_uncertainty_herding_is_the_published_one_on_features(data, loss):
    """On real features, with a head trained on a label of each class and more: the same batch, in the same order."""
    file = Path(__file__).parents[3] / "shared" / "data" / data
    if not file.exists():
        pytest.skip(f"{data} is not beside the project")
    with np.load(file) as stored:
        rows, labels = ("x_train", "y_train") if "x_train" in stored else ("ft", "yt")
        x, y = torch.tensor(stored[rows]).float(), torch.tensor(stored[labels]).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    of_class = {int(y[i]): int(i) for i in order}
    at_L = torch.tensor([*of_class.values(), *order[:30].tolist()]).unique()
    at_U = order[~torch.isin(order, at_L)][:800]
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = make_head(x, len(of_class), hidden=64)
    ft.fit(net, x[at_L], y[at_L], loss=loss)
    q = ft.query(net, x[at_L], y[at_L], x[at_U], strategy="uherding", loss=loss, batch_size=25)
    both = torch.cat([x[at_L], x[at_U]])
    with torch.no_grad():
        p = ft.losses.probabilities(net(both).double(), loss)
    assert q.indices.tolist() == slow.uncertainty_herding(both, p, len(at_L), 25)


def test_uncertainty_herding_without_labels_is_maxherding():
    problem = Problem(0, 0)
    assert problem.ask("uherding").indices.tolist() == problem.ask("maxherding").indices.tolist()


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_temperature_of_a_split_is_that_of_a_network_trained_without_a_part(loss):
    """As the authors calibrate: trained on the first 70 %, 1 to 19.9 tried on the rest, as many bins as classes."""
    data = Problem(6, 13)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = MLP(3, (8,), 3).double().eval()
    x, y = data.x[:13], data.y_L
    before = [p.clone() for p in net.parameters()]
    q = ft.query(
        net, x, y, data.x[13:], strategy="uherding", options={"temperature": "split"}, batch_size=3, seed=4, loss=loss
    )
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))
    ft.fit(net, x[:10], y[:10], start="cold", seed=4, loss=loss)
    with torch.no_grad():
        f = net(x[10:])
    grid = [1 + 0.1 * k for k in range(190)]
    errors = [slow.calibration_error(ft.losses.probabilities(f / T, loss), y[10:].tolist(), bins=3) for T in grid]
    assert q.info["temperature"] == pytest.approx(grid[errors.index(min(errors))])
    few = ft.query(net, x[:3], y[:3], data.x[13:], strategy="uherding", options={"temperature": "split"}, batch_size=1)
    assert few.info["temperature"] == 1


def test_a_network_that_is_not_trained_anew_has_no_split():
    with pytest.raises(ValueError, match=r'temperature="split".*Sequential.*options=\{"temperature": 1.0\}'):
        Problem(5, 12).ask("uherding", {"temperature": "split"})


def test_calibration_error():
    p = torch.softmax(3 * torch.randn(40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 1)
    y = torch.arange(40) % 4
    assert expected_calibration_error(p, y, 15) == pytest.approx(slow.calibration_error(p, y.tolist(), 15))


# --- determinants and gradients ---


@PLACES
def test_dpp_is_a_literal_loop(space, labelled):
    problem = Problem(6, labelled)
    x = problem.vectors(space)
    c = x - x.mean(0)
    unit = c / c.norm(dim=1, keepdim=True)
    k = unit @ unit.T if space == "tangent" else torch.tensor(slow.gaussian(x, slow.spread(x))).double()
    p = oracles.f(problem.net, problem.x[labelled:]).softmax(1)
    top = p.sort(1, descending=True).values
    entropy = -(p * p.log()).sum(1)
    for quality, q in (("margin", 1 - top[:, 0] + top[:, 1]), ("entropy", entropy), ("uniform", torch.ones(U))):
        if quality == "uniform" and not labelled:
            continue  # all candidates are ties
        asked = problem.ask("dpp", {"space": space, "quality": quality, "noise": 0.01}, loss="ce")
        assert asked.indices.tolist() == slow.dpp(k, q.tolist(), labelled, BATCH, 0.01)
    assert torch.allclose(asked.scores.max(), asked.scores[int(asked.indices[0])])


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_egl_is_a_literal_loop(loss):
    problem = Problem(8)
    problem.net[0].bias.requires_grad_(False)
    q = problem.ask("egl", loss=loss)
    p = ft.losses.probabilities(oracles.f(problem.net, problem.x[L:]), loss)
    lengths = [slow.gradient_length(problem.net, problem.x[L + j], p[j], loss) for j in range(U)]
    assert torch.allclose(q.scores, torch.tensor(lengths, dtype=torch.float64))
    assert q.indices.tolist() == sorted(range(U), key=lambda j: -lengths[j])[:BATCH]


# --- the lazy greedy ---


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("ties", [False, True])
def test_lazy_is_greedy(ties, dtype):
    g = torch.Generator().manual_seed(0)
    for W, candidates in ((40, 70), (9, 90)):
        k = torch.rand(candidates, W, generator=g, dtype=torch.float64) ** 3
        k = ((k > 0.3).double() if ties else k).to(dtype)
        weight, covered = torch.rand(W, generator=g, dtype=torch.float64), 0.2 * torch.rand(W, generator=g).double()
        weight = torch.ones_like(weight) if ties else weight
        computed = []

        def rows(at, k=k, computed=computed):
            computed.append(len(at))
            return k[at]

        order = torch.randperm(candidates, generator=g.clone_state()).tolist()
        picks, alone = cover_greedily(rows, covered, candidates, 30, g, weight_W=weight)
        assert torch.allclose(alone, (k - covered).clamp_min(0) @ weight)
        assert picks.tolist() == slow.greedy(k, weight.tolist(), covered.tolist(), order, 30)
        assert sum(computed) < 0.7 * 30 * candidates  # plain greedy computes all of them


def test_gains_that_rounding_tells_apart_are_ties():
    g = torch.Generator().manual_seed(0)
    k = (torch.rand(60, 20, generator=g, dtype=torch.float64) > 0.95).double()
    shaken = k * (1 + 1e-12 * torch.randn(60, 1, generator=g, dtype=torch.float64))
    nothing, order = torch.zeros(20, dtype=torch.float64), torch.randperm(60, generator=g)

    def picks(k, equal):
        return cover_greedily(lambda at: k[at], nothing, 60, 8, g, order_U=order, equal=equal)[0].tolist()

    assert picks(shaken, 1e-9) == picks(k, 0.0) == slow.greedy(k, [1.0] * 20, nothing.tolist(), order.tolist(), 8)
    assert picks(shaken, 0.0) != picks(k, 0.0)


def test_a_coverage_that_is_nan_is_refused():
    k, g = torch.eye(4, dtype=torch.float64), torch.Generator().manual_seed(0)
    k[2, 1] = math.nan
    with pytest.raises(ValueError, match="is NaN, for 1 candidate, first at 2"):
        cover_greedily(lambda at: k[at], torch.zeros(4, dtype=torch.float64), 4, 2, g)


def test_budget_changes_no_pick():
    problem = Problem(4)
    for name in ("maxherding", "probcover", "coreset", "typiclust", "kmeans", "lcmd", "uherding"):
        options = {"space": "inputs"}
        few = problem.ask(name, options, budget=4000).indices.tolist()  # k of all candidates takes 2592 bytes
        assert few == problem.ask(name, options).indices.tolist(), name


@pytest.mark.parametrize("space", SPACES)
def test_a_pool_of_one_point_is_answered(space):
    net, x = Problem().net, Problem().x
    for name in ("maxherding", "probcover", "coreset", "typiclust", "kmeans", "lcmd", "uherding", "dpp"):
        q = ft.query(net, x[:3], [0, 1, 2], x[3:4], strategy=name, options={"space": space}, batch_size=1)
        assert q.indices.tolist() == [0], name


# --- what is refused, and what the options say ---


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 30).view(10, 3))
        self.head = nn.Linear(3, 2)

    def forward(self, ids):
        return self.head(self.table[ids].mean(1))


def test_spaces_that_points_do_not_have():
    x = torch.randint(10, (8, 5), generator=torch.Generator().manual_seed(0))
    net = Tokens().eval()
    nn.init.ones_(net.head.weight)
    ask = {"strategy": "kmeans", "batch_size": 2}
    with pytest.raises(ValueError, match=r'space="inputs".* x_U is a tensor of int64; use options={"space": "last"}'):
        ft.query(net, x[:2], [0, 1], x[2:], **ask, options={"space": "inputs"})
    assert ft.query(net, x[:2], [0, 1], x[2:], **ask).info["space"] == "last"
    image = torch.randn(6, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    assert ft.query(flat, None, None, image, **ask).info["space"] == "last"
    last = nn.Sequential(nn.Linear(3, 2), nn.Softmax(1)).eval()
    with pytest.raises(ValueError, match=r'options={"layer": name}'):
        ft.query(last, None, None, torch.ones(4, 3), strategy="coreset", batch_size=2)
    q = ft.query(last, None, None, torch.eye(3), strategy="coreset", batch_size=2, options={"layer": "0"})
    assert len(q) == 2


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("coreset", {"space": "input"}, "space='input'; did you mean 'inputs'"),
        ("kmeans", {"space": "inputs", "layer": "0"}, 'of space="last", and space is .inputs.'),
        ("kmeans", {"layer": 3}, "expected the name of a module"),
        ("probcover", {"radius": 0}, "radius of strategy 'probcover' is 0; expected a number above 0"),
        ("probcover", {"purity": 1.5}, "purity=1.5 of strategy 'probcover'"),
        ("probcover", {"clusters": 1}, "clusters of strategy 'probcover' is 1; expected a whole number of at least 2"),
        ("maxherding", {"radius": -1}, "radius is -1; expected a number above 0"),
        ("uherding", {"temperature": 0}, "temperature=0 of strategy 'uherding'; expected a number above 0, or 'split'"),
        ("uherding", {"temperature": "spilt"}, "temperature='spilt' of strategy 'uherding'; expected a number"),
        ("maxherding", {"unit_length": 1}, "unit_length=1; expected True or False"),
        ("uherding", {"temperature": None}, "temperature=None of strategy 'uherding'"),
        ("coreset", {"layer": "9"}, 'unknown layer .9. in options={"layer": …}'),
        ("typiclust", {"neighbours": 0}, "neighbours of strategy 'typiclust' is 0"),
        ("dpp", {"quality": "margins"}, "unknown quality of strategy 'dpp' 'margins'; did you mean 'margin'"),
        ("dpp", {"noise": 0}, "noise of strategy 'dpp' is 0; expected a number above 0"),
        ("lcmd", {"radius": 1}, "unknown option 'radius' of strategy 'lcmd'"),
    ],
)
def test_wrong_options(strategy, options, message):
    with pytest.raises(ValueError, match=message):
        Problem().ask(strategy, options)


def test_regression_has_no_classes():
    net, x = nn.Linear(3, 1).eval(), torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    for name in ("probcover", "uherding", "egl"):
        with pytest.raises(ValueError, match=f"'{name}' needs classes and this network has one output"):
            ft.query(net, x[:2], [0.0, 1.0], x[2:], strategy=name)
    assert len(ft.query(net, x[:2], [0.0, 1.0], x[2:], strategy="maxherding", batch_size=3)) == 3
    with pytest.raises(ValueError, match=r'needs classes .* options={"quality": "uniform"}'):
        ft.query(net, x[:2], [0.0, 1.0], x[2:], strategy="dpp", options={"quality": "margin"})


def test_points_that_do_not_fit():
    problem = Problem()
    with pytest.raises(ValueError, match="x_L"):
        ft.query(problem.net, problem.x[:2, :2], [0, 1], problem.x[2:], strategy="kmeans")
    x = problem.x.clone()
    x[6, 1] = math.nan
    with pytest.raises(ValueError, match="x_U has 1 NaN or infinite values"):
        ft.query(problem.net, x[:2], [0, 1], x[2:], strategy="maxherding")
    with pytest.raises(ValueError, match=r'the budget is 100 B; raise budget, or .*options={"space": "last"}'):
        problem.ask("kmeans", budget=100)


@pytest.mark.parametrize("kind", ["vectors", "products"])
def test_copies_are_at_distance_zero_and_near_points_are_not(kind):
    """Two passes of one point in float32 differ in their last bits: by 1e-7 here. Points 1e-4 apart are two."""
    g = torch.Generator().manual_seed(0)
    x = 5 + torch.randn(30, 40, generator=g, dtype=torch.float64)
    off = torch.randn(30, 40, generator=g, dtype=torch.float64)
    x_ND = torch.cat([x, x * (1 + 1e-7 * off), x * (1 + 1e-4 * off)])
    space = VectorSpace("inputs", 0, x_ND, COPY_DISTANCE[torch.float32])
    space = space.products() if kind == "products" else space
    at = torch.arange(90)
    d_NN = space.between(at, slice(None))
    assert (d_NN[at, at] == 0).all()
    assert (d_NN[at[:30], at[30:60]] == 0).all()
    assert (d_NN[at[:30], at[60:]] > 0).all()
    assert (d_NN >= 0).all()
    exact = VectorSpace("inputs", 0, x_ND, 0.0).between(at, slice(None))
    assert (exact[at[:30], at[30:60]] > 0).all()  # what the tolerance is for
    assert (space.nearest_of(at[30:60])[:30] == 0).all()
