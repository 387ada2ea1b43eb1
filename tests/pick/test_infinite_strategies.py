"""Strategies `infinite` and `gp` against the same done by hand, one candidate at a time."""

import logging
import math

import pytest
import torch
import torch.nn.functional as F
from sklearn.kernel_ridge import KernelRidge
from torch import nn
from torch.testing import assert_close

from foretaste import acquire
from foretaste.data import digits
from foretaste.lookahead import from_kernels
from foretaste.network import MLP, WideResNet, fit
from foretaste.pick import gp_predict, query
from foretaste.pick.infinite_width import gp_leave_one_out
from foretaste.tangent import counterpart, infinite_ntk, outputs
from foretaste.tangent.infinite.layers import Dense, Erf, Relu, Serial
from networks import forbid_gradients

L, U, W, C = 8, 14, 5, 3
RIDGE = 1e-3


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X_L, X_U, X_W, Y_L = normal(L, 4, seed=1), normal(U, 4, seed=2), normal(W, 4, seed=3), torch.arange(L) % C
Y_LC = F.one_hot(Y_L).double()


@pytest.fixture(scope="module")
def net():
    net = MLP(4, (16, 16), C).double()
    fit(net, X_L, Y_L, steps=300, start="cold")
    forbid_gradients(net)
    return net


def ask(net, strategy, x_U=X_U, **settings):
    return query(net, X_L, Y_L, x_U, **{"strategy": strategy, "ridge": RIDGE, "batch_size": 4, **settings})


def by_hand(net, theta, *, x_W=None, loss="l2", ridge=RIDGE):
    """mlmoc on a State made of single calls of ``theta(x, x2)``."""
    f_L, f_U = outputs(net, X_L), outputs(net, X_U)
    LL, UL = theta(X_L, X_L), theta(X_U, X_L)
    if x_W is None:
        state = from_kernels(LL, None, UL, theta(X_U, X_U), None, f_L, None, f_U, Y_L, ridge=ridge, loss=loss)
    else:
        diag = theta(X_U, X_U).diagonal()
        state = from_kernels(
            LL, theta(x_W, X_L), UL, theta(x_W, X_U), diag, f_L, outputs(net, x_W), f_U, Y_L, ridge=ridge, loss=loss
        )
    return acquire.mlmoc(state)


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("parametrisation", ["standard", "ntk"])
def test_infinite_is_mlmoc_on_the_infinite_kernel(net, parametrisation, loss):
    layers = counterpart(net, W_std=1.2, b_std=0.3)
    want = by_hand(net, lambda x, x2: infinite_ntk(layers, x, x2, parametrisation=parametrisation), loss=loss)
    options = {"parametrisation": parametrisation, "W_std": 1.2, "b_std": 0.3}
    q = ask(net, "infinite", loss=loss, options=options)
    assert_close(q.scores, want, rtol=1e-8, atol=0)
    assert q.indices.tolist() == want.argsort(descending=True)[:4].tolist()


@pytest.mark.parametrize("x_W", [None, X_W], ids=["W = U", "W ≠ U"])
def test_infinite_is_eq_11_solved_anew(net, x_W):
    """f_lin on L⁺ for each candidate: a plain solve on the larger set, from the trained network's outputs."""
    x, points = torch.cat([X_L, X_U]), X_U if x_W is None else x_W
    f_L, f_U, f_W = (outputs(net, v) for v in (X_L, X_U, points))
    theta = infinite_ntk(counterpart(net), torch.cat([x, points]))
    watched = list(range(L + U, L + U + len(points)))
    want = []
    for j in range(U):
        at = [*range(L), L + j]
        y = torch.cat([Y_LC, F.one_hot(f_U[j].argmax(), C).double()[None]])
        A = theta[at][:, at] + RIDGE * torch.eye(L + 1, dtype=torch.float64)
        change = theta[watched][:, at] @ torch.linalg.solve(A, y - torch.cat([f_L, f_U[j : j + 1]]))
        want.append(sum(float(change[i].norm()) for i in range(len(f_W))))
    q = ask(net, "infinite", watch=x_W)
    assert_close(q.scores, torch.tensor(want, dtype=torch.float64), rtol=1e-7, atol=0)


def regression(theta_NL, theta_LL, y_LC, ridge=RIDGE):
    A = theta_LL + ridge * torch.eye(len(theta_LL), dtype=torch.float64)
    return 1 / C + theta_NL @ torch.linalg.solve(A, y_LC - 1 / C)


@pytest.mark.parametrize("x_W", [None, X_W], ids=["W = U", "W ≠ U"])
def test_gp_is_kernel_regression_fitted_anew(net, x_W):
    points = X_U if x_W is None else x_W
    theta = infinite_ntk(counterpart(net), torch.cat([X_L, X_U, points]))
    watched, pool = slice(L + U, None), slice(L, L + U)
    before = regression(theta[watched, :L], theta[:L, :L], Y_LC)
    mean_U = regression(theta[pool, :L], theta[:L, :L], Y_LC)
    want = []
    for j in range(U):
        at = [*range(L), L + j]
        y = torch.cat([Y_LC, F.one_hot(mean_U[j].argmax(), C).double()[None]])
        after = regression(theta[watched][:, at], theta[at][:, at], y)
        want.append(float((after - before).norm(dim=1).sum()))
    q = ask(net, "gp", watch=x_W)
    assert_close(q.scores, torch.tensor(want, dtype=torch.float64), rtol=1e-7, atol=0)
    assert q.indices.tolist() == q.scores.argsort(descending=True)[:4].tolist()


@pytest.mark.parametrize("strategy", ["infinite", "gp"])
def test_a_number_of_pool_points_watched(net, strategy):
    at = torch.randperm(U, generator=torch.Generator().manual_seed(7))[:W].sort().values
    q = ask(net, strategy, watch=W, seed=7)
    assert_close(q.scores, ask(net, strategy, watch=X_U[at]).scores, rtol=1e-9, atol=0)
    assert q.info["watched"] == W
    assert not torch.allclose(q.scores, ask(net, strategy).scores)


def test_gp_knows_nothing_of_the_weights(net):
    other = MLP(4, (16, 16), C).double().eval()
    q = ask(net, "gp")
    assert torch.equal(q.scores, ask(other, "gp").scores)
    assert torch.equal(q.scores, ask(net, "gp", loss="ce").scores)
    assert not torch.allclose(q.scores, ask(net, "infinite").scores)


@pytest.mark.parametrize("strategy", ["infinite", "gp"])
def test_permuting_the_pool_permutes_the_answer(net, strategy):
    order = torch.randperm(U, generator=torch.Generator().manual_seed(0))
    q, permuted = ask(net, strategy), ask(net, strategy, X_U[order])
    assert_close(permuted.scores, q.scores[order], rtol=1e-9, atol=0)
    assert order[permuted.indices].tolist() == q.indices.tolist()


@pytest.mark.parametrize("strategy", ["infinite", "gp"])
def test_the_ridge_is_relative_unless_given(net, strategy):
    diagonal = float(infinite_ntk(counterpart(net), X_L).diagonal().mean())
    assert_close(
        ask(net, strategy, ridge=None).scores, ask(net, strategy, ridge=1e-6 * diagonal).scores, rtol=1e-9, atol=0
    )


def test_the_residual_under_cross_entropy_is_of_probabilities(net):
    want = (outputs(net, X_L).softmax(1) - Y_LC).square().mean()
    assert_close(ask(net, "infinite", loss="ce").info["residual_L"], float(want))


@pytest.mark.parametrize("strategy", ["infinite", "gp"])
@pytest.mark.parametrize("watch", [None, X_W], ids=["W = U", "W ≠ U"])
def test_an_empty_l(net, strategy, watch):
    """Nothing to absorb: Σ_i ‖Θ_ij (y′ − f_j)‖ / (Θ_jj + λ), f being 1/C for the process."""
    f_UC = outputs(net, X_U) if strategy == "infinite" else torch.full((U, C), 1 / C, dtype=torch.float64)
    theta = infinite_ntk(counterpart(net), X_U if watch is None else watch, X_U)
    own = infinite_ntk(counterpart(net), X_U).diagonal()
    e_U = (F.one_hot(f_UC.argmax(1), C) - f_UC).norm(dim=1)
    want = theta.abs().sum(0) * e_U / (own + RIDGE)
    settings = {"ridge": RIDGE, "batch_size": 2, "watch": watch}
    q = query(net, None, None, X_U, strategy=strategy, **settings)
    assert_close(q.scores, want, rtol=1e-9, atol=0)


@pytest.mark.parametrize("strategy", ["infinite", "gp"])
def test_convolutions(strategy):
    net = WideResNet(widen=1, classes=2).eval()
    x_L, x_U, y_L = normal(4, 1, 4, 4, seed=4).float(), normal(5, 1, 4, 4, seed=5).float(), torch.tensor([0, 1, 1, 0])
    theta = infinite_ntk(net, torch.cat([x_L, x_U]))
    f = outputs(net, torch.cat([x_L, x_U]))
    if strategy == "gp":
        f = gp_predict(net, x_L, y_L, torch.cat([x_L, x_U]), ridge=0.1)
    y = y_L if strategy == "infinite" else f[:4]
    state = from_kernels(theta[:4, :4], None, theta[4:, :4], theta[4:, 4:], None, f[:4], None, f[4:], y, ridge=0.1)
    q = query(net, x_L, y_L, x_U, strategy=strategy, batch_size=2, ridge=0.1)
    assert_close(q.scores, acquire.mlmoc(state), rtol=1e-6, atol=0)


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = MLP(4, (16, 16), C).double()

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("strategy", ["infinite", "gp"])
def test_a_network_of_ones_own_names_its_spec(strategy, monkeypatch):
    net = Custom().eval()
    want = ask(net.inner, strategy)
    for spec in (net.inner, counterpart(net.inner)):
        assert torch.equal(ask(net, strategy, options={"spec": spec}).scores, want.scores)
    other = Serial(Dense(5, 1.0), Erf(), Dense(1))
    assert not torch.allclose(ask(net, strategy, options={"spec": other}).scores, want.scores)
    forward = Custom.forward

    def few(net, x):  # those that tell ft.query the number of classes
        return forward(net, x) if len(x) <= 3 else pytest.fail("the network was run on the pool")

    monkeypatch.setattr(Custom, "forward", few)
    with pytest.raises(TypeError, match=r'Custom has no known infinite counterpart.*options=\{"spec": layers\}'):
        ask(net, strategy)
    with pytest.raises(ValueError, match=r'activation \'tanh\' has no closed form.*options=\{"spec": layers\}'):
        ask(MLP(4, (8,), C, "tanh").double().eval(), strategy)


@pytest.mark.parametrize("strategy", ["infinite", "gp"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parametrisation": "standrd"}, "unknown parametrisation 'standrd'; did you mean 'standard'"),
        ({"spec": 3}, "spec is 3; expected layers of foretaste.tangent.infinite"),
        ({"spec": Relu}, "spec is <class"),
        ({"spec": Serial(Dense(1)), "W_std": 1.0}, "set them in the layers of spec"),
        ({"budget": 1000}, "unknown option 'budget'"),
        ({"watch": X_W}, "unknown option 'watch'"),
        ({"Wstd": 1.0}, "unknown option 'Wstd' of strategy '(infinite|gp)'; did you mean 'W_std'"),
    ],
)
def test_errors(net, strategy, options, message):
    with pytest.raises(ValueError, match=message):
        ask(net, strategy, options=options)


@pytest.mark.parametrize("strategy", ["infinite", "gp"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "lots"}, "budget is 'lots'; expected bytes"),
        ({"budget": 1000}, "a budget of 1 kB is too small"),
        ({"watch": X_W[:0]}, "watch has no points"),
        ({"watch": normal(5, 3)}, "watch has points of shape"),
        ({"watch": 0}, "watch is 0; expected a whole number"),
        ({"params": ["layers.0.weight"]}, "params= chooses parameters of the network, and strategy '(infinite|gp)'"),
    ],
)
def test_errors_of_settings(net, strategy, settings, message):
    with pytest.raises(ValueError, match=message):
        ask(net, strategy, **settings)


@pytest.mark.parametrize("strategy", ["infinite", "gp"])
@pytest.mark.parametrize(
    ("x_L", "y_L", "message"),
    [
        (X_L, None, "one of x_L and y_L is None"),
        (None, Y_L, "one of x_L and y_L is None"),
        (X_L, Y_L[:3], r"y_L has shape \(3,\); expected 8 labels"),
        (X_L[:0], Y_L, r"y_L has shape \(8,\); expected 0 labels"),
        (X_L, Y_L + 1, "outside the 3 classes"),
        (X_L[:, :3], Y_L, "x_L has points of shape"),
    ],
)
def test_errors_of_labelled_points(net, strategy, x_L, y_L, message):
    with pytest.raises(ValueError, match=message):
        query(net, x_L, y_L, X_U, strategy=strategy, batch_size=2)


@pytest.mark.parametrize(("strategy", "times"), [("infinite", 1), ("gp", 0)])
def test_an_untrained_network_is_told_once_where_it_matters(strategy, times, caplog):
    net = MLP(4, (16, 16), C).double().eval()
    with torch.no_grad():
        net.layers[-1].bias += 3.0
    with caplog.at_level(logging.WARNING, "foretaste"):
        q = ask(net, strategy)
    assert sum("train longer" in message for message in caplog.messages) == times
    assert ("residual_L" in q.info) == bool(times)


@pytest.mark.parametrize("strategy", ["infinite", "gp"])
@pytest.mark.parametrize("watch", [None, X_W], ids=["W = U", "W ≠ U"])
def test_the_direct_solve_gives_the_same(net, strategy, watch):
    q, direct = (ask(net, strategy, watch=watch, method=m) for m in ("auto", "direct"))
    assert (q.info["method"], direct.info["method"]) == ("dense", "direct")
    assert q.info["ridge"] == RIDGE
    assert_close(direct.scores, q.scores, rtol=1e-8, atol=0)


def test_what_the_kernel_cannot_take(net):
    with pytest.raises(ValueError, match=r"'gp' needs classes and this network has one output"):
        query(MLP(4, (8,), 1).double().eval(), X_L, normal(L), X_U, strategy="gp", batch_size=2)

    class Tokens(MLP):
        def forward(self, x):
            return super().forward(x.double())

    with pytest.raises(TypeError, match=r"x_L is torch.int64; the infinite-width kernel takes floating tensors"):
        query(Tokens(4, (8,), C).double().eval(), X_L.long(), Y_L, X_U.long(), strategy="infinite", batch_size=2)


def test_gp_predict(net):
    theta = infinite_ntk(counterpart(net), torch.cat([X_L, X_U]))
    want = regression(theta[L:, :L], theta[:L, :L], Y_LC)
    assert_close(gp_predict(net, X_L, Y_L, X_U, ridge=RIDGE), want, rtol=1e-8, atol=1e-10)
    assert_close(gp_predict(counterpart(net), X_L, Y_LC, X_U, ridge=RIDGE), want, rtol=1e-8, atol=1e-10)
    by_erf = gp_predict(Serial(Dense(16, 1.5, 0.1), Erf(), Dense(1)), X_L, Y_L, X_U, classes=3, ridge=RIDGE)
    assert not torch.allclose(by_erf, want)
    assert_close(gp_predict(net, X_L, Y_L, X_L, ridge=1e-12), Y_LC, rtol=0, atol=1e-6)
    assert_close(want.sum(1), torch.ones(U, dtype=torch.float64))  # centred targets add up to 0


@pytest.mark.parametrize(
    ("y_L", "settings", "message"),
    [
        (Y_L, {"classes": 2}, "outside 0 to 1"),
        (Y_L - 1, {}, "outside 0 to 2"),
        (Y_L[:3], {}, r"y_L is \(3,\) for 8 points"),
        (Y_L.double(), {}, r"floats of shape \(8,\); expected finite \(8, C\)"),
        (Y_L, {"W_std": 0.0, "ridge": -1.0}, r"Cholesky of Θ_LL \+ λI failed: L=8, λ=-1.0e\+00"),
    ],
)
def test_gp_predict_errors(net, y_L, settings, message):
    with pytest.raises(ValueError, match=message):
        gp_predict(net, X_L, y_L, X_U, **settings)


def test_gp_predict_needs_a_number_of_classes():
    with pytest.raises(ValueError, match="classes is 1, as the last layer's width is; give classes="):
        gp_predict(Serial(Dense(8), Relu(), Dense(1)), X_L, Y_L, X_U)


def test_leave_one_out_leaves_each_out(net, caplog):
    theta = infinite_ntk(counterpart(net), X_L)
    want = []
    for i in range(L):
        rest = [k for k in range(L) if k != i]
        want.append(regression(theta[[i]][:, rest], theta[rest][:, rest], Y_LC[rest])[0])
    assert_close(gp_leave_one_out(theta, Y_LC, RIDGE), torch.stack(want), rtol=1e-7, atol=1e-9)
    hits = float((torch.stack(want).argmax(1) == Y_L).double().mean())
    with caplog.at_level(logging.INFO, "foretaste"):
        q = ask(net, "gp")
    assert q.info["leave_one_out_accuracy"] == hits
    empty = query(net, None, None, X_U, strategy="gp", batch_size=2)
    assert math.isnan(empty.info["leave_one_out_accuracy"])
    assert f"gp: accuracy {hits:.3f} on the 8 labelled points, each left out in turn" in caplog.messages


def test_gp_is_kernel_ridge_and_reads_digits():
    """scikit-learn's ridge regression on the same kernel; a trained MLP is right on nine of ten after 100 labels."""
    data, order = digits(), torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    x, y = data.x[order].double(), data.y[order]
    net = MLP(64, (256, 256))
    f = gp_predict(net, x[:100], y[:100], x[100:600], ridge=0.01)
    theta = infinite_ntk(counterpart(net), x[:600]).numpy()
    ridge = KernelRidge(alpha=0.01, kernel="precomputed").fit(theta[:100, :100], F.one_hot(y[:100]).numpy() - 0.1)
    assert_close(f, torch.from_numpy(ridge.predict(theta[100:, :100])) + 0.1, rtol=1e-6, atol=1e-8)
    assert float((f.argmax(1) == y[100:600]).double().mean()) > 0.8
