"""From scores to a batch (Eq. 1): at once, or one by one with each pick conditioned on."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import Strategy, pseudo_labels, register
from foretaste.lookahead import State
from foretaste.query.duplicates import SPENT_VARIANCE, TWIN_TOLERANCE, can_mark_fused, find_spent, mark_spent_fused
from foretaste.query.request import Request

ScoreFunction = Callable[[State], Tensor]
AskOracle = Callable[[int], Any]


@dataclass
class ProgressCounter:
    """``tell(done, total)``, and whether it was ever called."""

    tell: Callable[[int, int], object] | None = None
    told: bool = False

    def __call__(self, done: int, total: int) -> None:
        self.told = True
        if self.tell is not None:
            self.tell(done, total)

    def all(self, total: int) -> None:
        for done in range(1, total + 1):
            self(done, total)


@dataclass
class Picked:
    indices: list[int] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    scores_U: Tensor | None = None
    seconds: dict[str, float] = field(default_factory=lambda: {"score": 0.0, "select": 0.0})


def pick_top(
    state: State, score: ScoreFunction, batch_size: int, generator: torch.Generator, progress: ProgressCounter
) -> Picked:
    """The ``batch_size`` highest scores."""
    got = Picked()
    got.scores_U = _timed_scores(got, score, state)
    start = time.perf_counter()
    got.indices = highest_scores(got.scores_U, batch_size, generator).tolist()
    got.seconds["select"] += time.perf_counter() - start
    progress.all(batch_size)
    return got


def pick_each(
    state: State,
    score: ScoreFunction,
    select: str,
    batch_size: int,
    generator: torch.Generator,
    progress: ProgressCounter,
    ask: AskOracle | None = None,
) -> Picked:
    """One by one, each pick conditioned on before the next scores; fewer only where the oracle skipped the rest.

    "greedy": its label is unknown, S shrinks and the mean stays. "fantasy": its likeliest label is kept. "sequential":
    the answer of ``ask`` is kept; None passes the point over, and it does not count. Whatever is raised on the way, by
    the oracle or at the keyboard, carries the answers so far: ``answered``, a list of (position, label), and a note.
    """
    got = Picked()
    try:
        _pick_each(got, state, score, select, batch_size, generator, progress, ask)
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
) -> None:
    rank_U = torch.randperm(state.U, generator=generator)
    order, rank_U = rank_U.argsort().tolist(), rank_U.to(state.net.device)
    scores_U = got.scores_U = _timed_scores(got, score, state)
    shut = [j for j, _ in state.kept]  # taken, or skipped by the oracle; here, for asking a GPU is waiting for it
    spent_U = state.taken.clone()  # those, and what a pick has made uninformative
    fresh = True  # whether there are others
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
        if more or ask is not None:  # an answer is kept to the last, for that checks it
            before, state = state, _keep_pick(state, j, select, got)
        got.indices.append(j)
        progress(len(got.indices), batch_size)
        if more:
            if fresh:
                _mark_duplicates(spent_U, state, before, j)
            got.seconds["select"] += time.perf_counter() - start
            scores_U = _timed_scores(got, score, state)


def highest_scores(scores_U: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """(n,) positions of the highest scores, best first, on the CPU; ties are broken by lot."""
    rank_U = torch.randperm(len(scores_U), generator=generator)
    return rank_U[scores_U.cpu()[rank_U].argsort(descending=True, stable=True)[:n]]


def best_rank(scores_U: Tensor, shut_U: Tensor, rank_U: Tensor) -> int:
    """The rank of the highest score that is not shut, the lowest among equals; U if all are shut.

    Few operations and one number read: on a GPU each costs as much as the arithmetic of all.
    """
    highest = scores_U.masked_fill(shut_U, -torch.inf).max()
    return int(rank_U.masked_fill((scores_U != highest) | shut_U, len(rank_U)).min())


def _mark_duplicates(spent_U: Tensor, state: State, before: State, j: int) -> None:
    """``spent_U`` |= spent(state, before, j), in place."""
    if state.B == 1 and can_mark_fused(before.variance_blocks):
        var_U, left_U = (s.variance_blocks.reshape(-1) for s in (before, state))
        mark_spent_fused(spent_U, var_U, left_U, j, TWIN_TOLERANCE, SPENT_VARIANCE)
    else:
        spent_U |= find_spent(state, before, j)


def _keep_pick(state: State, j: int, select: str, got: Picked) -> State:
    if select == "greedy" or (select == "fantasy" and state.C == 1):
        return state.condition(j, None)  # in regression the likeliest label is the mean itself
    if select == "fantasy":
        return state.condition(j, pseudo_labels(state)[j])
    try:
        return state.condition(j, got.labels[-1])
    except Exception as e:
        e.add_note(f"the oracle gave it for candidate {j}; before it, {list(zip(got.indices, got.labels))}")
        raise


def _add_answers(e: BaseException, got: Picked) -> None:
    answered = list(zip(got.indices, got.labels))
    with suppress(AttributeError):  # an exception with slots has room for the note alone
        e.answered = answered  # type: ignore[attr-defined]
    if answered and not getattr(e, "__notes__", None):
        e.add_note(f"answered before it, as (position, label): {answered}; the exception has them as .answered")


def _timed_scores(got: Picked, score: ScoreFunction, state: State) -> Tensor:
    start = time.perf_counter()
    scores_U = score(state)
    got.seconds["score"] += time.perf_counter() - start
    return scores_U


# Strategies that pick by themselves, held to what every batch is held to.


def pick_by_strategy(how: Strategy, request: Request, settings: dict[str, Any], progress: ProgressCounter) -> Picked:
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
    if not progress.told:
        progress.all(request.batch_size)
    return got


def _checked_scores(scores_U: Tensor, U: int, how: Strategy) -> Tensor:
    scores_U = torch.as_tensor(scores_U, dtype=torch.float64)
    if scores_U.shape != (U,) or scores_U.isnan().any():
        raise ValueError(f"strategy {how.name!r} gave scores {tuple(scores_U.shape)} or NaN; expected ({U},)")
    return scores_U


# The baseline: points at random.


@register("random", picks=True, instant=True)
def random(request: Request) -> tuple[Tensor, Tensor]:
    """The ``batch_size`` largest of U uniform draws; costs nothing."""
    draws_U = torch.rand(request.U, generator=request.generator, dtype=torch.float64)
    return draws_U.topk(request.batch_size).indices, draws_U
