"""Planted errors among the first 50 of ``Learner.mistakes``: held against cleanlab, and judged in blocks."""

from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

import foretaste as ft
from foretaste.label import mistakes

POOL, L, FIRST, SEEDS = 700, 500, 50, (0, 1, 2)


@cache
def planted(seed: int) -> tuple[np.ndarray, np.ndarray, set[int], ft.Learner]:
    """Rows of digits and their labels, which of these are wrong (5 %), and a learner that was taught them."""
    (x, y), draw = load_digits(return_X_y=True), np.random.default_rng(seed)
    at = draw.permutation(len(x))[:POOL]
    x, said = x[at] / 16, y[at][:L].copy()
    bad = draw.permutation(L)[: L // 20]
    said[bad] = (said[bad] + draw.integers(1, 10, len(bad))) % 10
    labels = dict(enumerate(said.tolist()))
    learner = ft.Learner(pool=torch.tensor(x).float(), classes=10, labels=labels, fit_options={"steps": 20}, seed=seed)
    return x[:L], said, {*bad.tolist()}, learner


def found(seed: int) -> int:
    _, _, bad, learner = planted(seed)
    return len(bad & {row["id"] for row in learner.mistakes()[:FIRST]})


def test_we_find_at_least_as_many_as_cleanlab() -> None:
    rank = pytest.importorskip("cleanlab.rank")
    ours, theirs = 0, 0
    for seed in SEEDS:
        x, said, bad, _ = planted(seed)
        p = cross_val_predict(LogisticRegression(max_iter=300, tol=1e-3), x, said, cv=5, method="predict_proba")
        order = np.argsort(rank.get_label_quality_scores(said, p), kind="stable")
        theirs += len(bad & {*order[:FIRST].tolist()})
        ours += found(seed)
    assert ours >= theirs > 0


@pytest.mark.parametrize(("most", "lost"), [(250, 0), (125, 1)])
def test_blocks_find_nearly_as_many(monkeypatch: pytest.MonkeyPatch, most: int, lost: int) -> None:
    """Of the 75 errors that are planted with the three seeds."""
    whole = sum(map(found, SEEDS))
    monkeypatch.setattr(mistakes, "MOST_TOGETHER", most)
    assert sum(map(found, SEEDS)) >= whole - lost
