"""κ of centred tangents, from factors: against gradients that autograd gives one point at a time."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from foretaste.tangent import CentredTangents, FactorSource, freeze


class Shared(nn.Module):
    """One Linear layer that is called twice, and a parameter of no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.scale = nn.Linear(6, 6), nn.Linear(6, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(torch.tanh(self.inner(x))))) * self.scale


NETWORKS = {
    "head": lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
    "no bias": lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)),
    "linear": lambda: nn.Linear(6, 3),
    "images": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    ),
    "shared": Shared,
}


def literal_kappa(net: nn.Module, output: str, x: Tensor, x_W: Tensor, x_M: Tensor, weight_M: Tensor) -> Tensor:
    """The definition, point by point."""
    frozen = freeze(net, output=output)

    def tangent(one: Tensor) -> Tensor:
        heads = frozen.heads(net(one[None]))[0]
        rows = [torch.autograd.grad(h, list(net.parameters()), retain_graph=True) for h in heads]
        return torch.cat([g.flatten() for row in rows for g in row])

    mu = sum(w * tangent(one) for w, one in zip(weight_M, x_M)) / weight_M.sum()
    out, ours, theirs = torch.zeros(len(x), len(x_W), dtype=x.dtype), list(map(tangent, x)), list(map(tangent, x_W))
    for i, a in enumerate(ours):
        for j, b in enumerate(theirs):
            u, v = a - mu, b - mu
            out[i, j] = (u @ v / (u.norm() * v.norm())).clamp(0, 1)
    return out


@pytest.mark.parametrize("output", ["signs", "trace", "first"])
@pytest.mark.parametrize("name", NETWORKS)
def test_kappa_is_the_correlation_of_centred_gradients(name, output):
    torch.manual_seed(0)
    net, x = NETWORKS[name]().double().eval(), torch.randn(13, 6, dtype=torch.float64)
    weight_M = torch.tensor([2.5] * 6 + [1.0] * 3, dtype=torch.float64)
    centred = CentredTangents(FactorSource(freeze(net, output=output), x, 3), [(x[:6], 2.5), (x[6:9], 1.0)])
    got = centred.hold(x[:5]).rows(x)
    assert_close(got, literal_kappa(net, output, x, x[:5], x[:9], weight_M), rtol=0, atol=1e-12)


def test_the_last_layer_costs_one_product_and_only_where_its_gradient_is_constant():
    torch.manual_seed(0)
    x = torch.randn(20, 6)
    head = FactorSource(freeze(NETWORKS["head"]().eval(), output="signs"), x, 3)
    assert [m.out_features for m in head.flat] == [3]
    after = nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    assert not FactorSource(freeze(after.eval(), output="signs"), x, 3).flat


def test_float32_is_near_float64_beside_a_large_common_part():
    torch.manual_seed(0)
    net, x = NETWORKS["head"]().eval(), torch.randn(60, 6) + 3
    kappa = [
        CentredTangents(FactorSource(freeze(n, output="signs"), z, 3), [(z, 1.0)]).hold(z).rows(z).double()
        for n, z in ((net, x), (NETWORKS["head"]().double().eval(), x.double()))
        if n is net or not n.load_state_dict(net.double().state_dict()).missing_keys
    ]
    assert_close(kappa[0], kappa[1], rtol=0, atol=1e-4)


def test_a_point_that_is_the_mean_covers_nothing():
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3).double().eval(), torch.randn(8, 4, dtype=torch.float64)
    centred = CentredTangents(FactorSource(freeze(net, output="signs"), x, 3), [(x, 1.0)])
    assert centred.hold(x).rows(x.mean(0, keepdim=True)).max() == 0


def test_inputs_may_take_the_place_of_tangents():
    torch.manual_seed(0)
    net, x = nn.Linear(4, 3).eval(), torch.randn(9, 4, dtype=torch.float64)
    z = x - x.mean(0)
    want = torch.nn.functional.cosine_similarity(z[:, None], z[None], dim=2).clamp(0, 1)
    got = CentredTangents(FactorSource(freeze(net), x, 3, inputs_only=True), [(x, 1.0)]).hold(x).rows(x)
    assert_close(got, want, rtol=0, atol=1e-12)
