"""BADGE: factors against explicit embeddings, picks against the definition in loops, draws against enumeration."""

from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare
from torch import nn

from badge_cases import NET, X_U, ask, network, normal, rng
from foretaste.pick.badge import _squared_distances, find_last_layer, kmeanspp, last_layer_inputs, loss_residuals
from foretaste.tangent import PeakMemory, freeze

OPTIONS = [{}, {"gradient": "ce"}, {"first": "uniform"}, {"bias": True}]


def by_autograd(net, x_U, loss="ce", gradient="loss", bias=False):
    """(U, C·D): the gradient of the loss at the predicted label in the last layer, a point at a time."""
    rows = []
    for x in x_U:
        f_1C = net(x[None])
        y = f_1C.argmax(1)
        if gradient == "loss" and loss == "l2":
            value = (f_1C - nn.functional.one_hot(y, f_1C.shape[1])).square().sum() / 2
        elif loss == "ce":
            value = nn.functional.cross_entropy(f_1C, y)
        else:
            raise NotImplementedError
        grads = torch.autograd.grad(value, [net[-1].weight, net[-1].bias])
        rows.append(torch.cat([grads[0], grads[1][:, None]], 1).flatten() if bias else grads[0].flatten())
    return torch.stack(rows)


def by_loop(g_UG, batch_size, generator, first="largest"):
    """k-means++ as it is defined, on explicit embeddings; the draws are those of the fast path."""
    picked = []
    while len(picked) < batch_size:
        left = [i for i in range(len(g_UG)) if i not in picked]
        if not picked:
            norms = [float(g @ g) for g in g_UG]
            weight = {i: float(norms[i] == max(norms)) if first == "largest" else 1.0 for i in left}
        else:
            weight = {i: min(float((g_UG[i] - g_UG[j]) @ (g_UG[i] - g_UG[j])) for j in picked) for i in left}
        if max(weight.values()) == 0:
            weight = dict.fromkeys(left, 1.0)
        e_U = torch.empty(len(g_UG), dtype=torch.float64).exponential_(generator=generator).tolist()
        picked.append(max(left, key=lambda i: weight[i] / e_U[i]))
    return picked


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("bias", [False, True])
def test_factors_are_the_gradient(loss, bias):
    g_UG = by_autograd(NET, X_U, loss, bias=bias)
    q = ask(loss=loss, options={"bias": bias})
    torch.testing.assert_close(q.scores, g_UG.norm(dim=1), rtol=1e-12, atol=0)
    frozen = freeze(NET)
    f_UC, h_UD = last_layer_inputs(frozen, X_U, find_last_layer(frozen, X_U, None), last=True)
    assert torch.equal(h_UD, NET[:2](X_U))
    q_UC = loss_residuals(f_UC, loss)
    h_UD = torch.cat([h_UD, torch.ones(20, 1)], 1) if bias else h_UD
    torch.testing.assert_close(torch.einsum("uc,ud->ucd", q_UC, h_UD).flatten(1), g_UG, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_distances_are_those_of_explicit_embeddings(dtype):
    q_UC, h_UD = normal(30, 5, dtype=dtype), normal(30, 7, seed=1, dtype=dtype)
    g_UG = torch.einsum("uc,ud->ucd", q_UC, h_UD).flatten(1)
    norms_U = q_UC.square().sum(1) * h_UD.square().sum(1)
    for j in range(30):
        d_U = _squared_distances(q_UC, h_UD, norms_U, torch.tensor([j]), 0.0)
        slack = 1e-5 if dtype == torch.float32 else 1e-13
        torch.testing.assert_close(d_U, (g_UG - g_UG[j]).square().sum(1), rtol=slack, atol=slack * float(norms_U.max()))


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("options", [{}, {"first": "uniform"}, {"bias": True}], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_picks_are_those_of_the_definition(loss, options, seed):
    g_UG = by_autograd(NET, X_U, loss, bias=options.get("bias", False))
    expected = by_loop(g_UG, 12, rng(seed), options.get("first", "largest"))
    assert ask(loss=loss, seed=seed, options=options, batch_size=12).indices.tolist() == expected


@pytest.mark.parametrize("seed", range(4))
def test_cross_entropy_of_an_l2_network_projects_on_the_simplex(seed):
    f_UC, h_UD = NET(X_U).detach(), NET[:2](X_U).detach()
    rows = []
    for f_C, h_D in zip(f_UC, h_UD):
        best = min(  # the projection by its definition: over every support, the nearest feasible point
            (
                (p - f_C).norm().item(), p)
            for support in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2])
            if (p := _on(f_C, support)).min() >= 0
        )  # fmt: skip
        q_C = best[1] - nn.functional.one_hot(f_C.argmax(), 3)
        rows.append(torch.outer(q_C, h_D).flatten())
    q = ask(loss="l2", seed=seed, options={"gradient": "ce"}, batch_size=12)
    torch.testing.assert_close(q.scores, torch.stack(rows).norm(dim=1), rtol=1e-10, atol=1e-13)
    assert q.indices.tolist() == by_loop(torch.stack(rows), 12, rng(seed))
    assert torch.equal(ask(options={"gradient": "ce"}, loss="ce").scores, ask(loss="ce").scores)


def _on(f_C, support):
    p_C = torch.zeros_like(f_C)
    p_C[support] = f_C[support] + (1 - f_C[support].sum()) / len(support)
    return p_C


def exact_probabilities(g_UG, first, batch_size):
    """P of every ordered batch, by enumeration of k-means++."""
    U, found = len(g_UG), {}
    norms = g_UG.square().sum(1)
    for batch in permutations(range(U), batch_size):
        top = (norms == norms.max()).double()
        p = float(top[batch[0]] / top.sum()) if first == "largest" else 1 / U
        for n in range(1, batch_size):
            d_U = torch.stack([(g_UG - g_UG[j]).square().sum(1) for j in batch[:n]]).amin(0)
            d_U[list(batch[:n])] = 0
            if d_U.max() == 0:
                d_U = torch.ones(U, dtype=torch.float64).index_fill(0, torch.tensor(batch[:n]), 0)
            p *= float(d_U[batch[n]] / d_U.sum())
        found[batch] = p
    assert abs(sum(found.values()) - 1) < 1e-12
    return found


POOLS = {
    "three": ([[1.0, -1.0], [0.5, -0.5], [0.2, -0.2]], [[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]]),
    "four": ([[1.0, -1.0], [0.5, -0.5], [-0.7, 0.7], [0.1, -0.1]], [[1.0, 0.0], [1.0, 1.0], [0.4, 1.0], [2.0, 1.0]]),
    "largest twice": ([[1.0, -1.0], [1.0, -1.0], [-0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
    "copies": ([[1.0, -1.0], [1.0, -1.0], [1.0, -1.0], [-0.5, 0.5]], [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 0.0]]),
    "all zero": ([[0.0, 0.0]] * 3, [[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]]),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("first", ["largest", "uniform"])
@pytest.mark.parametrize("batch_size", [2, 3])
def test_probabilities_are_those_of_enumeration(pool, first, batch_size):
    q_UC, h_UD = (torch.tensor(v, dtype=torch.float64) for v in POOLS[pool])
    exact = exact_probabilities(torch.einsum("uc,ud->ucd", q_UC, h_UD).flatten(1), first, batch_size)
    seen, n = dict.fromkeys(exact, 0), 1000
    for seed in range(n):
        seen[tuple(kmeanspp(q_UC, h_UD, batch_size, rng(seed), first=first).tolist())] += 1
    possible = [b for b, p in exact.items() if p > 0]
    assert sum(seen[b] for b in possible) == n
    if len(possible) > 1:
        assert chisquare([seen[b] for b in possible], [n * exact[b] for b in possible]).pvalue > 1e-3


def test_chi_square_would_tell():
    """Distances in place of their squares are refused by the same test."""
    q_UC, h_UD = (torch.tensor(v, dtype=torch.float64) for v in POOLS["four"])
    g_UG = torch.einsum("uc,ud->ucd", q_UC, h_UD).flatten(1)
    exact = exact_probabilities(g_UG, "largest", 2)
    j = int(g_UG.norm(dim=1).argmax())
    wrong_U = (g_UG - g_UG[j]).norm(dim=1)
    draws = torch.multinomial(wrong_U, 1500, replacement=True, generator=rng()).bincount(minlength=4)
    possible = [b for b, p in exact.items() if p > 0]
    assert chisquare([int(draws[b[1]]) for b in possible], [1500 * exact[b] for b in possible]).pvalue < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_copies_are_passed_over_while_others_are_distinct(dtype, loss):
    x_U = normal(12, 4, seed=7, dtype=dtype).repeat(40, 1)  # chunks of the pass differ, and so does their rounding
    picks = ask(network(dtype=dtype), x_U, loss=loss, batch_size=30).indices.tolist()
    assert len({j % 12 for j in picks[:12]}) == 12
    assert len(set(picks)) == 30


def test_distances_of_copies_are_zero_and_those_of_near_points_are_not():
    q_UC, h_UD = normal(30, 3), normal(30, 12, seed=1)
    near = normal(30, 12, seed=2)
    q, h = torch.cat([q_UC] * 3), torch.cat([h_UD, h_UD * (1 + 1e-6 * near), h_UD * (1 + 1e-2 * near)])
    norms = q.square().sum(1) * h.square().sum(1)
    for j in range(30):
        d_U, plain_U = (_squared_distances(q, h, norms, torch.tensor([j]), copy) for copy in (1e-8, 0))
        assert d_U[j] == d_U[30 + j] == 0
        assert plain_U[30 + j] > 0
        assert d_U[60 + j] > 0


def test_the_rest_of_copies_is_drawn_uniformly():
    x_U = normal(2, 4, seed=7).repeat_interleave(torch.tensor([1, 5]), 0)
    thirds = [int(ask(x_U=x_U, batch_size=3, seed=s).indices[2]) for s in range(300)]
    counts = torch.tensor(thirds).bincount(minlength=6)
    assert counts[0] == 0
    assert chisquare(counts[1:].tolist()).pvalue > 1e-3


def test_the_whole_pool():
    for options in OPTIONS:
        assert sorted(ask(batch_size=20, options=options).indices.tolist()) == list(range(20))


@pytest.mark.parametrize("scale", [1e-120, 1e120])
def test_scale_does_not_matter(scale):
    q_UC, h_UD = normal(30, 5), normal(30, 7, seed=1)
    picks = kmeanspp(q_UC, h_UD, 10, rng(3))
    assert torch.equal(kmeanspp(q_UC * scale, h_UD * scale, 10, rng(3)), picks)
    assert len(set(picks.tolist())) == 10


def test_float32_picks_what_float64_does():
    q_UC, h_UD = normal(200, 10), normal(200, 16, seed=1)
    picks = kmeanspp(q_UC, h_UD, 50, rng(3))
    assert torch.equal(kmeanspp(q_UC.float(), h_UD.float(), 50, rng(3)), picks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_memory(dtype):
    """A problem whose explicit embeddings are 1.2 or 2.5 GB. Each step frees what it makes, so 20 tell as 1000 do."""
    f_UC, h_UD = normal(6000, 100, dtype=dtype), normal(6000, 512, seed=1, dtype=dtype)
    q_UC = loss_residuals(f_UC, "ce")
    with PeakMemory() as memory:
        assert len(set(kmeanspp(q_UC, h_UD, 20, rng()).tolist())) == 20
    assert memory.peak < 60e6


@pytest.mark.slow
def test_a_thousand_points_stay_under_a_gigabyte():
    q_UC, h_UD = loss_residuals(normal(6000, 100), "ce"), normal(6000, 512, seed=1)
    with PeakMemory() as memory:
        picks = kmeanspp(q_UC, h_UD, 1000, rng())
    assert len(set(picks.tolist())) == 1000
    assert memory.peak < 60e6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_gpu():
    picks = ask(batch_size=12).indices.tolist()
    assert ask(network().cuda(), X_U.cuda(), batch_size=12).indices.tolist() == picks
