"""The pool in the kernel, held against its formulas typed literally."""

import math

import numpy as np
import pytest
import torch

import foretaste as ft
import strategy_oracles as slow
from foretaste.acquire import find_strategy
from foretaste.lookahead import Graph, PoolKernel, PoolState, as_pool_state, from_kernels, soft_labels
from foretaste.lookahead.graph import GAMMAS, RIDGE_SHARES, laplacian
from foretaste.losses import probabilities
from foretaste.network import MLP
from foretaste.pick import Batch, pick

L, U, C, D = 8, 30, 3, 5


class Problem:
    """Three clusters, an untrained network, and Θ̃ by the book."""

    def __init__(self, seed=0, clusters=True):
        g = torch.Generator().manual_seed(seed)
        centres = 3 * torch.randn(C, D, generator=g, dtype=torch.float64)
        self.y = torch.arange(L + U) % C
        self.x = torch.randn(L + U, D, generator=g, dtype=torch.float64)
        if clusters:
            self.x += centres[self.y]
        self.x_new = torch.randn(4, D, generator=g, dtype=torch.float64) + centres[0]
        torch.manual_seed(seed)
        self.net = MLP(D, [7], C).double().eval()

    def state(self, pool="auto", **rest):
        return ft.linearize(self.net, self.x[:L], self.y[:L], self.x[L:], pool=pool, **rest)


def wide_kernel(a, b):
    """Θ of one hidden layer of infinite width: arc-cosine kernels of degree 0 and 1, biases of variance 0.1."""

    def unit(x, mean):
        rows = [np.append(row - mean, length) for row in x]
        return [row / np.linalg.norm(row) for row in rows]

    a, b, mean = (np.asarray(t) for t in (a, b, a.mean(0)))
    length = math.sqrt(np.mean([np.sum((row - mean) ** 2) for row in a]))  # one more column, the typical length
    theta = np.zeros((len(a), len(b)))
    for i, u in enumerate(unit(a, mean)):
        for j, v in enumerate(unit(b, mean)):
            k, own = u @ v + 0.1, 1.1
            angle = 2 * math.asin(min(1.0, np.linalg.norm(u - v) / math.sqrt(own) / 2))  # acos is not exact near 0
            both = (math.pi - angle) / math.pi
            relu = own * (math.sin(angle) / math.pi + k / own * both)
            theta[i, j] = k * both + relu + 0.1
    return theta


def slow_theta(x_G, x_n):
    """Θ between G, and of n with G: centred over G, and divided by the deviations."""
    GG, nG = wide_kernel(x_G, x_G), wide_kernel(x_G, torch.cat([x_G, x_n]))[:, len(x_G) :].T
    own, mean_G, mean = GG[0, 0], GG.mean(1), GG.mean()
    mean_n = nG.mean(1)
    var_G, var_n = own - 2 * mean_G + mean, own - 2 * mean_n + mean
    GG = (GG - mean_G[:, None] - mean_G + mean) / np.sqrt(np.outer(var_G, var_G))
    nG = (nG - mean_n[:, None] - mean_G + mean) / np.sqrt(np.outer(var_n, var_G))
    return GG, nG


def slow_laplacian(theta, k):
    n = len(theta)
    W = np.zeros((n, n))
    for i in range(n):
        d2 = 2 - 2 * theta[i]
        near = sorted((j for j in range(n) if j != i), key=lambda j: d2[j])[:k]
        for j in near:
            W[i, j] = math.exp(-d2[j] / d2[near[-1]])
    W = np.maximum(W, W.T)
    root = np.diag(1 / np.sqrt(W.sum(1)))
    return np.eye(n) - root @ W @ root


def exact_solve(A, b):
    """A⁻¹b by elimination with pivots, in extended precision: γ = 1e5 leaves float64 only nine digits."""
    A, b = (np.array(t, dtype=np.longdouble) for t in (A, b))
    n = len(A)
    for i in range(n):
        pivot = i + int(np.argmax(np.abs(A[i:, i])))
        A[[i, pivot]], b[[i, pivot]] = A[[pivot, i]], b[[pivot, i]]
        for k in range(n):
            if k != i:
                share = A[k, i] / A[i, i]
                A[k] -= share * A[i]
                b[k] -= share * b[i]
    return b / A.diagonal()[:, None]


def bend(theta_ab, theta_aG, theta_GG, theta_Gb, lap, gamma):
    """Sindhwani, Niyogi and Belkin 2005."""
    M = np.longdouble(gamma) * lap.astype(np.longdouble) @ lap
    return (theta_ab - theta_aG @ exact_solve(np.eye(len(M)) + M @ theta_GG, M @ theta_Gb)).astype(float)


def slow_leave_one_out(LL, y, ridge):
    """Each label predicted by a regression on all others."""
    n, left = len(LL), []
    for i in range(n):
        rest = [j for j in range(n) if j != i]
        A = LL[np.ix_(rest, rest)] + ridge * np.eye(n - 1)
        left.append(y[i] - LL[i, rest] @ np.linalg.solve(A, y[rest]))
    return np.array(left)


def slow_choice(problem, gammas=GAMMAS, neighbours=10):
    """γ, λ, and the least leave-one-out error of each γ."""
    theta, _ = slow_theta(problem.x, problem.x_new)
    lap = slow_laplacian(theta, neighbours)
    y = np.eye(C)[problem.y[:L]] - 1 / C
    found = []
    for gamma in gammas:
        LL = bend(theta, theta, theta, theta, lap, gamma)[:L, :L]
        for share in RIDGE_SHARES:
            ridge = share * np.diag(LL).mean()
            found.append(((slow_leave_one_out(LL, y, ridge) ** 2).sum(1).mean(), gamma, ridge))
    return min(found), min(one for one in found if one[1] == 0)


def close(a, b, rtol=1e-9):
    a, b = np.asarray(a), np.asarray(b)
    return np.abs(a - b).max() <= rtol * max(1.0, np.abs(b).max())


def test_theta_of_a_wide_network_is_centred_over_the_graph():
    problem = Problem()
    kernel = PoolKernel(problem.x)
    GG, nG = slow_theta(problem.x, problem.x_new)
    assert close(kernel.theta_GG, GG)
    assert close(kernel.theta(kernel.place(problem.x_new), kernel.G), nG)
    assert close(kernel.theta_GG.diagonal(), np.ones(L + U))


def test_columns_in_different_units_are_divided_by_their_deviations():
    x = Problem().x
    units = torch.tensor([1e4, 1.0, 1e-3, 7.0, 1.0], dtype=torch.float64)
    scaled = (x / x.std(0, correction=0)) * units + 5
    assert close(PoolKernel(scaled).theta_GG, PoolKernel(x / x.std(0, correction=0)).theta_GG)
    assert not close(PoolKernel(x * torch.linspace(1, 5, D)).theta_GG, PoolKernel(x).theta_GG, 1e-3)
    still = torch.cat(
        [x, torch.full((len(x), 40), 0.1, dtype=torch.float64)], 1
    )  # columns that never vary do not count
    assert close(PoolKernel(still).theta_GG, PoolKernel(x).theta_GG)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_laplacian(k):
    theta, _ = slow_theta(Problem().x, Problem().x_new)
    lap = laplacian(torch.from_numpy(theta), k).to_dense()
    assert close(lap, slow_laplacian(theta, k))
    assert float(torch.linalg.eigvalsh(lap).min()) > -1e-12


def test_a_graph_of_the_inputs():
    x = Problem().x
    near = 1 - (x[:, None] - x).square().sum(2) / 2
    assert close(PoolKernel(x, 4, "inputs").laplacian.to_dense(), slow_laplacian(near.numpy(), 4))


def test_copies_of_a_point_are_its_neighbours_and_not_itself():
    x = torch.randn(6, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64).repeat(5, 1)
    lap = laplacian(PoolKernel(x).theta_GG, 3).to_dense()
    assert torch.isfinite(lap).all()
    assert torch.equal(lap.diagonal(), torch.ones(30, dtype=torch.float64))
    assert ((lap != 0).sum(1) >= 4).all()


def test_a_cluster_in_the_middle_is_one_cluster():
    """Three clusters on a line: the points of the middle one lie on all sides of the mean."""
    g = torch.Generator().manual_seed(0)
    x = torch.cat([0.2 * torch.randn(30, D, generator=g, dtype=torch.float64) + c for c in (-3, 0, 3)])
    near_G = PoolKernel(x).theta_GG.topk(10, 1).indices // 30
    assert torch.equal(near_G, torch.arange(90)[:, None].expand(-1, 10) // 30)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_bent_kernel_of_the_pool_gives_that_of_other_points(gamma):
    """Without a factor: Θ̃ between the points, and between others, from Θ̃ between the points."""
    problem, kernel = Problem(), PoolKernel(Problem().x)
    GG, nG = slow_theta(problem.x, problem.x_new)
    lap = slow_laplacian(GG, 10)
    bent_GG = kernel.bent(gamma, kernel.factor(gamma))
    assert close(bent_GG, bend(GG, GG, GG, GG, lap, gamma))
    assert close(bent_GG, bent_GG.T)
    new, some = kernel.place(problem.x_new), torch.tensor([9, 2, 30])
    bent_nG = kernel.bend(gamma, new, kernel.G, bent_GG)
    assert close(bent_nG, bend(nG, nG, GG, GG, lap, gamma))
    assert close(kernel.bend(gamma, new, kernel.G.take(some), bent_GG[:, some]), bent_nG[:, some])
    both = kernel.G.join(new)
    assert len(both) == L + U + 4
    assert torch.equal(kernel.theta(both[L + U :], kernel.G), kernel.theta(new, kernel.G))


@pytest.mark.parametrize("gamma", [0.5, 100.0])
@pytest.mark.parametrize("watch", [None, "new", 5])
def test_state_is_kernel_regression_on_the_bent_kernel(gamma, watch):
    problem = Problem()
    given = problem.x_new if watch == "new" else watch
    state = problem.state(Graph(gamma=gamma), watch=given, ridge=0.05)
    assert isinstance(state, PoolState)
    GG, nG = slow_theta(problem.x, problem.x_new)
    lap = slow_laplacian(GG, 10)
    bent = bend(GG, GG, GG, GG, lap, gamma)
    A = bent[:L, :L] + 0.05 * np.eye(L)
    y = np.eye(C)[problem.y[:L]] - 1 / C

    def mean(of_L):
        return 1 / C + of_L @ np.linalg.solve(A, y)

    assert close(state.pool_mean, mean(bent[L:, :L]))
    if watch == "new":
        new = wide_kernel(problem.x, torch.cat([problem.x, problem.x_new]))
        assert new.shape == (L + U, L + U + 4)
        W_L, W_U = (bend(nG[:, at], nG, GG, GG[:, at], lap, gamma) for at in (slice(0, L), slice(L, None)))
    else:
        at = range(U) if watch is None else state._problem.at_W
        rows = [L + j for j in at]
        W_L, W_U = bent[np.ix_(rows, range(L))], bent[np.ix_(rows, range(L, L + U))]
    assert close(state.mean, mean(W_L))
    assert close(state.mean_at(problem.x_new), mean(bend(nG[:, :L], nG, GG, GG[:, :L], lap, gamma)))
    assert not state._posterior.known  # predictions cost no S
    S = W_U - W_L @ np.linalg.solve(A, bent[:L, L:])
    assert close(torch.cat([block for _, block in state.blocks()], 1), S)
    S_jj = np.diag(bent[L:, L:] - bent[L:, :L] @ np.linalg.solve(A, bent[:L, L:]))
    assert close(state.u, S_jj + 0.05)
    # A label that is supposed, kept, changed and taken back: regression on all labels anew.
    j, label = 3, 2
    every = [*range(L), L + j]
    y_more = np.eye(C)[[*problem.y[:L].tolist(), label]] - 1 / C
    more = np.linalg.solve(bent[np.ix_(every, every)] + 0.05 * np.eye(L + 1), y_more)
    after = 1 / C + np.hstack([W_L, W_U[:, [j]]]) @ more
    assert close(state.lookahead(j, label), after)
    kept = state.condition(j, 0).condition(7, 1).condition(j, label)
    assert close(kept.release(7).mean, after)
    assert close(kept.release(7).release(j).mean, state.mean)


@pytest.mark.parametrize("seed", range(4))
def test_evidence_is_leave_one_out(seed):
    problem = Problem(seed)
    (error, gamma, ridge), (without, _, _) = slow_choice(problem)
    state = problem.state()
    evidence = state.pool
    assert evidence.gamma == gamma
    assert close(evidence.error, error)
    assert close(evidence.without, without)
    assert gamma > 0  # clusters: the pool helps
    assert close(evidence.ridge, ridge)
    assert state.ridge == evidence.ridge


def test_relabelling_changes_the_evidence_exactly():
    problem = Problem()
    before = problem.state().pool
    problem.y[2] = (problem.y[2] + 1) % C
    other = problem.state().pool
    assert other != before
    problem.y[2] = (problem.y[2] + 2) % C
    assert problem.state().pool == before


def test_without_the_pool_the_answer_is_that_of_the_network():
    problem = Problem()
    net, off = problem.state(None), problem.state(Graph(gamma=0))
    assert not isinstance(off, PoolState)
    assert off.pool.gamma == 0
    assert net.pool is None
    assert torch.equal(net.mean, off.mean)
    assert torch.equal(net.u, off.u)
    for strategy in ("cover", "gain", "margin", "variance"):
        ask = {"strategy": strategy, "batch_size": 4}
        given = problem.net, problem.x[:L], problem.y[:L], problem.x[L:]
        one, two = ft.query(*given, **ask), ft.query(*given, pool=Graph(gamma=0), **ask)
        assert one.indices.tolist() == two.indices.tolist()
        assert torch.equal(one.scores, two.scores)
        assert "pool" not in one.info
        assert not two.info["pool"]["used"]


def test_inputs_without_neighbourhoods_leave_the_pool_out():
    """Random inputs in thirty dimensions, and a linear rule: neighbours have no more in common than others."""
    off = 0
    for seed in range(6):
        g = torch.Generator().manual_seed(seed)
        x, rule = torch.randn(300, 30, generator=g), torch.randn(30, C, generator=g)
        off += (
            ft.linearize(MLP(30, [4], C).eval(), x[:100], (x @ rule).argmax(1)[:100], x[100:], pool="auto").pool.gamma
            == 0
        )
    assert off >= 5


@pytest.mark.parametrize("strategy", ["cover", "gain", "variance", "margin", "entropy", "mlmoc", "eer", "epig"])
def test_strategies_ask_with_the_pool(strategy):
    problem = Problem()
    q = ft.query(problem.net, problem.x[:L], problem.y[:L], problem.x[L:], strategy=strategy, batch_size=5, pool="auto")
    assert len(set(q.indices.tolist())) == 5
    assert torch.isfinite(q.scores).all()
    assert q.info["pool"]["used"]
    assert q.info["pool"]["points"] == L + U


def test_the_loss_of_the_network_does_not_matter_with_the_pool():
    problem = Problem()
    one, two = (
        ft.query(problem.net, problem.x[:L], problem.y[:L], problem.x[L:], batch_size=5, pool="auto", loss=loss)
        for loss in ("l2", "ce")
    )
    assert one.indices.tolist() == two.indices.tolist()


def test_first_batch_without_labels_is_one_of_each_cluster():
    problem = Problem(1)
    q = ft.query(problem.net, None, None, problem.x, batch_size=C, pool="auto")
    assert sorted(problem.y[q.indices].tolist()) == list(range(C))


def test_regression_starts_from_the_mean_of_the_labels():
    problem = Problem()
    net = MLP(D, [7], 1).double().eval()
    y = problem.x[:L, 0]
    state = ft.linearize(net, problem.x[:L], y, problem.x[L:], pool=Graph(gamma=1.0), ridge=0.1)
    GG, _ = slow_theta(problem.x, problem.x_new)
    bent = bend(GG, GG, GG, GG, slow_laplacian(GG, 10), 1.0)
    e = y.numpy() - y.numpy().mean()
    mean = y.numpy().mean() + bent[L:, :L] @ np.linalg.solve(bent[:L, :L] + 0.1 * np.eye(L), e)
    assert close(state.mean[:, 0], mean)
    assert state.pool.hits is None


def test_a_larger_pool_is_sampled_and_the_others_follow():
    problem = Problem()
    state = problem.state(Graph(gamma=10.0, most=L + 20), ridge=0.05)
    assert state.pool.points == L + 20
    assert state.U == U
    sample = torch.randperm(U, generator=torch.Generator().manual_seed(0))[:20].sort().values
    x_G = torch.cat([problem.x[:L], problem.x[L:][sample]])
    GG, nG = slow_theta(x_G, problem.x[L:])
    lap = slow_laplacian(GG, 10)
    U_L = bend(nG[:, :L], nG, GG, GG[:, :L], lap, 10.0)
    LL = bend(GG, GG, GG, GG, lap, 10.0)[:L, :L]
    y = np.eye(C)[problem.y[:L]] - 1 / C
    assert close(state.mean, 1 / C + U_L @ np.linalg.solve(LL + 0.05 * np.eye(L), y))


def test_vectors_of_a_backbone():
    problem = Problem()
    seen = []

    def vectors(x):
        seen.append(len(x))
        return 2 * x.flatten(1).float() + 1

    one, two = problem.state(Graph(gamma=10.0)), problem.state(Graph(gamma=10.0, vectors=vectors))
    assert torch.allclose(one.mean, two.mean, atol=1e-5)
    assert sum(seen) == L + U


def test_vectors_are_made_in_parts():
    x = Problem().x
    assert torch.equal(Graph(vectors=lambda part: 2 * part).rows(x, chunk=15), 2 * x)


def test_a_state_on_blocks_of_the_bent_kernel_is_the_same():
    problem = Problem()
    state = problem.state(Graph(gamma=10.0), ridge=0.05)
    theta = state._problem.kernels.load()
    f_L, f_U = (torch.full((n, C), 1 / C, dtype=torch.float64) for n in (L, U))
    made = from_kernels(theta.LL, None, theta.UL, theta.WU, None, f_L, None, f_U, problem.y[:L], ridge=0.05)
    same = as_pool_state(made, state.pool, state.unbent)
    for name in ("mean", "net", "u"):
        assert close(getattr(same, name), getattr(state, name)), name
    assert same.residual_L == pytest.approx(state.residual_L, rel=1e-9)
    assert same.scale == pytest.approx(state.scale, rel=1e-9)
    one_hot = torch.eye(C, dtype=torch.float64)[problem.y[:L]]
    at_L = ft.linearize(
        problem.net,
        problem.x[:L],
        problem.y[:L],
        problem.x[L:],
        watch=problem.x[:L],
        pool=Graph(gamma=10.0),
        ridge=0.05,
    )
    assert state.residual_L == pytest.approx(float((one_hot - at_L.mean).square().mean()), rel=1e-9)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ("yes", r"pool is 'yes'; expected None, \"auto\" or ft.Graph"),
        (Graph(vectors=lambda x: x[:, 0]), r"vectors= returned \(8,\); expected a tensor \(n, D\)"),
        (Graph(vectors=lambda x: x * math.nan), "vectors= returned NaN"),
    ],
)
def test_what_is_refused(pool, message):
    problem = Problem()
    with pytest.raises(ValueError, match=message):
        problem.state(pool)


def test_settings_of_a_graph_are_checked():
    with pytest.raises(ValueError, match="neighbours is 0"):
        Graph(neighbours=0)
    with pytest.raises(ValueError, match="gamma is -1"):
        Graph(gamma=-1)
    with pytest.raises(ValueError, match="vectors is a int"):
        Graph(vectors=3)
    with pytest.raises(ValueError, match="picks by itself"):
        ft.query(MLP(D, [7], C).eval(), None, None, torch.randn(20, D), strategy="uherding", pool="auto")


def test_tokens_have_no_graph():
    problem = Problem()
    x = torch.randint(9, (20, 4))
    net = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(16, C)).eval()
    with pytest.raises(ValueError, match="points that are one tensor of floats"):
        ft.linearize(net, x[:6], problem.y[:6], x[6:], pool="auto")


def test_soft_labels_are_the_posterior_on_the_simplex_squared():
    problem = Problem()
    y_LC = torch.eye(C, dtype=torch.float64)[problem.y[:L]]
    evidence, p_UC = soft_labels(problem.x[:L], y_LC, problem.x[L:])
    state = problem.state()
    assert evidence == state.pool
    for mean, p in zip(state.pool_mean.tolist(), p_UC):
        high = sorted(mean, reverse=True)
        levels = [(sum(high[:k]) - 1) / k for k in range(1, C + 1)]
        level = next(t for t, below in zip(levels, [*high[1:], -math.inf]) if t >= below)
        squares = [max(0.0, m - level) ** 2 for m in mean]
        assert close(p, np.array(squares) / sum(squares))
    assert float((p_UC.argmax(1) == problem.y[L:]).double().mean()) > 0.9
    assert soft_labels(problem.x[:L], y_LC, problem.x[L:], Graph(gamma=0))[1] is None


def test_cover_with_the_pool():
    """F(B) = Σ_i (1 − gap_i) max_{j ∈ L∪B} κ_ij², κ the correlation of Θ before it is bent, cut at 0."""
    problem = Problem()
    state = problem.state(Graph(gamma=10.0), ridge=0.05)
    GG, _ = slow_theta(problem.x, problem.x_new)
    kappa2 = np.clip(GG, 0, 1) ** 2
    p = np.sort(probabilities(state.mean, "l2").numpy(), 1)
    weight, covered = 1 - (p[:, -1] - p[:, -2]), kappa2[L:, :L].max(1)
    scores = [(weight * np.maximum(0, kappa2[L:, L + j] - covered)).sum() for j in range(U)]
    assert close(ft.acquire.cover(state), scores)
    picks = slow.greedy(torch.from_numpy(kappa2[L:, L:]), weight.tolist(), covered.tolist(), range(U), 6)
    batch = Batch(6, torch.Generator(), rank_U=torch.arange(U))
    assert pick(find_strategy("cover"), state, batch).indices == picks
