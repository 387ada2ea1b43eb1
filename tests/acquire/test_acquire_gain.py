"""gain against sampling of its definition, in the tails, and in float32."""

import math
from importlib import import_module

import pytest
import torch
from torch.testing import assert_close

import acquire_oracles as oracles
from acquire_oracles import Case
from foretaste import acquire
from foretaste.acquire import watched_sums
from foretaste.acquire.gain import rises

gain_module = import_module("foretaste.acquire.gain")


@pytest.mark.parametrize(
    "case", [Case("l2", ridge=0.1), Case("ce", loss="ce", W=5), Case("full", full=True, C=3, L=4, U=8)], ids=str
)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_gain_is_the_expected_rise_of_the_largest_output(case, scale):
    """y_j ~ N(mean_j, s² u_j) moves f_i by S_ij u_j⁻¹ (y − mean_j); the larger of i's two leading outputs rises."""
    state = case.state()
    s = math.sqrt(state.scale if scale is None else scale)
    g = torch.Generator().manual_seed(1)
    scores = acquire.gain(state, scale=scale)
    one_two = state.mean.topk(2, 1).indices
    for j in (0, 6):
        draws = torch.randn(40_000, state.C, generator=g, dtype=torch.float64)
        u = state.u[j].reshape(state.B, state.B).expand(state.B, state.B)
        e = s * (draws.view(-1, state.C // state.B, state.B) @ torch.linalg.cholesky(u).T)
        a = torch.linalg.solve(u, e.mT).mT
        rise = torch.zeros(len(draws), dtype=torch.float64)
        for i in range(state.W):
            f = state.mean[i] + (a @ oracles.block(state, i, j).T).reshape(-1, state.C)
            rise += f[:, one_two[i]].amax(1) - state.mean[i].max()
        assert abs(float(scores[j] - rise.mean())) < 4 * float(rise.std()) / math.sqrt(len(draws))


def test_tails():
    """Against Mills' ratio by its continued fraction: ψ(z)/φ(z) = 1 − z / (z + 1/(z + 2/(z + ...)))."""

    def psi(z: float) -> float:
        tail = z
        for n in range(3000, 0, -1):
            tail = z + n / tail
        return math.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (tail - z) / tail

    z = torch.tensor([2.0, 5.0, 10.0, 20.0, 30.0, 37.0], dtype=torch.float64)
    for exact in (True, False):
        got = torch.stack([rises(torch.ones(1, 1).double(), torch.ones(1).double(), v[None], exact)[0] for v in z])
        want = torch.tensor([psi(float(v)) for v in z], dtype=torch.float64)
        # float32 loses z² of the exponent's digits; beyond z = 10 it is float64 again
        assert_close(got, want, rtol=1e-9 if exact else 5e-6, atol=0)


def test_the_fit_is_as_good_as_it_says():
    z = torch.linspace(0, watched_sums.RISE_FAR, 400, dtype=torch.float64)
    over, under = (
        sum(c * z**k for k, c in enumerate(fit)) for fit in (watched_sums.RISE_OVER, watched_sums.RISE_UNDER)
    )
    fit = over / under * torch.exp(-z * z / 2)
    exact = torch.stack([rises(torch.ones(1, 1).double(), torch.ones(1).double(), v[None], True)[0] for v in z])
    assert_close(fit, exact, rtol=2.1e-7, atol=0)


@pytest.mark.parametrize("exact", [True, False])
def test_a_label_without_influence_gains_nothing(exact):
    S = torch.tensor([[0.0, 1e-200], [0.0, 0.5]], dtype=torch.float64)
    for gaps in ([0.0, 0.0], [0.5, 0.0], [0.5, 1.0]):
        found = rises(S, torch.ones(2).double(), torch.tensor(gaps, dtype=torch.float64), exact)
        assert found[0] == 0
        assert found[1] > 0
        assert torch.isfinite(found).all()


@pytest.mark.parametrize("unit", [1e-25, 1.0, 1e25])
def test_float32_keeps_the_ranking_in_any_unit(unit):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(300, 20, generator=g, dtype=torch.float64)
    S, gaps, k = (
        unit * X @ X.T,
        20 * unit * torch.rand(300, generator=g, dtype=torch.float64),
        torch.rand(300, generator=g) + 0.1,
    )
    exact, fast = (rises(S, k.double(), gaps, exact) for exact in (True, False))
    assert_close(fast, exact, rtol=1e-6, atol=0)
    assert torch.equal(fast.argsort(), exact.argsort())


def test_large_problems_use_float32(monkeypatch):
    state = Case("l2").state()
    exact = acquire.gain(state)
    monkeypatch.setattr(gain_module, "WORTH_QUICK_RISE", 1)
    fast = acquire.gain(state)
    assert_close(fast, exact, rtol=1e-6, atol=0)
    assert not torch.equal(fast, exact)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_scale_is_checked(scale):
    with pytest.raises(ValueError, match=r"scale=.*positive"):
        acquire.gain(Case("l2").state(), scale=scale)


def test_gain_grows_with_scale():
    state = Case("l2").state()
    assert (acquire.gain(state, scale=2.0) > acquire.gain(state, scale=1.0)).all()
