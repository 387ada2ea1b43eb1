"""``LookAhead`` passes scikit-activeml's own template for query strategies, and its strategies pass for ours."""

import unittest
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import foretaste as ft

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pool = pytest.importorskip("skactiveml.pool")
    from skactiveml.utils import check_random_state
    from skactiveml_template.template_query_strategy import TemplateSingleAnnotatorPoolQueryStrategy

    from foretaste.connect.scikit_activeml import LookAhead, register_strategy

pytestmark = [
    pytest.mark.filterwarnings("default"),  # the template itself warns
    pytest.mark.usefixtures("_names"),  # strategies that are registered here are forgotten again
]

X = np.random.RandomState(0).randn(12, 2)
Y = np.r_[0.0, 1.0, 0.0, 1.0, np.full(8, np.nan)]


def small_net(C=2):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, C)).eval()


class LookAheadTemplate(TemplateSingleAnnotatorPoolQueryStrategy):
    strategy = "cover"

    def setUp(self):
        asked = {"strategy": self.strategy, "classes": [0, 1], "net": small_net()}
        super().setUp(LookAhead, asked, query_default_params_clf={"X": X, "y": Y})

    def test_init_param_strategy(self):
        self._test_param("init", "strategy", [("margin", None), ("mraggin", ValueError), (1, TypeError)])

    def test_init_param_classes(self):
        self._test_param("init", "classes", [([0, 1], None), ("state", ValueError), ([0], ValueError)])

    def test_init_param_net(self):
        self._test_param("init", "net", [("net", TypeError), (small_net(3), ValueError)])

    def test_init_param_loss(self):
        self._test_param("init", "loss", [("ce", None), ("l3", ValueError)])

    def test_init_param_options(self):
        self._test_param("init", "options", [(None, None), ({"colour": 1}, ValueError)])

    def test_query(self):
        for batch_size in (1, 4):
            asked = LookAhead(self.strategy, net=small_net(), random_state=0)
            picks, utilities = asked.query(X, Y, batch_size=batch_size, return_utilities=True)
            assert [int(np.nanargmax(row)) for row in utilities] == picks.tolist()
            assert picks.tolist() == ours(self.strategy, batch_size)
            assert set(picks) <= set(range(4, 12))


def ours(strategy, n):
    """The same question to ``ft.query``, with the seed that a random state of 0 draws first."""
    x = torch.tensor(X).float()
    seed = int(check_random_state(0, 9).randint(2**31))
    q = ft.query(small_net(), x[:4], [0, 1, 0, 1], x[4:], strategy=strategy, batch_size=n, seed=seed)
    return (q.indices + 4).tolist()


class TestCover(LookAheadTemplate, unittest.TestCase):
    """The default."""


class TestMargin(LookAheadTemplate, unittest.TestCase):
    """A score of outputs, the highest ones at once."""

    strategy = "margin"


class TestGain(LookAheadTemplate, unittest.TestCase):
    """A score of the posterior, one by one."""

    strategy = "gain"


class TestTypiClust(LookAheadTemplate, unittest.TestCase):
    """A strategy that picks by itself: it has no scores."""

    strategy = "typiclust"


def test_text_labels_and_points_that_are_not_in_X():
    y = np.array(["no", "yes", "no", "yes", *[""] * 8])
    asked = LookAhead(net=small_net(), missing_label="", random_state=0)
    inside = asked.query(X, y, batch_size=3)
    outside, utilities = asked.query(X, y, candidates=X[4:], batch_size=3, return_utilities=True)
    assert (outside + 4).tolist() == inside.tolist()
    assert utilities.shape == (3, 8)


def test_a_head_is_trained_where_no_network_is_given():
    picks = LookAhead("margin", random_state=0).query(X, Y, batch_size=2)
    assert LookAhead("margin", random_state=0).query(X, Y, batch_size=2).tolist() == picks.tolist()
    # Without a label it covers the points, and the network of random weights says nothing.
    nothing = np.full(12, np.nan)
    assert len(set(LookAhead("margin", random_state=0).query(X, nothing, batch_size=4))) == 4


@pytest.fixture
def trained():
    x, y = torch.tensor(X).float(), torch.tensor([0, 1, 0, 1])
    net = small_net()
    ft.fit(net, x[:4], y, loss="ce", epochs=5)
    return net, x[:4], y, x[4:]


def test_their_strategies_pass_for_ours(trained):
    register_strategy("their margin", lambda random_state: pool.UncertaintySampling("margin_sampling", random_state=0))
    register_strategy("their core-set", pool.CoreSet)
    assert ft.query(*trained, strategy="their margin", batch_size=3, loss="ce").indices.tolist() == (
        ft.query(*trained, strategy="margin", batch_size=3, loss="ce").indices.tolist()
    )
    assert ft.query(*trained, strategy="their core-set", batch_size=3).indices.tolist() == (
        ft.query(*trained, strategy="coreset", batch_size=3, options={"space": "inputs"}).indices.tolist()
    )


def test_what_a_query_lacks_is_said_at_once():
    with pytest.raises(TypeError, match="needs ensemble; give them to register_strategy"):
        register_strategy("their committee", pool.QueryByCommittee)
