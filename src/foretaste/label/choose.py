"""Which items to ask for: by a strategy on the state, and by coverage of the inputs before there is a network."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import Strategy, finish_scores
from foretaste.label.book import LabelBook
from foretaste.label.live_model import LiveModel
from foretaste.label.pool import Pool
from foretaste.lookahead import KernelSettings, State
from foretaste.pick import Request, cover_greedily

EQUAL_SCORES = 1e-9  # relative: scores so near are equal, whatever order their sums were taken in
COVERED_ITEMS = 2000  # a first batch is chosen among so many random items


@dataclass(frozen=True)
class AskSettings:
    """The strategy, its options, and those of them that were given."""

    how: Strategy
    options: dict[str, Any]
    given: dict[str, Any]
    seed: int


def ask_items(model: LiveModel, book: LabelBook, ask: AskSettings, n: int, count: int) -> list[int]:
    """Up to n open positions, best first; the book gets them as pending. ``count``: queries before this one."""
    if ask.how.picks:
        found = _ask_request(model, book, ask, n, count)
    elif ask.how.select == "greedy":  # each pick is conditioned on before the next
        found, drawn = [], replace(book, pending=dict(book.pending))  # a Ctrl-C here puts nothing out
        while len(found) < n and (best := _best(model, drawn, ask, 1)):
            found += best
            drawn.pending[best[0]] = None
    else:
        found = _best(model, book, ask, n)
    book.pending |= dict.fromkeys(found)
    return found


def _best(model: LiveModel, book: LabelBook, ask: AskSettings, n: int) -> list[int]:
    at = model.open_rows(book)
    if not len(at):
        return []
    scores_M = score_items(model, model.follow(book), book, ask).cpu()
    return [model.at_M[int(at[i])] for i in ranked(scores_M[at], model.ranks_M[at], n)]


def score_items(model: LiveModel, state: State, book: LabelBook, ask: AskSettings) -> Tensor:
    """(M,): the strategy's score of every item in M, higher = ask sooner."""
    options = dict(ask.options)
    if "scale" in options and options["scale"] is None and state.criterion.quadratic:
        options["scale"] = model.scale(book)  # the state's own is of its L, which depends on how labels came
    return finish_scores(state, ask.how.fn(state, **options), ask.how.name)


def ranked(scores_n: Tensor, rank_n: Tensor, n: int) -> list[int]:
    """The n highest scores, best first. Scores that differ by rounding count as equal, and ``rank_n`` decides."""
    if n == 1:
        high = scores_n.max()
        near = scores_n >= high - EQUAL_SCORES * high.abs() if torch.isfinite(high) else scores_n == high
        return [int(torch.where(near, rank_n, len(rank_n) + int(rank_n.max()) + 1).argmin())]
    order = rank_n.argsort()
    return order[scores_n[order].argsort(descending=True, stable=True)[:n]].tolist()


def _ask_request(model: LiveModel, book: LabelBook, ask: AskSettings, n: int, count: int) -> list[int]:
    """The batch of a strategy that picks by itself, among the open items."""
    open_at = [p for p in model.at_M if not book.closed(p)]
    if not open_at:
        return []
    at_L = [p for p in book.labels if p in model.row]
    dtype = model.frozen.dtype if model.kind.regression else torch.int64
    y_L = torch.tensor([book.labels[p] for p in at_L], dtype=dtype, device=model.frozen.device) if at_L else None
    settings = model.settings
    request = Request(
        model.frozen.net, model.read(at_L) if at_L else None, y_L, model.read(open_at), min(n, len(open_at)),
        torch.Generator().manual_seed(ask.seed + 1000003 * (count + 1)),
        KernelSettings(
            loss=settings.loss, ridge=model.ridge(book), output=model.frozen.output, budget=settings.budget,
            precision="float32", seed=ask.seed,
        ),
    )  # fmt: skip
    answer = ask.how.fn(request, **ask.options)
    indices = answer[0] if isinstance(answer, tuple) else answer
    return [open_at[int(j)] for j in indices]


# --- before there is a network ---


@dataclass(eq=False)
class InputCover:
    """Items that stand for the others: greedy on Σ_i max_{j ∈ B} k(x_i, x_j), over a random sample of the pool.

    k is a Gaussian kernel on standardised inputs whose width is the median distance. B are the items that are labelled
    or out. The next item is the one that raises the sum most.
    """

    pool: Pool
    seed: int

    @cached_property
    def order(self) -> list[int]:
        """All positions, at random; the sample comes first."""
        return torch.randperm(len(self.pool), generator=torch.Generator().manual_seed(self.seed)).tolist()

    @cached_property
    def _points(self) -> tuple[Tensor, Tensor, Tensor]:
        """The sample's inputs, standardised, and their mean and deviation."""
        x_uD = _flat(self.pool.take(self.order[:COVERED_ITEMS], torch.device("cpu"), torch.float32))
        mean_D, deviation_D = x_uD.mean(0), x_uD.std(0, correction=0).clamp_min(1e-6)
        return (x_uD - mean_D) / deviation_D, mean_D, deviation_D

    @cached_property
    def _kernel(self) -> tuple[Tensor, float]:
        """k_uu of the sample, and its width."""
        x_uD = self._points[0]
        distance = torch.cdist(x_uD, x_uD)
        width = float(distance.median().clamp_min(1e-6))
        return torch.exp(-(distance / width).square()), width

    def _column(self, place: dict[int, int], p: int) -> Tensor:
        k_uu, width = self._kernel
        if p in place:
            return k_uu[:, place[p]]
        x_uD, mean_D, deviation_D = self._points
        x_D = (_flat(self.pool.take([p], torch.device("cpu"), torch.float32)) - mean_D) / deviation_D
        return torch.exp(-(torch.cdist(x_uD, x_D)[:, 0] / width).square())

    def ask(self, book: LabelBook, n: int) -> list[int]:
        """Up to n open positions, best first; the book gets them as pending."""
        place = {p: u for u, p in enumerate(self.order[:COVERED_ITEMS])}
        k_uu, _ = self._kernel
        covered_u = k_uu.new_zeros(len(k_uu))
        for p in (*book.labels, *book.pending):
            covered_u = torch.maximum(covered_u, self._column(place, p))
        shut = torch.tensor([book.closed(p) for p in self.order[:COVERED_ITEMS]])
        open_u = (~shut).nonzero()[:, 0]
        generator, some = torch.Generator().manual_seed(self.seed), min(n, len(open_u))
        picks, _ = cover_greedily(lambda at: k_uu[open_u[at]], covered_u, len(open_u), some, generator)
        found = [self.order[int(u)] for u in open_u[picks]]
        found += [p for p in self.order[COVERED_ITEMS:] if not book.closed(p)][: n - len(found)]
        book.pending |= dict.fromkeys(found)
        return found


def _flat(x: Any) -> Tensor:
    """(N, D) float32 of any inputs."""
    parts = [x] if isinstance(x, Tensor) else list(x.values())
    return torch.cat([t.reshape(len(t), -1).float() for t in parts], 1)
