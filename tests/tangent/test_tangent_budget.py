"""A budget that is too small: the error says what would do, and what to do if the machine has no more."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import foretaste as ft
from foretaste.lookahead import State, linearize
from foretaste.tangent import BudgetError, plan
from foretaste.tangent.planning import free_memory


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
        ft.query(net, None, None, torch.randn(4000, 5), budget="50MB", strategy="variance", method="dense")


@pytest.mark.parametrize(("share", "free"), [(1.0, 60 + 5), (0.5, 30 + 5), (0.1, 0 + 5)])
def test_a_share_of_a_card_is_all_that_is_free(share: float, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a card of 100 GB 60 are free, and torch has 20, 5 of them unused."""
    told = {"memory_reserved": 20, "memory_allocated": 15, "mem_get_info": (60, 100)}
    for name, value in told.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda index: share)
    for device in ("cuda", "cuda:1"):
        assert free_memory(torch.device(device)) == free


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_kernel_stays_within_its_share_of_a_card(caplog: pytest.LogCaptureFixture) -> None:
    total = torch.cuda.mem_get_info()[1]
    before = torch.cuda.get_per_process_memory_fraction()
    net = nn.Sequential(nn.Conv2d(3, 256, 3), nn.ReLU(), nn.Conv2d(256, 256, 3), nn.Flatten(), nn.Linear(36864, 10))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(4e9 / total)
    try:
        with caplog.at_level("INFO", "foretaste"):
            ft.ntk(net.eval().cuda(), torch.randn(4000, 3, 16, 16, device="cuda"), precision="tf32")
    finally:
        torch.cuda.set_per_process_memory_fraction(before)
    assert "out of memory" not in caplog.text


def test_a_small_budget_keeps_the_fast_way_or_says_what_it_costs(caplog: pytest.LogCaptureFixture) -> None:
    """Products of A and G take 113 MB here. A budget of 130 MB formed rows of gradients instead, at a hundred times
    the time."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).eval()
    x = torch.randn(2000, 784, generator=torch.Generator().manual_seed(0))
    ample = plan(net, x, budget="4GB")
    assert [len(g.products) for g in ample.groups] == [3]
    assert not caplog.messages
    small = plan(net, x, budget="130MB")
    assert [len(g.products) for g in small.groups] == [3]
    assert (ample.slowdown, small.slowdown) == (1.0, 1.0)
    assert "times the work" not in str(small)
    assert not caplog.messages
    tight = plan(net, x, budget="70MB")
    assert tight.slowdown > 20
    assert f"at {tight.slowdown:.0f} times the work of an ample one" in str(tight)
    (said,) = caplog.messages
    assert f"70 MB makes Θ of 2000 points take about {tight.slowdown:.0f} times as long as a budget of" in said
    assert plan(net, x, budget=said.split(" of ")[-1].removesuffix(" would")).slowdown <= 2


def test_the_error_of_a_budget_has_its_numbers() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
    with pytest.raises(BudgetError, match="would do") as e:
        ft.ntk(net, torch.randn(500, 5), budget="3MB")
    assert e.value.budget == 3 * 10**6 < e.value.needed
    ft.ntk(net, torch.randn(500, 5), budget=e.value.needed)
    assert e.value.fits({"x": 100}, [("x", "x")])
    assert not e.value.fits({"x": 490}, [("x", "x")])
