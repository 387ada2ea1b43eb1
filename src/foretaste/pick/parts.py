"""Large batches: greedy on ``cover`` in parts of the pool that have little to do with one another.

F(B) = Σ_i e_i max_{j ∈ L∪B} κ_ij² is a sum over points, and what serves a point is near to it. So the pool is put in an
order in which neighbours are near, and cut into parts. In a part greedy is plain: all of its points are candidates, all
are watched, and κ is that of the whole pool. The batch is made of the picks of highest gain of all parts. If no point
served another part, that would be plain greedy over the pool, pick by pick. It loses what picks do for other parts,
which plain greedy would have seen (docs/scaling-notes.md, Large batches, has how much).

The order goes along a chain of centres, each followed by the nearest that is left. Points come by their nearest centre,
and those of one centre by their second nearest.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.acquire import (
    FittingScore,
    PointErrors,
    Seen,
    StreamedCover,
    best_cover,
    cover_greedily,
    sample_watched,
)
from foretaste.errors import format_seconds
from foretaste.given import SlicedPoints
from foretaste.pick.select import Batch, Picked
from foretaste.pick.shards import NumberedItems, ShardedPasses, sealed
from foretaste.tangent import CentredTangents, HeldTangents, Inputs, take_points, to_float64

log = logging.getLogger("foretaste")

LARGE_BATCH = 512  # picks from which a streamed batch is grown in parts
PART_POINTS = {"cpu": 4096, "cuda": 16384}  # whose κ is made at a time, at most
CENTRES, CENTRES_EACH = 1024, 8  # at most, and for each part
PART_COST = 1.5  # of greedy in a part, in units of its κ
DEEPER = 2  # a part first grows so many times its share of the batch
VALUED = 4096  # points on which the batch is valued

Grown = Callable[[int, Mapping[str, Tensor]], object]


def part_size(U: int, budget: int, device: torch.device) -> int:
    """Points of a part: their κ² and what greedy takes of it fit into a quarter of the budget."""
    fit = int((budget / 4 / 16) ** 0.5)
    return max(2, min(U, fit, PART_POINTS.get(device.type, PART_POINTS["cpu"])))


def chain(near_MM: Tensor) -> list[int]:
    """All of M, each followed by the nearest that is left; the first is 0."""
    left_M = torch.zeros(len(near_MM), dtype=near_MM.dtype, device=near_MM.device)
    order = [0]
    while len(order) < len(near_MM):
        left_M[order[-1]] = -torch.inf
        order.append(int((near_MM[order[-1]] + left_M).argmax()))
    return order


@dataclass(frozen=True, eq=False)
class Part:
    """Points of the pool among which greedy is plain: all are watched, and those that are ``open`` are candidates.

    at_P: their positions in the pool. order: of the open ones, by which ties are broken. n: how many to pick.
    """

    at_P: np.ndarray
    open_p: Tensor
    order_p: Tensor
    weight_P: Tensor
    covered_P: Tensor
    n: int

    def grow(self, centred: CentredTangents, x: Inputs) -> dict[str, Tensor]:
        """Positions of up to n picks in the part, what each adds to its F, and what each point alone would add."""
        kappa2_PP = centred.hold(x).rows(x).square_()
        open_p, gains = self.open_p.to(kappa2_PP.device), list[float]()
        first_P, picks = self.weight_P.new_full((len(self.at_P),), -torch.inf), open_p[:0]
        if len(open_p):
            picks, first_P[open_p] = cover_greedily(
                lambda at: kappa2_PP[open_p[at]], self.covered_P, len(open_p), min(self.n, len(open_p)),
                torch.Generator(), weight_W=self.weight_P, order_U=self.order_p, gains=gains,
            )  # fmt: skip
            picks = open_p.cpu()[picks[: len(gains)]]
        return {"picks": picks.cpu(), "gains": torch.tensor(gains, dtype=torch.float64), "first": first_P.cpu()}


@dataclass(frozen=True, eq=False)
class PartTask:
    """What a worker does with a part."""

    pool: SlicedPoints | None  # None: the points come with the part
    centred: CentredTangents

    def __call__(self, place: None, item: "PartItem") -> Iterator[tuple[bytes, str]]:
        x = item.x
        if x is None:
            assert self.pool is not None
            x = self.pool.take(item.part.at_P)
        yield sealed(item.part.grow(self.centred, x))


@dataclass(frozen=True, eq=False)
class PartItem:
    k: int
    part: Part
    x: Inputs | None

    def __str__(self) -> str:
        return f"part {self.k} of the pool, {len(self.part.at_P)} points"


@dataclass(frozen=True, eq=False)
class PartItems(NumberedItems):
    """Parts, each with its points if these are in memory."""

    parts: Sequence[Part]
    pool: SlicedPoints | None

    def item(self, k: int) -> PartItem:
        part = self.parts[k]
        return PartItem(k, part, None if self.pool is None else self.pool.take(part.at_P))


@dataclass(frozen=True, eq=False)
class PoolParts:
    """The pool in parts of near points.

    weight_U: e_i. covered_U: how well L covers each point. parts: positions of the points of each.
    """

    cover: StreamedCover
    weight_U: Tensor
    covered_U: Tensor
    parts: list[np.ndarray]

    def part(self, k: int, n: int, batch: Batch) -> Part:
        at_P = self.parts[k]
        open_P = np.ones(len(at_P), dtype=bool) if batch.last_U is None else ~batch.last_U.numpy()[at_P]
        open_p = torch.from_numpy(np.flatnonzero(open_P))
        order_p = torch.randperm(len(open_p), generator=batch.generator)
        return Part(at_P, open_p, order_p, self.weight_U[at_P], self.covered_U[at_P], n)

    def grow(
        self, several: Sequence[int], depth: Sequence[int], batch: Batch, passes: ShardedPasses | None, done: Grown
    ) -> None:
        """Grow parts, each to its depth, here or by an executor. done: takes the number of a part and what it gave."""
        parts = [self.part(k, depth[k], batch) for k in several]
        pool, centred = self.cover.pool, self.cover.centred
        if passes is None:
            for k, part in zip(several, parts):
                done(k, part.grow(centred, pool.take(part.at_P)))
            return
        ends = np.cumsum([len(at_P) for at_P in self.parts])
        cuts = [slice(int(ends[k]) - len(self.parts[k]), int(ends[k])) for k in several]
        of = [[part.at_P, part.open_p, part.order_p, part.weight_P, part.covered_P, part.n] for part in parts]
        task, items = PartTask(passes.sent_pool, centred), PartItems(parts, passes.pool_here)
        passes.run("parts", [self.cover.made_by, of], cuts, task, items, lambda i, found, _: done(several[i], found))

    @cached_property
    def shares(self) -> Tensor:
        """Of each part: the larger of its share of the points and of what F can gain."""
        left_U = self.weight_U * (1 - self.covered_U)
        left = torch.stack([left_U[at_P].sum() for at_P in self.parts]).cpu()
        size = torch.tensor([float(len(at_P)) for at_P in self.parts])
        return torch.maximum(size / size.sum(), left / left.sum().clamp_min(1e-300))

    def pick(self, batch: Batch, seed: int, passes: ShardedPasses | None = None) -> tuple[Picked, dict[str, Any]]:
        """The picks of highest gain among those of plain greedy in every part, and what goes into ``q.info``.

        Where these are too few, because no other point adds to F, random ones follow, copies of labelled points last.
        """
        parts = range(len(self.parts))
        found = [(self.parts[k][:0], list[float]()) for k in parts]
        depth = [1 + int(DEEPER * batch.n * float(share)) for share in self.shares]
        scores_U, unsettled, grown = torch.empty_like(self.weight_U), list(parts), set[int]()

        def done(k: int, of: Mapping[str, Tensor]) -> None:
            at_P = self.parts[k]
            found[k], scores_U[at_P] = (at_P[of["picks"].numpy()], of["gains"].tolist()), of["first"].to(scores_U)
            grown.add(k)
            batch.progress(batch.n * len(grown) // (len(parts) + 1), batch.n)

        while unsettled:
            self.grow(unsettled, depth, batch, passes, done)
            gains = np.concatenate([of for _, of in found])
            best = np.argsort(-gains, kind="stable")[: batch.n]
            least = gains[best[-1]] if len(best) == batch.n else 0.0
            # A part that was asked for few, and whose last pick is in the batch, may have more.
            unsettled = [k for k in parts if len(found[k][1]) == depth[k] and found[k][1][-1] >= least]
            unsettled = [k for k in unsettled if depth[k] < len(self.parts[k])]
            for k in unsettled:
                depth[k] = min(4 * depth[k], len(self.parts[k]))
        picked = np.concatenate([picks for picks, _ in found])[best]
        value = self.value(picked, float(gains[best].sum()), seed)
        others = torch.arange(len(scores_U)) if batch.others is None else batch.others
        left = others[~torch.isin(others, torch.from_numpy(picked))]
        left = left[torch.randperm(len(left), generator=batch.generator)[: batch.n - len(picked)]]
        indices = torch.cat([torch.from_numpy(picked), left])
        got = batch.put_back(Picked(list(range(len(indices)))), indices, len(scores_U))
        got.scores_U, got.info = scores_U, {"space": self.cover.used_space}
        batch.progress(batch.n, batch.n)
        return got, {"parts": len(parts), "watched": len(scores_U), "batch_value": value}

    def value(self, picks: np.ndarray, gains: float, seed: int) -> dict[str, float]:
        """What a batch adds to F, as a mean over the pool: by ``gains``, of each pick in its part, which is too little;
        and with all that picks do for other parts, by a sample of the points, with the error of that.
        """
        U, cover = len(self.weight_U), self.cover
        left_U = (self.weight_U * (1 - self.covered_U)).cpu().numpy()
        rest = np.delete(np.arange(U), picks)
        if not len(rest):
            return {"watched": gains / U, "held_out": float(left_U.sum()) / U, "error": 0.0}
        drawn = sample_watched(left_U[rest], min(VALUED, len(rest)), 0, seed)
        at_V = rest[drawn.at_W]
        held, covered_V = cover.centred.hold(cover.pool.take(at_V)), self.covered_U[at_V]
        best_V = covered_V.clone()
        for start in range(0, len(picks), cover.chunk_size):
            for _, kappa_nV in held.blocks(cover.pool.take(picks[start : start + cover.chunk_size])):
                best_V = torch.maximum(best_V, to_float64(kappa_nV.amax(0)).square())
        added_V = (best_V - covered_V) * self.weight_U[at_V] / torch.from_numpy(drawn.chance_W).to(best_V)
        error = len(at_V) ** 0.5 * float(added_V.std()) / U if len(rest) > len(at_V) else 0.0
        return {"watched": gains / U, "held_out": float(left_U[picks].sum() + added_V.sum()) / U, "error": error}


@dataclass(frozen=True, eq=False)
class PointPlaces:
    """Of points: their place in the order of which parts are cut, e_i, and how well L covers them, (n, 3), float64."""

    centres: HeldTangents
    place_M: Tensor  # of each centre in the chain
    errors: PointErrors
    held_L: HeldTangents | None

    def __call__(self, at: slice, x: Inputs) -> Tensor:
        M = len(self.centres)
        nearest_n2 = self.place_M[self.centres.rows(x).topk(min(2, M), 1).indices]
        key_n, e_n = nearest_n2[:, 0] * M + nearest_n2[:, -1], self.errors(x)
        return torch.stack([key_n.to(e_n), e_n, best_cover(self.held_L, x, e_n)], 1)


def read_parts(
    cover: StreamedCover,
    budget: int,
    generator: torch.Generator,
    seen: Seen,
    passes: ShardedPasses | None,
    begin: Callable[[float], object],
) -> PoolParts:
    """One pass over the pool: e_i, how well L covers each point, and the order, of which parts are cut.

    begin: is told which share of the work the pass is.
    """
    U = len(cover.pool)
    size = part_size(U, budget, cover.frozen.device)
    count = -(-U // size)
    centres = min(CENTRES, CENTRES_EACH * count)
    seconds = cover.estimate_seconds() * (PART_COST * size + centres) / len(cover.held)
    log.info(
        "streamed: the batch is large; it is grown in %d parts of the pool, of %d points; about %s",
        count, -(-U // count), format_seconds(seconds),
    )  # fmt: skip
    begin(centres / (PART_COST * size + centres))
    held, place_M = hold_centres(cover, centres, generator)
    place = PointPlaces(held, place_M, cover.errors, cover.held_L)
    if passes is None:
        score, found = FittingScore(place), list[Tensor]()
        for at, x in cover.pool.chunks(cover.chunk_size):
            found.append(score(at, x))
            seen(at, x)
        told_U3 = torch.cat(found)
    else:
        made_by = [cover.made_by, place_M, held.factors.rows, *held.factors.products]
        told_U3 = passes.scores("places", cover.chunk_size, place, made_by).to(cover.weight_W.device)
    order = np.argsort(told_U3[:, 0].cpu().numpy(), kind="stable")
    parts = [np.sort(at_P) for at_P in np.array_split(order, count)]
    return PoolParts(cover, told_U3[:, 1].contiguous(), told_U3[:, 2].contiguous(), parts)


def hold_centres(cover: StreamedCover, M: int, generator: torch.Generator) -> tuple[HeldTangents, Tensor]:
    """Watched points that cover the watched points, and the place of each in their chain."""
    kappa2_WW = cover.held.rows(cover.x_W).square_()
    none_W = to_float64(kappa2_WW.new_zeros(len(kappa2_WW)))
    picks, _ = cover_greedily(lambda at: kappa2_WW[at], none_W, len(none_W), min(M, len(none_W)), generator)
    picks = picks.to(kappa2_WW.device)
    order = torch.tensor(chain(kappa2_WW[picks][:, picks]), device=picks.device)
    place_M = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return cover.centred.hold(take_points(cover.x_W, picks)), place_M
