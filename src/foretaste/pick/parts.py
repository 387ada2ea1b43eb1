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
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.acquire import Seen, StreamedCover, cover_greedily, sample_watched
from foretaste.errors import format_seconds
from foretaste.pick.select import Batch, Picked
from foretaste.tangent import HeldTangents, take_points, to_float64

log = logging.getLogger("foretaste")

LARGE_BATCH = 512  # picks from which a streamed batch is grown in parts
PART_POINTS = {"cpu": 4096, "cuda": 16384}  # whose κ is made at a time, at most
CENTRES, CENTRES_EACH = 1024, 8  # at most, and for each part
PART_COST = 1.5  # of greedy in a part, in units of its κ
DEEPER = 2  # a part first grows so many times its share of the batch
VALUED = 4096  # points on which the batch is valued


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
class PoolParts:
    """The pool in parts of near points.

    weight_U: e_i. covered_U: how well L covers each point. parts: positions of the points of each.
    """

    cover: StreamedCover
    weight_U: Tensor
    covered_U: Tensor
    parts: list[np.ndarray]

    def grow(self, k: int, n: int, batch: Batch) -> tuple[np.ndarray, list[float], Tensor]:
        """Up to n picks of part k, what each adds to the part's F, and what each of its points alone would add."""
        at_P = self.parts[k]
        x = self.cover.pool.take(at_P)
        kappa2_PP = self.cover.centred.hold(x).rows(x).square_()
        open_P = np.ones(len(at_P), dtype=bool) if batch.last_U is None else ~batch.last_U.numpy()[at_P]
        open_p = torch.from_numpy(np.flatnonzero(open_P)).to(kappa2_PP.device)
        gains, first_P = list[float](), self.weight_U.new_full((len(at_P),), -torch.inf)
        if not len(open_p):
            return at_P[:0], gains, first_P
        picks, first_P[open_p] = cover_greedily(
            lambda at: kappa2_PP[open_p[at]], self.covered_U[at_P], len(open_p), min(n, len(open_p)), batch.generator,
            weight_W=self.weight_U[at_P], gains=gains,
        )  # fmt: skip
        return at_P[open_p.cpu()[picks[: len(gains)]].numpy()], gains, first_P

    @cached_property
    def shares(self) -> Tensor:
        """Of each part: the larger of its share of the points and of what F can gain."""
        left_U = self.weight_U * (1 - self.covered_U)
        left = torch.stack([left_U[at_P].sum() for at_P in self.parts]).cpu()
        size = torch.tensor([float(len(at_P)) for at_P in self.parts])
        return torch.maximum(size / size.sum(), left / left.sum().clamp_min(1e-300))

    def pick(self, batch: Batch, seed: int) -> tuple[Picked, dict[str, Any]]:
        """The picks of highest gain among those of plain greedy in every part, and what goes into ``q.info``.

        Where these are too few, because no other point adds to F, random ones follow, copies of labelled points last.
        """
        parts = range(len(self.parts))
        found = [(self.parts[k][:0], list[float]()) for k in parts]
        depth = [1 + int(DEEPER * batch.n * float(share)) for share in self.shares]
        scores_U, unsettled, done = torch.empty_like(self.weight_U), list(parts), 0
        while unsettled:
            for k in unsettled:
                picks, of, scores_U[self.parts[k]] = self.grow(k, depth[k], batch)
                found[k], done = (picks, of), min(done + 1, len(parts))
                batch.progress(batch.n * done // (len(parts) + 1), batch.n)
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


def read_parts(cover: StreamedCover, budget: int, generator: torch.Generator, seen: Seen) -> PoolParts:
    """One pass over the pool: e_i, how well L covers each point, and the order, of which parts are cut."""
    U = len(cover.pool)
    size = part_size(U, budget, cover.frozen.device)
    count = -(-U // size)
    centres = min(CENTRES, CENTRES_EACH * count)
    seconds = cover.estimate_seconds() * (PART_COST * size + centres) / len(cover.held)
    log.info(
        "streamed: the batch is large; it is grown in %d parts of the pool, of %d points; about %s",
        count, -(-U // count), format_seconds(seconds),
    )  # fmt: skip
    held, place_M = hold_centres(cover, centres, generator)
    key_U, found = np.empty(U, dtype=np.int64), list[tuple[Tensor, Tensor]]()
    for at, x in cover.pool.chunks(cover.chunk_size):
        nearest_n2 = place_M[held.rows(x).topk(min(2, len(held)), 1).indices].cpu().numpy()
        key_U[at] = nearest_n2[:, 0] * len(held) + nearest_n2[:, -1]
        found.append((cover.chances(x), cover.covered(x)))
        seen(at, x)
    weight_U, covered_U = (torch.cat(of) for of in zip(*found))
    order = np.argsort(key_U, kind="stable")
    return PoolParts(cover, weight_U, covered_U, [np.sort(at_P) for at_P in np.array_split(order, count)])


def hold_centres(cover: StreamedCover, M: int, generator: torch.Generator) -> tuple[HeldTangents, Tensor]:
    """Watched points that cover the watched points, and the place of each in their chain."""
    kappa2_WW = cover.held.rows(cover.x_W).square_()
    none_W = to_float64(kappa2_WW.new_zeros(len(kappa2_WW)))
    picks, _ = cover_greedily(lambda at: kappa2_WW[at], none_W, len(none_W), min(M, len(none_W)), generator)
    picks = picks.to(kappa2_WW.device)
    order = torch.tensor(chain(kappa2_WW[picks][:, picks]), device=picks.device)
    place_M = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    return cover.centred.hold(take_points(cover.x_W, picks)), place_M
