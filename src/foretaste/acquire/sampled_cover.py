"""``cover`` for pools of any size: a sample is watched, candidates are read in chunks, κ of a shortlist is exact.

    F(B) = Σ_{i ∈ W} (e_i / π_i) max_{j ∈ L∪B} κ_ij²

is the F of cover.py with W a sample of the pool, in place of the pool. π_i is the chance that i is in the sample: half
of it is equal for all points, half goes with the network's own chance of error, so that W is not spent on points whose
e_i is nothing (``sample_watched``). κ is centred by the mean tangent of U ∪ L, as 16,384 points have it. One pass over
the pool gives what each candidate alone adds to F. Lazy evaluation then asks for few candidates, these again and again.
Their points are read once more, and their rows of κ² are kept while there is room. Nothing of size U × W is ever in
memory: a few numbers for each of U, the factors of W, the kept rows, and a block of κ.

A batch that is chosen among all candidates by a sample suits that sample: it is worth less on the rest of the pool. So
the sample only makes a shortlist S: the candidates that came nearest to being picked. The batch is chosen among these
by a much larger sample V of the pool, which costs S × V and no further pass (``Shortlist``). All of S is in V, with
π_i = 1. For what a candidate covers best is itself, and of that a sample knows nothing, unless it is in it.

Watched candidates do not count as covering themselves in the pass: else they would seem to cover 1/π_i points each.

Tangents of convolutions and attention have millions of numbers. There the pass and the lazy picks are by sketches
(tangent/sketch.py), which are kept: a few thousand numbers for each candidate. κ of the shortlist is exact: from blocks
of Θ, for which no tangent is held (``exact_kappa``). How well sketches rank is measured on some candidates first
(``sketch_recall``). Where they rank badly, what some landmarks explain of a tangent is exact, and only the rest is
sketched: that costs the pass a gradient for each candidate.
"""

import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from foretaste.acquire.cover import (
    SPREAD_POINTS,
    choose_space,
    error_chances,
    inverse_spread,
    with_own_chance,
)
from foretaste.acquire.coverage import FIRST_LOOK, Coverage, KernelRows
from foretaste.acquire.predictions import chance_of_error, gaps, need_classes
from foretaste.errors import is_out_of_memory
from foretaste.given import SlicedPoints
from foretaste.lookahead import LargeLabels, State
from foretaste.tangent import (
    BLOCK_POINTS,
    CentredTangents,
    FactorSource,
    FrozenNetwork,
    GramJob,
    HeldTangents,
    Inputs,
    MeanTangent,
    TangentFactors,
    count_points,
    gram,
    join_points,
    take_points,
    to_float64,
    unmeasured_precision,
)

log = logging.getLogger("foretaste")

STREAM_CHUNK = {"cpu": 4096, "cuda": 65536}  # candidates that are read at a time, at most
STREAM_NUMBERS = 1 << 25  # of their factors at a time. Not of the budget: it must not change rounding, and so a pick
STREAM_LOOK = {"cpu": FIRST_LOOK, "cuda": 4096}  # candidates read again at first, for a pick: a GPU takes as long for 1
MEAN_POINTS = 16384  # whose mean tangent is taken off
CARRIED = ("state", "used_space", "exact_sample", "weight_W", "chance_work")  # what does not depend on sketches
TRIAL_POINTS = 512  # on which the time of a pass is estimated
SENT = ("frozen", "sample", "own_U", "held", "covered_W", "weight_W")  # to processes that score chunks
EXACT_MEAN = 2048  # as MEAN_POINTS, where κ is from blocks of Θ
SKETCH_LANDMARKS = 64  # points whose part of a tangent is exact, where sketches alone rank badly
RECALL_POINTS = 256  # on which the recall of sketches is estimated
SECOND_LIST = 1600  # candidates of a shortlist, about
Made = TypeVar("Made")
Compare = Callable[[Inputs], tuple[Tensor, Tensor]]
Seen = Callable[[slice, Inputs], object]  # is called with every chunk that is read
ChunkScore = Callable[[slice, Inputs], Tensor]  # the positions of some points, and these -> a row for each


def stream_chunk(device: torch.device) -> int:
    """Candidates that are read at a time, at most."""
    return STREAM_CHUNK.get(device.type, STREAM_CHUNK["cpu"])


@dataclass
class FittingCuts:
    """Points some at a time. Where memory ends, half as many, and so on; from then on too.

    Other sizes may change the last bits of what is made of points.
    """

    most: int = sys.maxsize  # points at a time

    def __call__(self, n: int, work: Callable[[slice], Made]) -> Iterator[tuple[slice, Made]]:
        """Which of n points, and what ``work`` makes of them."""
        start = 0
        while start < n:
            cut = slice(start, min(start + self.most, n))
            try:
                done = work(cut)
            except Exception as e:
                if cut.stop - cut.start == 1 or not is_out_of_memory(e):
                    raise
            else:
                yield cut, done
                start = cut.stop
                continue
            # Outside of ``except``: inside it, the error's frames keep the tensors alive.
            self.most = -(-(cut.stop - cut.start) // 2)
            log.warning("out of memory with %d points at a time; trying %d", cut.stop - cut.start, self.most)
            torch.cuda.empty_cache()  # does nothing where there is no GPU


@dataclass(frozen=True, eq=False)
class FittingScore:
    """A score of chunks; of smaller ones where memory ends."""

    score: ChunkScore
    cuts: FittingCuts = field(default_factory=FittingCuts)

    def __call__(self, at: slice, x: Inputs) -> Tensor:
        def own(cut: slice) -> Tensor:
            return self.score(slice(at.start + cut.start, at.start + cut.stop), take_points(x, cut))

        return torch.cat([part for _, part in self.cuts(at.stop - at.start, own)])


@dataclass(frozen=True, eq=False)
class PointErrors:
    """e of any points: their chance of error after L.

    linearise: as of ``StreamedCover``. scale: s²; None: the state's. eager: whether Θ is used. labels: what is
    labelled, where it is too much for a state.
    """

    linearise: Callable[[Inputs, int, bool], State]
    scale: float | None
    eager: bool
    loss: str
    labels: LargeLabels | None = None

    def __call__(self, x: Inputs) -> Tensor:
        if self.labels is None:
            return error_chances(self.linearise(x, 1, self.eager), self.scale)
        f_nC, mean_nC, var_n = self.labels.at(x)
        s2 = self.labels.scale if self.scale is None else self.scale
        return with_own_chance(chance_of_error(gaps(mean_nC), 2 * s2 * var_n), f_nC, self.loss)


@dataclass(frozen=True, eq=False)
class StreamedCover:
    """F on a sample of the pool.

    linearise: points -> a state of L with these watched; at most how many of them are candidates; with Θ at once.
    frozen: the network. x_L: the labelled points, or None. x_W: the watched points.
    pool: the candidates. sample: which of them are watched; None if all are, or other points.
    scale, space: the options of ``cover``.
    """

    linearise: Callable[[Inputs, int, bool], State]
    frozen: FrozenNetwork
    x_L: Inputs | None
    x_W: Inputs
    pool: SlicedPoints
    sample: "WatchedSample | None" = None
    scale: float | None = None
    space: str = "auto"
    rows_read: list[int] = field(default_factory=list)  # how many, each time that lazy evaluation asks
    row_cuts: FittingCuts = field(default_factory=FittingCuts)  # of these
    kept: int = 0  # candidates whose rows are kept, at most
    sketch: int | None = None  # the side of sketches that take the place of tangents
    budget: int = 1 << 30  # bytes of the blocks of Θ, if there are sketches
    labels: LargeLabels | None = None  # what is labelled, where it is too much for a state
    landmarks: int = 0  # points whose part of a tangent is exact, where the rest is sketched

    @cached_property
    def state(self) -> State:
        return self.linearise(self.x_W, SPREAD_POINTS, self.labels is None)

    @cached_property
    def used_space(self) -> str:
        need_classes(self.state, "cover", "variance: there is no chance of error")
        if self.space != "auto":
            return self.space
        if self.labels is None:
            return choose_space(self.state.prior())
        some = slice(None, None, -(-count_points(self.x_W) // SPREAD_POINTS))
        return choose_space(self.labels.prior(take_points(self.x_W, some)))

    @cached_property
    def centred(self) -> CentredTangents:
        inputs = self.used_space == "inputs"
        sketch, x_M = (self.sketch, self.landmark_points) if self.sketched else (None, None)
        source = FactorSource(self.frozen, self.x_W, self.state.C, inputs, sketch, x_M, self.budget)
        return CentredTangents(source, self.points_of_mean(STREAM_CHUNK["cpu"]))

    @property
    def landmark_points(self) -> Inputs | None:
        """Of L, and of W if these are few."""
        few = [] if self.x_L is None else [spaced_points(self.x_L, self.landmarks)]
        missing = self.landmarks - sum(map(count_points, few))
        few += [spaced_points(self.x_W, missing)] if missing else []
        return join_points(*few) if self.landmarks else None

    def with_landmarks(self) -> "StreamedCover":
        """The same, where sketches have an exact part. What does not depend on sketches is carried over."""
        made = replace(self, landmarks=SKETCH_LANDMARKS)
        vars(made).update({name: vars(self)[name] for name in CARRIED if name in vars(self)})
        return made

    @property
    def sketched(self) -> bool:
        return self.sketch is not None and self.used_space == "tangent"

    def points_of_mean(self, step: int, most: int = MEAN_POINTS) -> Iterator[tuple[Inputs, float]]:
        """The points whose mean tangent is taken off, and their weights: U ∪ L, with an even sample of a large U."""
        if self.x_L is not None:
            yield self.x_L, 1.0
        if self.sample is None:
            yield self.x_W, 1.0
            return
        U = len(self.pool)
        at_M = np.sort(np.random.default_rng(0).permutation(U)[:most])
        for start in range(0, len(at_M), step):
            yield self.pool.take(at_M[start : start + step]), U / len(at_M)

    @cached_property
    def held(self) -> HeldTangents:
        return self.centred.hold(self.x_W)

    @cached_property
    def held_L(self) -> HeldTangents | None:
        return None if self.x_L is None else self.centred.hold(self.x_L)

    def chances(self, x: Inputs) -> Tensor:
        """(n,): e of some points."""
        own = x is self.x_W and self.labels is None
        return error_chances(self.state, self.scale) if own else self.errors(x)

    @cached_property
    def errors(self) -> PointErrors:
        return PointErrors(self.linearise, self.scale, self.used_space == "tangent", self.state.loss, self.labels)

    @cached_property
    def weight_W(self) -> Tensor:
        """e_i / π_i, in units that make Σ_i 1/π_i about W."""
        e_W = self.chances(self.x_W)
        if self.sample is None:
            return e_W
        return e_W * torch.from_numpy(1 / self.sample.chance_W).to(e_W) * (len(e_W) / len(self.pool))

    @cached_property
    def covered_W(self) -> Tensor:
        return self.covered(self.x_W)

    def covered(self, x: Inputs) -> Tensor:
        """(n,): how well L covers points, max over L of κ², float64."""
        return best_cover(self.held_L, x, self.centred.mean_rows)

    @cached_property
    def kept_rows(self) -> "KeptRows":
        room_W = self.held.factors.rows.new_empty(min(self.kept, len(self.pool)), len(self.held))
        return KeptRows(room_W, torch.full((len(self.pool),), -1, dtype=torch.int32, device=room_W.device))

    def forget_rows(self) -> None:
        """Free the memory of the kept rows and sketches."""
        for name in ("kept_rows", "kept_sketches"):
            self.__dict__.pop(name, None)

    def rows(self, at_n: Tensor) -> Tensor:
        """(n, W): κ² of candidates; the points of those whose rows are not kept are read now."""
        return self.kept_rows(at_n, self.read_rows)

    def read_rows(self, at: Tensor) -> Tensor:
        """(n, W): κ² of candidates."""
        at_n = at.cpu().numpy()
        self.rows_read.append(len(at_n))

        def read(cut: slice) -> Tensor:
            return self.without_own(self.held.rows(self._read_factors(at_n[cut])), at_n[cut]).square_()

        parts = [part for _, part in self.row_cuts(len(at_n), read)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _read_factors(self, at_n: np.ndarray) -> "Inputs | TangentFactors":
        if not self.sketched or self.kept_sketches is None:
            return self.pool.take(at_n)
        like = self.held.factors.rows
        rows_n = self.kept_sketches[torch.from_numpy(at_n).to(self.kept_sketches.device)].to(like)
        return TangentFactors([], torch.nn.functional.pad(rows_n, (0, 2)))  # see ``correlatable``: μ is taken off

    @cached_property
    def kept_sketches(self) -> Tensor | None:
        """(U, numbers) float16: filled by the pass. On the GPU, or in a file; None where there is no room."""
        like = self.held.factors.rows
        shape = len(self.pool), like.shape[1] - 2
        if like.is_cuda:
            return like.new_empty(shape, dtype=torch.float16) if 2 * shape[0] * shape[1] < self.budget // 2 else None
        try:
            with tempfile.TemporaryFile() as file:
                os.posix_fallocate(file.fileno(), 0, 2 * shape[0] * shape[1])
                return torch.from_numpy(np.memmap(file, np.float16, "r+", shape=shape))
        except (OSError, AttributeError) as e:  # no room, or no such system
            log.warning("sketches are not kept (%s): candidates go through the network again", e)
            return None

    def without_own(self, kappa_nW: Tensor, at_n: np.ndarray) -> Tensor:
        """κ of candidates ``at_n``, in place: 0 between a watched point of a sample and itself."""
        if self.sample is not None:
            i_n = self.own_U[at_n]
            n = np.flatnonzero(i_n >= 0)
            kappa_nW[n, i_n[n]] = 0.0
        return kappa_nW

    @cached_property
    def own_U(self) -> np.ndarray:
        """(U + 1,): which of the sample a candidate is, −1 if none; and −1, for position −1."""
        assert self.sample is not None
        own_U = np.full(len(self.pool) + 1, -1)
        own_U[self.sample.at_W] = np.arange(len(self.sample.at_W))
        return own_U

    def coverage(
        self, seen: Seen = lambda at, x: None, gains_by: "Callable[[StreamedCover], Tensor] | None" = None
    ) -> Coverage:
        """F, with what each candidate alone adds to it: one pass over the pool.

        gains_by: makes that pass, by ``chunk_gains`` of each chunk of ``chunk_size`` points. None: here.
        """
        parts = [] if gains_by is None else [gains_by(self).to(self.covered_W.device)]
        if gains_by is not None:
            vars(self)["kept_sketches"] = None  # they are made elsewhere
        _ = self.sketched and self.kept_sketches  # made now: the pass fills them
        score = FittingScore(self.chunk_gains)
        for at, x in self.pool.chunks(self.chunk_size) if gains_by is None else ():
            parts.append(score(at, x))
            seen(at, x)
        info = {"space": self.used_space}
        look = STREAM_LOOK.get(self.frozen.device.type, FIRST_LOOK)
        return Coverage(self.rows, self.covered_W, self.weight_W, info, to_float64(torch.cat(parts)), look)

    def chunk_gains(self, at: slice, x: Inputs) -> Tensor:
        """``gains`` of a chunk of the pool, before the first pick."""
        factors = self.held.factors_of(x)
        if (kept := vars(self).get("kept_sketches")) is not None:
            kept[at] = factors.rows[:, :-2].to(kept)
        return self.gains(factors, np.arange(at.start, at.stop))

    @property
    def made_by(self) -> list[object]:
        """What ``chunk_gains`` depends on besides the network and the points."""
        held = [self.covered_W, self.weight_W, self.held.factors.rows, *self.held.factors.products]
        return [*held, self.used_space, None if self.sample is None else self.sample.at_W]

    def __getstate__(self) -> dict[str, Any]:
        """What ``chunk_gains`` needs in another process: not the state, nor the pool."""
        _ = self.made_by, self.sample is None or self.own_U  # computed here, not there
        return {name: v for name, v in vars(self).items() if name in SENT}

    def gains(self, x: "Inputs | TangentFactors", at_n: np.ndarray) -> Tensor:
        """(n,): Σ_i e_i max(κ_ij² − c_i, 0) of candidates ``at_n``, whose points are x, in the precision of κ."""
        parts = []
        for at, kappa_nW in self.held.blocks(x):
            self.without_own(kappa_nW, at_n[at])
            c_W, e_W = self.covered_W.to(kappa_nW), self.weight_W.to(kappa_nW)
            kappa_nW.clamp_(min=c_W.sqrt())
            parts.append(torch.addcmul(-c_W, kappa_nW, kappa_nW, out=kappa_nW).clamp_min_(0) @ e_W)
        return torch.cat(parts)

    def compare(self, x_B: Inputs) -> "Compare":
        """Points -> κ with those of B, (n, B), exact, and how well L covers them."""
        if self.sketched:
            return lambda x: self.exact_kappa(x, x_B)
        held = self.centred.hold(x_B)
        return lambda x: (held.rows(x), self.covered(x))

    @cached_property
    def exact_mean(self) -> "MeanTangent | CentredTangents":
        """The mean tangent of L and an even sample of U, not of sketches. No tangent is held."""
        points = list(self.points_of_mean(EXACT_MEAN, EXACT_MEAN))
        try:
            mean = MeanTangent(self.frozen, points, self.centred.source.pass_points)
            mean.products(take_points(self.x_W, slice(2)))
            return mean
        except RuntimeError as e:
            if is_out_of_memory(e):
                raise
            log.info("tangents of few points at a time are formed, for their products with the mean: %s", e)
            return CentredTangents(FactorSource(self.frozen, self.x_W, self.state.C), points)

    def exact_kappa(self, x: Inputs, x_B: Inputs, precision: str | None = None) -> tuple[Tensor, Tensor]:
        """κ of points with those of B, and how well L covers them, from blocks of Θ. No tangent is held.

        Θ_ij − m_i − m_j + ‖μ‖² is the kernel of tangents less their mean μ, with m_i = J_i·μ.
        precision: of Θ; None: that of the state, which is measured by a ranking.
        """
        precision = precision or unmeasured_precision(self.state.precision_info["precision"], self.frozen)
        sets = {"n": x, "B": x_B} | ({} if self.x_L is None else {"L": self.x_L})
        pairs = [("n", b) for b in sets if b != "n"]
        found = gram(GramJob(self.frozen, sets, pairs, [*sets], self.budget, precision, self.state.C))
        m = {a: self.exact_mean.products(of) for a, of in sets.items()}
        length2 = self.exact_mean.length2
        by = {a: inverse_spread(found.diagonals[a][:, 0, 0] - 2 * m[a] + length2) for a in sets}

        def kappa(b: str) -> Tensor:
            centred = found.blocks["n", b].sub_(m["n"][:, None]).sub_(m[b] - length2)
            return centred.mul_(by["n"][:, None]).mul_(by[b]).clamp_(0, 1)

        covered_n = by["n"].new_zeros(count_points(x)) if self.x_L is None else kappa("L").amax(1).square()
        return kappa("B").to(self.frozen.dtype), covered_n

    @cached_property
    def exact_sample(self) -> tuple[np.ndarray, Tensor, Tensor]:
        """Some random candidates, and their exact κ with W and scores. Not those of ``Shortlist``."""
        at_n = np.sort(np.random.default_rng(1).permutation(len(self.pool))[:RECALL_POINTS])
        kappa_Wn, covered_W = self.exact_kappa(self.x_W, self.pool.take(at_n))
        kappa_nW = self.without_own(kappa_Wn.T.contiguous(), at_n)
        return at_n, kappa_nW, (to_float64(kappa_nW).square() - covered_W).clamp_min(0) @ self.weight_W

    @cached_property
    def sketch_recall(self) -> Mapping[str, float]:
        """How well sketches rank candidates, on some at random, whose exact scores are computed too.

        "recall": of those with the highest exact scores, a tenth ("top"), the share that sketches have among as many;
        "among_twice": among twice as many. "kappa_error": the root of the mean squared error of κ.
        """
        at_n, exact_nW, exact_n = self.exact_sample
        x = self.pool.take(at_n)
        ours_nW, ours_n = self.without_own(self.held.rows(x), at_n), self.gains(x, at_n)
        top = max(1, len(at_n) // 10)
        best = exact_n.topk(top).indices

        def found(k: int) -> float:
            return float(torch.isin(best, ours_n.topk(min(k, len(at_n))).indices).double().mean())

        error = float((ours_nW - exact_nW).square().mean().sqrt())
        return {
            "points": len(at_n), "top": top, "recall": found(top), "among_twice": found(2 * top), "kappa_error": error
        }  # fmt: skip

    @property
    def second_chunk(self) -> int:
        """Points that are compared with a shortlist at a time."""
        if not self.sketched:
            return self.chunk_size
        L = 0 if self.x_L is None else count_points(self.x_L)
        return max(4096, self.budget // 4 // (8 * 2 * (SECOND_LIST + L)))

    def watched_value(self, picks: list[int]) -> float:
        """What a batch adds to F, as a mean over the watched points."""
        best_W = best_cover(self.centred.hold(self.pool.take(picks)), self.x_W, self.covered_W)
        return float(((best_W - self.covered_W).clamp_min(0) * self.weight_W).mean())

    @cached_property
    def chunk_size(self) -> int:
        """Candidates that are read at a time."""
        fit = STREAM_NUMBERS // max(1, self.held.factors.rows.shape[1])
        return max(64, min(stream_chunk(self.frozen.device), 1 << max(fit, 1).bit_length() - 1))

    @property
    def nbytes(self) -> int:
        """Of what is in memory during the pass: factors of W and of a chunk, a few numbers a candidate, blocks of κ."""
        each = self.held.nbytes // len(self.held)
        blocks = 3 * min(BLOCK_POINTS.get(self.frozen.device.type, 512), self.chunk_size) * len(self.held) * 8
        chunk, kept = self.chunk_size * (3 * each + 2 * self.pool.point_bytes), min(self.kept, len(self.pool))
        row, gpu = self.held.factors.rows.element_size() * len(self.held), self.frozen.device.type != "cpu"
        sketches = 2 * self.held.factors.rows.shape[1] * len(self.pool) if self.sketched and gpu else 0
        return self.held.nbytes + chunk + blocks + kept * row + sketches + 64 * len(self.pool)

    def estimate_seconds(self) -> float:
        """Of the pass over the pool."""
        return self.trial[0] * len(self.pool)

    @cached_property
    def trial(self) -> tuple[float, float]:
        """What a candidate takes in the pass, as some watched points took: seconds, and work (``clock``)."""
        points = take_points(self.x_W, slice(TRIAL_POINTS))
        none = np.full(count_points(points), -1)
        _ = self.covered_W, self.weight_W
        begin, worked = time.perf_counter(), self.clock()
        self.gains(points, none).cpu()  # waits for a GPU
        return (time.perf_counter() - begin) / len(none), max((self.clock() - worked) / len(none), 1e-9)

    @cached_property
    def chance_work(self) -> float:
        """Work for e of a point: of the watched points, and for their state if nothing has asked for it before."""
        worked = self.clock()
        self.weight_W.cpu()
        return (self.clock() - worked) / count_points(self.x_W)

    def clock(self) -> float:
        """Seconds of work. Those of the processor, for others may use it too; of a GPU all that go by."""
        return time.process_time() if self.frozen.device.type == "cpu" else time.perf_counter()

    def compare_cost(self, S: int) -> float:
        """Of a point that is compared with S candidates, in candidates of the pass."""
        chance = self.chance_work / self.trial[1]
        return 2 * chance if self.sketched else chance + S / len(self.held)


@dataclass
class KeptRows:
    """Rows that were read, as many as there is room for.

    room: (rows, W). slot_U: where the row of a candidate is, −1 if it is not kept.
    """

    room: Tensor
    slot_U: Tensor
    used: int = 0

    def __call__(self, at_n: Tensor, read: KernelRows) -> Tensor:
        """(n, W): the rows of candidates, all different."""
        at_n = at_n.to(self.slot_U.device)
        new_m = at_n[self.slot_U[at_n] < 0]
        if not len(new_m):
            return self.room[self.slot_U[at_n]]
        read_mW = read(new_m)
        if (end := self.used + len(new_m)) <= len(self.room):
            self.room[self.used : end] = read_mW
            self.slot_U[new_m] = torch.arange(self.used, end, dtype=torch.int32, device=new_m.device)
            self.used = end
            return self.room[self.slot_U[at_n]]
        slot_n = self.slot_U[at_n]
        rows_nW = read_mW.new_empty(len(at_n), read_mW.shape[1])
        rows_nW[slot_n < 0], rows_nW[slot_n >= 0] = read_mW, self.room[slot_n[slot_n >= 0]]
        return rows_nW


def spaced_points(x: Inputs, most: int) -> Inputs:
    """At most so many points, evenly spaced."""
    n = count_points(x)
    return take_points(x, torch.linspace(0, n - 1, min(most, n)).long())


def best_cover(held: HeldTangents | None, x: Inputs, like: Tensor) -> Tensor:
    """(n,): how well the held points cover others, max κ², float64. 0 if there are none, on the device of ``like``."""
    if held is None:
        return to_float64(like.new_zeros(count_points(x)))
    return to_float64(torch.cat([kappa_nB.amax(1) for _, kappa_nB in held.blocks(x)])).square()


# --- the batch among a shortlist, by a larger sample ---


@dataclass(frozen=True, eq=False)
class Shortlist:
    """F of candidates S on a sample V of the pool that has all of S, and ``size`` points of the rest or all of them.

    error_U: the network's chance of error on each candidate. As many points again are held out, if there are so many.
    count: called with the number of points that were compared with S.
    """

    cover: StreamedCover
    at_S: np.ndarray
    error_U: np.ndarray
    size: int
    seed: int
    count: Callable[[int], object] = lambda points: None

    @cached_property
    def sample(self) -> "WatchedSample":
        rest = np.delete(np.arange(len(self.cover.pool)), self.at_S)
        if self.size >= len(rest):
            drawn = WatchedSample(rest, rest[:0], np.ones(len(rest)), np.ones(0))
        else:
            s = sample_watched(self.error_U[rest], self.size, min(self.size, len(rest) - self.size), self.seed)
            drawn = WatchedSample(rest[s.at_W], rest[s.at_H], s.chance_W, s.chance_H)
        at_V, chance_V = (
            np.concatenate(both) for both in ((self.at_S, drawn.at_W), (np.ones(len(self.at_S)), drawn.chance_W))
        )
        return WatchedSample(at_V, drawn.at_H, chance_V, drawn.chance_H)

    def compared(
        self, at_N: np.ndarray, chance_N: np.ndarray, at_B: np.ndarray
    ) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Points of the pool, some at a time: which of ``at_N``, κ_nB, e_i / π_i, and how well L covers them."""
        cover = self.cover
        compare = cover.compare(cover.pool.take(at_B))

        def of(at: slice) -> tuple[Tensor, Tensor, Tensor]:
            x = cover.pool.take(at_N[at])
            e_n = cover.chances(x)
            kappa_nB, covered_n = compare(x)
            return kappa_nB, e_n / torch.from_numpy(chance_N[at]).to(e_n), covered_n

        for at, found in FittingCuts(cover.second_chunk)(len(at_N), of):
            yield at, *found
            self.count(at.stop - at.start)

    @cached_property
    def coverage(self) -> Coverage:
        """F, of S."""
        at_V, parts = self.sample.at_W, list[tuple[Tensor, Tensor]]()
        kappa2_SV = self.cover.held.factors.rows.new_empty(len(self.at_S), len(at_V))
        for at, kappa_nS, weight_n, covered_n in self.compared(at_V, self.sample.chance_W, self.at_S):
            kappa2_SV[:, at] = kappa_nS.T.square()
            parts.append((covered_n, weight_n))
        covered_V, weight_V = (torch.cat(each) for each in zip(*parts))
        return Coverage(lambda at: kappa2_SV[at], covered_V, weight_V)

    def value(self, picks: list[int]) -> Mapping[str, float]:
        """What a batch of S adds to F, as a mean over the pool: by V; by the points held out, and the error of that.

        What V says is too high, because the batch was chosen by it. Points of S count as they are in both.
        """
        F, U, S = self.coverage, len(self.cover.pool), len(self.at_S)
        best_V = to_float64(F.rows(torch.as_tensor(picks)).amax(0))
        added_V = (best_V - F.covered_W).clamp_min(0) * F.weight_W
        told = {"watched": float(added_V.sum()) / U}
        if not (H := len(self.sample.at_H)):
            return told | {"held_out": told["watched"], "error": 0.0}  # all of the pool is watched
        added_H = torch.cat(
            [
                (to_float64(kappa_nB.amax(1)).square() - covered_n).clamp_min(0) * weight_n
                for _, kappa_nB, weight_n, covered_n in self.compared(
                    self.sample.at_H, self.sample.chance_H, self.at_S[picks]
                )
            ]
        )
        held_out = float(added_V[:S].sum() + added_H.sum()) / U
        return told | {"held_out": held_out, "error": math.sqrt(H) * float(added_H.std()) / U}


# --- which points are watched ---


@dataclass(frozen=True, eq=False)
class WatchedSample:
    """Positions in the pool of the watched points and of those held out, in order, and their chances to be there."""

    at_W: np.ndarray
    at_H: np.ndarray
    chance_W: np.ndarray
    chance_H: np.ndarray


def sample_watched(error_U: np.ndarray, W: int, H: int, seed: int) -> WatchedSample:
    """W points of a pool to watch and H to hold out, half of them at random and half by their chance of error.

    Systematic sampling: in random order, with q_i = 1 + error_i / mean and π_i = min(1, c q_i) so that Σ_i π_i = W + H,
    point i is drawn if a multiple of 1, shifted at random, lies between Σ_{k<i} π_k and Σ_{k≤i} π_k.
    """
    g, n = np.random.default_rng(abs(seed)), W + H
    mean = float(error_U.mean())
    q_U = 1.0 + (error_U / mean if mean > 0 else 0.0 * error_U)
    chance_U = np.minimum(1.0, n / q_U.sum() * q_U)
    while n - chance_U.sum() > 1e-9 * n and (open_U := chance_U < 1).any():  # share out what the ones have cut off
        chance_U[open_U] = np.minimum(1.0, chance_U[open_U] * (1 + (n - chance_U.sum()) / chance_U[open_U].sum()))
    order_U = g.permutation(len(chance_U))
    ends_U = np.cumsum(chance_U[order_U]) * (n / chance_U.sum())
    ends_U[-1] = n
    drawn = order_U[np.searchsorted(ends_U, np.arange(n) + g.random(), side="right").clip(0, len(order_U) - 1)]
    drawn = g.permutation(drawn)
    at_W, at_H = np.sort(drawn[:W]), np.sort(drawn[W:])
    return WatchedSample(at_W, at_H, chance_U[at_W] * (W / n), chance_U[at_H] * (H / n))
