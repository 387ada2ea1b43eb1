"""From scores to a batch (Eq. 1): all at once, or one by one with each pick conditioned on. And which points to avoid.

A batch avoids two kinds of duplicates while other points are left: exact copies of labelled points (copies.py), and
candidates that a pick has made uninformative.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import Coverage, Strategy, StudyHints, pseudo_labels, register
from foretaste.lookahead import State
from foretaste.pick.herding import cover_greedily
from foretaste.pick.request import Request

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch: plain torch is used
    triton = None

ScoreFunction = Callable[[State], Tensor]
AskOracle = Callable[[int], Any]

# --- picks by score ---


@dataclass
class ProgressCounter:
    """The caller's ``progress(done, total)``, and whether it was ever called."""

    report: Callable[[int, int], object] | None = None
    called: bool = False

    def __call__(self, done: int, total: int) -> None:
        self.called = True
        if self.report is not None:
            self.report(done, total)

    def count_all(self, total: int) -> None:
        """Report every pick at once."""
        for done in range(1, total + 1):
            self(done, total)


@dataclass
class Picked:
    """A batch: positions in the pool, the oracle's answers, the first scores, and the time it took.

    ``at`` are the positions of the candidates as the caller counts them, where those differ.
    """

    indices: list[int] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    scores_U: Tensor | None = None
    seconds: dict[str, float] = field(default_factory=lambda: {"score": 0.0, "select": 0.0})
    at: Sequence[int] | None = None

    @property
    def answered(self) -> list[tuple[int, Any]]:
        return [(j if self.at is None else self.at[j], y) for j, y in zip(self.indices, self.labels)]


def pick_top(
    state: State,
    score: ScoreFunction,
    batch_size: int,
    generator: torch.Generator,
    progress: ProgressCounter,
    copies_U: Tensor | None = None,
) -> Picked:
    """The ``batch_size`` highest scores; those of ``copies_U`` come last."""
    got = Picked()
    got.scores_U = _timed_scores(got, score, state)
    start = time.perf_counter()
    ranked_U = highest_scores(got.scores_U, state.U, generator)
    if copies_U is not None:
        last_U = copies_U[ranked_U]
        ranked_U = torch.cat([ranked_U[~last_U], ranked_U[last_U]])
    got.indices = ranked_U[:batch_size].tolist()
    got.seconds["select"] += time.perf_counter() - start
    progress.count_all(batch_size)
    return got


def pick_each(
    state: State,
    score: ScoreFunction,
    select: str,
    batch_size: int,
    generator: torch.Generator,
    progress: ProgressCounter,
    ask: AskOracle | None = None,
    copies_U: Tensor | None = None,
    read: Callable[[Any], Any] | None = None,
    at: Sequence[int] | None = None,
) -> Picked:
    """One by one, each pick conditioned on before the next scores. Fewer only if the oracle skips the rest.

    "greedy": the label is unknown, so S shrinks and the mean stays. "fantasy": the likeliest label is kept.
    "sequential": the answer of ``ask`` is kept; None skips the point, and it does not count. Any exception on the way,
    of the oracle or a KeyboardInterrupt, carries the answers so far: ``answered``, a list of (position, label), and a
    note. ``copies_U`` (bool, on the CPU) are taken only when nothing else is left. ``read`` makes of an answer a label
    of the state; ``at``: as in ``Picked``.
    """
    got = Picked(at=at)
    try:
        _pick_each(got, state, score, select, batch_size, generator, progress, ask, copies_U, read)
    except BaseException as e:
        if ask is not None:
            _add_answers(e, got)
        raise
    return got


def _pick_each(
    got: Picked,
    state: State,
    score: ScoreFunction,
    select: str,
    batch_size: int,
    generator: torch.Generator,
    progress: ProgressCounter,
    ask: AskOracle | None,
    copies_U: Tensor | None,
    read: Callable[[Any], Any] | None,
) -> None:
    rank_U = torch.randperm(state.U, generator=generator)
    order, rank_U = rank_U.argsort().tolist(), rank_U.to(state.net.device)
    scores_U = got.scores_U = _timed_scores(got, score, state)
    shut = [j for j, _ in state.kept]  # picked, or skipped by the oracle. A list: reading it from a GPU would wait
    spent_U = state.taken.clone()  # those, and what is avoided while others are left
    if copies_U is not None:
        spent_U |= copies_U.to(spent_U.device)
    fresh = True  # whether others are left
    while len(got.indices) < batch_size and len(shut) < state.U:
        if (rank := best_rank(scores_U, spent_U, rank_U)) == state.U:
            fresh, spent_U = False, torch.zeros_like(spent_U)
            spent_U[shut] = True
            continue
        j = order[rank]
        shut.append(j)
        spent_U[j] = True
        if ask is not None:
            label = ask(j)
            if label is None:
                continue
            got.labels.append(label)
        start = time.perf_counter()
        more = len(got.indices) + 1 < batch_size
        if more or ask is not None:  # the last answer is kept too, because that checks it
            before, state = state, _keep_pick(state, j, select, got, read)
        got.indices.append(j)
        progress(len(got.indices), batch_size)
        if more:
            if fresh:
                _mark_spent(spent_U, state, before, j)
            got.seconds["select"] += time.perf_counter() - start
            scores_U = _timed_scores(got, score, state)


def pick_covering(
    state: State,
    coverage: Callable[[State], Coverage],
    batch_size: int,
    generator: torch.Generator,
    progress: ProgressCounter,
    info: dict[str, Any],
    copies_U: Tensor | None = None,
) -> Picked:
    """A batch grown greedily on a coverage F, lazily; those of ``copies_U`` come last. Scores are of single points."""
    got, start = Picked(), time.perf_counter()
    F = coverage(state)
    info.update(F.info)
    middle = time.perf_counter()
    others = torch.arange(state.U) if copies_U is None else (~copies_U).nonzero()[:, 0]
    at_U = others.to(F.covered_W.device)
    picks, gains = cover_greedily(
        lambda at: F.rows(at_U[at]), F.covered_W, len(others), min(batch_size, len(others)), generator,
        weight_W=F.weight_W, progress=progress,
    )  # fmt: skip
    got.indices, got.scores_U = picks.tolist(), gains
    if copies_U is not None:
        got = restore_copies(got, copies_U, batch_size, generator)
    if not progress.called:
        progress.count_all(batch_size)
    got.seconds = {"score": middle - start, "select": time.perf_counter() - middle}
    return got


def restore_copies(got: Picked, copies_U: Tensor, batch_size: int, generator: torch.Generator) -> Picked:
    """A batch of the other points, as positions in the whole pool. Copies fill what is left of it, at random."""
    others, copies = (~copies_U).nonzero()[:, 0], copies_U.nonzero()[:, 0]
    got.indices = others[got.indices].tolist()
    missing = batch_size - len(got.indices)
    got.indices += copies[torch.randperm(len(copies), generator=generator)[: max(missing, 0)]].tolist()
    if got.scores_U is not None:
        scores_U = got.scores_U.new_full((len(copies_U),), -torch.inf)
        scores_U[others.to(scores_U.device)] = got.scores_U
        got.scores_U = scores_U
    return got


def highest_scores(scores_U: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """(n,) positions of the highest scores, best first, on the CPU. Ties are broken at random."""
    rank_U = torch.randperm(len(scores_U), generator=generator)
    return rank_U[scores_U.cpu()[rank_U].argsort(descending=True, stable=True)[:n]]


def best_rank(scores_U: Tensor, shut_U: Tensor, rank_U: Tensor) -> int:
    """The rank of the highest score that is not shut, the lowest rank among equals; U if all are shut.

    Few operations and one number read: on a GPU each costs as much as the arithmetic of all.
    """
    highest = scores_U.masked_fill(shut_U, -torch.inf).max()
    return int(rank_U.masked_fill((scores_U != highest) | shut_U, len(rank_U)).min())


def _keep_pick(state: State, j: int, select: str, got: Picked, read: Callable[[Any], Any] | None) -> State:
    if select == "greedy" or (select == "fantasy" and state.C == 1):
        return state.condition(j, None)  # in regression the likeliest label is the mean itself
    if select == "fantasy":
        return state.condition(j, pseudo_labels(state)[j])
    try:
        return state.condition(j, got.labels[-1] if read is None else read(got.labels[-1]))
    except Exception as e:
        e.add_note(f"the oracle gave it for candidate {j if got.at is None else got.at[j]}; before it, {got.answered}")
        raise


def _add_answers(e: BaseException, got: Picked) -> None:
    answered = got.answered
    with suppress(AttributeError):  # an exception with slots has room for the note only
        e.answered = answered  # type: ignore[attr-defined]
    if answered and not getattr(e, "__notes__", None):
        e.add_note(f"answered before it, as (position, label): {answered}; the exception has them as .answered")


def _timed_scores(got: Picked, score: ScoreFunction, state: State) -> Tensor:
    start = time.perf_counter()
    scores_U = score(state)
    got.seconds["score"] += time.perf_counter() - start
    return scores_U


# --- picks by strategies that choose a batch themselves ---


def pick_by_strategy(how: Strategy, request: Request, settings: dict[str, Any], progress: ProgressCounter) -> Picked:
    """The strategy's own batch, checked: ``batch_size`` different positions, and scores without NaN."""
    start = time.perf_counter()
    answer = how.fn(request, **settings)
    indices, scores_U = answer if isinstance(answer, tuple) else (answer, None)
    got = Picked(
        [int(j) for j in indices], scores_U=None if scores_U is None else _checked_scores(scores_U, request.U, how)
    )
    got.seconds["select"] = time.perf_counter() - start
    wrong = [j for j in got.indices if not 0 <= j < request.U]
    if wrong or len(set(got.indices)) != len(got.indices) or len(got.indices) != request.batch_size:
        raise ValueError(
            f"strategy {how.name!r} picked {len(got.indices)} points, {len(set(got.indices))} of them different and "
            f"{len(wrong)} outside the pool; expected {request.batch_size} different positions below {request.U}"
        )
    if not progress.called:
        progress.count_all(request.batch_size)
    return got


def _checked_scores(scores_U: Tensor, U: int, how: Strategy) -> Tensor:
    scores_U = torch.as_tensor(scores_U, dtype=torch.float64)
    if scores_U.shape != (U,) or scores_U.isnan().any():
        raise ValueError(f"strategy {how.name!r} gave scores {tuple(scores_U.shape)} or NaN; expected ({U},)")
    return scores_U


@register("random", select="own", study=StudyHints(instant=True))
def random(request: Request) -> tuple[Tensor, Tensor]:
    """Random points, the baseline: the ``batch_size`` largest of U uniform draws. Costs nothing; no options."""
    draws_U = torch.rand(request.U, generator=request.generator, dtype=torch.float64)
    return draws_U.topk(request.batch_size).indices, draws_U


# --- candidates that a pick has made uninformative, whatever their score says ---
#
# Entropy does not know that a copy of a point is about to be labelled; S does. Conditioning on j lowers the variance of
# k by S_jk²/u_j, and its own by S_jj²/u_j. So the squared correlation of k with j is
#
#     ρ² = (drop_k / drop_j) (S_jj / S_kk)
#
# It is 1 for a point that the linearised network cannot move without moving j alike, however noisy labels are.

TWIN_TOLERANCE = 1e-5  # 1 − ρ²: what float32 kernels leave between two copies of a point
# Of a candidate's own variance before any label, or of the largest in the pool if that is less: S is rounding below it.
# Not of the largest alone: beside a point that is far larger than the others, all others would seem to be spent.
SPENT_VARIANCE = 1e-6
MARK_BLOCK = 1024


def find_spent(state: State, before: State, j: int) -> Tensor:
    """(U,) bool: twins of j, where ``state`` is ``before`` conditioned on j, and candidates with no variance left."""
    var_U, left_U = _total_variance(before), _total_variance(state)
    drop_U = var_U - left_U
    like_j = (drop_U * var_U[j] - drop_U[j] * var_U).abs() <= TWIN_TOLERANCE * drop_U[j] * var_U
    most_U = torch.einsum("ubb->u", state.prior_blocks).clamp_max(var_U.max())
    return like_j | (left_U <= SPENT_VARIANCE * most_U)


def _total_variance(state: State) -> Tensor:
    """tr S_jj, (U,)."""
    return torch.einsum("ubb->u", state.variance_blocks)


def _mark_spent(spent_U: Tensor, state: State, before: State, j: int) -> None:
    """``spent_U`` |= find_spent(state, before, j), in place."""
    if state.B == 1 and can_mark_fused(before.variance_blocks):
        var_U, left_U = (s.variance_blocks.reshape(-1) for s in (before, state))
        prior_U = state.prior_blocks.reshape(-1).contiguous()
        mark_spent_fused(spent_U, var_U, left_U, prior_U, j, TWIN_TOLERANCE, SPENT_VARIANCE)
    else:
        spent_U |= find_spent(state, before, j)


def can_mark_fused(var_U: Tensor) -> bool:
    return triton is not None and var_U.is_cuda and var_U.dtype == torch.float64


def mark_spent_fused(
    spent_U: Tensor, var_U: Tensor, left_U: Tensor, prior_U: Tensor, j: int, twin: float, least: float
) -> None:
    """``find_spent`` for a single-logit kernel on a GPU, in place: one launch instead of twenty.

    ``var_U`` and ``left_U`` are S_kk before and after j is taken, ``prior_U`` is Θ_kk.
    """
    U = len(var_U)
    _mark[(triton.cdiv(U, MARK_BLOCK),)](
        spent_U.view(torch.uint8), var_U, left_U, prior_U, var_U.max(), j, U, twin, least, BLOCK=MARK_BLOCK
    )  # fmt: skip


if triton is not None:

    @triton.jit(do_not_specialize=["j", "U"])
    def _mark(  # type: ignore[no-untyped-def]
        spent, var, left, prior, largest, j, U, twin: tl.constexpr, least: tl.constexpr, BLOCK: tl.constexpr
    ):
        k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = k < U
        var_k = tl.load(var + k, mask=inside, other=0.0)
        left_k = tl.load(left + k, mask=inside, other=0.0)
        var_j = tl.load(var + j)
        drop_j = var_j - tl.load(left + j)
        alike = tl.abs((var_k - left_k) * var_j - drop_j * var_k) <= twin * drop_j * var_k
        prior_k = tl.load(prior + k, mask=inside, other=0.0)
        nothing = left_k <= least * tl.minimum(prior_k, tl.load(largest))
        tl.store(spent + k, tl.full((BLOCK,), 1, tl.uint8), mask=inside & (alike | nothing))
