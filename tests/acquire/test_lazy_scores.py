"""Greedy batches by bounds: the picks of plain greedy and of literal loops; no score is above its bound."""

from importlib import import_module

import pytest
import torch

import acquire_oracles as slow
from acquire_oracles import CASES, Case
from benchmarks.picks import synthetic_state
from foretaste.acquire import find_strategy
from foretaste.lookahead import DenseState, State
from foretaste.pick import Batch, pick

lazy_module = import_module("foretaste.acquire.lazy_scores")
variance_module = import_module("foretaste.acquire.variance")

BOUNDED = pytest.mark.parametrize("name", ["gain", "variance", "epig"])
SMALL = [c for c in CASES if not c.full and c.C > 1 and all(y is None for _, y in c.kept)]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds for every batch, with few factors waiting and few columns at a time, so that all turns are taken."""
    for setting, value in {"LAZY_PAIRS": 0, "LAZY_WAITING": 3, "LIKELY_PICKS": 2, "FIRST_SCORED": 2}.items():
        monkeypatch.setattr(lazy_module, setting, value)
    monkeypatch.setattr(variance_module, "LAZY_WAITING", 3)


def batch_of(state: State, name: str, n: int, equal: float = 0.0) -> list[int]:
    batch = Batch(n, torch.Generator().manual_seed(0), rank_U=torch.arange(state.U), equal=equal)
    return pick(find_strategy(name), state, batch, select="greedy").indices


@BOUNDED
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_picks_are_those_of_literal_loops(case: Case, name: str, eager: None) -> None:
    state, want = case.state(), list[int]()
    if name == "gain" and not case.L:
        return
    after = state
    for _ in range(6):
        scores = getattr(slow, name)(after)
        want.append(int(scores.argmax()))
        after = after.condition(want[-1])
    assert batch_of(state, name, 6) == want


@BOUNDED
def test_a_batch_after_another_of_the_same_state(name: str, eager: None) -> None:
    """The running S then has all the factors of a shorter batch, and none waits."""
    state, _ = synthetic_state(20, 60, 4, "cpu", 0)
    want = batch_of(state, name, 30)
    for n in (29, 12, 5, 30):
        assert batch_of(state, name, n) == want[:n]


@BOUNDED
@pytest.mark.parametrize("seed", range(3))
def test_picks_are_those_of_plain_greedy_on_larger_pools(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scores of ``gain`` are in float32 from 2²⁰ pairs on; below, plain greedy is exact."""
    state, _ = synthetic_state(30, 200, 5, "cpu", seed)
    monkeypatch.setattr(lazy_module, "LAZY_PAIRS", 2**40)
    want = batch_of(state, name, 100)
    monkeypatch.setattr(lazy_module, "LAZY_PAIRS", 0)
    monkeypatch.setattr(lazy_module, "LAZY_WAITING", 10)
    assert batch_of(state, name, 100) == want


@BOUNDED
@pytest.mark.parametrize("case", [*SMALL, Case("many", U=60, L=20), Case("many-ce", U=60, loss="ce", W=40)], ids=str)
def test_no_score_is_above_its_bound(case: Case, name: str, eager: None) -> None:
    state = case.state()
    if name == "gain" and not case.L:
        return
    assert isinstance(state, DenseState)
    how, g = find_strategy(name), torch.Generator().manual_seed(1)
    assert how.bound is not None
    bound = how.bound()
    for j in torch.randperm(state.U, generator=g)[:12].tolist():
        if state.taken[j]:
            continue
        state = state.condition(j)  # type: ignore[assignment]
        scores_U = how.fn(state)
        open_U = ~state.taken
        upper_U = bound.upper(state, [0, 1, 2], float(scores_U.max()))
        assert (upper_U - scores_U)[open_U].min() >= 0
        torch.testing.assert_close(bound.exact(state, open_U.nonzero()[:, 0]), scores_U[open_U], rtol=1e-5, atol=1e-12)
        if name == "variance":  # the bound is the score, but for SQUARES_ROUNDING
            torch.testing.assert_close(upper_U[open_U], scores_U[open_U], rtol=1e-5, atol=1e-7)


def test_gaps_of_zero_are_bounded_too(eager: None) -> None:
    """Two classes with the same outputs: every gap is 0, and h(τ) = 0.4 τ is below no multiple of τ²."""
    case = Case("ties", U=40, C=2)
    state = case.state()
    tied = state.mean[:, :1].expand(-1, 2).contiguous()
    state.__dict__["mean"] = tied
    bound, how = find_strategy("gain").bound, find_strategy("gain")
    assert bound is not None
    scores_U = how.fn(state)
    assert (bound().upper(state, [], float(scores_U.max())) >= scores_U).all()  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "share"), [("gain", 0.6), ("variance", 0.02), ("epig", 0.1)])
def test_few_candidates_are_scored(name: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = synthetic_state(100, 1100, 10, "cpu", 0)
    made = []
    init = lazy_module.LazyScores.__init__
    monkeypatch.setattr(lazy_module.LazyScores, "__init__", lambda self, *a: (made.append(self), init(self, *a))[1])
    batch_of(state, name, 60)
    assert made[0].scored < share * 60 * 1100


@BOUNDED
def test_ties_go_to_the_first_in_order(name: str, eager: None) -> None:
    """Scores that differ by less than ``equal`` are ties: with a large one every candidate is a tie."""
    state = Case("l2").state()
    assert (
        batch_of(state, name, 3, equal=10.0)[1:] == [j for j in range(13) if j != batch_of(state, name, 1, 10.0)[0]][:2]
    )


def test_what_float32_loses_is_below_what_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Picks beside one another leave little variance: entries that were rounded when it was large are copied anew."""
    monkeypatch.setattr(variance_module, "LAZY_WAITING", 100)
    state, _ = synthetic_state(20, 240, 4, "cpu", 0)
    bound = find_strategy("epig").bound
    assert bound is not None
    information = bound()
    near = state.prior().columns(slice(0, 1))[:, 0].argsort(descending=True)[:60].tolist()
    copied = 0
    for j in near:
        state = state.condition(j)
        assert isinstance(state, DenseState)
        information.upper(state, [], 1.0)
        S_WU = torch.cat([S for _, S in state.blocks()], 1)
        scale_WU = (state.watched_variance[:, None] * state.u).sqrt()
        off_WU = (information.S_UW.double().T - S_WU).abs() / scale_WU
        off_WU[state.watched_variance <= 1e-6 * state.watched_variance.max()] = 0.0  # known: they count nothing
        assert float(off_WU.max()) <= 4 * variance_module.STEP_ROUNDING * (information.steps + 1)
        copied += information.steps > 0 and not torch.equal(information.copied_W, state.watched_variance)
    assert copied > 20
