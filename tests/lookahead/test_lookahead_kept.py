"""Kept labels: any order, relabelled, undone, on their way; each equals having been taught so from the start."""

import gc
import itertools
import weakref
from functools import partial

import pytest
import torch
from torch import Tensor

import oracles
from cases import CASES, Case
from foretaste.lookahead import State, from_kernels, linearize

RIDGE = 1e-3
assert_close = partial(torch.testing.assert_close, rtol=1e-8, atol=1e-8)
ALL = pytest.mark.parametrize("case", CASES, ids=str)
METHODS = pytest.mark.parametrize("method", ["dense", "direct"])


def whole(state: State) -> Tensor:
    return torch.cat([S for _, S in state.blocks()], 1)


def same(a: State, b: State) -> None:
    assert_close(a.mean, b.mean)
    assert_close(a.pool_mean, b.pool_mean)
    assert_close(whole(a), whole(b))
    assert_close(a.u, b.u)
    assert_close(a.watched_variance, b.watched_variance)
    assert torch.equal(a.taken, b.taken)


def teach(state: State, case: Case, js: tuple[int, ...]) -> State:
    for j in js:
        state = state.condition(j, case.label(j))
    return state


@ALL
@METHODS
def test_any_order_is_linearizing_on_the_larger_set(case: Case, method: str) -> None:
    """The larger set is made anew with the same network and ridge, its kernel too."""
    js = (4, 0, 2)
    labels = {j: case.label(j) for j in js}
    x, y = case.plus(labels)
    watch = None if case.W is None and case.some is None else case.x_W
    larger = linearize(
        case.net, x, y if case.regression else y.argmax(1), case.x_U, watch=watch, output=case.output, ridge=RIDGE
    )
    for order in itertools.permutations(js):
        state = teach(case.state(method, ridge=RIDGE), case, order)
        assert_close(state.mean, case.retrained(labels, RIDGE))
        assert_close(state.mean, larger.mean)
        assert_close(state.pool_mean, larger.pool_mean)
        assert_close(whole(state), whole(larger))
        assert_close(state.u, larger.u)
        assert_close(state.lookahead(5, case.label(5)), larger.lookahead(5, case.label(5)))
        assert [j for j, _ in state.kept] == list(order)
        assert state.taken.nonzero().flatten().tolist() == sorted(js)


@ALL
@METHODS
def test_relabelling_and_undoing_leave_nothing_behind(case: Case, method: str) -> None:
    start = case.state(method, ridge=RIDGE)
    other = case.label(1) + 1.0 if case.regression else (int(case.label(1)) + 1) % case.C
    wrong = teach(start.condition(1, other), case, (3, 5))
    same(wrong.condition(1, case.label(1)), teach(start, case, (1, 3, 5)))
    same(wrong.release(1), teach(start, case, (3, 5)))
    same(wrong.release(3).release(5).release(1), start)
    same(wrong.release(3).condition(3, case.label(3)), teach(start.condition(1, other), case, (3, 5)))
    assert_close(wrong.lookahead(1, case.label(1)), teach(start, case, (1, 3, 5)).mean)
    assert start.kept == ()


@ALL
@METHODS
def test_a_label_on_its_way_shrinks_S_and_leaves_the_mean(case: Case, method: str) -> None:
    start = teach(case.state(method, ridge=RIDGE), case, (0,))
    pending = start.condition(3).condition(4, None)
    labelled = teach(start, case, (3, 4))
    assert pending.kept[1] == (3, None)
    assert_close(pending.mean, start.mean)
    assert_close(pending.pool_mean, start.pool_mean)
    assert_close(whole(pending), whole(labelled))
    assert_close(pending.u, labelled.u)
    # The mean of a later label does not pretend to know the one on its way.
    assert_close(pending.condition(2, case.label(2)).mean, teach(start, case, (2,)).mean)
    assert_close(pending.lookahead(2, case.label(2)), teach(start, case, (2,)).mean)
    same(pending.condition(4, case.label(4)).condition(3, case.label(3)), labelled)
    same(labelled.condition(3), pending.condition(4, case.label(4)))


@ALL
def test_variance_never_grows(case: Case) -> None:
    state = case.state(ridge=RIDGE)
    for j in range(case.U):
        after = state.condition(j)
        fall = torch.linalg.eigvalsh(state.variance_blocks - after.variance_blocks)
        assert fall.min() > -1e-12
        fell = state.watched_variance - after.watched_variance
        assert (fell if case.B == 1 else torch.linalg.eigvalsh(fell)).min() > -1e-12
        assert torch.linalg.eigvalsh(after.variance_blocks).min() > -1e-12
        assert float(after.variance_blocks[j].diagonal().max()) <= RIDGE
        state = after
    assert state.taken.all()


def test_a_state_is_not_changed_by_those_made_of_it() -> None:
    case = CASES[1]
    state = teach(case.state(ridge=RIDGE), case, (2,))
    before = [t.clone() for t in (state.mean, state.pool_mean, whole(state), state.u)]
    teach(state, case, (3, 4)).release(3)
    state.condition(2, 0).lookahead(6, 1)
    for a, b in zip(before, (state.mean, state.pool_mean, whole(state), state.u)):
        assert torch.equal(a, b)


def test_a_duplicate_of_a_kept_candidate_has_nothing_left_to_say() -> None:
    case = CASES[0]
    x_U = oracles.join(case.x_U, oracles.at(case.x_U, [2]))
    state = linearize(case.net, case.x_L, case.y_L, x_U)
    kept = state.condition(2, 1)
    assert_close(kept.pool_mean[2], kept.pool_mean[-1])
    assert float(kept.variance_blocks[-1]) < 2 * state.ridge
    twice = kept.condition(len(x_U) - 1, 1)
    # Two equal labels at one point are one label with half the ridge.
    S_W2 = whole(state)[:, 2]
    e_C = state.targets([1])[0] - state.pool_mean[2]
    assert_close(twice.mean, state.mean + torch.outer(S_W2 / (S_W2[2] + state.ridge / 2), e_C))


@pytest.mark.parametrize("seed", range(3))
def test_warm_start_is_cold_start(seed: int) -> None:
    """Theorem 3.1: kernel regression from f₀ on S₁, from there on S₂ ⊃ S₁, and so on, is that on the last set alone."""
    case = CASES[0]
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(14, 4, generator=g).double()
    y = torch.randn(14, 3, generator=g).double()
    theta, f_0 = case.theta(x, x), oracles.f(case.net, x)
    f_warm = f_0
    for n in (2, 3, 7, 9):
        f_warm = oracles.kernel_regression(theta[:, :n], theta[:n, :n], f_warm, f_warm[:n], y[:n], 0.0)
    assert_close(
        f_warm, oracles.kernel_regression(theta[:, :9], theta[:9, :9], f_0, f_0[:9], y[:9], 0.0), rtol=0, atol=1e-10
    )
    # and the library's: L = S₁, the rest taught one by one
    state = linearize(case.net, x[:2], y[:2], x, ridge=0.0)
    for j in range(2, 9):
        state = state.condition(j, y[j])
    assert_close(state.mean, f_warm, rtol=0, atol=1e-10)


@METHODS
def test_a_state_that_nobody_holds_is_freed_at_once(method: str) -> None:
    """Not by the garbage collector, which counts objects and does not see that one of them is a kernel."""
    case = CASES[0]
    state = teach(case.state(method, ridge=RIDGE), case, (4, 0))
    _ = state.mean
    gone = weakref.ref(state._problem)
    gc.disable()
    try:
        del state
        assert gone() is None
    finally:
        gc.enable()


def test_what_labels_leave_of_a_given_kernel_is_kept_and_the_kernel_is_not() -> None:
    g = torch.Generator().manual_seed(0)
    a = torch.randn(12, 20, generator=g, dtype=torch.float64)
    theta, f = a @ a.T, torch.zeros(12, 2, dtype=torch.float64)
    UL = theta[4:, :4].clone()
    kernel = weakref.ref(UL)
    state = from_kernels(
        theta[:4, :4], None, UL, theta[4:, 4:], None, f[:4], None, f[4:], torch.tensor([0, 1, 0, 1]), ridge=RIDGE
    )
    del UL
    first = state.lookahead(3, 1)
    assert kernel() is None
    assert torch.equal(state.lookahead(3, 1), first)


def test_a_kernel_that_cannot_be_solved_says_so_each_time() -> None:
    theta, f = torch.ones(6, 6, dtype=torch.float64), torch.zeros(6, 2, dtype=torch.float64)
    state = from_kernels(
        theta[:3, :3], None, theta[3:, :3], theta[3:, 3:], None, f[:3], None, f[3:], torch.tensor([0, 1, 0]), ridge=0
    )
    for _ in range(2):
        with pytest.raises(ValueError, match="Cholesky"):
            _ = state.mean
