"""A budget that is too small: the error says what would do, and what to do if the machine has no more."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import foretaste as ft
from foretaste.lookahead import State, linearize
from foretaste.tangent import BudgetError


@pytest.mark.parametrize("labelled", [0, 30])
def test_a_pool_too_large_for_memory_names_how_many_points_to_watch(labelled: int) -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    x_U, x_L, y_L = torch.randn(4000, 5), torch.randn(labelled, 5), torch.arange(labelled) % 3

    def state_with(**settings: Any) -> State:
        return linearize(net, x_L, y_L, x_U, budget="60MB", eager=True, **settings)

    with pytest.raises(ValueError, match=r"Θ takes 12\d MB.*; .*watch=\d+: scores") as e:
        state_with()
    most = int(re.search(r"watch=(\d+)", str(e.value))[1])  # type: ignore[index]
    assert 100 <= most < 2000
    assert most == state_with(watch=most).W
    with pytest.raises(ValueError, match=f"watch at most {most} points: watch={most}"):
        state_with(watch=2000)
    with pytest.raises(ValueError, match="random part of the 4000 candidates"):
        linearize(net, x_L, y_L, x_U, budget="1kB", eager=True)


def test_a_budget_that_the_machine_does_not_have_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretaste.tangent.planning.free_memory", lambda device=None: 100_000_000)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    with pytest.raises(ValueError, match=r"it needs 1.. MB, and only 100 MB are free: .*; or .* give watch=") as e:
        linearize(net, None, None, torch.randn(4000, 5), budget="50MB", eager=True)
    assert "would do" not in str(e.value)
    with pytest.raises(ValueError, match=r"only 100 MB are free: take fewer points; or .*watch=") as e:
        ft.query(net, None, None, torch.randn(4000, 5), budget="50MB", strategy="variance")


def test_the_error_of_a_budget_has_its_numbers() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    with pytest.raises(BudgetError, match="would do") as e:
        ft.ntk(net, torch.randn(500, 5), budget="3MB")
    assert e.value.budget == 3 * 10**6 < e.value.needed
    ft.ntk(net, torch.randn(500, 5), budget=e.value.needed)
    assert e.value.fits({"x": 100}, [("x", "x")])
    assert not e.value.fits({"x": 490}, [("x", "x")])
