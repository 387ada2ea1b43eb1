"""Bad input gets a clear error: what came, what was expected, what to do."""

from typing import Any

import numpy as np
import pytest
import torch

from cases import CASES, mlp
from foretaste.lookahead import State, from_kernels, linearize

CASE = CASES[0]
REGRESSION = next(c for c in CASES if str(c) == "regression")
EMPTY = next(c for c in CASES if str(c) == "empty")


def test_labels_become_targets() -> None:
    state = CASE.state(ridge=1.0)
    eye = torch.eye(3).double()
    for ids in ([2, 0], np.array([2, 0]), torch.tensor([2, 0], dtype=torch.int32)):
        assert torch.equal(state.targets(ids), eye[[2, 0]])
    assert torch.equal(state.targets(eye.float()), eye)
    assert torch.equal(state.lookahead(1, 2), state.lookahead(1, [0.0, 0.0, 1.0]))
    assert torch.equal(state.lookahead(np.int64(1), np.int64(2)), state.lookahead(1, torch.tensor(2)))
    assert not state.regression
    number = REGRESSION.state(ridge=1.0)
    assert number.regression
    assert torch.equal(number.lookahead(1, 0.5), number.lookahead(1, [0.5]))
    assert number.targets([0.5, 2.0]).shape == (2, 1)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([0, 1, 2, 3, 0, 1, 2], "1 label outside the 3 classes.*first 3 at 3; expected 0 to 2"),
        ([0, -1, 2, 0, 0, 1, 2], "first -1 at 1"),
        ([0, 1], r"y_L has shape \(2,\); expected 7 labels"),
        ([0.0] * 7, "class ids must be integers"),
        (np.zeros((7, 2)), r"floats of shape \(7, 2\); expected integers \(n,\)"),
        (np.zeros((7, 3), int), r"integers of shape \(7, 3\)"),
        (np.full((7, 3), np.nan), "21 NaN or infinite values, first at 0"),
        ([True] * 7, "of torch.bool"),
        (1, "expected 7 labels"),
        (
            torch.zeros(7, dtype=torch.int64, device="meta"),
            r"y_L is on meta and the network on cpu; move it with .to\('cpu'\)",
        ),
        (None, "one of x_L and y_L is None"),
    ],
)
def test_bad_labels_of_L(y: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        linearize(CASE.net, CASE.x_L, y, CASE.x_U)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (3, "outside the 3 classes"),
        ([0.0, 1.0], r"shape \(2,\); expected one of the class ids below 3, or floats \(3,\)"),
        ([0, 1, 0], "expected one of the class ids"),
        (0.5, "class ids must be integers"),
        ([0.0, float("nan"), 1.0], "NaN"),
    ],
)
def test_bad_labels_of_a_candidate(y: Any, says: str) -> None:
    state = CASE.state(ridge=1.0)
    for call in (state.lookahead, state.condition):
        with pytest.raises(ValueError, match=says):
            call(0, y)


def test_regression_wants_floats_and_cross_entropy_probabilities() -> None:
    with pytest.raises(ValueError, match=r"integers from 0 to 5.*regression wants floats: y_L.double\(\)"):
        linearize(REGRESSION.net, REGRESSION.x_L, torch.arange(6), REGRESSION.x_U)
    with pytest.raises(ValueError, match="regression wants floats"):
        REGRESSION.state().condition(0, 1)
    with pytest.raises(ValueError, match="binary classification, whose labels are 0 and 1"):
        REGRESSION.state(loss="ce")
    with pytest.raises(ValueError, match="rows ≥ 0 that sum to 1"):
        linearize(CASE.net, CASE.x_L, torch.full((7, 3), 0.5), CASE.x_U, loss="ce")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "features"}, "unknown method 'features'; known: auto, dense, direct"),
        ({"loss": "mse"}, "unknown loss 'mse'; the network was trained with one of: l2, ce"),
        ({"ridge": -1.0}, "ridge is -1.0"),
        ({"ridge": float("nan")}, "ridge is nan"),
        ({"time": 0.0}, "time is 0.0"),
        ({"time": 3.0, "method": "dense"}, "time=3 is solved directly"),
        ({"time": 3.0, "loss": "ce"}, "of the squared loss"),
        ({"method": "direct", "loss": "ce"}, "of the squared loss"),
        ({"theta_scale": 0.0}, "theta_scale is 0.0"),
        ({"ridge": -1.0, "loss": "mse"}, "unknown loss.*ridge is -1.0"),
        ({"watch": 0}, "watch is 0; expected a whole number of at least 1, or None"),
        ({"watch_by": "contestd"}, "unknown watch_by 'contestd'; did you mean 'contested'"),
        ({"watch": torch.zeros(0, 4).double()}, "watch has no points"),
        ({"watch": torch.zeros(2, 5).double()}, r"watch has points of shape \(5,\); expected \(4,\)"),
    ],
)
def test_bad_settings(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        linearize(CASE.net, CASE.x_L, CASE.y_L, CASE.x_U, **options)


def test_bad_inputs() -> None:
    with pytest.raises(ValueError, match="x_U is empty"):
        linearize(CASE.net, CASE.x_L, CASE.y_L, torch.zeros(0, 4).double())
    with pytest.raises(ValueError, match="x_L has points of shape"):
        linearize(CASE.net, torch.zeros(7, 5).double(), CASE.y_L, CASE.x_U)
    with pytest.raises(ValueError, match="train mode"):
        linearize(mlp(4, 3).train(), None, None, CASE.x_U)
    with pytest.raises(TypeError, match="watch is a bool"):
        linearize(CASE.net, CASE.x_L, CASE.y_L, CASE.x_U, watch=True)
    state = CASE.state(ridge=1.0)
    with pytest.raises(IndexError, match="candidate 11 is outside the pool of 11; expected a position 0 to 10"):
        state.lookahead(11, 0)
    with pytest.raises(IndexError, match="candidate -1"):
        state.condition(-1)
    with pytest.raises(ValueError, match=r"candidate 3 has no kept label; kept are \[1\]"):
        state.condition(1).release(3)
    with pytest.raises(ValueError, match="width is 0"):
        next(state.blocks(0))


def test_empty_L_in_both_ways() -> None:
    no_rows = linearize(EMPTY.net, torch.zeros(0, 4).double(), torch.zeros(0, dtype=torch.int64), EMPTY.x_U, ridge=1.0)
    assert torch.equal(no_rows.condition(1, 2).mean, EMPTY.state(ridge=1.0).condition(1, 2).mean)
    with pytest.raises(ValueError, match="expected 0 labels"):
        linearize(EMPTY.net, torch.zeros(0, 4).double(), [1], EMPTY.x_U)


def test_a_kernel_that_is_not_positive_definite_names_a_ridge_that_holds() -> None:
    q, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).double())
    theta = q @ torch.diag(torch.tensor([-3e-4, 0.1, 1.0, 2.0, 3.0, 4.0]).double()) @ q.T
    zeros = torch.zeros(6, 2).double()

    def build(ridge: float) -> State:
        return from_kernels(theta, None, theta, theta, None, zeros, None, zeros, [0, 1, 0, 1, 0, 1], ridge=ridge)

    with pytest.raises(
        ValueError, match=r"Cholesky of Θ_LL \+ λI failed: L=6, λ=1.0e-10, least eigenvalue -3.0e-04"
    ) as e:
        _ = build(1e-10).mean
    need = float(str(e.value).rsplit("> ", 1)[1])
    assert 3e-4 < need < 4e-4
    assert torch.isfinite(build(need).mean).all()


def test_a_candidate_whose_variance_is_negative_names_a_ridge_that_holds() -> None:
    theta = torch.diag(torch.tensor([1.0, 2.0, -1e-3]).double())
    f = torch.zeros(3, 2).double()

    def build(ridge: float) -> State:
        return from_kernels(theta[:0, :0], None, theta[:, :0], theta, None, f[:0], None, f, None, ridge=ridge)

    with pytest.raises(ValueError, match="at candidate 2") as e:
        _ = build(1e-6).u
    assert build(float(str(e.value).rsplit("> ", 1)[1])).u.min() > 0


def test_given_kernels_that_do_not_fit() -> None:
    t, f = torch.eye(4).double(), torch.zeros(4, 2).double()
    with pytest.raises(ValueError, match=r"theta_LL is \(4, 4\), expected \(3, 3\).*theta_UL is"):
        from_kernels(t, None, t, t, None, f[:3], None, f, [0, 1, 0])
    with pytest.raises(ValueError, match="diag_U is None"):
        from_kernels(t, t[:2], t, t[:2], None, f, f[:2], f, [0, 1, 0, 1])
    state = from_kernels(t, t[:2], t, t[:2], torch.ones(4), f, f[:2], f, [0, 1, 0, 1], ridge=0.1)
    assert state.lookahead(1, 0).shape == (2, 2)
    with pytest.raises(ValueError, match=r"needs Θ\(x_1, U\).*give theta_UU"):
        state.condition(1, 0)
    with pytest.raises(ValueError, match="give diag_W"):
        _ = state.watched_variance


def test_without_a_ridge_a_kept_candidate_does_not_spoil_the_others() -> None:
    case = CASES[0]
    state = case.state(ridge=0.0).condition(1, 0)
    u_U = state.u
    assert (u_U[~state.taken] > 0).all()
    one, f = torch.ones(1, 1).double(), torch.zeros(1, 2).double()
    with pytest.raises(ValueError, match="leaves it no variance at this precision; try ridge > 4"):
        _ = from_kernels(one, None, 1.1 * one, one, None, f, None, f, torch.tensor([0]), ridge=0.0).u
