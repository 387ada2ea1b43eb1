"""Which items to ask for: by a strategy on the state, and by coverage of the inputs before there is a network."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from foretaste.acquire import Strategy
from foretaste.label.book import LabelBook
from foretaste.label.live_model import LiveModel
from foretaste.label.pool import Pool
from foretaste.lookahead import KernelSettings, PoolKernel, State
from foretaste.pick import Batch, Request, cover_greedily, pick

EQUAL_SCORES = 1e-9  # relative: scores so near are equal, whatever order their sums were taken in
MOVED_SHARE = 40  # one of so many items of a window is replaced when it moves,
MOVED_EVERY = 5  # answers
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
    open_rows = model.open_rows(book)
    if not len(open_rows):
        return []
    batch = Batch(min(n, len(open_rows)), torch.Generator().manual_seed(ask.seed + 1000003 * (count + 1)))
    if ask.how.picks:
        at_M = [model.at_M[m] for m in open_rows.tolist()]
        got = pick(ask.how, _open_request(model, book, ask, at_M, batch), batch, options=ask.options)
    else:
        at_M, closed_M = model.at_M, torch.ones(len(model.at_M), dtype=torch.bool)
        closed_M[open_rows] = False
        batch = replace(batch, closed_U=closed_M, rank_U=model.ranks_M, equal=EQUAL_SCORES)
        state = model.follow(book)
        got = pick(ask.how, state, batch, options=learned_options(model, state, book, ask))
        model.scores_M = got.scores_U
    found = [at_M[j] for j in got.indices]
    book.pending |= dict.fromkeys(found)
    return found


def move_window(model: LiveModel, book: LabelBook, seed: int) -> None:
    """Other items of the pool take the places of some of M: of the open ones that were worth least when last asked.

    Watched items stay: they stand for the pool.
    """
    open_M = model.open_rows(book)
    if model.watched is not None:
        open_M = open_M[~torch.isin(open_M, model.watched.cpu())]
    n = min(-(-len(model.at_M) // MOVED_SHARE), len(open_M))
    draws = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(model.pool), (8 * n,), generator=draws).tolist()  # fewer are enough of a large pool
    new = [p for p in dict.fromkeys(drawn) if p not in model.row and not book.closed(p)][:n]
    worth_m = torch.rand(len(open_M), generator=draws) if model.scores_M is None else model.scores_M.cpu()[open_M]
    if new:
        model.replace_items(open_M[worth_m.argsort(stable=True)[: len(new)]].tolist(), new)


def learned_options(model: LiveModel, state: State, book: LabelBook, ask: AskSettings) -> dict[str, Any]:
    """The strategy's options, with s² of the labels so far: the state's own is of its L, which may be any of them."""
    if "scale" in ask.options and ask.options["scale"] is None and state.criterion.quadratic:
        return ask.options | {"scale": model.scale(book)}
    return ask.options


def _open_request(model: LiveModel, book: LabelBook, ask: AskSettings, open_at: list[int], batch: Batch) -> Request:
    """What a strategy that picks by itself is asked: a batch of the open items."""
    at_L = [p for p in book.labels if p in model.row]
    dtype = model.frozen.dtype if model.kind.regression else torch.int64
    y_L = torch.tensor([book.labels[p] for p in at_L], dtype=dtype, device=model.frozen.device) if at_L else None
    if model.kind.multi and at_L:
        y_L = model.kind.targets(book.labels[p] for p in at_L).to(model.frozen.device)
    kernel = KernelSettings(
        loss=model.settings.loss, ridge=model.ridge(book), output=model.frozen.output, budget=model.settings.budget,
        precision="float32", seed=ask.seed,
    )  # fmt: skip
    x_L = model.read(at_L) if at_L else None
    return Request(model.frozen.net, x_L, y_L, model.read(open_at), batch.n, batch.generator, kernel)


# --- before there is a network ---


@dataclass(eq=False)
class InputCover:
    """Items that stand for the others: greedy on Σ_i max_{j ∈ B} κ_ij², over a random sample of the pool.

    κ is that of ``cover`` with the pool in the kernel, before there are labels: the correlation of a wide network's
    tangents (lookahead/graph.py). B are the items that are labelled or out.
    """

    pool: Pool
    seed: int

    @cached_property
    def order(self) -> list[int]:
        """All positions, at random; the sample comes first."""
        return torch.randperm(len(self.pool), generator=torch.Generator().manual_seed(self.seed)).tolist()

    def _read(self, positions: list[int]) -> Tensor:
        return _flat(self.pool.take(positions, torch.device("cpu"), torch.float32)).double()

    @cached_property
    def _kernel(self) -> tuple[PoolKernel, Tensor]:
        """The kernel of the sample, and κ_uu²."""
        kernel = PoolKernel(self._read(self.order[:COVERED_ITEMS]))
        return kernel, kernel.theta_GG.clamp(0, 1).square()

    def _column(self, place: dict[int, int], p: int) -> Tensor:
        kernel, k_uu = self._kernel
        if p in place:
            return k_uu[:, place[p]]
        return kernel.theta(kernel.G, kernel.place(self._read([p])))[:, 0].clamp(0, 1).square()

    def ask(self, book: LabelBook, n: int) -> list[int]:
        """Up to n open positions, best first; the book gets them as pending."""
        place = {p: u for u, p in enumerate(self.order[:COVERED_ITEMS])}
        _, k_uu = self._kernel
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
