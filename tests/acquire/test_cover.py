"""cover: batches against F in loops, the ridge that carries a misfit, and what holds of correlations and weights."""

import math
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch.testing import assert_close

import acquire_oracles as loops
import foretaste as ft
from acquire_oracles import Case
from cases import CASES
from foretaste import acquire
from foretaste.acquire.cover import (
    _correlate,
    choose_space,
    correlations,
    covered_errors,
    error_chances,
    input_kernel,
    posterior_chances,
    spread,
)
from foretaste.lookahead import PriorKernel, misfit_ridge
from networks import forbid_gradients

TIGHT = {"rtol": 1e-9, "atol": 1e-10}
POOLS = [Case("l2"), Case("watched", W=7), Case("ce", loss="ce"), Case("full", full=True, C=3, L=4, U=8)]


def pool(seed=0, L=8, U=60, C=3):
    g = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(4, 30), torch.nn.Tanh(), torch.nn.Linear(30, C)).double().eval()
    x = torch.randn(L + U, 4, generator=g, dtype=torch.float64)
    return net, x[:L], torch.arange(L) % C, x[L:]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("method", ["dense", "direct"])
def test_the_prior_is_theta_before_any_label(case, method):
    state = case.state(method)
    if not case.regression:
        state = state.condition(2, case.label(2))
    theta, x = state.prior(), {"L": case.x_L, "U": case.x_U, "W": case.x_W}
    for a, b, block in (("L", "L", theta.LL), ("W", "L", theta.WL), ("U", "L", theta.UL)):
        assert_close(block, case.theta(x[a], x[b]), **TIGHT)
    assert_close(theta.columns(slice(2, 5)), case.theta(x["W"], x["U"])[:, 2 * case.B : 5 * case.B], **TIGHT)
    for name, blocks in (("U", theta.diag_U), ("W", theta.diag_W)):
        whole = case.theta(x[name], x[name])
        for i, block in enumerate(blocks):
            here = slice(i * case.B, (i + 1) * case.B)
            assert_close(block, whole[here, here], **TIGHT)


@pytest.mark.parametrize("case", POOLS, ids=str)
def test_the_score_is_what_f_grows_by_in_a_batch_too(case):
    """F is submodular and monotone; its increments for a second pick are no larger than the scores."""
    state = case.state()
    scores = acquire.cover(state)
    best = int(scores.argmax())
    kappa = loops.correlation(state)
    one = loops.covered(state, [best], kappa=kappa)
    assert one - loops.covered(state, [], kappa=kappa) == pytest.approx(float(scores[best]), rel=1e-9)
    for j in range(state.U):
        second = loops.covered(state, [best, j], kappa=kappa) - one
        assert -1e-12 <= second <= float(scores[j]) + 1e-10


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("output", ["sum", "trace", "full"])
def test_a_batch_is_grown_greedily_on_f(loss, output):
    net, x_L, y_L, x_U = pool()
    x_U = x_U[:15]
    q = ft.query(net, x_L, y_L, x_U, strategy="cover", batch_size=4, loss=loss, output=output)
    state = ft.linearize(net, x_L, y_L, x_U, loss=loss, output=output, ridge="misfit")
    batch, kappa = [], loops.correlation(state)
    for j in q.indices.tolist():
        worth = [loops.covered(state, [*batch, k], kappa=kappa) if k not in batch else -math.inf for k in range(15)]
        assert worth[j] >= max(worth) - 1e-9
        batch.append(j)
    assert_close(q.scores, acquire.cover(state), **TIGHT)
    assert q.info["ridge"] == state.ridge


def test_float32_correlations_give_the_same_batch(monkeypatch):
    net, x_L, y_L, x_U = pool()
    exact = ft.query(net, x_L, y_L, x_U, strategy="cover", batch_size=10)
    monkeypatch.setattr(import_module("foretaste.acquire.cover"), "SINGLE_PRECISION", 1)
    rough = ft.query(net, x_L, y_L, x_U, strategy="cover", batch_size=10)
    assert exact.indices.tolist() == rough.indices.tolist()
    assert_close(exact.scores, rough.scores, rtol=1e-5, atol=1e-6)


def with_common_part(theta, share):
    """Θ of tangents that all have one more number, √(share · mean Θ_jj)."""
    more = share * float(theta.diag_U.mean())
    halves = (torch.cat([h, h.new_full((1, h.shape[1]), more**0.5)]) for h in (theta.half_U, theta.half_W))
    blocks = (b + more for b in (theta.LL, theta.WL, theta.UL, theta.diag_U, theta.diag_W))
    return PriorKernel(*blocks, theta.base_UW, *halves)


@pytest.mark.parametrize("share", [0.0, 1e5])
def test_float32_correlations_survive_a_large_common_part(monkeypatch, share):
    """The top eigenvalue of a network's Θ is 1e4 to 1e5 times the median."""
    net, x_L, y_L, x_U = pool()
    state = ft.linearize(net, x_L, y_L, x_U)
    exact = correlations(state)
    monkeypatch.setattr(import_module("foretaste.acquire.cover"), "SINGLE_PRECISION", 1)
    prior = type(state).prior
    monkeypatch.setattr(type(state), "prior", lambda self: with_common_part(prior(self), share))
    kappa2_UW, covered_W, _ = correlations(ft.linearize(net, x_L, y_L, x_U))
    assert kappa2_UW.dtype == torch.float32
    assert_close(kappa2_UW.double(), exact[0], rtol=0, atol=2e-6)
    assert_close(covered_W, exact[1], rtol=0, atol=1e-8)


def test_without_labels_the_pool_is_covered():
    net, _, _, x_U = pool()
    q = ft.query(net, None, None, x_U, strategy="cover", batch_size=6)
    state = ft.linearize(net, None, None, x_U)
    assert error_chances(state).unique().tolist() == [0.5]
    kappa2_UW, covered_W, _ = correlations(state)
    assert not covered_W.any()
    picked = kappa2_UW[q.indices].amax(0).mean()
    g = torch.Generator().manual_seed(0)
    others = [float(kappa2_UW[torch.randperm(len(x_U), generator=g)[:6]].amax(0).mean()) for _ in range(20)]
    assert float(picked) > max(others)


def test_a_copy_of_a_pick_or_of_a_label_comes_last():
    net, x_L, y_L, x_U = pool(U=12)
    twice = torch.cat([x_U[:6], x_U[:6], x_L[:1]])
    q = ft.query(net, x_L, y_L, twice, strategy="cover", batch_size=13)
    first = [j % 6 for j in q.indices[:6].tolist()]
    assert sorted(first) == list(range(6))
    assert q.indices[-1] == 12
    assert q.scores[12] == -math.inf


def test_sequential_answers_change_the_weights_and_what_is_covered():
    net, x_L, y_L, x_U = pool(U=20)
    asked = []
    q = ft.query(
        net, x_L, y_L, x_U, strategy="cover", batch_size=3, select="sequential", oracle=lambda j: asked.append(j) or 1
    )
    state = ft.linearize(net, x_L, y_L, x_U, ridge="misfit")
    for j in q.indices.tolist():
        scores = loops.cover(state)
        assert scores[j] >= scores.max() - 1e-9
        state = state.condition(j, 1)
    assert asked == q.indices.tolist()


def test_correlations_lie_between_0_and_1_and_are_1_at_home():
    net, x_L, y_L, x_U = pool()
    kappa2_UW, covered_W, _ = correlations(ft.linearize(net, x_L, y_L, x_U))
    assert_close(kappa2_UW.diagonal(), torch.ones(60, dtype=torch.float64))
    assert_close(kappa2_UW, kappa2_UW.T)
    assert float(kappa2_UW.min()) >= 0
    assert float(kappa2_UW.max()) <= 1
    assert 0 <= float(covered_W.min()) <= float(covered_W.max()) <= 1


def test_a_pool_of_equal_points_covers_nothing_and_is_still_answered():
    net, x_L, y_L, x_U = pool()
    q = ft.query(net, x_L[:1], y_L[:1], x_U[:1].repeat(5, 1), strategy="cover", batch_size=3)
    assert len(set(q.indices.tolist())) == 3


def test_a_larger_scale_makes_every_error_likelier():
    state = Case("l2").state()
    assert (error_chances(state, 4.0) > error_chances(state, 1.0)).all()
    own = 1 - acquire.probabilities(state.net, "l2").amax(1)
    assert_close(error_chances(state, 1e12), (own / 2).sqrt(), rtol=1e-3, atol=0)  # the posterior knows nothing
    with pytest.raises(ValueError, match="scale=-1"):
        acquire.cover(state, scale=-1)


# --- the ridge that carries the misfit ---


def residual(theta, y, ridge):
    eye = torch.eye(len(theta), dtype=torch.float64)
    return float((ridge * torch.linalg.solve(theta + ridge * eye, y)).square().mean())


@pytest.mark.parametrize("share", [1e-6, 1e-3, 0.05, 0.5])
def test_misfit_ridge_leaves_that_residual(share):
    g = torch.Generator().manual_seed(1)
    a = torch.randn(20, 60, generator=g, dtype=torch.float64)
    theta, y = a @ a.T + 1000.0, torch.randn(20, 4, generator=g, dtype=torch.float64)
    target = share * float(y.square().mean())
    ridge = misfit_ridge(theta, y, target, 1e-6 * float(theta.diagonal().mean()))
    assert residual(theta, y, ridge) == pytest.approx(target, rel=1e-3)


def test_a_network_that_fits_has_the_default_and_one_that_does_not_a_larger_ridge():
    net, x_L, y_L, x_U = pool()
    default = ft.linearize(net, x_L, y_L, x_U).ridge
    target = torch.nn.functional.one_hot(y_L, 3).double()
    with torch.no_grad():  # the last layer solved, so that L is interpolated
        h = torch.cat([net[1](net[0](x_L)), torch.ones(8, 1, dtype=torch.float64)], 1)
        w = torch.linalg.pinv(h) @ target
    unfitted = ft.linearize(net, x_L, y_L, x_U, ridge="misfit").ridge
    assert unfitted > 100 * default
    with torch.no_grad():
        net[2].weight.copy_(w[:-1].T)
        net[2].bias.copy_(w[-1])
    fitted = ft.linearize(net, x_L, y_L, x_U, ridge="misfit")
    assert fitted.residual_L < 1e-20
    assert fitted.ridge == ft.linearize(net, x_L, y_L, x_U).ridge
    assert ft.linearize(net, x_L, y_L, x_U, ridge="misfit", loss="ce").ridge < 100 * default


def test_a_network_that_learned_nothing_has_a_finite_ridge():
    g = torch.Generator().manual_seed(2)
    a, y = torch.randn(6, 9, generator=g, dtype=torch.float64), torch.eye(6, dtype=torch.float64)
    theta = a @ a.T
    ridge = misfit_ridge(theta, y, 10.0, 1e-6)
    assert math.isfinite(ridge)
    assert residual(theta, y, ridge) == pytest.approx(0.98 * float(y.square().mean()), rel=1e-3)


def test_unknown_words_for_a_ridge_are_refused():
    net, x_L, y_L, x_U = pool()
    with pytest.raises(ValueError, match=r'ridge.*"misfit"'):
        ft.linearize(net, x_L, y_L, x_U, ridge="missfit")
    with pytest.raises(ValueError, match="ridge='misfit' is for scores"):
        ft.query(net, x_L, y_L, x_U, strategy="random", ridge="misfit")


# --- the kernel of a contrast of classes ---


def test_signs_are_a_contrast_of_outputs():
    net, _, _, x = pool(C=4)
    signs, full = ft.ntk(net, x[:5], output="signs"), ft.ntk(net, x[:5], output="full")
    found = [
        v
        for v in torch.cartesian_prod(*[torch.tensor([-0.5, 0.5], dtype=torch.float64)] * 4)
        if torch.allclose(torch.einsum("c,ijcd,d->ij", v, full, v), signs)
    ]
    assert found
    assert all(float(v.sum()) == 0 for v in found)


def test_a_network_that_ends_in_softmax_is_covered():
    net, x_L, y_L, x_U = pool()
    q = ft.query(torch.nn.Sequential(net, torch.nn.Softmax(1)).eval(), x_L, y_L, x_U, strategy="cover", batch_size=5)
    assert len(set(q.indices.tolist())) == 5
    assert float(q.scores.max()) > 0


# --- tangents that have collapsed ---


def collapsed_pool():
    """A network whose hidden units all see one direction of the ten of the inputs, and a large bias kernel of none."""
    g = torch.Generator().manual_seed(5)
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        net = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3)).double().eval()
    with torch.no_grad():
        net[0].weight.zero_()[:, 0] = torch.linspace(1, 3, 20)
        net[2].weight.mul_(1e-3)  # so that only the last layer's tangents count
    x = torch.randn(50, 10, generator=g, dtype=torch.float64)
    return net, x[:6], torch.arange(6) % 3, x[6:]


def test_collapsed_tangents_give_way_to_inputs():
    net, x_L, y_L, x_U = collapsed_pool()
    how = {"strategy": "cover", "batch_size": 5}
    by_space = {s: ft.query(net, x_L, y_L, x_U, **how, options={"space": s}) for s in ("auto", "tangent", "inputs")}
    assert [q.info["space"] for q in by_space.values()] == ["inputs", "tangent", "inputs"]
    assert by_space["auto"].indices.tolist() == by_space["inputs"].indices.tolist()
    assert by_space["auto"].indices.tolist() != by_space["tangent"].indices.tolist()
    net, x_L, y_L, x_U = pool()
    assert ft.query(net, x_L, y_L, x_U, **how).info["space"] == "tangent"


def test_the_weight_is_the_same_in_both_spaces():
    net, x_L, y_L, x_U = collapsed_pool()
    state = ft.linearize(net, x_L, y_L, x_U)
    own = 1 - acquire.probabilities(state.net, "l2").amax(1)
    for space in ("inputs", "tangent"):
        assert_close(covered_errors(state, space=space).weight_W, (own * posterior_chances(state)).sqrt())


def test_a_network_that_is_sure_of_every_point_leaves_it_to_the_posterior():
    net, x_L, y_L, x_U = pool()
    with torch.no_grad():
        net[2].bias[0] += 100  # under the squared loss, a probability of 1 everywhere
    state = ft.linearize(net, x_L, y_L, x_U)
    assert float(acquire.probabilities(state.net, "l2").amax(1).min()) == 1
    assert_close(error_chances(state), posterior_chances(state))


def test_correlations_of_inputs_are_those_of_their_vectors():
    net, x_L, y_L, x_U = collapsed_pool()
    state = ft.linearize(net, x_L, y_L, x_U)
    kappa2_UW, covered_W, _ = correlations(state, "inputs")
    x = torch.cat([x_U, x_L])
    x = x - x.mean(0)
    x = x / x.norm(dim=1, keepdim=True)
    assert_close(kappa2_UW, (x[:44] @ x[:44].T).clamp(0, 1).square())
    assert_close(covered_W, (x[:44] @ x[44:].T).clamp(0, 1).amax(1).square())


def orthonormal(n, directions, seed):
    """(n, directions) vectors of length one, at right angles, each with mean 0."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, directions, generator=g, dtype=torch.float64)
    return torch.linalg.qr(x - x.mean(0)).Q


@pytest.mark.parametrize(("values", "space"), [((1.0, 1.0, 0.01), "tangent"), ((1.0, 0.8, 0.0), "inputs")])
def test_tangents_have_collapsed_below_a_third_of_the_inputs_spread(values, space):
    """Inputs have a spread of 6; the tangents' is just above 2, or just below."""
    x, t = orthonormal(40, 6, 0), orthonormal(40, 3, 1) * torch.tensor(values, dtype=torch.float64).sqrt()
    theta = replace(input_kernel({"U": t}), points={"U": x})
    assert spread(x @ x.T, *[x.square().sum(1)] * 2) == pytest.approx(6)
    assert spread(t @ t.T, *[t.square().sum(1)] * 2) == pytest.approx(2, abs=0.05)
    assert choose_space(theta) == space


@pytest.mark.parametrize(("variance", "counts"), [(2e-9, True), (0.5e-9, False)])
def test_a_point_that_differs_from_the_mean_by_rounding_alone_covers_nothing(variance, counts):
    """Six points have a variance of one. Less than 1e-9 of the mean is what rounding leaves."""
    axes = torch.eye(3, dtype=torch.float64)
    x_U = torch.cat([axes, -axes, variance**0.5 * axes[:1], -(variance**0.5) * axes[:1]])
    kappa2_UW, _ = _correlate(input_kernel({"U": x_U}))
    assert_close(kappa2_UW[:6, :6], torch.eye(6, dtype=torch.float64))
    assert_close(kappa2_UW[6, [0, 3, 6, 7]], torch.tensor([1.0, 0, 1, 0], dtype=torch.float64) * counts)
    assert_close(kappa2_UW, kappa2_UW.T)


def test_spread_counts_directions():
    values = torch.tensor([4.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    v = torch.linalg.qr(torch.randn(40, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).Q
    v = torch.linalg.qr(v - v.mean(0)).Q
    theta = v @ values.diag() @ v.T + 7
    assert spread(theta, theta.diagonal(), theta.diagonal()) == pytest.approx(36 / 18)
    assert spread(torch.ones(3, 3), torch.ones(3), torch.ones(3)) == 0


def test_a_space_must_be_known_and_there():
    net, x_L, y_L, x_U = pool()
    with pytest.raises(ValueError, match=r"space.*did you mean 'inputs'"):
        ft.query(net, x_L, y_L, x_U, strategy="cover", options={"space": "input"})
    with pytest.raises(ValueError, match='space="inputs" of cover needs inputs'):
        acquire.cover(Case("l2").state(), space="inputs")


def test_inputs_that_are_no_vectors_are_refused_before_any_work():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Embedding(9, 2), torch.nn.Flatten(), torch.nn.Linear(6, 3)).eval()
    forbid_gradients(net)
    x = torch.arange(36).view(12, 3) % 9
    with pytest.raises(ValueError, match=r'space="inputs" of cover.*options={"space": "tangent"}'):
        ft.query(net, x[:3], [0, 1, 2], x[3:], strategy="cover", options={"space": "inputs"})
