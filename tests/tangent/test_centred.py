"""κ of centred tangents, from factors: against gradients that autograd gives one point at a time."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from foretaste.tangent import CentredTangents, FactorSource, GramJob, freeze, gram


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


# --- sketches ---

WIDE = {
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (3, 6, 6)), nn.Conv2d(3, 40, 3, padding=1), nn.BatchNorm2d(40), nn.ReLU(),
        nn.Conv2d(40, 40, 3, stride=2, padding=1, padding_mode="circular"), nn.ReLU(),
        nn.Conv2d(40, 24, 3, groups=8), nn.Flatten(), nn.Linear(24, 3),
    ),
    "tokens": lambda: nn.Sequential(
        nn.Unflatten(1, (9, 12)), nn.Linear(12, 50), nn.GELU(), nn.LayerNorm(50), nn.Linear(50, 40), nn.Flatten(),
        nn.Linear(360, 3),
    ),
    "shared": lambda: nn.Sequential(nn.Unflatten(1, (18, 6)), Shared(), nn.Flatten(), nn.Linear(54, 3)),
    "once": lambda: nn.Sequential(nn.Linear(108, 50), nn.ReLU(), nn.Linear(50, 40), nn.ReLU(), nn.Linear(40, 3)),
}  # fmt: skip


def rows_of_sketches(net: nn.Module, x: Tensor, output: str, side: int) -> Tensor:
    (part,) = FactorSource(freeze(net, output=output), x, 3, sketch=side).parts(x)
    return part.rows


@pytest.mark.parametrize("output", ["signs", "trace"])
@pytest.mark.parametrize("name", WIDE)
def test_sketches_have_the_products_of_tangents_on_average(name, output, monkeypatch):
    torch.manual_seed(0)
    net, x = WIDE[name]().double().eval(), torch.randn(6, 108, dtype=torch.float64)
    frozen = freeze(net, output=output)
    heads = [[frozen.heads(net(one[None]))[0, b] for b in range(3 if output == "trace" else 1)] for one in x]
    grads = [[torch.autograd.grad(h, list(net.parameters()), retain_graph=True) for h in of] for of in heads]
    J = torch.stack([torch.cat([g.flatten() for row in of for g in row]) for of in grads])
    true, made = J @ J.T, []
    for seed in range(60):
        monkeypatch.setattr("foretaste.tangent.sketch.SKETCH_SEED", seed)
        s = rows_of_sketches(net, x, output, 8)
        made.append(s @ s.T)
    size = J.norm(dim=1)[:, None] * J.norm(dim=1)
    off = (torch.stack(made) - true) / size
    assert (off.mean(0).abs() < 5 * off.std(0) / 60**0.5).all()
    assert off.square().mean().sqrt() < 1.5 / 8**0.5  # of products before they are centred
    whole = rows_of_sketches(net, x, output, 400)  # no layer is wider
    assert_close(whole @ whole.T, true, rtol=0, atol=0.02 * float(size.max()))  # parts still meet: 400² numbers


@pytest.mark.parametrize("name", WIDE)
def test_kappa_of_sketches_is_near(name):
    torch.manual_seed(0)
    net, x = WIDE[name]().double().eval(), torch.randn(60, 108, dtype=torch.float64)
    x[30:] = x[:30] + 0.3 * torch.randn(30, 108, dtype=torch.float64)  # some pairs are near
    frozen = freeze(net, output="signs")
    true, *sketched = (
        CentredTangents(FactorSource(frozen, x, 3, sketch=side), [(x, 1.0)]).hold(x[:30]).rows(x)
        for side in (None, 16, 32)
    )
    for side, kappa in zip((16, 32), sketched):
        error = float((kappa - true).square().mean().sqrt())
        assert error < (0.7 if name in ("tokens", "once") else 1.5) / side  # wide layers that act once have most of it


@pytest.mark.parametrize("output", ["signs", "trace"])
@pytest.mark.parametrize("name", WIDE)
def test_what_landmarks_explain_is_exact_and_the_rest_is_sketched(name, output):
    """Typed out from sketches of whole tangents: Θ_iM A⁻¹ Θ_Mj, and the product of what is left of two sketches."""
    torch.manual_seed(0)
    net, x = WIDE[name]().double().eval(), torch.randn(40, 108, dtype=torch.float64)
    frozen, s = freeze(net, output=output), rows_of_sketches(net, x, output, 8)
    theta = gram(GramJob(frozen, {"x": x}, [("x", "x")])).blocks["x", "x"]
    M = list(range(12))
    A = theta[M][:, M] + 1e-4 * theta[M][:, M].diagonal().mean() * torch.eye(12)
    B = torch.linalg.solve(A, theta[M])
    left = s - B.T @ s[M]
    (part,) = FactorSource(frozen, x, 3, sketch=8, landmarks=x[M]).parts(x)
    ours = part.rows @ part.rows.T
    assert_close(ours, theta[M].T @ B + left @ left.T, rtol=1e-8, atol=1e-8 * float(theta.max()))
    size = theta.diagonal().sqrt()[:, None] * theta.diagonal().sqrt()
    off, plain = ((t - theta).abs() / size for t in (ours, s @ s.T))
    assert off[M].max() < 1e-3  # with a landmark nothing is estimated
    assert off[12:, 12:].square().mean() < plain[12:, 12:].square().mean()
