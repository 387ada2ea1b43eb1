"""From scores to a batch (Eq. 1): at once, or one by one with each pick conditioned on."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import pseudo_labels
from foretaste.query._twins import spent
from foretaste.retrain import State

Score = Callable[[State], Tensor]
Ask = Callable[[int], Any]


@dataclass
class Progress:
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


def pick_top(state: State, score: Score, batch_size: int, generator: torch.Generator, progress: Progress) -> Picked:
    """The ``batch_size`` highest scores."""
    got = Picked()
    got.scores_U = _timed(got, score, state)
    start = time.perf_counter()
    got.indices = highest(got.scores_U, batch_size, generator).tolist()
    got.seconds["select"] += time.perf_counter() - start
    progress.all(batch_size)
    return got


def pick_each(
    state: State,
    score: Score,
    select: str,
    batch_size: int,
    generator: torch.Generator,
    progress: Progress,
    ask: Ask | None = None,
) -> Picked:
    """One by one, each pick conditioned on before the next scores; fewer only where the oracle skipped the rest.

    "greedy": its label is unknown, S shrinks and the mean stays. "fantasy": its likeliest label is kept. "sequential":
    the answer of ``ask`` is kept; None passes the point over, and it does not count.
    """
    got = Picked()
    rank_U = torch.randperm(state.U, generator=generator).to(state.net.device)
    scores_U = got.scores_U = _timed(got, score, state)
    shut_U = torch.zeros_like(state.taken)  # skipped by the oracle
    spent_U = torch.zeros_like(state.taken)
    while len(got.indices) < batch_size:
        open_U = ~(state.taken | shut_U)
        if not open_U.any():
            break
        if (fresh_U := open_U & ~spent_U).any():
            open_U = fresh_U
        j = best(scores_U, open_U, rank_U)
        if ask is not None:
            label = ask(j)
            if label is None:
                shut_U[j] = True
                continue
            got.labels.append(label)
        start = time.perf_counter()
        more = len(got.indices) + 1 < batch_size
        if more or ask is not None:  # an answer is kept to the last, for that checks it
            before, state = state, _keep(state, j, select, got)
        got.indices.append(j)
        progress(len(got.indices), batch_size)
        if more:
            spent_U |= spent(state, before, j)
            got.seconds["select"] += time.perf_counter() - start
            scores_U = _timed(got, score, state)
    return got


def highest(scores_U: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """(n,) positions of the highest scores, best first, on the CPU; ties are broken by lot."""
    rank_U = torch.randperm(len(scores_U), generator=generator)
    return rank_U[scores_U.cpu()[rank_U].argsort(descending=True, stable=True)[:n]]


def best(scores_U: Tensor, open_U: Tensor, rank_U: Tensor) -> int:
    """The open candidate of the highest score; among equals, of the lowest rank."""
    scores_U = scores_U.masked_fill(~open_U, -torch.inf)
    equal = (open_U & (scores_U == scores_U.max())).nonzero()[:, 0]
    return int(equal[rank_U[equal].argmin()])


def _keep(state: State, j: int, select: str, got: Picked) -> State:
    if select == "greedy" or (select == "fantasy" and state.C == 1):
        return state.condition(j, None)  # in regression the likeliest label is the mean itself
    if select == "fantasy":
        return state.condition(j, pseudo_labels(state)[j])
    try:
        return state.condition(j, got.labels[-1])
    except Exception as e:
        e.add_note(f"the oracle gave it for candidate {j}; before it, {list(zip(got.indices, got.labels))}")
        raise


def _timed(got: Picked, score: Score, state: State) -> Tensor:
    start = time.perf_counter()
    scores_U = score(state)
    got.seconds["score"] += time.perf_counter() - start
    return scores_U
