"""The running S: every state says the same whatever was asked of others before, between or after."""

import copy
import itertools
import math
import random
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.picks import synthetic_state, time_picks
from cases import CASES, Case
from foretaste.acquire import gain, mlmoc, variance
from foretaste.lookahead import State, factors, from_kernels
from foretaste.lookahead.dense import DenseState

gain_module = import_module("foretaste.acquire.gain")
change_module = import_module("foretaste.acquire.change")
variance_module = import_module("foretaste.acquire.variance")

RIDGE = 1e-3
assert_close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
ALL = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture(params=[0, 1, 2, 100], ids="wait {}".format, autouse=True)
def wait(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """100: the running S is never made, as it was before there was one."""
    monkeypatch.setattr(factors, "WAITING_FACTORS", request.param)
    return request.param


def conditioned(case: Case, js: tuple[int, ...]) -> Tensor:
    """S_WU − S_WK (S_KK + λI)⁻¹ S_KU, literally, from Θ by plain gradients: the kept candidates join L."""
    x, _ = case.plus(dict.fromkeys(js, 0))
    A = case.theta(x, x) + RIDGE * torch.eye(len(case.theta(x, x))).double()
    return case.theta(case.x_W, case.x_U) - case.theta(case.x_W, x) @ torch.linalg.solve(A, case.theta(x, case.x_U))


def whole(state: State, width: int | None = None) -> Tensor:
    return torch.cat([S for _, S in state.blocks(width)], 1)


def dense(state: State) -> DenseState:
    assert isinstance(state, DenseState)
    return state


@ALL
def test_a_walk_over_states_in_any_order(case: Case) -> None:
    """Conditioned, released, relabelled, gone back to, at random: each S is that of its labels alone."""
    dice = random.Random(case.name)
    states: list[State] = [case.state(ridge=RIDGE)]
    for _ in range(25):
        state = dice.choice(states[-4:] if dice.random() < 0.8 else states)
        kept = [j for j, _ in state.kept]
        if kept and dice.random() < 0.3:
            state = state.release(dice.choice(kept))
        else:
            j = dice.randrange(case.U)
            state = state.condition(j, None if dice.random() < 0.5 else case.label(j))
        states.append(state)
        for asked in (state, dice.choice(states)):
            js = tuple(j for j, _ in asked.kept)
            width = dice.choice([None, 1, 2, 5])
            got = whole(asked, width)
            assert_close(got, conditioned(case, js))
            if case.W is None and case.some is None:
                blocks = [got[j * case.B : (j + 1) * case.B, j * case.B : (j + 1) * case.B] for j in range(case.U)]
                assert_close(asked.variance_blocks, torch.stack(blocks))
    fresh = case.state(ridge=RIDGE)
    assert torch.equal(whole(states[0]), whole(fresh))


@ALL
def test_two_branches_asked_in_turn(case: Case) -> None:
    a = b = case.state(ridge=RIDGE).condition(0)
    for j in (1, 2, 3, 4):
        a, b = a.condition(j), b.condition(case.U - j if case.U - j > 4 else 5 - j)
        for state in (a, b, a, b):
            assert_close(whole(state), conditioned(case, tuple(j for j, _ in state.kept)))


@ALL
def test_blocks_taken_in_turn_and_kept_are_not_written_to(case: Case) -> None:
    """Generators of several states, each a block at a time; what they gave is looked at when all are done."""
    start = case.state(ridge=RIDGE)
    states = [start.condition(0).condition(1).condition(2)]
    states += [states[0].condition(3), states[0].condition(4).condition(3), states[0].release(1), start]
    generators = [state.blocks(2) for state in states]
    got: list[list[Tensor]] = [[] for _ in states]
    for turn in itertools.zip_longest(*generators):
        for mine, (_, S_Wu) in zip(got, turn):
            mine.append(S_Wu)
    newest = states[1].condition(5)
    whole(newest)  # may have taken all the factors of states[1]
    states.append(states[1])
    got.append([S_Wu for _, S_Wu in states[1].blocks()])
    whole(newest.condition(4))
    for state, mine in zip(states, got):
        assert_close(torch.cat(mine, 1), conditioned(case, tuple(j for j, _ in state.kept)))


def test_the_base_is_not_written_to_and_nothing_is_kept_for_it(wait: int) -> None:
    case = CASES[0]
    state = case.state(ridge=RIDGE)
    posterior = dense(state)._posterior
    before, base_WU = whole(state).clone(), posterior.solved.S_WU.clone()
    assert posterior.running.taken is None
    after = state.condition(1).condition(2).condition(3)
    assert posterior.running.taken is None, "conditioning alone needs no running S"
    whole(after)
    assert (posterior.running.taken is None) == (wait == 100)
    assert torch.equal(whole(state), before)
    assert torch.equal(posterior.solved.S_WU, base_WU)


def test_one_matrix_follows_the_newest_state(wait: int) -> None:
    """Otherwise a pick costs W·U·k: only ``WAIT`` + 1 factors may be left to take from a block."""
    case = CASES[0]
    state = case.state(ridge=RIDGE)
    running = dense(state)._posterior.running
    held = None
    for k in range(1, case.U + 1):
        state = state.condition(k - 1)
        whole(state)
        if k > wait:
            assert running.taken is not None
            assert 1 <= k - len(running.taken.js) <= max(wait, 1)
            assert held is None or running.taken.S_WU is held, "in place"
            held = running.taken.S_WU


def test_factors_are_shared_and_not_copied_at_every_label() -> None:
    state, _ = synthetic_state(10, 60, 3, "cpu", 0)
    made = set()
    for j in range(50):
        state = state.condition(j)
        made.add(dense(state)._factors.U().data_ptr())
    assert len(made) <= 4
    one, two = state.condition(50), state.condition(51)
    assert_close(whole(one.condition(51)), whole(two.condition(50)))


def test_relabelling_leaves_S_where_it_is(wait: int) -> None:
    case = CASES[0]
    state = case.state(ridge=RIDGE)
    for j in range(5):
        state = state.condition(j, 0)
    S_WU = whole(state)
    assert torch.equal(whole(state.condition(2, 1)), S_WU)
    assert torch.equal(whole(state.condition(2)), S_WU)


def test_an_interrupted_update_is_not_believed(wait: int) -> None:
    case = CASES[0]
    state = case.state(ridge=RIDGE).condition(0).condition(1).condition(2)
    whole(state)
    further = state.condition(3).condition(4).condition(5)

    class Stopped(Tensor):
        def addmm_(self, *args: Any, **kwargs: Any) -> Tensor:
            self.fill_(torch.nan)
            raise KeyboardInterrupt

    running = dense(state)._posterior.running
    assert (running.taken is None) == (wait == 100)
    if running.taken is not None:
        taken = running.taken
        running.taken = factors.TakenPosterior(taken.S_WU.as_subclass(Stopped), taken.js)
        with pytest.raises(KeyboardInterrupt):
            whole(further)
    for s in (state, further):
        assert_close(whole(s), conditioned(case, tuple(j for j, _ in s.kept)))


def test_a_lock_that_an_interrupt_left_shut_stops_no_label(wait: int) -> None:
    """Ctrl-C between taking the lock and ``try``. Labels that are kept after it waited for ever."""
    case, found = CASES[0], list[State]()
    work = threading.Thread(target=lambda: found.append(case.state(ridge=RIDGE).condition(0).condition(1)), daemon=True)
    with factors._running_lock:
        work.start()
        work.join(30)
        assert not work.is_alive()
    assert_close(whole(found[0]), conditioned(case, (0, 1)))


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
    ids=["GPU", "CPU"],
)
def test_without_memory_for_it_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, wait: int, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    case = CASES[0]
    state = case.state(ridge=RIDGE)
    for j in range(4):
        state = state.condition(j)

    def no_memory(*args: object) -> None:
        raise error

    with monkeypatch.context() as m:
        m.setattr(Tensor, "clone", no_memory)
        S_WU = whole(state)
        whole(state)
    assert_close(S_WU, conditioned(case, (0, 1, 2, 3)))
    assert len([r for r in caplog.records if "no memory" in r.message]) == (wait < 100)


def test_inside_and_outside_of_inference_mode() -> None:
    def walked(inside: bool) -> list[Tensor]:
        seen = []
        with torch.inference_mode(inside):
            state, _ = synthetic_state(10, 40, 3, "cpu", 0)
            for j in (0, 1, 2):
                state = state.condition(j)
            seen.append(whole(state))
        for j in (3, 4, 5):
            state = state.condition(j)
            seen.append(whole(state))
        with torch.inference_mode(inside):
            seen.append(whole(state.condition(6)))
        return seen

    for a, b in zip(walked(True), walked(False)):
        assert_close(a, b)


def test_threads_that_ask_different_states() -> None:
    """Whichever turn they take, none reads a matrix that another is writing to."""
    state, _ = synthetic_state(10, 120, 3, "cpu", 0)
    wants = {}
    states = []
    for start in (0, 40):
        s = state
        for j in range(start, start + 12):
            s = s.condition(j)
            states.append(s)
            wants[id(s)] = whole(s).clone()
    wrong: list[int] = []

    def ask(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(60):
            s = dice.choice(states)
            if not torch.allclose(whole(s, 7), wants[id(s)], rtol=1e-9, atol=1e-9):
                wrong.append(len(s.kept))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_deep_copy_goes_its_own_way() -> None:
    case = CASES[0]
    state = case.state(ridge=RIDGE).condition(0).condition(1).condition(2)
    whole(state)
    other = copy.deepcopy(state).condition(3)
    mine = state.condition(4)
    for s in (other, mine, other, state):
        assert_close(whole(s), conditioned(case, tuple(j for j, _ in s.kept)))


@pytest.mark.parametrize("score", [gain, mlmoc, variance])
def test_scores_do_not_depend_on_how_the_state_was_reached(score: Callable[[State], Tensor]) -> None:
    state, y_U = synthetic_state(20, 80, 4, "cpu", 0)
    js = (3, 70, 12, 44, 5, 61)
    walked = state
    for j in js:
        walked = walked.condition(j, y_U[j])
        assert torch.isneginf(score(walked)[j])
    there = state
    for j in js:
        there = there.condition(j, y_U[j])
    assert_close(score(walked), score(there), rtol=1e-8, atol=0)
    assert_close(score(walked.release(61).release(5)), score(state_of(state, y_U, js[:4])), rtol=1e-8, atol=0)


def state_of(state: State, y_U: list[int], js: tuple[int, ...]) -> State:
    for j in js:
        state = state.condition(j, y_U[j])
    return state


def test_picks_are_the_same_with_and_without(wait: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> list[tuple[str, str, tuple[int, ...]]]:
        found = time_picks(("gain", "variance"), (60,), batch_size=15, L=10, rounds=1)
        return [(r.strategy, r.select, r.picked) for r in found]

    now = rows()
    monkeypatch.setattr(factors, "WAITING_FACTORS", 100)
    assert rows() == now
    assert all(len(set(picked)) == 15 for *_, picked in now)


@pytest.mark.parametrize("chunk", [2**20, 40])
def test_scores_whichever_way_S_lies_in_memory(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain_module, "GAIN_CHUNK", chunk)
    g = torch.Generator().manual_seed(0)
    S_Wu, k_u, g_W = (torch.randn(*n, generator=g).double() for n in ((23, 17), (17,), (23,)))
    a_uC, r_WC = (torch.randn(*n, generator=g).double() for n in ((17, 3), (23, 3)))
    k_u, g_W = k_u.abs() + 0.1, g_W.abs()
    across = S_Wu.T.contiguous().T
    strided = torch.cat([S_Wu, S_Wu], 1)[:, 17:]
    z = g_W[:, None] / (S_Wu.abs() * k_u)
    psi = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * torch.special.erfc(z / math.sqrt(2)) / 2
    moves = (r_WC[:, None] + S_Wu[:, :, None] * a_uC).norm(dim=2).sum(0)
    for S in (S_Wu, across, strided, strided.T.contiguous().T):
        assert_close(variance_module.squared_sums(S), (S_Wu**2).sum(0))
        for r in (r_WC, None):
            want = moves if r is not None else (S_Wu[:, :, None] * a_uC).norm(dim=2).sum(0)
            assert_close(change_module.move_lengths(S, a_uC, r, torch.empty_like(S)), want)
        for exact in (True, False):
            got = gain_module.rises(S, k_u, g_W, exact)
            assert_close(got, (S_Wu.abs() * k_u * psi).sum(0), rtol=1e-9 if exact else 1e-6, atol=0)


def test_a_singular_kernel_without_a_ridge_says_what_to_do() -> None:
    theta = torch.ones(4, 4).double()
    f = torch.zeros(4, 2).double()

    def build(theta_LL: Tensor, ridge: float) -> Tensor:
        return from_kernels(theta_LL, None, theta, theta, None, f, None, f, [0, 1, 0, 1], ridge=ridge).mean

    with pytest.raises(ValueError, match=r"λ=0.0e\+00.*repeat others; try ridge=1.0e-06, 1e-6 of the mean diagonal"):
        build(theta, 0.0)
    assert torch.isfinite(build(theta, 1e-6)).all()
    with pytest.raises(ValueError, match=r"nothing is left of it; try ridge=None"):
        build(0 * theta, 0.0)
