"""The contract test offered to third parties: it passes what keeps the contract, and names a broken clause."""

import pytest
import torch

from foretaste import acquire
from foretaste.testing import check_acquisition


@pytest.mark.parametrize(
    "name",
    ["cover", "mlmoc", "emoc", "eer", "flips", "gain", "variance", "epig", "entropy", "margin", "least_confidence"],
)
def test_ours_keep_it(name):
    check_acquisition(getattr(acquire, name))


@pytest.mark.parametrize("name", ["variance", "epig", "change"])
def test_ours_keep_it_in_regression(name):
    check_acquisition(getattr(acquire, name), regression=True)


def variance(state):
    return torch.cat([(S_Wu**2).sum(0) for _, S_Wu in state.blocks()]) / state.u


def test_a_function_of_ones_own_keeps_it():
    check_acquisition(variance)


def test_a_watched_set_is_not_the_pool():
    def blind(state):
        return state.mean.amax(1)

    with pytest.raises(AssertionError, match=r"shape: returned \(5,\); expected a tensor \(11,\).*watched set"):
        check_acquisition(blind)


def broken(change):
    return lambda state: change(state, variance(state))


def inplace(state, scores):
    for _, S_Wu in state.blocks():
        S_Wu.abs_()
    return scores


@pytest.mark.parametrize(
    ("clause", "change"),
    [
        ("runs: KeyError", lambda state, scores: {}["x"]),
        ("shape: returned list", lambda state, scores: scores.tolist()),
        ("shape: returned", lambda state, scores: scores[:, None]),
        ("finite: candidate 4", lambda state, scores: scores.index_fill(0, torch.tensor([4]), float("nan"))),
        ("finite: candidate 2", lambda state, scores: scores.index_fill(0, torch.tensor([2]), -torch.inf)),
        ("deterministic", lambda state, scores: scores + torch.rand(())),
        ("pure", inplace),
        ("duplicates", lambda state, scores: scores + torch.arange(state.U)),
        ("permutation", lambda state, scores: scores + scores[0]),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_each_clause_is_named(clause, change):
    with pytest.raises(AssertionError, match=clause):
        check_acquisition(broken(change))
