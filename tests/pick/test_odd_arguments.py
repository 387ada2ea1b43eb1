"""Odd arguments of the public functions: named at the door, before any work."""

import copy
import math

import numpy as np
import pytest
import torch

import foretaste as ft
from foretaste.network import MLP
from fuzz.calls import run

torch.manual_seed(0)
NET = MLP(4, (6,), 3).double().eval()
X = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": "none"}, "seed is 'none'; expected a whole number"),
        ({"seed": torch.zeros(2)}, "seed is a Tensor; expected a whole number"),
        ({"budget": math.inf}, "budget, in bytes, is inf; expected a number"),
        ({"budget": 0.5}, "budget, in bytes, is 0.5; expected a number of at least 1"),
        ({"budget": "1.2.3GB"}, "budget is '1.2.3GB'; expected bytes or a size"),
        ({"output": 7}, "output=7 but net has 3 outputs"),
        ({"output": math.nan}, "output is nan; expected a whole number.*or one of sum"),
        ({"output": np.arange(3)}, "output is a ndarray; expected a whole number"),
        ({"precision": np.array(["a", "b"])}, "unknown precision"),
        ({"method": np.arange(3)}, "unknown method a ndarray; known: auto, dense, direct"),
        ({"loss": 7}, "unknown loss a int"),
        ({"ridge": torch.zeros(2)}, "ridge is a Tensor; expected a number of at least 0"),
        ({"batch_size": 2.0}, "batch_size is 2.0; expected a whole number of at least 1"),
    ],
)
def test_a_query_names_the_argument(settings, message) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ft.query(NET, X[:3], Y, X[3:], **({"batch_size": 2, "ridge": 1e-3} | settings))


@pytest.mark.parametrize("params", [2, True, math.inf, torch.tensor(1), iter([1]), MLP(4)])
def test_params_that_are_no_names(params) -> None:
    with pytest.raises(TypeError, match=r"params is a \w+.*expected a (sequence of parameter names|function)"):
        ft.ntk(NET, X, params=params)


def test_names_from_an_iterator() -> None:
    names = [name for name, _ in NET.named_parameters()]
    assert torch.equal(ft.ntk(NET, X, params=iter(names)), ft.ntk(NET, X))


@pytest.mark.parametrize("x_U", ["8GB", 0.5, None, [], [1j], ["1.0"], object(), {"a": 1}])
def test_a_pool_that_is_no_points(x_U) -> None:
    with pytest.raises((TypeError, ValueError), match="x_U"):
        ft.query(NET, X[:3], Y, x_U, batch_size=2, strategy="random")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_points_that_are_not_dense() -> None:
    for x in (X.to_sparse(), torch.nested.nested_tensor(list(X))):
        with pytest.raises(ValueError, match=r"x is .*expected a dense tensor"):
            ft.ntk(NET, x)


def test_inputs_so_large_that_the_kernel_overflows() -> None:
    net = copy.deepcopy(NET).float()
    for scale in (1e20, 1e25):
        with pytest.raises(ValueError, match=r"Θ is too large for torch.float32.*scale the inputs.*net.double\(\)"):
            ft.ntk(net, scale * X.float())
    torch.testing.assert_close(ft.ntk(net, 1e18 * X.float()), ft.ntk(NET, 1e18 * X), rtol=1e-5, atol=0)  # not yet
    assert torch.isfinite(ft.ntk(NET, 1e25 * X)).all()


@pytest.mark.parametrize("method", ["dense", "direct"])
def test_copies_in_L_without_a_ridge(method: str) -> None:
    """direct gave torch's error about a singular matrix, or numbers out of rounding."""
    state = ft.linearize(NET, torch.cat([X[:3], X[:3]]), torch.cat([Y, Y]), X[3:], method=method, ridge=0.0)
    with pytest.raises(ValueError, match=r"Θ_LL \+ λI failed.*some points repeat others; try ridge="):
        state.mean  # noqa: B018


def test_another_default_device() -> None:
    want, kernel = ft.query(NET, X[:3], Y, X[3:], batch_size=2, ridge=1e-3), ft.ntk(NET, X)
    torch.set_default_device("meta")
    try:
        assert torch.equal(ft.ntk(NET, X), kernel)
        for strategy in ("cover", "gain", "badge", "coreset", "random"):
            ft.query(NET, X[:3], Y, X[3:], batch_size=2, ridge=1e-3, strategy=strategy)
        q = ft.query(NET, X[:3], Y, X[3:], batch_size=2, ridge=1e-3)
    finally:
        torch.set_default_device(None)
    assert q.indices.tolist() == want.indices.tolist()


def test_points_of_too_few_dimensions() -> None:
    with pytest.raises(ValueError, match="x has one dimension, and net wants more"):
        ft.ntk(NET, torch.zeros(2).double())
    with pytest.raises(ValueError, match="x_U has no dimensions"):
        ft.query(NET, X[:3], Y, torch.tensor(1), batch_size=1, strategy="random")
    with pytest.raises(ValueError, match=r"net does not take x, of shape \(3, 3\)"):
        ft.fit(MLP(4, (6,), 3), torch.eye(3, dtype=torch.uint8), Y, steps=2)


@pytest.mark.parametrize("y", [{"a": 1}, object(), type, iter([1])])
def test_labels_of_every_odd_kind(y) -> None:
    with pytest.raises(ValueError, match=r"y_L is a .* that is no tensor of labels"):
        ft.query(NET, X[:3], y, X[3:], batch_size=2)


def test_settings_of_linearize() -> None:
    for settings, message in (
        ({"theta_scale": 1j}, "theta_scale is 1j; expected a number above 0"),
        ({"time": torch.zeros(2, 2)}, "time is a Tensor; expected a number above 0, or inf"),
    ):
        with pytest.raises(ValueError, match=message):
            ft.linearize(NET, X[:3], Y, X[3:], **settings)
    state = ft.linearize(NET, X[:3], Y, X[3:], ridge=1e-3)
    with pytest.raises(TypeError, match="a candidate is a position in x_U, a whole number; it is a float"):
        state.condition(1.5, 0)


def test_numbers_of_numpy() -> None:
    a = ft.query(NET, X[:3], Y, X[3:], batch_size=np.int64(2), seed=np.int64(3), ridge=np.float32(0.5))
    b = ft.query(NET, X[:3], Y, X[3:], batch_size=2, seed=3, ridge=0.5)
    assert a.indices.tolist() == b.indices.tolist()


def test_a_function_that_does_not_know_blocks() -> None:
    def blind(state):
        return state.u.sqrt()[:, 0, 0] if state.B == 1 else state.u + torch.zeros(2)

    with pytest.raises(ValueError, match=r"strategy 'blind' fails with output=\"full\".*state.B > 1"):
        ft.query(NET, X[:3], Y, X[3:], strategy=blind, output="full", batch_size=2, ridge=1e-3)


def test_generated_calls() -> None:
    """A short run of the fuzzer; ``make fuzz`` is the long one."""
    tally = run(150, seed=11)
    assert not tally.bad(), (str(tally), tally.examples)
