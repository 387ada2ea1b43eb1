"""``ForetasteClassifier`` is an estimator of scikit-learn, and asks as modAL's learners do."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import foretaste as ft
from foretaste.connect import ForetasteClassifier

X, Y = load_iris(return_X_y=True)


@parametrize_with_checks([ForetasteClassifier(hidden=32, steps=300, random_state=0)])
def test_scikit_learn(estimator, check):
    check(estimator)


def test_query_is_that_of_the_library():
    learner = ForetasteClassifier(hidden=16, steps=200, random_state=0).fit(X[::10], Y[::10])
    at, rows = learner.query(X, 4)
    L, U = (torch.tensor(part).float() for part in (X[::10], X))
    q = ft.query(learner.net_, L, Y[::10], U, batch_size=4, loss="ce", seed=learner.seed_)
    assert at.tolist() == q.indices.tolist()
    assert np.array_equal(rows, X[at])


def test_teach_is_fit_on_all():
    names = np.array(["setosa", "versicolor", "virginica"])[Y]
    half = ForetasteClassifier(hidden=16, steps=200, random_state=0).fit(X[::20], names[::20])
    taught = clone(half).fit(X[::20], names[::20]).teach(X[5::20], names[5::20])
    both = clone(half).fit(np.r_[X[::20], X[5::20]], np.r_[names[::20], names[5::20]])
    assert np.array_equal(taught.predict_proba(X), both.predict_proba(X))
    assert set(taught.predict(X)) <= set(names)


def test_a_network_of_ones_own_is_copied_and_trained():
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    before = [p.clone() for p in net.parameters()]
    learner = ForetasteClassifier(net, steps=300, random_state=0).fit(X[::3], Y[::3])
    assert learner.score(X, Y) > 0.9
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="y has one class"):
        ForetasteClassifier().fit(X[:5], Y[:5])


def test_grid_search():
    search = GridSearchCV(ForetasteClassifier(steps=100, random_state=0), {"hidden": [4, 16]}, cv=2).fit(X, Y)
    assert search.best_params_["hidden"] in (4, 16)
