"""From a strategy to a batch (Eq. 1): ``pick``, for a query, a study and a learner. And which points to avoid.

By score: the highest at once, or one by one with each pick conditioned on, or grown on a coverage. A batch avoids two
kinds of duplicates while other points are left: exact copies of labelled points, and candidates that a pick has made
uninformative.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import (
    Coverage,
    ScoreBound,
    Strategy,
    StudyHints,
    cover_greedily,
    finish_scores,
    lazy_scores,
    pseudo_labels,
    register,
)
from foretaste.lookahead import State
from foretaste.pick.phases import ProgressCounter
from foretaste.pick.request import Request
from foretaste.tangent import Inputs

try:
    import triton
    import triton.language as tl
except ImportError:  # no GPU build of torch: plain torch is used
    triton = None

HASHED_COLUMNS = 64  # numbers of a point that are hashed first
HASH_CHUNK = 2**22  # numbers hashed at a time

ScoreFunction = Callable[[State], Tensor]


@dataclass(frozen=True)
class Oracle:
    """Who answers in a sequential batch.

    ask: a candidate's position -> its label; None skips the point, and it does not count.
    read: makes of an answer a label of the state. at: the positions of the candidates as the caller counts them.
    """

    ask: Callable[[int], Any]
    read: Callable[[Any], Any] = lambda label: label
    at: Sequence[int] | None = None

    def position(self, j: int) -> int:
        return j if self.at is None else self.at[j]


@dataclass
class Picked:
    """A batch: positions in the pool, the oracle's answers, the first scores, the time it took, and for ``q.info``."""

    indices: list[int] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    scores_U: Tensor | None = None
    seconds: dict[str, float] = field(default_factory=lambda: {"score": 0.0, "select": 0.0})
    info: Mapping[str, Any] = field(default_factory=dict)
    state: State | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """How many to pick, and which candidates not. Ties are broken by ``rank_U``, or at random by the generator.

    last_U: taken only when nothing else is left; closed_U: never. Both are (U,) bool on the CPU.
    equal: scores that differ by less, relatively, are ties.
    """

    n: int
    generator: torch.Generator
    last_U: Tensor | None = None
    closed_U: Tensor | None = None
    rank_U: Tensor | None = None
    equal: float = 0.0
    progress: ProgressCounter = field(default_factory=ProgressCounter)

    @property
    def others(self) -> Tensor | None:
        """The positions of the candidates that are neither last nor closed; None for all."""
        given = [mask_U for mask_U in (self.last_U, self.closed_U) if mask_U is not None]
        return (~torch.stack(given).any(0)).nonzero()[:, 0] if given else None

    def order(self, U: int) -> Tensor:
        """The candidates, in the order in which ties are broken."""
        return torch.randperm(U, generator=self.generator) if self.rank_U is None else self.rank_U.argsort()

    def put_back(self, got: Picked, others: Tensor, U: int) -> Picked:
        """Positions in ``others`` become positions in the pool. Where picks are missing, ``last_U`` fills up."""
        got.indices = others[got.indices].tolist()
        missing = self.n - len(got.indices)
        if self.last_U is not None and missing > 0:
            last = (self.last_U if self.closed_U is None else self.last_U & ~self.closed_U).nonzero()[:, 0]
            got.indices += last[torch.randperm(len(last), generator=self.generator)[:missing]].tolist()
        if got.scores_U is not None:
            scores_U = got.scores_U.new_full((U,), -torch.inf)
            scores_U[others.to(scores_U.device)] = got.scores_U
            got.scores_U = scores_U
        return got


def pick(
    how: Strategy,
    subject: State | Request,
    batch: Batch,
    *,
    select: str = "auto",
    options: Mapping[str, Any] | None = None,
    oracle: Oracle | None = None,
) -> Picked:
    """A batch by a strategy: of a state, or of a request for a strategy that picks by itself.

    options: checked already, by ``Strategy.settings``; None is the defaults. oracle: for select="sequential".
    """
    options = how.settings(None) if options is None else options
    if isinstance(subject, Request):
        return _pick_by_itself(how, subject, options, batch)
    select = how.select if select == "auto" else select
    if select == "greedy" and how.coverage is not None:
        got = _pick_covering(subject, partial(how.coverage, **options), batch)
    else:
        score = partial(scores_by, how, options)
        if select == "top":
            got = _pick_top(subject, score, batch)
        else:
            bound = None if how.bound is None or select != "greedy" else partial(how.bound, **options)
            got = _pick_each(subject, score, select, batch, oracle, bound)
        if batch.last_U is not None and got.scores_U is not None:
            got.scores_U = got.scores_U.masked_fill(batch.last_U.to(got.scores_U.device), -torch.inf)
    got.state = subject
    return got


# --- picks by score ---


def scores_by(how: Strategy, options: Mapping[str, Any], state: State) -> Tensor:
    """(U,): the scores of a strategy, checked."""
    try:
        scores_U = how.fn(state, **options)
    except RuntimeError as e:
        if state.B == 1:
            raise
        raise ValueError(
            f'strategy {how.name!r} fails with output="full", where S and u come in C × C blocks: '
            f"{str(e).splitlines()[0]}; let it handle state.B > 1, or use another output"
        ) from e
    return finish_scores(state, scores_U, how.name)


def _pick_top(state: State, score: ScoreFunction, batch: Batch) -> Picked:
    """The highest scores."""
    got = Picked()
    got.scores_U = _timed_scores(got, score, state)
    start = time.perf_counter()
    got.indices = highest(got.scores_U, batch)
    got.seconds["select"] += time.perf_counter() - start
    batch.progress.count_all(batch.n)
    return got


def highest(scores_U: Tensor, batch: Batch) -> list[int]:
    """The positions of the highest scores, best first, without what the batch avoids."""
    order_U = batch.order(len(scores_U))
    ranked_U = order_U[scores_U.cpu()[order_U].argsort(descending=True, stable=True)]
    if batch.closed_U is not None:
        ranked_U = ranked_U[~batch.closed_U[ranked_U]]
    if batch.last_U is not None:
        last_U = batch.last_U[ranked_U]
        ranked_U = torch.cat([ranked_U[~last_U], ranked_U[last_U]])
    return ranked_U[: batch.n].tolist()


def _pick_each(
    state: State,
    score: ScoreFunction,
    select: str,
    batch: Batch,
    oracle: Oracle | None,
    bound: Callable[[], ScoreBound] | None,
) -> Picked:
    """One by one, each pick conditioned on before the next scores. Fewer only if the oracle skips the rest.

    "greedy": the label is unknown, so S shrinks and the mean stays. "fantasy": the likeliest label is kept.
    "sequential": the oracle's answer is kept. Any exception on the way, of the oracle or a KeyboardInterrupt, carries
    the answers so far: ``answered``, a list of (position, label), and a note.
    """
    got = Picked()
    try:
        _grow(got, state, score, select, batch, oracle, bound)
    except BaseException as e:
        if oracle is not None:
            answered = _answered(got, oracle)
            with suppress(AttributeError):  # an exception with slots has room for the note only
                e.answered = answered  # type: ignore[attr-defined]
            if answered and not getattr(e, "__notes__", None):
                e.add_note(f"answered before it, as (position, label): {answered}; the exception has them as .answered")
        raise
    return got


def _grow(
    got: Picked,
    state: State,
    score: ScoreFunction,
    select: str,
    batch: Batch,
    oracle: Oracle | None,
    bound: Callable[[], ScoreBound] | None,
) -> None:
    rank_U = torch.randperm(state.U, generator=batch.generator) if batch.rank_U is None else batch.rank_U
    order, rank_U = rank_U.argsort().tolist(), rank_U.to(state.net.device)
    scores_U = got.scores_U = _timed_scores(got, score, state)
    lazy = lazy_scores(bound, state, scores_U, batch.n)
    shut = [j for j, _ in state.kept]  # picked, or skipped by the oracle. A list: reading it from a GPU would wait
    spent_U = state.taken.clone()  # those, and what is avoided while others are left
    if batch.closed_U is not None:
        shut = [*{*shut, *batch.closed_U.nonzero()[:, 0].tolist()}]
        spent_U |= batch.closed_U.to(spent_U.device)
    if batch.last_U is not None:
        spent_U |= batch.last_U.to(spent_U.device)
    fresh = True  # whether others are left
    while len(got.indices) < batch.n and len(shut) < state.U:
        if (rank := best_rank(scores_U, spent_U, rank_U, batch.equal)) == state.U:
            fresh, spent_U = False, torch.zeros_like(spent_U)
            spent_U[shut] = True
            if lazy is not None and got.indices:
                scores_U = lazy(state, spent_U, batch.equal)
            continue
        j = order[rank]
        shut.append(j)
        spent_U[j] = True
        if oracle is not None:
            label = oracle.ask(j)
            if label is None:
                continue
            got.labels.append(label)
        start = time.perf_counter()
        more = len(got.indices) + 1 < batch.n
        if more or oracle is not None:  # the last answer is kept too, because that checks it
            before, state = state, _keep_pick(state, j, select, got, oracle)
        got.indices.append(j)
        batch.progress(len(got.indices), batch.n)
        if more:
            if fresh:
                _mark_spent(spent_U, state, before, j)
            got.seconds["select"] += time.perf_counter() - start
            again = score if lazy is None else partial(lazy, shut_U=spent_U, equal=batch.equal)
            scores_U = _timed_scores(got, again, state)


def _pick_covering(state: State, coverage: Callable[[State], Coverage], batch: Batch) -> Picked:
    """A batch grown greedily on the coverage F of a state."""
    start = time.perf_counter()
    F = coverage(state)
    middle = time.perf_counter()
    got = pick_covering(F, state.U, batch)
    got.seconds = {"score": middle - start, "select": time.perf_counter() - middle}
    return got


def pick_covering(F: Coverage, pool_size: int, batch: Batch, near_U: Tensor | None = None) -> Picked:
    """A batch grown greedily on a coverage F, lazily. Scores are what single points would add to it.

    near_U: zeros; is filled as by ``cover_greedily``.
    """
    others, first_U = batch.others, F.first_U
    U = pool_size if others is None else len(others)
    at_U = None if others is None else others.to(F.covered_W.device)
    rank_U = batch.rank_U if batch.rank_U is None or others is None else batch.rank_U[others]
    near_u = near_U if near_U is None or at_U is None else near_U[at_U]
    picks, gains_U = cover_greedily(
        F.rows if at_U is None else lambda at: F.rows(at_U[at]), F.covered_W, U, min(batch.n, U), batch.generator,
        weight_W=F.weight_W, order_U=None if rank_U is None else rank_U.argsort(), equal=batch.equal,
        progress=batch.progress, first_U=first_U if first_U is None or at_U is None else first_U[at_U],
        look=F.look, near_U=near_u,
    )  # fmt: skip
    if near_U is not None and near_u is not None and at_U is not None:
        near_U[at_U] = near_u
    got = Picked(picks.tolist(), scores_U=gains_U, info=F.info)
    if others is not None:
        got = batch.put_back(got, others, pool_size)
    if not batch.progress.called:
        batch.progress.count_all(batch.n)
    return got


def highest_scores(scores_U: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """(n,) positions of the highest scores, best first, on the CPU. Ties are broken at random."""
    order_U = torch.randperm(len(scores_U), generator=generator)
    return order_U[scores_U.cpu()[order_U].argsort(descending=True, stable=True)[:n]]


def best_rank(scores_U: Tensor, shut_U: Tensor, rank_U: Tensor, equal: float = 0.0) -> int:
    """The rank of the highest score that is not shut, the lowest rank among equals; U if all are shut.

    Few operations and one number read: on a GPU each costs as much as the arithmetic of all.
    """
    highest = scores_U.masked_fill(shut_U, -torch.inf).max()
    lower_U = scores_U != highest
    if equal:
        lower_U &= ~(scores_U >= highest - equal * highest.abs()) | highest.isinf()
    return int(rank_U.masked_fill(lower_U | shut_U, len(rank_U)).min())


def _keep_pick(state: State, j: int, select: str, got: Picked, oracle: Oracle | None) -> State:
    if oracle is None:
        # In regression the likeliest label is the mean itself.
        return state.condition(j, pseudo_labels(state)[j] if select == "fantasy" and state.C > 1 else None)
    try:
        return state.condition(j, oracle.read(got.labels[-1]))
    except Exception as e:
        e.add_note(f"the oracle gave it for candidate {oracle.position(j)}; before it, {_answered(got, oracle)}")
        raise


def _answered(got: Picked, oracle: Oracle) -> list[tuple[int, Any]]:
    return [(oracle.position(j), y) for j, y in zip(got.indices, got.labels)]


def _timed_scores(got: Picked, score: ScoreFunction, state: State) -> Tensor:
    start = time.perf_counter()
    scores_U = score(state)
    got.seconds["score"] += time.perf_counter() - start
    return scores_U


# --- picks by strategies that choose a batch themselves ---


def _pick_by_itself(how: Strategy, whole: Request, options: Mapping[str, Any], batch: Batch) -> Picked:
    """The strategy's own batch, checked: ``batch_size`` different positions, and scores without NaN."""
    others, start = batch.others, time.perf_counter()
    request = whole if others is None else whole.restrict_to(others)
    answer = how.fn(request, **options)
    indices, scores_U = answer if isinstance(answer, tuple) else (answer, None)
    got, U = Picked([int(j) for j in indices], state=request.made), request.U
    if scores_U is not None:
        got.scores_U = torch.as_tensor(scores_U, dtype=torch.float64)
        if got.scores_U.shape != (U,) or got.scores_U.isnan().any():
            raise ValueError(f"strategy {how.name!r} gave scores {tuple(got.scores_U.shape)} or NaN; expected ({U},)")
    got.seconds["select"] = time.perf_counter() - start
    wrong = [j for j in got.indices if not 0 <= j < U]
    if wrong or len(set(got.indices)) != len(got.indices) or len(got.indices) != request.batch_size:
        raise ValueError(
            f"strategy {how.name!r} picked {len(got.indices)} points, {len(set(got.indices))} of them different and "
            f"{len(wrong)} outside the pool; expected {request.batch_size} different positions below {U}"
        )
    if not batch.progress.called:
        batch.progress.count_all(request.batch_size)
    return got if others is None else batch.put_back(got, others, whole.U)


@register("random", select="own", study=StudyHints(instant=True), pointwise=True)
def random(request: Request) -> tuple[Tensor, Tensor]:
    """Random points, the baseline: the ``batch_size`` largest of U uniform draws. Costs nothing; no options."""
    draws_U = torch.rand(request.U, generator=request.generator, dtype=torch.float64)
    return draws_U.topk(request.batch_size).indices, draws_U


# --- candidates that equal a labelled point in every number ---


def labelled_copies(x_L: Inputs | None, x_U: Inputs) -> Tensor | None:
    """(U,) bool on the CPU: candidates that equal a labelled point in every number. None if none do, or all.

    Such a point is labelled already. Costs a hash of 64 numbers of each point, and of all numbers where those agree.
    """
    copies_U = find_copies(x_L, x_U)
    return copies_U if copies_U is not None and not copies_U.all() else None


def find_copies(x_L: Inputs | None, x_U: Inputs) -> Tensor | None:
    """``labelled_copies``, also if all points are copies; None if none are."""
    parts = [] if x_L is None else _matching_parts(x_L, x_U)
    if not parts:
        return None
    parts_L, parts_U = [a for a, _ in parts], [b for _, b in parts]
    near_U = torch.isin(_hash_points(parts_U, HASHED_COLUMNS), _hash_points(parts_L, HASHED_COLUMNS)).nonzero()[:, 0]
    if not len(near_U):
        return None
    copies_U = torch.zeros(len(parts_U[0]), dtype=torch.bool)
    alike = torch.isin(_hash_points([x[near_U] for x in parts_U]), _hash_points(parts_L))
    copies_U[near_U[alike].cpu()] = True
    return copies_U if copies_U.any() else None


def _matching_parts(x_L: Inputs, x_U: Inputs) -> list[tuple[Tensor, Tensor]]:
    """The tensors of both, in pairs; empty if points of L and U cannot be equal. Other checks report wrong inputs."""
    if isinstance(x_L, Tensor) and isinstance(x_U, Tensor):
        parts = [(x_L, x_U)]
    elif isinstance(x_L, Mapping) and isinstance(x_U, Mapping) and x_L.keys() == x_U.keys():
        parts = [(x_L[k], x_U[k]) for k in sorted(x_U)]
    else:
        return []
    for a, b in parts:
        if not (a.dim() and b.dim() and len(a)) or (a.shape[1:], a.dtype, a.device) != (b.shape[1:], b.dtype, b.device):
            return []
    return parts


def _hash_points(parts: list[Tensor], most: int | None = None) -> Tensor:
    """(N,) int64: a hash of each point, of at most ``most`` numbers of each part."""
    hash_N = torch.zeros(len(parts[0]), dtype=torch.int64, device=parts[0].device)
    g = torch.Generator().manual_seed(0)
    for x in parts:
        x_ND = x.detach().flatten(1) if x.dim() > 1 else x.detach()[:, None]
        columns = torch.randperm(x_ND.shape[1], generator=g)[:most].sort().values.to(x.device)
        odd = (2 * torch.randint(2**62, (len(columns),), generator=g) + 1).to(x.device)
        step = max(1, HASH_CHUNK // max(1, len(columns)))
        for start in range(0, len(x_ND), step):
            x_nD = x_ND[start : start + step][:, columns]
            # + 0.0 makes −0.0 the same as 0.0, as they are to the network.
            bits_nD = (x_nD.double() + 0.0).view(torch.int64) if x.is_floating_point() else x_nD.long()
            hash_N[start : start + step] += ((bits_nD ^ (bits_nD >> 29)) * odd).sum(1)
    return hash_N


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
