"""Each acquisition function against its loop, and what is said of it elsewhere."""

import math
from importlib import import_module

import pytest
import torch
from torch.testing import assert_close

import acquire_oracles as oracles
from acquire_oracles import CASES, Case
from foretaste import acquire

CLASSES = [
    "cover",
    "mlmoc",
    "emoc",
    "eer",
    "flips",
    "gain",
    "variance",
    "epig",
    "entropy",
    "margin",
    "least_confidence",
]
TIGHT = {"rtol": 1e-9, "atol": 1e-10}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_equals_its_loop(name, case):
    state = case.state()
    assert_close(getattr(acquire, name)(state), getattr(oracles, name)(state), **TIGHT)


@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[7], CASES[9]], ids=str)
@pytest.mark.parametrize("name", ["mlmoc", "emoc", "flips"])
@pytest.mark.parametrize("reference", ["net", "current"])
def test_reference(name, case, reference):
    state = case.state()
    assert_close(getattr(acquire, name)(state, reference=reference), getattr(oracles, name)(state, reference), **TIGHT)


def test_reference_is_the_net_until_a_candidate_is_taken():
    state = Case("l2").state()
    assert not torch.equal(state.net, state.mean)
    assert torch.equal(acquire.mlmoc(state), acquire.mlmoc(state, "net"))
    after = state.condition(2, 1)
    assert torch.equal(acquire.mlmoc(after), acquire.mlmoc(after, "current"))
    assert not torch.equal(acquire.mlmoc(after), acquire.mlmoc(after, "net"))


def test_mlmoc_of_eq13_from_eq11_solved_anew():
    state = Case("l2").state("direct")
    assert_close(acquire.mlmoc(state), acquire.mlmoc(Case("l2").state()), **TIGHT)
    assert_close(acquire.gain(state), acquire.gain(Case("l2").state()), **TIGHT)
    assert_close(acquire.cover(state), acquire.cover(Case("l2").state()), **TIGHT)


@pytest.mark.parametrize("case", [Case("r", C=1), Case("r", C=1, W=5), Case("r", C=1, kept=((3, 1),))], ids=str)
def test_regression(case):
    state = case.state()
    assert state.regression
    assert_close(acquire.change(state), oracles.change(state), **TIGHT)
    assert_close(acquire.variance(state), oracles.variance(state), **TIGHT)
    assert_close(acquire.epig(state), oracles.epig(state), **TIGHT)


def test_change_is_the_expected_change():
    state = Case("r", C=1).state()
    draws = torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = state.pool_mean[4, 0] + state.u[4].sqrt() * draws
    change = (oracles.S(state)[:, 4, None] / state.u[4] * (y - state.pool_mean[4, 0])).abs().sum(0)
    assert abs(float(acquire.change(state)[4] - change.mean())) < 4 * float(change.std()) / math.sqrt(len(draws))


@pytest.mark.parametrize("name", [n for n in CLASSES if n not in ("variance", "epig")])
def test_classes_are_needed(name):
    with pytest.raises(ValueError, match=f"{name} needs classes.*for regression use (variance|change)"):
        getattr(acquire, name)(Case("r", C=1).state())


def test_change_refuses_classes():
    with pytest.raises(ValueError, match=r"change is for regression.*4 outputs"):
        acquire.change(Case("l2").state())


@pytest.mark.parametrize("case", [Case("l2"), Case("watched", full=True, C=3, L=4, U=8)], ids=str)
def test_variance_is_what_a_label_removes(case):
    state = case.state()
    scores = acquire.variance(state)
    for j in range(state.U):
        before, after = (
            s.watched_variance.reshape(state.W, state.B, state.B) for s in (state, state.condition(j, None))
        )
        removed = torch.einsum("wbb->", before - after)
        assert_close(scores[j], removed, **TIGHT)


@pytest.mark.parametrize("name", CLASSES)
def test_taken_candidates_score_minus_infinity(name):
    state = Case("l2", kept=((3, 1), (5, None))).state()
    scores = getattr(acquire, name)(state)
    assert scores.dtype == torch.float64
    assert scores.isneginf().nonzero()[:, 0].tolist() == [3, 5]


def test_nan_raises_with_the_first_index():
    state = Case("l2").state()
    scores = torch.zeros(state.U, dtype=torch.float64)
    scores[[4, 9]] = math.nan
    with pytest.raises(ValueError, match="mine gives NaN for 2 candidates, first at 4"):
        acquire.finish_scores(state, scores, "mine")
    with pytest.raises(ValueError, match=r"mine returned \(13, 1\); expected a tensor \(13,\)"):
        acquire.finish_scores(state, scores[:, None], "mine")


def test_nan_of_a_taken_candidate_is_nobodys_concern():
    state = Case("l2", kept=((4, 1),)).state()
    scores = torch.zeros(state.U, dtype=torch.float64)
    scores[4] = math.nan
    assert acquire.finish_scores(state, scores, "mine")[4] == -math.inf


@pytest.mark.parametrize("case", [Case("l2"), Case("ce", loss="ce"), Case("full", full=True, C=3, L=4, U=8)], ids=str)
@pytest.mark.parametrize("name", ["cover", "mlmoc", "emoc", "eer", "flips", "gain", "variance"])
def test_width_of_blocks_changes_nothing(name, case, monkeypatch):
    from foretaste.acquire import predictions

    gain_module = import_module("foretaste.acquire.gain")

    whole = getattr(acquire, name)(case.state())
    monkeypatch.setattr(predictions, "OUTPUT_BLOCK", 70)
    monkeypatch.setattr(predictions, "CACHED_BLOCK", 40)
    monkeypatch.setattr(gain_module, "GAIN_CHUNK", 9)
    monkeypatch.setattr(import_module("foretaste.acquire.cover"), "CORRELATION_CHUNK", 30)
    assert_close(getattr(acquire, name)(case.state()), whole, rtol=1e-12, atol=1e-13)
