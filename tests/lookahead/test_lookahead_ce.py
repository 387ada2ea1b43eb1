"""Cross-entropy look-ahead: the damped Newton solve against bisection and LBFGS, and kept labels solved jointly."""

import itertools
from functools import partial

import pytest
import torch
from torch import Tensor

import oracles
from cases import CASES, Case
from foretaste.lookahead import State
from foretaste.lookahead.cross_entropy import many_labels, one_label

assert_close = partial(torch.testing.assert_close, rtol=1e-8, atol=1e-8)
CE = [c for c in CASES if not c.regression]
ALL = pytest.mark.parametrize("case", CE, ids=str)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("C", [2, 5, 10])
@pytest.mark.parametrize("s", [1e-3, 1.0, 40.0, 1e4])
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
def test_one_label_is_the_root(C: int, s: float, spread: float) -> None:
    """Each label of every class, so the least probable too: probabilities go down to e^-100."""
    m = spread * draw(4, C)
    m, y = m.repeat_interleave(C, 0), torch.eye(C).double().repeat(4, 1)
    alpha = one_label(m, torch.full((len(m), 1, 1), s).double(), y)
    assert_close(alpha, oracles.cross_entropy_root(m, s, y), rtol=1e-7, atol=1e-9)
    z = m + s * alpha
    assert_close(alpha, y - torch.softmax(z, 1), rtol=0, atol=1e-9 * max(1.0, s))


def test_an_undamped_step_explodes_where_ours_does_not() -> None:
    """Ten classes, a label with probability e^-12, s = 5000: a full Newton step overshoots by thousands of logits."""
    m, y, s = torch.zeros(1, 10).double(), torch.eye(10).double()[:1], torch.full((1, 1, 1), 5e3).double()
    m[0, 3] = 12.0
    p = torch.softmax(m, 1)[0]
    full = torch.linalg.solve(torch.eye(10).double() + 5e3 * (torch.diag(p) - p[:, None] * p), y[0] - p)
    moved = 5e3 * float(one_label(m, s, y)[0, 0])
    assert moved == pytest.approx(5e3 * float(oracles.cross_entropy_root(m, 5e3, y)[0, 0]), rel=1e-6)
    assert 5e3 * float(full[0]) > 100 * moved


@pytest.mark.parametrize("C", [2, 4])
@pytest.mark.parametrize("size", [0.1, 30.0])
def test_full_kernel_label_is_the_mode(C: int, size: float) -> None:
    root = draw(6, C, C, seed=1)
    S = size * (root @ root.mT + 0.1 * torch.eye(C))
    m, y = 4 * draw(6, C, seed=2), torch.eye(C).double()[torch.arange(6) % C]
    alpha = one_label(m, S, y)
    for n in range(6):
        z = m[n] + S[n] @ alpha[n]
        assert_close(alpha[n], y[n] - torch.softmax(z, 0), rtol=0, atol=1e-9)
        assert_close(z, oracles.cross_entropy_mode(m[n : n + 1], S[n], y[n : n + 1])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("size", [0.1, 5.0, 500.0])
def test_labels_together_are_the_mode(full: bool, size: float) -> None:
    k, C = 5, 3
    n = k * C if full else k
    root = draw(n, n, seed=3)
    S = size * (root @ root.T / n + 0.05 * torch.eye(n))
    m, y = 3 * draw(k, C, seed=4), torch.eye(C).double()[[0, 1, 2, 0, 0]]
    alpha = many_labels(m, S, y)
    dense = S if full else torch.kron(S, torch.eye(C).double())
    z = m + (dense @ alpha.flatten()).reshape(k, C)
    assert_close(alpha, y - torch.softmax(z, 1), rtol=0, atol=1e-8)
    assert_close(z, oracles.cross_entropy_mode(m, dense, y), rtol=1e-5, atol=1e-5)


def test_many_labels_of_one_is_one_label() -> None:
    m, y, S = 5 * draw(1, 4), torch.eye(4).double()[2:3], torch.tensor([[[30.0]]]).double()
    assert_close(many_labels(m, S[0], y), one_label(m, S, y))


def test_duplicated_labels_that_disagree_are_averaged() -> None:
    """S_KK is singular there; the two share one output, pulled equally to both classes."""
    S = torch.full((2, 2), 1e3).double()
    m, y = torch.zeros(2, 3).double(), torch.eye(3).double()[:2]
    z = m + S @ many_labels(m, S, y)
    assert_close(z[0], z[1])
    assert_close(z[0, 0], z[0, 1])
    assert torch.softmax(z[0], 0)[2] < 0.02


def posterior(case: Case, a: oracles.X, b: oracles.X, js: tuple[int, ...] = ()) -> Tensor:
    """S(a, b) with the noise 1/(p(1 − p)) of f for L and the kept candidates."""
    x = oracles.join(case.x_L, oracles.at(case.x_U, list(js)))
    if oracles.count(x) == 0:
        return case.theta(a, b)
    p = torch.softmax(oracles.f(case.net, x), 1).amax(1)
    noise = 1 / (p * (1 - p))
    A = case.theta(x, x) + torch.diag(noise.repeat_interleave(case.B))
    return case.theta(a, b) - case.theta(a, x) @ torch.linalg.inv(A) @ case.theta(x, b)


@ALL
def test_lookahead_solves_the_definition(case: Case) -> None:
    state = case.state(loss="ce", ridge=0.0, theta_scale=1.0)
    assert torch.equal(state.mean, state.net)
    assert state.scale == 1.0
    S_WU, S_UU = (posterior(case, x, case.x_U) for x in (case.x_W, case.x_U))
    assert_close(torch.cat([S for _, S in state.blocks(3)], 1), S_WU)
    a_UC = state.push(case.target(case.y_U))
    for j in range(case.U):
        here, y = slice(j * case.B, (j + 1) * case.B), case.target(case.y_U)[j]
        S_jj = S_UU[here, here] if case.B > 1 else S_UU[j, j] * torch.eye(case.C).double()
        assert_close(a_UC[j], y - torch.softmax(state.pool_net[j] + S_jj @ a_UC[j], 0), rtol=0, atol=1e-9)
        moved = state.net + (S_WU[:, here] @ a_UC[j].reshape(case.B, -1)).reshape(state.net.shape)
        assert_close(state.lookahead(j, case.label(j)), moved)
    p = torch.softmax(state.pool_net, 1).amax(1)
    u = state.u if case.B == 1 else state.u[:, 0, 0]
    assert_close(u, S_UU.diagonal()[:: case.B] + 1 / (p * (1 - p)))


@ALL
def test_kept_labels_in_any_order_are_one_joint_mode(case: Case) -> None:
    js = (4, 0, 2)
    start: State = case.state(loss="ce", ridge=0.0, theta_scale=20.0)
    S_UU = torch.cat([S for _, S in case.state(loss="ce", ridge=0.0, theta_scale=20.0, watch=None).blocks()], 1)
    at = [j * case.B + b for j in js for b in range(case.B)]
    S_KK = S_UU[at][:, at]
    dense = S_KK if case.B > 1 else torch.kron(S_KK, torch.eye(case.C).double())
    y_KC, m_KC = case.target(case.y_U)[list(js)], start.pool_net[list(js)]
    z = oracles.cross_entropy_mode(m_KC, dense, y_KC)
    first: State | None = None
    for order in itertools.permutations(js):
        state = start
        for j in order:
            state = state.condition(j, case.label(j))
        assert_close(state.pool_mean[list(js)], z, rtol=1e-5, atol=1e-5)
        if first is None:
            first = state
        assert_close(state.mean, first.mean)
        assert_close(state.pool_mean, first.pool_mean)
        assert_close(state.u, first.u)
        assert_close(torch.cat([S for _, S in state.blocks()], 1), torch.cat([S for _, S in first.blocks()], 1))
    assert first is not None
    assert_close(first.release(0).lookahead(0, case.label(0)), first.mean)
    assert_close(first.condition(5).mean, first.mean)
    assert_close(
        first.condition(5).release(5).release(4).mean,
        start.condition(0, case.label(0)).condition(2, case.label(2)).mean,
    )


@ALL
def test_S_shrinks_by_the_labels_own_noise(case: Case) -> None:
    state = case.state(loss="ce", ridge=0.0).condition(3, case.label(3)).condition(1)
    assert_close(torch.cat([S for _, S in state.blocks()], 1), posterior(case, case.x_W, case.x_U, (3, 1)))


def test_theta_scale_matters_here() -> None:
    case = CE[0]
    near, far = (case.state(loss="ce", theta_scale=s) for s in (0.1, 10.0))
    j = 2
    move = [float((s.lookahead(j, case.label(j)) - s.mean).norm()) for s in (near, far)]
    assert 0 < move[0] < move[1]
