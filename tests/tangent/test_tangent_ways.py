"""A layer's part of Θ as products of A and G, as rows formed in the pass, or in slabs afterwards: all the same."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import foretaste as ft
import oracles
from foretaste.tangent import count_points, plan, take_points
from foretaste.tangent.planning import KernelPlan
from foretaste.tangent.survey import LayerParameter
from networks import NETWORKS, Network

N = 6
Setting = Callable[[pytest.MonkeyPatch], None]


def products(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("foretaste.tangent.planning.EXACT_COST", {"cpu": 0})


def rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("foretaste.tangent.planning.EXACT_COST", {"cpu": 1e9})
    patch.setattr("foretaste.tangent.planning.SLAB_BYTES", 1 << 40)


def slabs(patch: pytest.MonkeyPatch) -> None:
    """Of a few columns, from every layer whose A and G are not much larger than its rows."""
    patch.setattr("foretaste.tangent.planning.EXACT_COST", {"cpu": 1e9})
    patch.setattr("foretaste.tangent.planning.SLAB_BYTES", 1)
    patch.setattr("foretaste.tangent.planning.SLAB_LEAST", 3)
    patch.setattr("foretaste.tangent.planning.SLAB_WORTH", 0.01)


def taken(made: KernelPlan) -> set[str]:
    """How the weights of convolutions are treated."""
    found = set()
    for g in made.groups:
        for name, modules in (
            ("products", [m for p in g.products for m in p.modules]),
            ("rows", [m for ly, _ in g.formed for m in ly.modules if ly.name.endswith("weight")]),
            ("slabs", [m for ly in g.stashed for m in ly.modules]),
        ):
            if any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) for m in modules):
                found.add(name)
    return found


def oracle(net: nn.Module, x: object, output: str) -> torch.Tensor:
    n = count_points(x)
    full = oracles.ntk(net, x, x, "full").view(n, -1, n, oracles.f(net, x).shape[1])
    return of_output(full.permute(0, 2, 1, 3), output)


def of_output(full: torch.Tensor, output: str) -> torch.Tensor:
    """The kernel of an output, from the full kernel (N, N, C, C)."""
    if output == "full":
        return full
    return full.diagonal(dim1=2, dim2=3).mean(2) if output == "trace" else full.sum((2, 3)) / full.shape[2]


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("way", [products, rows, slabs], ids=lambda f: f.__name__)
@pytest.mark.parametrize("case", NETWORKS, ids=str)
def test_every_way_gives_the_gram_matrix(case: Network, way: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    way(monkeypatch)
    net, x = case.built(), case.points(N)
    full = oracle(net, x, "full")
    for output in ("sum", "trace", "full"):
        want = of_output(full, output)
        assert error(ft.ntk(net, x, output=output), want) <= 1e-10
        a, b = take_points(x, slice(0, 2)), take_points(x, slice(2, N))
        assert error(ft.ntk(net, a, b, output=output), want[:2, 2:]) <= 1e-10


@pytest.mark.parametrize("way", [products, rows, slabs], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "name", ["conv2d strided", "conv2d of many channels", "conv1d of many channels, dilated", "conv3d", "resnet18"]
)
def test_the_way_is_the_one_that_was_set(name: str, way: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    way(monkeypatch)
    case = next(c for c in NETWORKS if str(c) == name)
    for output in ("sum", "full"):
        found = taken(plan(case.built(), case.points(N), output=output))
        assert way.__name__ in found
        assert "products" not in found or way is products


def test_a_convolution_of_few_positions_is_a_product_for_few_points_only() -> None:
    """Its rows cost more than their products do, until there are many pairs to a point."""
    net = nn.Sequential(nn.Conv2d(16, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    assert "products" in taken(plan(net, torch.randn(20, 16, 2, 2)))
    wide = nn.Sequential(nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 16, 3)).eval()
    few, many = torch.randn(20, 16, 4, 4), torch.randn(3000, 16, 4, 4)
    assert taken(plan(wide, few)) == {"products"}
    assert "products" not in taken(plan(wide, many))


@pytest.mark.parametrize(("channels", "groups"), [(12, 3), (20, 4), (6, 6)])
def test_slabs_hold_whole_groups_of_a_convolution(channels: int, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(channels, 2 * channels, 3, groups=groups), nn.ReLU(),
        nn.Conv2d(2 * channels, channels, 1, groups=groups), nn.Flatten(), nn.Linear(4 * channels, 3),
    ).double().eval()  # fmt: skip
    x = torch.randn(5, channels, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slabs(monkeypatch)
    for columns in (3, 31, 50):  # of a slab: less than a group, and no multiple of one
        monkeypatch.setattr("foretaste.tangent.planning.SLAB_LEAST", columns)
        (group,) = plan(net, x).groups
        assert {layer.name for layer in group.stashed} >= {"0.weight"}
        assert error(ft.ntk(net, x), oracle(net, x, "sum")) <= 1e-10


class Mean(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h.mean(1)


def test_slabs_of_a_linear_layer_are_cut_along_its_longer_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """A and G of its points are held by chunk. One G stands for all positions: that is copied."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 7), Mean(), nn.Linear(7, 3)).double().eval()
    x = torch.randn(9, 3, 6, dtype=torch.float64)
    slabs(monkeypatch)
    monkeypatch.setattr("foretaste.tangent.planning.CHUNK_BYTES", {"cpu": 1})
    monkeypatch.setattr("foretaste.tangent.planning.CHUNK_LEAST", 4)
    seen, rows_into = set[tuple[str, int, int, bool]](), LayerParameter.rows_into

    def watched(self, at, calls, points, out_nw, inputs=False):
        assert all(t.untyped_storage().nbytes() == t.nbytes for pairs in calls.values() for pair in pairs for t in pair)
        seen.add((self.name, at.start, at.stop, inputs))
        return rows_into(self, at, calls, points, out_nw, inputs)

    monkeypatch.setattr(LayerParameter, "rows_into", watched)
    monkeypatch.setattr("foretaste.tangent.planning.SLAB_LEAST", 50)
    assert plan(net, x).chunk_size == 4
    assert error(ft.ntk(net, x), oracle(net, x, "sum")) <= 1e-12
    assert error(ft.ntk(net, x[:5], x[5:]), oracle(net, x, "sum")[:5, 5:]) <= 1e-12
    cuts = {name: {tuple(at[1:]) for at in seen if at[0] == name} for name in ("0.weight", "2.weight")}
    assert cuts["0.weight"] == {(a, a + 8, False) for a in range(0, 40, 8)}
    assert cuts["2.weight"] == {(a, min(a + 7, 40), True) for a in range(0, 40, 7)}


def test_products_of_many_heads_are_cut_to_their_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    products(monkeypatch)
    case = next(c for c in NETWORKS if str(c) == "conv2d of many channels")
    net, x = case.built(), case.points(N)
    want = oracle(net, x, "full")
    for tile in (1, 3000, 1 << 24):
        monkeypatch.setattr("foretaste.tangent.planning.TILE_BYTES", tile)
        assert error(ft.ntk(net, x, output="full"), want) <= 1e-12
