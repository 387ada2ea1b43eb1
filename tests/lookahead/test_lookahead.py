"""State against the paper typed literally: Eq. 5, 8, 11, 12, on one table of cases."""

import logging
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import foretaste.lookahead.problem as theta_module
import oracles
from cases import CASES, Case, mlp, vectors
from foretaste.lookahead import State, from_kernels, linearize

RIDGE = 1e-3
assert_close = partial(torch.testing.assert_close, rtol=1e-8, atol=1e-8)
ALL = pytest.mark.parametrize("case", CASES, ids=str)
METHODS = pytest.mark.parametrize("method", ["dense", "direct"])


def whole(state: State, width: int | None = None) -> Tensor:
    return torch.cat([S for _, S in state.blocks(width)], 1)


def posterior(case: Case, labels: dict[int, float], ridge: float, a: oracles.X, b: oracles.X) -> Tensor:
    """S(a, b) after L and the candidates of ``labels``, by its definition."""
    x, _ = case.plus(labels)
    if oracles.count(x) == 0:
        return case.theta(a, b)
    A = case.theta(x, x) + ridge * torch.eye(oracles.count(x) * case.B).double()
    return case.theta(a, b) - case.theta(a, x) @ torch.linalg.inv(A) @ case.theta(x, b)


@ALL
@METHODS
@pytest.mark.parametrize("ridge", [RIDGE, None])
def test_mean_is_kernel_regression(case: Case, method: str, ridge: float | None) -> None:
    state = case.state(method, ridge=ridge)
    expected = case.retrained(None, state.ridge) if case.L else case.f("W")
    assert_close(state.mean, expected)
    assert_close(state.pool_mean, case.retrained(None, state.ridge, case.x_U) if case.L else case.f("U"))
    assert_close(state.net, case.f("W"), rtol=0, atol=1e-14)
    assert_close(state.pool_net, case.f("U"), rtol=0, atol=1e-14)


@ALL
@METHODS
@pytest.mark.parametrize("ridge", [RIDGE, None])
def test_lookahead_is_eq_11(case: Case, method: str, ridge: float | None) -> None:
    state = case.state(method, ridge=ridge)
    for j in (0, 3):
        y = case.label(j)
        assert_close(state.lookahead(j, y), case.retrained({j: y}, state.ridge))


def test_lookahead_is_eq_12_with_the_inverse_in_v() -> None:
    case, j = CASES[0], 4
    y = case.label(j)
    state = case.state(ridge=RIDGE)
    x_j = oracles.at(case.x_U, [j])
    expected = oracles.eq12(
        case.theta(case.x_W, case.x_L), case.theta(case.x_L, case.x_L), case.theta(case.x_W, x_j)[:, 0],
        case.theta(x_j, case.x_L)[0], float(case.theta(x_j, x_j)), case.f("W"), case.f("L"), case.f("U")[j],
        case.target(case.y_L), oracles.one_hot([int(y)], case.C)[0], RIDGE,
    )  # fmt: skip
    assert_close(state.lookahead(j, y), expected)


@ALL
@METHODS
@pytest.mark.parametrize("kept", [(), (2,), (4, 1)])
def test_blocks_push_and_u_make_the_lookahead_of_every_candidate(
    case: Case, method: str, kept: tuple[int, ...]
) -> None:
    """f⁺_i = mean_i + S_ij a_j, S by its definition, u its own diagonal plus λ, also after labels are kept."""
    state, labels = case.state(method, ridge=RIDGE), {j: case.label(j) for j in kept}
    for j in kept:
        state = state.condition(j, case.label(j))
    S = whole(state, width=4)
    assert_close(S, posterior(case, labels, RIDGE, case.x_W, case.x_U))
    S_UU = posterior(case, labels, RIDGE, case.x_U, case.x_U)
    a_UC = state.push(case.target(case.y_U))
    for j in range(case.U):
        here = slice(j * case.B, (j + 1) * case.B)
        u = S_UU[here, here] + RIDGE * torch.eye(case.B).double()
        assert_close(state.u[j].reshape(case.B, case.B), u)
        if j not in kept:
            moved = state.mean + (S[:, here] @ a_UC[j].reshape(case.B, -1)).reshape(state.mean.shape)
            assert_close(moved, state.lookahead(j, case.label(j)))
            assert_close(moved, case.retrained(labels | {j: case.label(j)}, RIDGE))
    assert_close(state.push(case.target(case.y_U)[2:5], slice(2, 5)), a_UC[2:5])
    S_WW = posterior(case, labels, RIDGE, case.x_W, case.x_W).reshape(state.W, case.B, state.W, case.B)
    variance = torch.stack([S_WW[i, :, i] for i in range(state.W)])
    assert_close(state.watched_variance, variance[:, 0, 0] if case.B == 1 else variance)


@ALL
def test_block_widths_never_change_the_blocks(case: Case) -> None:
    state = case.state(ridge=RIDGE).condition(1, case.label(1))
    for width in (1, 3, None):
        assert_close(whole(state, width), whole(state, 100), rtol=0, atol=1e-13)
    assert [at.stop - at.start for at, _ in state.blocks(5)] == [5] * (case.U // 5) + [case.U % 5] * (case.U % 5 > 0)


@ALL
@pytest.mark.parametrize("time", [0.03, 0.5, 1e7])
def test_finite_time_is_eq_5(case: Case, time: float) -> None:
    state = case.state(ridge=RIDGE, time=time)
    assert_close(state.mean, case.retrained(None, RIDGE, time=time) if case.L else case.f("W"))
    y = case.label(2)
    assert_close(state.lookahead(2, y), case.retrained({2: y}, RIDGE, time=time))
    kept = state.condition(2, y)
    assert_close(kept.mean, state.lookahead(2, y))
    assert_close(kept.pool_mean, case.retrained({2: y}, RIDGE, case.x_U, time))
    with pytest.raises(ValueError, match="has no S"):
        next(state.blocks())


def test_time_is_monotone_between_the_network_and_the_limit() -> None:
    case = CASES[0]
    f_L, y = case.f("L"), case.target(case.y_L)
    at_L = [
        linearize(case.net, case.x_L, case.y_L, case.x_U, watch=case.x_L, time=t, ridge=0.0).mean
        for t in (1e-9, 0.1, 1.0, math.inf)
    ]
    gaps = [float((m - y).norm()) for m in at_L]
    assert gaps == sorted(gaps, reverse=True)
    assert_close(at_L[0], f_L, rtol=0, atol=1e-6)
    assert gaps[-1] < 1e-6


@ALL
def test_scale_is_ten_times_leave_one_out(case: Case) -> None:
    """α_i / d_i is the residual of a kernel regression without point i; its variance there is 1 / d_i."""
    state = case.state(ridge=RIDGE)
    direct = case.state("direct", ridge=RIDGE)
    if case.L == 0:
        assert state.scale == direct.scale == 1.0
        return
    y = case.target(case.y_L)
    y = (y - (y.mean(0) if case.regression else 1 / case.C)).reshape(case.L * case.B, -1)
    theta, loo = case.theta(case.x_L, case.x_L), []
    for i in range(len(theta)):
        rest = [k for k in range(len(theta)) if k != i]
        A = theta[rest][:, rest] + RIDGE * torch.eye(len(rest)).double()
        w = torch.linalg.inv(A) @ theta[rest, i]
        variance = theta[i, i] + RIDGE - theta[i, rest] @ w
        loo.append((y[i] - w @ y[rest]) ** 2 / variance)
    assert state.scale == pytest.approx(10 * float(torch.stack(loo).mean()), rel=1e-8)
    assert direct.scale == pytest.approx(state.scale, rel=1e-12)


@pytest.mark.parametrize("case", [c for c in CASES if c.L], ids=str)
@METHODS
def test_given_kernels_make_the_same_state(case: Case, method: str) -> None:
    theta_UU = case.theta(case.x_U, case.x_U)
    same = case.W is None and case.some is None
    before = theta_UU.clone()
    state = from_kernels(
        case.theta(case.x_L, case.x_L),
        None if same else case.theta(case.x_W, case.x_L),
        case.theta(case.x_U, case.x_L),
        theta_UU if same else case.theta(case.x_W, case.x_U),
        torch.stack([theta_UU[j * case.B :, j * case.B :][: case.B, : case.B] for j in range(case.U)]),
        case.f("L"),
        None if same else case.f("W"),
        case.f("U"),
        case.y_L,
        theta_UU=theta_UU,
        ridge=RIDGE,
        method=method,
    )
    assert_close(state.lookahead(3, case.label(3)), case.retrained({3: case.label(3)}, RIDGE))
    labels = {3: case.label(3), 0: case.label(0)}
    kept = state.condition(3, labels[3]).condition(0, labels[0])
    assert_close(kept.pool_mean, case.retrained(labels, RIDGE, case.x_U))
    assert_close(whole(kept), posterior(case, labels, RIDGE, case.x_W, case.x_U))
    assert torch.equal(theta_UU, before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@ALL
@pytest.mark.parametrize(("method", "loss"), [("dense", "l2"), ("direct", "l2"), ("dense", "ce")])
def test_the_device_changes_nothing(case: Case, method: str, loss: str) -> None:
    if loss == "ce" and case.regression:
        pytest.skip("regression has no cross-entropy")
    here, there = (case.on(device).state(method, loss=loss, ridge=RIDGE) for device in ("cpu", "cuda"))
    here, there = (state.condition(2, case.label(2)).condition(4) for state in (here, there))
    for a, b in (
        (here.mean, there.mean),
        (here.pool_mean, there.pool_mean),
        (whole(here), whole(there)),
        (here.u, there.u),
        (here.lookahead(1, case.label(1)), there.lookahead(1, case.label(1))),
        (here.push(case.target(case.y_U)), there.push(case.target(case.y_U).cuda())),
    ):
        assert b.is_cuda
        assert_close(a, b.cpu())


def test_theta_scale_with_the_ridge_leaves_l2_alone() -> None:
    case = CASES[1]
    a, b = case.state(ridge=RIDGE), case.state(ridge=7 * RIDGE, theta_scale=7.0)
    assert_close(a.condition(2, 1).mean, b.condition(2, 1).mean)
    assert_close(a.condition(2, 1).u * 7, b.condition(2, 1).u)


def test_default_ridge_is_resolved_once() -> None:
    case, empty = CASES[0], next(c for c in CASES if str(c) == "empty")
    state = case.state()
    assert state.ridge == pytest.approx(1e-6 * float(case.theta(case.x_L, case.x_L).diagonal().mean()))
    assert state.condition(1, 0).ridge == state.ridge
    theta_UU = empty.theta(empty.x_U, empty.x_U)
    assert empty.state().ridge == pytest.approx(1e-6 * float(theta_UU.diagonal().mean()))


@pytest.mark.parametrize("case", [c for c in CASES if str(c) in ("mlp", "empty", "watched")], ids=str)
@METHODS
def test_what_needs_no_kernel_costs_none(case: Case, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("a kernel was computed")

    monkeypatch.setattr(theta_module, "gram", never)
    state = case.state(method)
    touched = [state.net, state.pool_net, state.taken, state.kept, state.residual_L, repr(state), state.targets([0, 1])]
    assert len(touched) == 7
    if case.L == 0:
        assert torch.equal(state.mean, state.net)
        assert torch.equal(state.pool_mean, state.pool_net)
        assert state.scale == 1.0
    else:
        with pytest.raises(AssertionError, match="a kernel was computed"):
            _ = state.mean
    if method == "dense":
        ce = case.state(loss="ce")
        assert torch.equal(ce.mean, ce.net)
        assert torch.equal(ce.pool_mean, ce.pool_net)
    assert case.state(method, ridge=0.5).ridge == 0.5


def test_the_kernel_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case, gram = CASES[1], theta_module.gram
    calls: list[list[tuple[str, str]]] = []

    def counted(job: Any) -> Any:
        calls.append(list(job.blocks))
        return gram(job)

    monkeypatch.setattr(theta_module, "gram", counted)
    state = case.state()
    _ = state.mean, state.u, state.watched_variance, state.scale, state.lookahead(1, 0)
    assert len(calls) == 1
    kept = state.condition(1, 0)
    _ = kept.mean, kept.u, whole(kept), kept.lookahead(2, 0), state.condition(1, 2).condition(1, 1).pool_mean
    assert calls[1:] == [[("j", "U")]]


def test_a_watched_number_of_pool_points_follows_the_seed() -> None:
    case = CASES[0]
    pick = lambda seed: linearize(case.net, case.x_L, case.y_L, case.x_U, watch=6, seed=seed).net  # noqa: E731
    assert torch.equal(pick(1), pick(1))
    assert not torch.equal(pick(1), pick(2))
    assert all(any(torch.equal(row, other) for other in case.f("U")) for row in pick(3))


def test_a_network_that_did_not_fit_is_said_so(caplog: pytest.LogCaptureFixture) -> None:
    case = CASES[0]
    with caplog.at_level(logging.WARNING, "foretaste"):
        state = case.state()
        assert not caplog.text  # not before look-ahead is asked for
        _ = state.u
    assert "train longer" in caplog.text
    assert state.residual_L == pytest.approx(float((case.f("L") - case.target(case.y_L)).square().mean()))
    caplog.clear()
    with caplog.at_level(logging.WARNING, "foretaste"):
        _ = linearize(case.net, case.x_L, case.f("L"), case.x_U).u
    assert caplog.text == ""


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_a_network_at_chance_is_warned_about(loss: str, caplog: pytest.LogCaptureFixture) -> None:
    """Cross-entropy too: what is measured is the residual of the softmax outputs."""
    case = CASES[0]
    with caplog.at_level(logging.WARNING, "foretaste"):
        _ = case.state(loss=loss).u
    assert "do not fit the labels" in caplog.text if loss == "ce" else "train longer" in caplog.text
    assert 'loss="ce"' not in caplog.text


@pytest.mark.parametrize("learned", [-0.2, 0.2])
def test_a_ridge_that_carries_the_misfit_does_not_hide_that_nothing_was_learned(
    learned: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Outputs that know a little of the labels are no news to such a ridge; those that are worse than 1/C are."""
    x, y = torch.eye(6), torch.arange(6) % 3
    net = torch.nn.Linear(6, 3, bias=False).eval()
    with torch.no_grad():
        net.weight.copy_(1 / 3 + learned * (torch.nn.functional.one_hot(y, 3).T - 1 / 3))
    with caplog.at_level(logging.WARNING, "foretaste"):
        _ = linearize(net, x, y, 2 * x, ridge="misfit").u
    assert bool(caplog.text) == (learned < 0)
    assert ("check that labels, classes and points are in the same order" in caplog.text) == (learned < 0)


def test_a_network_that_ends_in_a_softmax_is_told_to_return_logits(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(mlp(2, 3), torch.nn.Softmax(1)).eval()
    x, y = torch.randn(20, 2), torch.arange(10) % 3
    with caplog.at_level(logging.WARNING, "foretaste"):
        _ = linearize(net, x[:10], y, x[10:], loss="ce", output="signs").u
    assert "net seems to end in a softmax: let it return logits" in caplog.text


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_a_network_trained_with_cross_entropy_is_told_which_loss_to_give(
    C: int, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the right loss it gets no warning; with the default one the warning names loss="ce"."""
    torch.manual_seed(0)
    net, x = mlp(2, C), torch.randn(60, 2)
    y = (x[:, 0] > 0).long() if C == 1 else (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        f = net(x[:20])
        if C == 1:
            torch.nn.functional.binary_cross_entropy_with_logits(f[:, 0], y[:20].float()).backward()
        else:
            torch.nn.functional.cross_entropy(f, y[:20]).backward()
        optimiser.step()
    with caplog.at_level(logging.WARNING, "foretaste"):
        state = linearize(net.eval(), x[:20], y[:20], x[20:], loss=loss)
        _ = state.u
    if loss == "ce":
        assert caplog.text == ""
    else:
        assert 'it looks trained with cross-entropy. Give loss="ce"' in caplog.text


def test_repr_is_short() -> None:
    state = Case("repr", lambda: mlp(4, 3), vectors(4), L=3, U=5).state()
    assert repr(state) == "DenseState(L=3, U=5, W=5, C=3, loss='l2', ridge=lazy, kept=0)"
    assert "ridge=0.5, kept=1" in repr(linearize(CASES[0].net, None, None, CASES[0].x_U, ridge=0.5).condition(2))
