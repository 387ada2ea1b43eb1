"""output="trace", Σ_c Θ_cc / C, against the diagonal of the full kernel of plain per-point gradients."""

import pytest
import torch

import foretaste as ft
import oracles
from foretaste.tangent import GramJob, PeakMemory, freeze, gram, plan, resolve_budget, take_points
from networks import NETWORKS, Network

N = 7


def trace(net: torch.nn.Module, x: object) -> torch.Tensor:
    """A mean over logits of single-logit kernels, one at a time."""
    full = oracles.ntk(net, x, x, "full").unflatten(0, (N, -1)).unflatten(2, (N, -1))
    return torch.stack([full[:, c, :, c] for c in range(full.shape[1])]).mean(0)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape
    assert got.dtype == torch.float64
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("case", NETWORKS, ids=str)
def test_trace_is_the_mean_of_the_logits_own_kernels(case: Network) -> None:
    net, x = case.built(), case.points(N)
    want = trace(net, x)
    assert error(ft.ntk(net, x, output="trace"), want) <= 1e-10
    a, b = take_points(x, slice(0, 3)), take_points(x, slice(3, N))
    found = gram(GramJob(freeze(net, output="trace"), {"a": a, "b": b}, [("a", "b")], ["b"]))
    blocks, diagonals = found.blocks, found.diagonals
    assert error(blocks["a", "b"], want[:3, 3:]) <= 1e-10
    assert error(diagonals["b"][:, 0, 0], want.diagonal()[3:]) <= 1e-10


@pytest.mark.parametrize("case", NETWORKS[::4], ids=str)
@pytest.mark.parametrize("output", ["trace", "full"])
def test_a_budget_changes_neither_values_nor_is_it_passed(case: Network, output: str) -> None:
    net, x = case.built(), case.points(8)
    ample = ft.ntk(net, x, output=output)
    with pytest.raises(ValueError, match="would do") as e:
        ft.ntk(net, x, output=output, budget=1000)
    least = resolve_budget(str(e.value).split("budget='")[1].split("'")[0])
    for budget in (least, 3 * least):
        with PeakMemory() as memory:
            theta = ft.ntk(net, x, output=output, budget=budget)
        assert error(theta, ample) <= 1e-12
        assert memory.peak <= plan(net, x, output=output, budget=budget).nbytes <= budget


def test_a_state_of_the_trace_kernel_looks_ahead() -> None:
    case = NETWORKS[0]
    net, x = case.built(), case.points(12)
    y_L = torch.tensor([0, 1, 2, 0])
    state = ft.linearize(net, x[:4], y_L, x[4:], output="trace")
    theta = ft.ntk(net, x, output="trace")
    f = oracles.f(net, x).double()
    C = f.shape[1]
    A = theta[:4, :4] + state.ridge * torch.eye(4, dtype=torch.float64)
    want = f[4:] + theta[4:, :4] @ torch.linalg.solve(A, torch.eye(C, dtype=torch.float64)[y_L] - f[:4])
    assert error(state.mean, want) <= 1e-8
