"""``cover`` for pools of any size: the watched points are a sample, and candidates are read chunk by chunk.

    F(B) = Σ_{i ∈ W} (e_i / π_i) max_{j ∈ L∪B} κ_ij²

is the F of cover.py with W a sample of the pool, in place of the pool. π_i is the chance that i is in the sample: half
of it is equal for all points, half goes with the network's own chance of error, so that W is not spent on points whose
e_i is nothing (``sample_watched``). κ is centred by the mean tangent of U ∪ L, as W and L estimate it. One pass over
the pool gives what each candidate alone adds to F. Lazy evaluation then asks for few candidates again, whose points are
read again. Nothing of size U × W is ever in memory: U numbers, the factors of W, and a block of κ.

A watched point stands for 1/π_i points of the pool, but for itself only once: else candidates that happen to be watched
would seem to cover 1/π_i points each. So κ_ii² is c_i + π_i (1 − c_i), with c_i what L covers, and 1 once i is picked.

F of a batch on W is a little too high, because the batch was chosen by it. So some points of the pool are held out: F
of the batch on these is an honest estimate. ``value`` gives both.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.acquire.cover import choose_space, error_chances
from foretaste.acquire.coverage import Coverage
from foretaste.acquire.predictions import need_classes
from foretaste.given import SlicedPoints
from foretaste.lookahead import State
from foretaste.tangent import (
    BLOCK_POINTS,
    CentredTangents,
    FactorSource,
    FrozenNetwork,
    HeldTangents,
    Inputs,
    count_points,
    join_points,
    take_points,
    to_float64,
)

STREAM_CHUNK = 4096  # candidates that are read at a time, at most
STREAM_NUMBERS = 1 << 25  # of their factors at a time. Not of the budget: it must not change rounding, and so a pick
TRIAL_POINTS = 512  # on which the time of a pass is estimated
Seen = Callable[[slice, Inputs], object]  # is called with every chunk that is read


@dataclass(frozen=True, eq=False)
class StreamedCover:
    """F on a sample of the pool.

    state: of L, with the points W and then those held out watched, and a few of W as candidates.
    frozen: the network. C: its outputs. x_L: the labelled points, or None.
    pool: the candidates. sample: which of them are watched and held out; None if all are watched, or other points.
    scale, space: the options of ``cover``.
    """

    state: State
    frozen: FrozenNetwork
    x_L: Inputs | None
    x_W: Inputs
    x_H: Inputs | None
    pool: SlicedPoints
    sample: "WatchedSample | None" = None
    scale: float | None = None
    space: str = "auto"
    rows_read: list[int] = field(default_factory=list)  # how many, each time that lazy evaluation asks

    @cached_property
    def used_space(self) -> str:
        need_classes(self.state, "cover", "variance: there is no chance of error")
        return choose_space(self.state.prior()) if self.space == "auto" else self.space

    @cached_property
    def centred(self) -> CentredTangents:
        source = FactorSource(self.frozen, self.x_W, self.state.C, inputs_only=self.used_space == "inputs")
        x_M = self.x_W if self.x_L is None else join_points(self.x_W, self.x_L)
        if self.sample is None:
            return CentredTangents(source, x_M)
        weight_M = self.chances.new_ones(count_points(x_M))
        weight_M[: len(self.sample.at_W)] = torch.from_numpy(1 / self.sample.chance_W).to(weight_M)
        return CentredTangents(source, x_M, weight_M)

    @cached_property
    def held(self) -> HeldTangents:
        return self.centred.hold(self.x_W)

    @cached_property
    def chances(self) -> Tensor:
        """e of the watched points and of those held out."""
        return error_chances(self.state, self.scale, tangents=self.used_space == "tangent")

    @cached_property
    def weights(self) -> tuple[Tensor, Tensor]:
        """e_i / π_i, in units that make Σ_i 1/π_i about W: of the watched points, and of those held out."""
        W = len(self.held)
        e_W, e_H = self.chances[:W], self.chances[W:]
        if self.sample is None:
            return e_W, e_H
        s, U = self.sample, len(self.pool)
        by_W, by_H = (torch.from_numpy(1 / chance).to(e_W) for chance in (s.chance_W, s.chance_H))
        return e_W * by_W * (W / U), e_H * by_H * (W / U)

    @cached_property
    def covered_W(self) -> Tensor:
        return self.covered(self.held)

    @cached_property
    def own_W(self) -> Tensor:
        """κ_ii of the watched points of a sample."""
        assert self.sample is not None
        chance_W = torch.from_numpy(self.sample.chance_W).to(self.covered_W)
        return torch.lerp(self.covered_W, torch.ones_like(chance_W), chance_W).sqrt()

    def covered(self, held: HeldTangents) -> Tensor:
        """How well L covers the held points: max over L of κ², float64."""
        if self.x_L is None:
            return self.chances.new_zeros(len(held))
        return to_float64(torch.stack([kappa_lW.amax(0) for _, kappa_lW in held.blocks(self.x_L)]).amax(0)).square()

    def rows(self, at: Tensor) -> Tensor:
        """(n, W): κ² of candidates, whose points are read now."""
        self.rows_read.append(len(at))
        at_n = at.cpu().numpy()
        kappa_nW = self.held.rows(self.pool.take(at_n))
        return self.with_own(kappa_nW, at_n).square_()

    def with_own(self, kappa_nW: Tensor, at_n: np.ndarray, counts: bool = True) -> Tensor:
        """κ of candidates ``at_n``, in place: that of a watched point with itself as above, or 0 if not counted."""
        if self.sample is not None:
            at_W = self.sample.at_W
            i_n = np.searchsorted(at_W, at_n).clip(0, len(at_W) - 1)
            n = np.flatnonzero(at_W[i_n] == at_n)
            kappa_nW[n, i_n[n]] = self.own_W[i_n[n]].to(kappa_nW) if counts else 0.0
        return kappa_nW

    def coverage(
        self, seen: Seen = lambda at, x: None, gains_by: "Callable[[StreamedCover], Tensor] | None" = None
    ) -> Coverage:
        """F, with what each candidate alone adds to it: one pass over the pool.

        gains_by: makes that pass, by ``chunk_gains`` of each chunk of ``chunk_size`` points. None: here.
        """
        covered_W, (weight_W, _) = self.covered_W, self.weights
        parts = [] if gains_by is None else [gains_by(self).to(covered_W.device)]
        for at, x in self.pool.chunks(self.chunk_size) if gains_by is None else ():
            parts.append(self.chunk_gains(at, x))
            seen(at, x)
        own = {} if self.sample is None else {int(j): i for i, j in enumerate(self.sample.at_W)}
        info = {"space": self.used_space}
        return Coverage(self.rows, covered_W, weight_W, info, to_float64(torch.cat(parts)), own)

    def chunk_gains(self, at: slice, x: Inputs) -> Tensor:
        """``gains`` of a chunk of the pool, before the first pick."""
        return self.gains(x, np.arange(at.start, at.stop), self.covered_W, self.weights[0])

    @property
    def made_by(self) -> list[object]:
        """What ``chunk_gains`` depends on besides the network and the points."""
        held = [self.covered_W, self.weights[0], self.held.factors.rows, *self.held.factors.products]
        return [*held, self.used_space, None if self.sample is None else self.sample.at_W]

    def __getstate__(self) -> dict[str, Any]:
        """What ``chunk_gains`` needs in another process: not the state, nor the pool."""
        _ = self.made_by, self.sample and self.own_W  # computed here, not there
        return {k: v for k, v in vars(self).items() if k not in ("state", "pool", "x_L", "x_W", "x_H", "chances")}

    def gains(self, x: Inputs, at_n: np.ndarray, covered_W: Tensor, weight_W: Tensor) -> Tensor:
        """(n,): Σ_i e_i max(κ_ij² − c_i, 0) of candidates ``at_n``, whose points are x, in the precision of κ."""
        parts = []
        for at, kappa_nW in self.held.blocks(x):
            self.with_own(kappa_nW, at_n[at])
            c_W, e_W = covered_W.to(kappa_nW), weight_W.to(kappa_nW)
            kappa_nW.clamp_(min=c_W.sqrt())
            parts.append(torch.addcmul(-c_W, kappa_nW, kappa_nW, out=kappa_nW).clamp_min_(0) @ e_W)
        return torch.cat(parts)

    def value(self, F: Coverage, picks: list[int]) -> Mapping[str, Any]:
        """What a batch adds to F, as a mean over the watched points and over those held out, and the latter's error."""
        x_B, at_B = self.pool.take(picks), np.asarray(picks)
        added_W = self._added(self.held, x_B, F.covered_W, F.weight_W, at_B)
        told = {"watched": float(added_W.mean())}
        if self.x_H is None:
            return told  # the whole pool is watched
        held = self.centred.hold(self.x_H)
        added_H = self._added(held, x_B, self.covered(held), self.weights[1])
        return told | {"held_out": float(added_H.mean()), "error": float(added_H.std()) / math.sqrt(len(added_H))}

    def _added(
        self, held: HeldTangents, x_B: Inputs, covered_W: Tensor, weight_W: Tensor, at_B: np.ndarray | None = None
    ) -> Tensor:
        """(W,): e_i max(max_B κ_ij² − c_i, 0). at_B: positions of the batch, if watched points are held."""
        blocks = [
            (kappa_bW if at_B is None else self.with_own(kappa_bW, at_B[at], counts=False)).amax(0)
            for at, kappa_bW in held.blocks(x_B)
        ]
        best_W = torch.stack(blocks).amax(0)
        return (to_float64(best_W).square() - covered_W).clamp_min(0) * weight_W

    @cached_property
    def chunk_size(self) -> int:
        """Candidates that are read at a time."""
        fit = STREAM_NUMBERS // max(1, self.held.factors.rows.shape[1])
        return max(64, min(STREAM_CHUNK, 1 << max(fit, 1).bit_length() - 1))

    @property
    def nbytes(self) -> int:
        """Of what is in memory during the pass: factors of W and of a chunk, a few numbers a candidate, blocks of κ."""
        each = self.held.nbytes // len(self.held)
        blocks = 3 * min(BLOCK_POINTS["cpu"], self.chunk_size) * len(self.held) * 8
        return (
            self.held.nbytes + self.chunk_size * (3 * each + 2 * self.pool.point_bytes) + blocks + 64 * len(self.pool)
        )

    def estimate_seconds(self) -> float:
        """Of the pass over the pool, from a trial on some watched points."""
        trial = take_points(self.x_W, slice(TRIAL_POINTS))
        none = np.full(count_points(trial), -1)
        covered_W, (weight_W, _) = self.covered_W, self.weights
        begin = time.perf_counter()
        self.gains(trial, none, covered_W, weight_W)
        return (time.perf_counter() - begin) / count_points(trial) * len(self.pool)


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
    chance_U *= W / n
    return WatchedSample(at_W, at_H, chance_U[at_W], chance_U[at_H])
