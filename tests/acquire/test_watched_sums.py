"""The one pass over S: held against loops, through the scores that use it, and on a GPU against its plain twin."""

import math
from collections.abc import Callable
from importlib import import_module

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from benchmarks.picks import pick_batch, synthetic_state
from cases import CASES, Case
from foretaste.acquire import change, find_strategy, gain, mlmoc, variance, watched_sums
from foretaste.acquire.watched_sums import SumTerm
from foretaste.lookahead import State, factors, from_kernels
from foretaste.lookahead.dense import DenseState
from foretaste.pick import select
from foretaste.pick.select import Batch, Oracle, best_rank, find_spent, pick

gain_module = import_module("foretaste.acquire.gain")
change_module = import_module("foretaste.acquire.change")
variance_module = import_module("foretaste.acquire.variance")

ALL = pytest.mark.parametrize("case", [c for c in CASES if c.B == 1], ids=str)
RIDGE = 1e-3


def parts(W: int, U: int, waiting: int, device: str = "cpu", unit: float = 1.0) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(W + U + waiting)
    S_WU, F_W, F_U = (torch.randn(*n, generator=g).double() for n in ((W, U), (waiting, W), (waiting, U)))
    k_U, g_W = torch.rand(U, generator=g).double() + 0.1, 3 * torch.rand(W, generator=g).double()
    S_WU[0, 0] = 0
    return tuple(t.to(device) for t in (unit * S_WU, unit * F_W, F_U, k_U, unit * g_W))


def in_loops(S_WU: Tensor, F_W: Tensor, F_U: Tensor, term: SumTerm, k_U: Tensor, g_W: Tensor) -> Tensor:
    sums_U = []
    for j in range(S_WU.shape[1]):
        total = 0.0
        for i in range(S_WU.shape[0]):
            s = float(S_WU[i, j]) - sum(float(F_W[n, i] * F_U[n, j]) for n in range(len(F_W)))
            tau, g = abs(s) * float(k_U[j]), float(g_W[i])
            if term is SumTerm.SQUARE:
                total += s * s
            elif term is SumTerm.LENGTH:
                total += abs(s)
            elif tau > 0:
                z = g / tau
                psi = math.exp(-z * z / 2) / math.sqrt(2 * math.pi) - z * math.erfc(z / math.sqrt(2)) / 2
                total += tau * psi
        sums_U.append(total)
    return torch.tensor(sums_U, dtype=torch.float64)


@pytest.mark.parametrize("term", list(SumTerm))
@pytest.mark.parametrize("waiting", [0, 3])
def test_plain_sums_are_those_of_the_loops(term: SumTerm, waiting: int) -> None:
    S_WU, F_W, F_U, k_U, g_W = parts(13, 11, waiting)
    also = (k_U, g_W) if term is SumTerm.RISE else (None, None)
    got = watched_sums.plain_sums(S_WU, F_W, F_U, term, *also)
    assert_close(got, in_loops(S_WU, F_W, F_U, term, k_U, g_W), rtol=1e-6 if also[0] is not None else 1e-12, atol=0)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[SumTerm]:
    """Scores go the GPU's way, its kernel's twin in its place; the terms that were asked for."""
    asked: list[SumTerm] = []

    def twin(S_WU: Tensor, F_W: Tensor, F_U: Tensor, term: SumTerm, k_U: Tensor | None, g_W: Tensor | None) -> Tensor:
        assert S_WU.stride(1) == 1
        asked.append(term)
        return watched_sums.plain_sums(S_WU, F_W, F_U, term, k_U, g_W)

    monkeypatch.setattr(watched_sums, "fused_sums", twin)
    for module in (gain_module, variance_module, change_module):
        monkeypatch.setattr(module, "can_fuse_sums", lambda state: isinstance(state, DenseState) and state.B == 1)
    monkeypatch.setattr(gain_module, "WORTH_QUICK_RISE", 1)
    return asked


@ALL
@pytest.mark.parametrize("loss", ["l2", "ce"])
@pytest.mark.parametrize("wait", [0, 2, 100])
def test_scores_are_the_same_either_way(
    case: Case, loss: str, wait: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if case.regression and loss == "ce":
        pytest.skip("there is no cross-entropy of a regression")
    monkeypatch.setattr(factors, "WAITING_FACTORS", wait)
    scores: list[tuple[Callable[[State], Tensor], float]] = [(variance, 1e-9)]
    scores += [(change, 1e-9)] if case.regression else [(gain, 1e-6), (mlmoc, 1e-9)]

    def walked() -> list[Tensor]:
        state, seen = case.state(ridge=RIDGE, loss=loss), []
        for k in range(5):
            seen += [fn(state) for fn, _ in scores]
            state = state.condition(k, case.label(k) if k % 2 else None)
        return seen

    want = walked()
    asked = request.getfixturevalue("as_on_a_gpu")
    for n, (got, expected) in enumerate(zip(walked(), want, strict=True)):
        assert_close(got, expected, rtol=scores[n % len(scores)][1], atol=0)
    assert asked.count(SumTerm.SQUARE) == 5
    assert asked.count(SumTerm.RISE) == (0 if case.regression else 5)
    # mlmoc needs r where it measures from f and that is not the mean, and softmax outputs under cross-entropy.
    lengths = 5 if case.regression or case.L == 0 else 4
    assert asked.count(SumTerm.LENGTH) == (lengths if loss == "l2" else 0)


def test_what_is_too_faint_for_float32_is_done_again(as_on_a_gpu: list[SumTerm]) -> None:
    """A far gap for everyone: every term is below float32's reach, and the ranking is still that of float64."""
    state, _ = synthetic_state(20, 60, 4, "cpu", 0)
    for j in (3, 4):
        state = state.condition(j)
    for scale in (1e-3, 1e-4, 1e-5):
        got = gain(state, scale=scale)
        with pytest.MonkeyPatch.context() as m:
            m.setattr(gain_module, "WORTH_QUICK_RISE", 2**20)
            want = gain(state, scale=scale)
        # Just above FAINT z is near 10, and g, τ and g/τ each rounded to 6e-8 make 3 z² 6e-8 of an exponential.
        assert_close(got, want, rtol=1.8e-5, atol=0)
        assert want.isneginf().sum() == 2
    assert (want.nan_to_num(neginf=1.0) < 1e-30).any(), "or nothing was faint"


@pytest.mark.parametrize("select", ["greedy", "sequential"])
def test_picks_are_those_of_float64(select: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, y_U = synthetic_state(20, 400, 4, "cpu", 0)
    exact = pick_batch(state, y_U, "gain", select, 60, 0).picked
    monkeypatch.setattr(gain_module, "WORTH_QUICK_RISE", 1)
    assert pick_batch(state, y_U, "gain", select, 60, 0).picked == exact


def test_the_best_is_not_shut_and_among_equals_the_first_by_lot() -> None:
    g = torch.Generator().manual_seed(0)
    for _ in range(200):
        scores_U = torch.randint(0, 3, (8,), generator=g).double()
        scores_U[scores_U == 2] = -torch.inf
        shut_U = torch.rand(8, generator=g) < torch.rand((), generator=g)
        rank_U = torch.randperm(8, generator=g)
        among = [(-float(scores_U[j]), int(rank_U[j])) for j in range(8) if not shut_U[j]]
        assert best_rank(scores_U, shut_U, rank_U) == (min(among)[1] if among else 8)


@pytest.mark.parametrize("kind", [ConnectionError, KeyboardInterrupt])
@pytest.mark.parametrize("after", [0, 3])
def test_what_an_oracle_answered_before_it_raised_is_kept(kind: type[BaseException], after: int) -> None:
    state, y_U = synthetic_state(20, 60, 4, "cpu", 0)
    whole = pick_batch(state, y_U, "gain", "sequential", 5, 0).picked
    asked: list[int] = []

    def ask(j: int) -> int:
        if len(asked) == after:
            raise kind("gone")
        asked.append(j)
        return y_U[j]

    with pytest.raises(kind, match="gone") as caught:
        pick(find_strategy("gain"), state, five(), select="sequential", oracle=Oracle(ask))
    answered = [(j, y_U[j]) for j in whole[:after]]
    assert caught.value.answered == answered  # type: ignore[attr-defined]
    notes = getattr(caught.value, "__notes__", [])
    assert (str(answered) in "".join(notes)) if after else not notes


def five() -> Batch:
    return Batch(5, torch.Generator().manual_seed(0))


def test_a_refused_answer_is_not_among_those_kept() -> None:
    state, _ = synthetic_state(20, 60, 4, "cpu", 0)
    answers = iter([1, 2, 7])
    with pytest.raises(ValueError, match="outside the 4 classes") as caught:
        pick(find_strategy("gain"), state, five(), select="sequential", oracle=Oracle(lambda j: next(answers)))
    assert [y for _, y in caught.value.answered] == [1, 2]  # type: ignore[attr-defined]
    assert len(caught.value.__notes__) == 1


def test_gaps_of_a_mean_that_was_written_to_are_found_anew() -> None:
    mean_WC = torch.tensor([[0.0, 1.0, 3.0], [2.0, 2.0, 0.0]]).double()
    assert gain_module._gaps(mean_WC) == (2.0, gain_module._gaps(mean_WC)[1])
    assert gain_module._gaps(mean_WC)[1] is gain_module._gaps(mean_WC)[1], "found once"
    mean_WC[0, 2] = 5.0
    assert gain_module._gaps(mean_WC)[0] == 4.0
    assert gain_module._gaps(mean_WC)[1].tolist() == [1.0, 1e-30]
    with torch.inference_mode():
        assert gain_module._gaps(mean_WC.clone())[0] == 4.0


def test_taken_and_variance_carried_along_are_those_summed_anew() -> None:
    case = next(c for c in CASES if c.B == 1)
    state = case.state(ridge=RIDGE)
    for j in (4, 1, 3):
        state = state.condition(j)
    state = state.release(1).condition(2).condition(5)
    anew = case.state(ridge=RIDGE)
    for j in (4, 3, 2, 5):
        anew = anew.condition(j)
    assert_close(state.variance_blocks, anew.variance_blocks)
    assert torch.equal(state.taken, anew.taken)
    assert state.taken.nonzero()[:, 0].tolist() == [2, 3, 4, 5]
    assert not case.state(ridge=RIDGE).taken.any()


def test_a_candidate_without_variance_is_refused_either_way(as_on_a_gpu: list[SumTerm]) -> None:
    """Θ is not positive definite: S_jj + λ < 0 at one candidate."""
    theta = torch.eye(6).double()
    theta[4, 4] = -0.5
    f = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()
    empty = theta[:0]
    state = from_kernels(empty[:, :0], None, empty.T, theta, None, f[:0], None, f, [], ridge=0.1)
    with pytest.raises(ValueError, match=r"S_jj \+ λ is -4.0e-01 at candidate 4"):
        gain(state)
    assert as_on_a_gpu == [SumTerm.RISE]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("term", list(SumTerm))
@pytest.mark.parametrize("sizes", [(1, 1, 0), (37, 150, 1), (128, 128, 2), (1000, 1300, 9)], ids=str)
@pytest.mark.parametrize("unit", [1e-20, 1.0])
def test_the_kernel_is_its_twin(term: SumTerm, sizes: tuple[int, int, int], unit: float) -> None:
    S_WU, F_W, F_U, k_U, g_W = parts(*sizes, "cuda", unit)
    if term is SumTerm.RISE:
        k_U, g_W = k_U / unit, g_W / unit
    also = (k_U, g_W) if term is SumTerm.RISE else (None, None)
    rtol = 1e-6 if term is SumTerm.RISE else 1e-12
    assert_close(
        watched_sums.fused_sums(S_WU, F_W, F_U, term, *also),
        watched_sums.plain_sums(S_WU, F_W, F_U, term, *also),
        rtol=rtol,
        atol=0,
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["gain", "variance", "mlmoc"])
@pytest.mark.parametrize("select", ["greedy", "sequential"])
def test_a_batch_on_a_gpu_is_that_of_float64_on_a_cpu(name: str, select: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched_sums.triton is not None, "torch for CUDA comes with Triton"
    on_gpu, on_cpu = (synthetic_state(50, 1200, 10, device, 0) for device in ("cuda", "cpu"))
    assert watched_sums.can_fuse_sums(on_gpu[0])
    quick = pick_batch(*on_gpu, name, select, 40, 0).picked
    monkeypatch.setattr(gain_module, "WORTH_QUICK_RISE", 2**40)
    assert pick_batch(*on_cpu, name, select, 40, 0).picked == quick
    scores = [find_strategy(name).fn(state).cpu() for state, _ in (on_gpu, on_cpu)]
    assert_close(*scores, rtol=2e-6, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("U", [1, 7, 1024, 3000])
def test_twins_marked_at_once_are_those_of_the_plain_way(U: int) -> None:
    x = torch.randn(U, 8, generator=torch.Generator().manual_seed(U)).double()
    x[U // 2 :] = x[: U - U // 2].clone()  # copies
    x[U // 3] = 0
    x = x.cuda()
    f = torch.zeros(U, 3).double().cuda()
    none = x.new_empty(0, U)
    state: State = from_kernels(none[:, :0], None, none.T, x @ x.T, None, f[:0], None, f, [], ridge=1e-3)
    for j in (U - 1, U // 4):
        before, state = state, state.condition(j)
        want = find_spent(state, before, j)
        got = torch.zeros(U, dtype=torch.bool, device="cuda")
        got[0] = True  # what is set stays
        want[0] = True
        select._mark_spent(got, state, before, j)
        assert torch.equal(got, want)
    assert U < 7 or 2 <= int(got.sum()) < U
