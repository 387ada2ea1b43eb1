"""Faults that were planted in the code and that no other test noticed, each with a test of its own."""

from functools import partial

import pytest
import torch
from test_tangent_ways import slabs
from torch import Tensor, nn

import foretaste as ft
import oracles
from foretaste.lookahead import from_kernels
from foretaste.pick import query
from foretaste.tangent import outputs, plan
from foretaste.tangent.rules import has_rule

assert_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


class Words(nn.Module):
    """A mean of embedded tokens and a head. The padding's own vector is not zero, so it counts in f."""

    def __init__(self, tokens: int, **settings: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(tokens, 4, **settings), nn.Linear(4, 3)  # type: ignore[arg-type]
        nn.init.normal_(self.embed.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(x)).mean(1))


@pytest.mark.parametrize(("tokens", "way"), [(100, "products"), (5, "formed")])
def test_padding_has_no_gradient(tokens: int, way: str) -> None:
    """The first points have no padding: the check of the rules on two points cannot see it."""
    net = Words(tokens, padding_idx=0).double().eval()
    x = torch.tensor([[1, 2, 3], [4, 3, 2], [0, 1, 0], [2, 0, 0], [0, 0, 0], [1, 1, 4]])
    (group,) = plan(net, x).groups
    kinds = {"products": [p.modules for p in group.products], "formed": [layer.modules for layer, _ in group.formed]}
    assert any(isinstance(modules[0], nn.Embedding) for modules in kinds[way])
    assert_close(ft.ntk(net, x), oracles.ntk(net, x, x, "sum"))
    assert float(ft.ntk(net, x, params=["embed.weight"])[4].abs().max()) < 1e-15


def test_gradients_scaled_by_frequency_are_those_of_autograd() -> None:
    """They have no rule, for only three of forty points repeat a token, and no check need see those.

    The check of the order would: it runs points twice in a batch. So the rule itself is asked too.
    """
    assert has_rule(nn.Embedding(9, 4))
    assert not has_rule(nn.Embedding(9, 4, scale_grad_by_freq=True))
    net, free = (Words(100, scale_grad_by_freq=scaled).double().eval() for scaled in (True, False))
    x = torch.stack([torch.arange(3) + i for i in range(40)])
    x[37:] = torch.tensor([[1, 1, 3], [2, 2, 2], [5, 4, 5]])
    theta = ft.ntk(net, x)
    assert_close(theta, oracles.ntk(net, x, x, "sum"))
    assert float((ft.ntk(free, x) - theta)[37:, 37:].abs().max()) > 1e-3, "repeats make no difference here"


@pytest.mark.parametrize("n", [1, 255, 256, 257, 295, 512, 600])
def test_outputs_are_those_of_every_point(n: int) -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 2).double().eval()
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    assert_close(outputs(net, x), net(x).detach())
    assert_close(outputs(net, x, chunk_size=7), net(x).detach())


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
        assert_close(ft.ntk(net, x), oracles.ntk(net, x, x, "sum"))


def test_no_candidate_is_asked_for_twice() -> None:
    """Neither a skipped one nor a picked one, when nothing but copies is left."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double().eval()
    g = torch.Generator().manual_seed(1)
    x_L = torch.randn(5, 3, generator=g, dtype=torch.float64)
    x_U = torch.randn(6, 3, generator=g, dtype=torch.float64).repeat(3, 1)
    asked: list[int] = []

    def oracle(j: int) -> int | None:
        asked.append(j)
        return None if j % 4 == 0 else j % 3

    for strategy in ("gain", "entropy"):
        asked.clear()
        q = query(net, x_L, [0, 1, 2, 0, 1], x_U, strategy=strategy, select="sequential", batch_size=18, oracle=oracle)
        assert sorted(asked) == list(range(18))
        assert sorted(q.indices.tolist()) == [j for j in range(18) if j % 4]


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_the_scale_of_kernels_given_counts_for_all_of_them(loss: str) -> None:
    g = torch.Generator().manual_seed(0)
    phi = torch.randn(20, 30, generator=g, dtype=torch.float64)
    theta, f = phi @ phi.T, torch.randn(20, 3, generator=g, dtype=torch.float64)
    L, U, W = slice(0, 5), slice(5, 14), slice(14, 20)

    def state(theta: Tensor, **scale: float) -> ft.State:
        made = from_kernels(
            theta[L, L], theta[W, L], theta[U, L], theta[W, U], theta[U, U].diagonal(), f[L], f[W], f[U],
            [0, 1, 2, 0, 1], theta_UU=theta[U, U], diag_W=theta[W, W].diagonal(), ridge=0.1, loss=loss, **scale,
        )  # fmt: skip
        return made.condition(3, 1).condition(7, 2)

    scaled, want = state(theta, theta_scale=2.5), state(2.5 * theta)
    for of in ("mean", "pool_mean", "u", "watched_variance"):
        assert_close(getattr(scaled, of), getattr(want, of))


def test_a_strided_convolution_of_one_dimension() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3))
    net, x = net.double().eval(), torch.randn(6, 2, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_close(ft.ntk(net, x), oracles.ntk(net, x, x, "sum"))
    assert_close(ft.ntk(net, x, budget="5MB"), oracles.ntk(net, x, x, "sum"))
