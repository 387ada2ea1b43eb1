"""Settings of layers that a rule could overlook: padding, strides, repeated tokens."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import foretaste as ft
import oracles
from foretaste.tangent import plan
from foretaste.tangent.rules import has_rule

assert_close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)


class Words(nn.Module):
    """A mean of embedded tokens and a head. The vector of the padding is not zero, so it counts in f."""

    def __init__(self, tokens: int, **settings: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(tokens, 4, **settings), nn.Linear(4, 3)  # type: ignore[arg-type]
        nn.init.normal_(self.embed.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(x)).mean(1))


@pytest.mark.parametrize(("tokens", "way"), [(100, "products"), (5, "formed")])
def test_padding_has_no_gradient(tokens: int, way: str) -> None:
    """The first points have no padding, so the rules' own check on two points does not see it."""
    net = Words(tokens, padding_idx=0).double().eval()
    x = torch.tensor([[1, 2, 3], [4, 3, 2], [0, 1, 0], [2, 0, 0], [0, 0, 0], [1, 1, 4]])
    (group,) = plan(net, x).groups
    kinds = {"products": [p.modules for p in group.products], "formed": [layer.modules for layer, _ in group.formed]}
    assert any(isinstance(modules[0], nn.Embedding) for modules in kinds[way])
    assert_close(ft.ntk(net, x), oracles.ntk(net, x, x, "sum"))
    assert float(ft.ntk(net, x, params=["embed.weight"])[4].abs().max()) < 1e-15


def test_gradients_scaled_by_frequency_are_those_of_autograd() -> None:
    """Only three of forty points repeat a token, so the rules' own check may miss them: there is no rule.

    The check of the order would notice (it runs points twice in a batch), so ``has_rule`` is asked as well.
    """
    assert has_rule(nn.Embedding(9, 4))
    assert not has_rule(nn.Embedding(9, 4, scale_grad_by_freq=True))
    net, free = (Words(100, scale_grad_by_freq=scaled).double().eval() for scaled in (True, False))
    x = torch.stack([torch.arange(3) + i for i in range(40)])
    x[37:] = torch.tensor([[1, 1, 3], [2, 2, 2], [5, 4, 5]])
    theta = ft.ntk(net, x)
    assert_close(theta, oracles.ntk(net, x, x, "sum"))
    assert float((ft.ntk(free, x) - theta)[37:, 37:].abs().max()) > 1e-3, "repeats make no difference here"


def test_a_strided_convolution_of_one_dimension() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3))
    net, x = net.double().eval(), torch.randn(6, 2, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_close(ft.ntk(net, x), oracles.ntk(net, x, x, "sum"))
    assert_close(ft.ntk(net, x, budget="5MB"), oracles.ntk(net, x, x, "sum"))
