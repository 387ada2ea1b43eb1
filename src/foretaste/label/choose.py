"""Which items to ask for: by a strategy on the state, and by coverage of the inputs before there is a network."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import Strategy, finish_scores
from foretaste.label.book import LabelBook
from foretaste.label.model import LiveModel, read_items
from foretaste.label.pool import Pool
from foretaste.lookahead import State
from foretaste.query import Request

EQUAL_SCORES = 1e-9  # relative: scores so near are equal, whatever order their sums were taken in
COVERED_ITEMS = 2000  # a first batch is chosen among so many random items


@dataclass(frozen=True)
class AskSettings:
    """The strategy, whether picks are conditioned on one by one, its options, and those of them that were given."""

    how: Strategy
    greedy: bool
    options: dict[str, Any]
    given: dict[str, Any]
    seed: int


def ask_items(model: LiveModel, book: LabelBook, ask: AskSettings, n: int, count: int) -> list[int]:
    """Up to n open positions, best first; the book gets them as pending. ``count``: queries before this one."""
    if ask.how.picks:
        found = _ask_request(model, book, ask, n, count)
    elif ask.greedy:
        found = []
        while len(found) < n and (best := _best(model, book, ask, 1)):
            found += best
            book.pending[best[0]] = None
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
    if ask.how.calibrates and options.get(ask.how.calibrates) is None and state.criterion.quadratic:
        options[ask.how.calibrates] = model.scale(book)
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
    device, dtype, kind = model.device, model.dtype, model.kind
    values = [book.labels[p] for p in at_L]
    y_L = torch.tensor(values, dtype=dtype if kind.regression else torch.int64, device=device) if at_L else None
    settings = model.settings
    request = Request(
        model.frozen.net, read_items(model.pool, at_L, device, dtype) if at_L else None, y_L,
        read_items(model.pool, open_at, device, dtype), min(n, len(open_at)),
        torch.Generator().manual_seed(ask.seed + 1000003 * (count + 1)),
        loss=settings.loss, watch=None, ridge=model.ridge, output=model.frozen.output, method="auto",
        budget=settings.budget, params=None, precision="float32", seed=ask.seed, classes=None,
        progress=lambda done, total: None,
    )  # fmt: skip
    answer = ask.how.fn(request, **ask.options)
    indices = answer[0] if isinstance(answer, tuple) else answer
    return [open_at[int(j)] for j in indices]


# --- before there is a network ---


def cover_inputs(pool: Pool, book: LabelBook, n: int, seed: int) -> list[int]:
    """Up to n open positions that stand for the others, given the items that are labelled or out.

    Greedy on Σ_i max_{j ∈ B} k(x_i, x_j), with a Gaussian kernel on standardised inputs whose width is the median
    distance, over a random sample. The next item is the one that raises the sum most.
    """
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed)).tolist()
    have = [*book.labels, *book.pending]
    at = [p for p in order if p not in book.ignored and p not in book.labels and p not in book.pending]
    at = at[:COVERED_ITEMS]
    if not at:
        return []
    x_ND = _flat(read_items(pool, [*at, *have], torch.device("cpu"), torch.float32))
    x_ND = (x_ND - x_ND.mean(0)) / x_ND.std(0, correction=0).clamp_min(1e-6)
    distance = torch.cdist(x_ND, x_ND[: len(at)])  # (N, u)
    width = distance[: len(at)].median().clamp_min(1e-6)
    k_uN = torch.exp(-(distance / width).square()).T
    covered_u = k_uN[:, len(at) :].amax(1) if have else k_uN.new_zeros(len(at))
    k_uu = k_uN[:, : len(at)]
    found: list[int] = []
    for _ in range(min(n, len(at))):
        gain_u = (k_uu - covered_u[:, None]).clamp_min(0).sum(0)
        gain_u[found] = -1
        found.append(int(gain_u.argmax()))
        covered_u = torch.maximum(covered_u, k_uu[:, found[-1]])
    book.pending |= dict.fromkeys(at[j] for j in found)
    return [at[j] for j in found]


def _flat(x: Any) -> Tensor:
    """(N, D) float32 of any inputs."""
    parts = [x] if isinstance(x, Tensor) else list(x.values())
    return torch.cat([t.reshape(len(t), -1).float() for t in parts], 1)
