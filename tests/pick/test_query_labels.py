"""Labels as users have them: text, one logit with 0 and 1, and pools that repeat what is labelled."""

import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

from foretaste import acquire
from foretaste.lookahead import linearize
from foretaste.pick import query
from foretaste.tangent.infinite import Dense, Relu, Serial
from query_cases import NET, RIDGE, X_L, X_U, Y_L, ask, network, points

SPEC = Serial(Dense(24), Relu(), Dense(3))
OPTIONS = {"naive": {"epochs": 1}, "infinite": {"spec": SPEC}, "gp": {"spec": SPEC}}
NAMES = ["ant", "bee", "cow"]
Y_TEXT = [NAMES[c] for c in Y_L]
ONE = network(C=1)
Y_TWO = torch.tensor([0, 1, 1, 0, 1, 0])
CLASSES = ["gain", "variance", "mlmoc", "emoc", "eer", "flips", "entropy", "margin", "least_confidence", "badge", "gp"]


class Explicit(nn.Module):
    """The two outputs that one logit stands for, as a user would write them."""

    def __init__(self, loss):
        super().__init__()
        self.one, self.loss = ONE, loss

    def forward(self, x):
        f = self.one(x)
        return torch.cat([0 * f if self.loss == "ce" else 1 - f, f], 1)


@pytest.mark.parametrize("y_L", [Y_TEXT, tuple(Y_TEXT), np.array(Y_TEXT), np.array(Y_TEXT, dtype=object)])
@pytest.mark.parametrize("strategy", ["gain", "naive", "infinite"])
def test_text_labels_are_classes(y_L, strategy):
    options = OPTIONS.get(strategy)
    want = ask(strategy=strategy, options=options)
    got = query(NET, X_L, y_L, X_U, ridge=RIDGE, batch_size=5, strategy=strategy, options=options)
    assert torch.equal(got.scores, want.scores)
    assert got.indices.tolist() == want.indices.tolist()
    assert got.info["classes"] == NAMES


def test_an_oracle_answers_in_text():
    settings = {"ridge": RIDGE, "batch_size": 5, "select": "sequential"}
    said = query(NET, X_L, Y_TEXT, X_U, oracle=lambda j: NAMES[j % 3], **settings)
    ids = ask(select="sequential", oracle=lambda j: j % 3)
    assert said.indices.tolist() == ids.indices.tolist()
    assert said.labels == [NAMES[j % 3] for j in said.indices]
    order = ["cow", "ant", "bee"]
    named = query(NET, None, None, X_U, classes=order, oracle=lambda j: "bee", **settings)
    numbered = query(NET, None, None, X_U, oracle=lambda j: 2, **settings)
    assert named.indices.tolist() == numbered.indices.tolist()
    assert named.labels == ["bee"] * 5
    state = linearize(NET, X_L, Y_TEXT, X_U, ridge=RIDGE)
    assert torch.equal(state.lookahead(3, "bee"), state.lookahead(3, 1))


def test_text_that_does_not_fit():
    with pytest.raises(ValueError, match=r"2 different labels \(ant, bee\) and the network has 3 outputs; give"):
        query(NET, X_L, ["ant", "bee"] * 3, X_U)
    q = query(NET, X_L, ["ant", "bee"] * 3, X_U, classes=NAMES, batch_size=2, ridge=RIDGE)
    assert q.info["classes"] == NAMES
    with pytest.raises(ValueError, match="unknown class 'bea'; did you mean 'bee'"):
        query(NET, X_L, ["ant", "bea"] * 3, X_U, classes=NAMES)
    with pytest.raises(ValueError, match="classes has 2 names and the network has 3 outputs"):
        query(NET, X_L, Y_L, X_U, classes=["ant", "bee"])
    with pytest.raises(TypeError, match="expected a list of names"):
        query(NET, X_L, Y_L, X_U, classes="abc")
    with pytest.raises(ValueError, match="y holds text, such as 'bee'; give classes="):
        linearize(NET, X_L, Y_L, X_U, ridge=RIDGE).condition(0, "bee")


@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("strategy", CLASSES)
def test_one_logit_with_two_classes_is_a_network_of_two_outputs(strategy, loss):
    """Held against the explicit network: the sum of (0, f) under cross-entropy, the second output of (1 − f, f)."""
    output = "sum" if loss == "ce" else 1
    shared = {"spec": Serial(Dense(24), Relu(), Dense(1))} if strategy == "gp" else None
    options = {"layer": "one.2"} if strategy == "badge" else shared
    want = query(
        Explicit(loss).eval(), X_L, Y_TWO, X_U, strategy=strategy, loss=loss, output=output, ridge=RIDGE, batch_size=5,
        options=options,
    )  # fmt: skip
    got = query(ONE, X_L, Y_TWO, X_U, strategy=strategy, loss=loss, ridge=RIDGE, batch_size=5, options=shared)
    torch.testing.assert_close(got.scores, want.scores, rtol=1e-9, atol=1e-12)
    assert got.indices.tolist() == want.indices.tolist()
    assert "two classes" in got.info["binary"]


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_one_logit_moves_as_its_own_loss_has_it(loss):
    """Squared loss: regression on 0/1. Cross-entropy: z = m + s (y − σ(z)), solved by bisection on the logit itself."""
    state = linearize(ONE, X_L, Y_TWO, X_U, loss=loss, ridge=RIDGE)
    j = 4
    f = state.lookahead(j, 1)
    if loss == "l2":
        want = linearize(ONE, X_L, Y_TWO.double(), X_U, ridge=RIDGE).lookahead(j, 1.0)[:, 0]
        torch.testing.assert_close(f[:, 1], want, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(f.sum(1), torch.ones(25).double())
        return
    m, s = float(state.pool_net[j, 1]), 2 * float(state.variance_blocks[j])
    low, high = m, m + s
    for _ in range(200):
        z = (low + high) / 2
        low, high = (z, high) if z < m + s * (1 - 1 / (1 + math.exp(-z))) else (low, z)
    assert float(f[j, 1] - f[j, 0]) == pytest.approx(z, abs=1e-8)


@pytest.mark.parametrize("y", [Y_TWO.bool(), Y_TWO.tolist(), ["no" if c == 0 else "yes" for c in Y_TWO]])
def test_two_classes_in_all_their_forms(y):
    want = query(ONE, X_L, Y_TWO, X_U, ridge=RIDGE, batch_size=5)
    assert torch.equal(query(ONE, X_L, y, X_U, ridge=RIDGE, batch_size=5).scores, want.scores)
    ce = {"loss": "ce", "ridge": RIDGE, "batch_size": 5}
    by_float = query(ONE, X_L, Y_TWO.double(), X_U, select="sequential", oracle=lambda j: float(j % 2), **ce)
    by_id = query(ONE, X_L, Y_TWO, X_U, select="sequential", oracle=lambda j: bool(j % 2), **ce)
    assert by_float.indices.tolist() == by_id.indices.tolist()


def test_params_of_one_logit_are_named_as_before():
    names = ["2.weight", "2.bias"]
    by_name = query(ONE, X_L, Y_TWO, X_U, ridge=RIDGE, batch_size=5, params=names)
    by_rule = query(ONE, X_L, Y_TWO, X_U, ridge=RIDGE, batch_size=5, params=lambda name: name.startswith("2"))
    assert torch.equal(by_name.scores, by_rule.scores)
    assert not torch.equal(by_name.scores, query(ONE, X_L, Y_TWO, X_U, ridge=RIDGE, batch_size=5).scores)


def test_python_floats_keep_their_digits():
    """A time stamp in float32 is wrong by up to a minute."""
    one, times = network(C=1), [1763244000.25, 1763244030.5, 1763244061.75]
    state = linearize(one, X_L[:3], times, X_U, ridge=RIDGE)
    assert state.targets(times)[:, 0].tolist() == times
    assert state.condition(4, times[0] + 7.125).kept[0][1].tolist() == [times[0] + 7.125]
    rows = [[0.1, 0.9, 0.0], [0.2, 0.7, 0.1]]
    assert linearize(NET, X_L[:2], rows, X_U, ridge=RIDGE).targets(rows).tolist() == rows


def test_floats_with_one_output_stay_regression():
    with pytest.raises(ValueError, match=r"'cover' needs classes.*use one of.*variance"):
        query(ONE, X_L, Y_TWO.double(), X_U)
    with pytest.raises(ValueError, match=r"integers from 0 to 2.*one output tells two classes apart"):
        query(ONE, X_L, Y_L, X_U)
    with pytest.raises(ValueError, match="is for regression"):
        query(ONE, X_L, Y_TWO, X_U, strategy="change")


@pytest.mark.parametrize("strategy", ["gain", "entropy", "random", "badge", "naive", acquire.margin])
def test_more_than_the_pool_takes_the_pool_and_warns(strategy, caplog):
    options = OPTIONS.get(strategy)
    with caplog.at_level(logging.WARNING, "foretaste"):
        q = query(NET, X_L, Y_L, X_U[:7], strategy=strategy, options=options, batch_size=20, ridge=RIDGE)
    assert sorted(q.indices.tolist()) == list(range(7))
    assert "batch_size is 20 and the pool has 7 points; all of it is picked" in caplog.text


def test_a_loop_ends_without_an_error():
    pool, rounds = list(range(25)), []
    while pool:
        q = query(NET, X_L, Y_L, X_U[pool], ids=pool, strategy="margin", batch_size=10, watch=12)
        pool = [i for i in pool if i not in q.ids]
        rounds.append(len(q.ids))
    assert rounds == [10, 10, 5]


def test_more_watched_points_than_the_pool_has_watch_all_of_it(caplog):
    with caplog.at_level(logging.WARNING, "foretaste"):
        q = ask(watch=26)
    assert "watch is 26 and the pool has 25 points; all of it is watched" in caplog.text
    assert torch.equal(q.scores, ask().scores)
    assert q.info["watched"] == 25


REPEATED = torch.cat([X_L[:3], points(6, 7), X_L[4:5]])  # 0, 1, 2 and 9 are labelled
STRATEGIES = ["random", "badge", "entropy", "gain", "mlmoc", "naive", "gp", "infinite"]


@pytest.mark.parametrize("select", ["auto", "top"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_labelled_points_in_the_pool_come_last(strategy, select):
    if select == "top" and acquire.find_strategy(strategy).picks:
        select = "auto"
    options = OPTIONS.get(strategy)
    for seed in range(3):
        settings = {"strategy": strategy, "select": select, "options": options, "seed": seed}
        q = query(NET, X_L, Y_L, REPEATED, batch_size=6, ridge=RIDGE, **settings)
        assert sorted(q.indices.tolist()) == [3, 4, 5, 6, 7, 8]
        assert torch.isinf(q.scores[[0, 1, 2, 9]]).all()
    every = query(NET, X_L, Y_L, REPEATED, batch_size=10, ridge=RIDGE, **settings)
    assert sorted(every.indices.tolist()) == list(range(10))
    assert set(every.indices[:6].tolist()) == {3, 4, 5, 6, 7, 8}
    only = query(NET, X_L, Y_L, X_L[:4], batch_size=2, ridge=RIDGE, **settings)
    assert len(only) == 2


def test_copies_in_a_dict_and_of_zero():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = NET

        def forward(self, x, n):
            return self.net(x) + 0 * n[:, None]

    x_L, x_U = X_L.clone(), torch.cat([X_L, X_L, points(3, 7)])
    x_L[0], x_U[0] = 0.0, -0.0
    n_L, n_U = torch.arange(6), torch.cat([torch.arange(6), torch.arange(6) + 1, torch.arange(3)])
    q = query(Net().eval(), {"x": x_L, "n": n_L}, Y_L, {"x": x_U, "n": n_U}, strategy="random", batch_size=9)
    assert sorted(q.indices.tolist()) == list(range(6, 15))


def test_the_last_answer_is_checked_as_the_others_are():
    asked = []

    def oracle(j):
        asked.append(j)
        return 99 if len(asked) == 3 else 0

    with pytest.raises(ValueError, match="99") as e:
        query(NET, X_L, Y_L, points(9, 3), select="sequential", strategy="gain", batch_size=3, oracle=oracle)
    assert [j for j, _ in e.value.answered] == asked[:2]
