"""ParBaLS equals a literal loop: Newton's weights, enumerated joint labels, a fit for each universe and pick."""

import pytest
import torch

import foretaste as ft
import strategy_oracles as slow
from foretaste.pick import Request
from foretaste.pick.parbals import LogisticPosterior, fit_logistic, mean_information
from foretaste.pick.space import find_space
from query_cases import NET, X_L, X_U, Y_L, ask


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("prior", [1.0, 10.0])
def test_a_fit_is_newtons(prior):
    x = torch.cat([X_U, torch.ones(len(X_U), 1)], 1)
    y = torch.randint(3, (2, len(X_U)), generator=rng())
    found = fit_logistic(x, y, 4, prior)  # nobody has class 3
    for k in range(2):
        w = slow.best_weights(x, y[k].tolist(), 4, prior)
        torch.testing.assert_close(found.w_KCD[k], w, rtol=0, atol=2e-3 * float(w.abs().max()))  # FIT_TOLERANCE a step
    again = fit_logistic(x, y, 4, prior, found.w_KCD)
    assert isinstance(again, LogisticPosterior)
    torch.testing.assert_close(again.w_KCD, found.w_KCD, rtol=0, atol=2e-3 * float(w.abs().max()))


def test_information_is_that_of_enumerated_labels():
    p_u, p_t = (torch.rand(5, n, 3, generator=rng(n), dtype=torch.float64).softmax(2) ** 2 for n in (6, 4))
    p_u, p_t = p_u / p_u.sum(2, keepdim=True), p_t / p_t.sum(2, keepdim=True)
    expected = [slow.epig(p_u[:, j].tolist(), p_t.tolist()) for j in range(6)]
    torch.testing.assert_close(mean_information(p_u, p_t), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("space", ["inputs", "last"])
def test_picks_are_those_of_a_literal_loop(space):
    o = {"universes": 2, "draws": 6, "targets": 5, "candidates": 9, "prior": 3.0, "space": space}
    for seed in range(2):
        q = ask(strategy="parbals", options=o, batch_size=4, seed=seed)
        request = Request(NET, X_L, Y_L, X_U, 4, rng())
        vectors = find_space(request, space).x_ND
        x = torch.cat([vectors / vectors.square().sum(1).mean().sqrt(), torch.ones(len(vectors), 1)], 1)
        g, L = rng(seed), len(X_L)
        some = torch.randperm(len(X_U), generator=g)[:9]
        targets = torch.randperm(len(X_U), generator=g)[:5]
        picks = slow.parbals(x[:L], Y_L.tolist(), x[L + some], x[L + targets], 3, 4, 2, 6, 3.0, g)
        assert q.indices.tolist() == some[picks].tolist()


def test_what_is_refused():
    with pytest.raises(ValueError, match="has no features"):
        ask(strategy="parbals", options={"space": "tangent"})
    with pytest.raises(ValueError, match="universes=5 of strategy 'parbals' is more than draws=4"):
        ask(strategy="parbals", options={"universes": 5, "draws": 4})
    assert len(ft.query(NET, None, None, X_U, strategy="parbals", batch_size=3)) == 3  # covers, without labels
