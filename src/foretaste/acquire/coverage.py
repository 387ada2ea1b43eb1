"""Coverage: a point is served by the one chosen point nearest to it. ``cover`` is one, herding and ProbCover others.

    F(B) = Σ_i w_i max_{j ∈ L∪B} k_ij

with k between 0 and 1 and w_i ≥ 0. F is submodular: what a candidate adds only shrinks as B grows. So greedy is within
1 − 1/e of the best batch, and ``cover_greedily`` is lazy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

import torch
from torch import Tensor

from foretaste.errors import counted

KernelRows = Callable[[Tensor], Tensor]  # positions of n candidates -> their k with the W points to cover, (n, W)
FIRST_LOOK, FIRST_LOOK_GPU = 4, 32  # candidates looked at first; on a GPU 32 cost as much as one
MANY = 256  # candidates looked at first, from which they are no list but a tensor
LAZY_ROUNDING = 1e-12  # of a gain: bounds within it of the best are computed again

COVER_CHUNK = 2**18  # numbers of k at a time: 2 MB, which stay in the cache
COVER_CHUNK_GPU = 2**24


@dataclass(frozen=True, eq=False)
class Coverage:
    """F(B) = Σ_i w_i max(c_i, max_{j∈B} k_ij): a batch is grown on it greedily, by lazy evaluation.

    rows: positions of n candidates -> their k with the watched points, (n, W), between 0 and 1.
    covered_W: c_i, how well what is labelled covers point i.
    weight_W: w_i ≥ 0.
    info: what goes into ``q.info``.
    first_U: what each candidate alone would add, where that is known already.
    look: candidates whose rows are computed again at first, for a pick.
    """

    rows: KernelRows
    covered_W: Tensor
    weight_W: Tensor
    info: Mapping[str, Any] = field(default_factory=dict)
    first_U: Tensor | None = None
    look: int = FIRST_LOOK


def added_coverage(rows: KernelRows, at_n: Tensor, covered_W: Tensor, weight_W: Tensor) -> Tensor:
    """(n,): what each of the candidates ``at_n`` alone would add to F, Σ_i w_i max(k_ij − c_i, 0)."""
    step = max(1, (COVER_CHUNK if covered_W.is_cpu else COVER_CHUNK_GPU) // max(1, len(covered_W)))
    # One buffer for all parts: fresh pages cost more than the arithmetic.
    room = covered_W.new_empty(min(step, len(at_n)), len(covered_W))
    parts = at_n.split(step)
    return torch.cat([torch.sub(rows(n), covered_W, out=room[: len(n)]).clamp_min_(0) @ weight_W for n in parts])


def cover_greedily(
    rows: KernelRows,
    covered_W: Tensor,
    U: int,
    batch_size: int,
    generator: torch.Generator,
    *,
    weight_W: Tensor | None = None,
    order_U: Tensor | None = None,
    equal: float = 0.0,
    progress: Callable[[int, int], object] | None = None,
    first_U: Tensor | None = None,
    look: int = FIRST_LOOK,
    near_U: Tensor | None = None,
    gains: list[float] | None = None,
) -> tuple[Tensor, Tensor]:
    """A batch B grown greedily for F(B) = Σ_i w_i max(c_i, max_{j∈B} k_ij), by lazy evaluation.

    Args:
        rows: candidates -> (n, W), their k with the points to cover.
        covered_W: c_i, how well what is labelled covers i; 0 where nothing does.
        U: the number of candidates.
        batch_size: how many to pick.
        generator: draws the order in which ties are broken, and the rest is taken when nothing adds to F any more.
        weight_W: w_i ≥ 0; None is 1.
        order_U: that order, where it is given.
        equal: gains that differ by less, relatively, are ties.
        progress: called with (done, total) after each pick.
        first_U: what each candidate alone would add, where that is known already.
        look: candidates that are computed again at first, for a pick.
        near_U: zeros; is filled with how near candidates came to being picked: the largest of gain / gain of the pick,
            for those whose gain was computed again.
        gains: is filled with what each pick adds to F, as long as that is more than 0.

    Returns:
        The positions of the picks, best first, on the CPU; and what each candidate alone would add, (U,).

    Raises:
        ValueError: k or w is NaN, which cannot be ranked.
    """
    weight_W = torch.ones_like(covered_W) if weight_W is None else weight_W

    def added(at: Tensor) -> Tensor:
        return added_coverage(rows, at, covered_W, weight_W)

    first_U = added(torch.arange(U, device=covered_W.device)) if first_U is None else first_U
    if (bad := first_U.isnan()).any():
        first = int(bad.nonzero()[0])
        raise ValueError(f"k or w of a coverage is NaN, for {counted(int(bad.sum()), 'candidate')}, first at {first}")
    order_U = torch.randperm(U, generator=generator) if order_U is None else order_U
    how = LazyGains if look < MANY else LazyGainsTensor
    lazy, picks = how(first_U, order_U, look, equal), list[int]()
    while len(picks) < batch_size:
        best, gain = lazy.pop(added)
        if not gain > 0:
            picks += lazy.others(picks)[: batch_size - len(picks)]
            break
        picks.append(best)
        if gains is not None:
            gains.append(gain)
        if near_U is not None:
            near_U[best] = 1.0
            for at_n, gains_n in lazy.computed:
                near_U[at_n] = torch.maximum(near_U[at_n], gains_n / gain)
        covered_W = torch.maximum(covered_W, rows(torch.tensor([best], device=covered_W.device))[0])
        if progress is not None:
            progress(len(picks), batch_size)
    return torch.tensor(picks, dtype=torch.int64), first_U


class LazyGains:
    """Candidates by a bound on their gain, the highest first, equal ones in the order of ``order_U``.

    Lazy greedy (Minoux 1978): where gains only shrink as a batch grows, an old gain is a bound on the new one. So few
    gains are computed again for each pick: those whose bound is above the best gain so far. The picks are those of
    plain greedy, which computes all. The gains that it starts with are exact. ``look``: candidates computed again at
    first; twice as many each time that is not enough. ``equal``: gains that differ by less, relatively, are equal.
    ``computed``: positions and gains that were computed for the last pick.
    """

    def __init__(self, gains_U: Tensor, order_U: Tensor, look: int = FIRST_LOOK, equal: float = 0.0) -> None:
        self.order, self.equal, self.computed = order_U.tolist(), equal, list[tuple[Tensor, Tensor]]()
        self.device, self.look = gains_U.device, look if gains_U.is_cpu else max(look, FIRST_LOOK_GPU)
        gains = gains_U.tolist()
        self.heap = [(-gains[j], place) for place, j in enumerate(self.order)]  # negative: the least comes first
        heapify(self.heap)
        self.exact = True

    def pop(self, gains: Callable[[Tensor], Tensor]) -> tuple[int, float]:
        """Take out the candidate of the highest gain, the first in ``order`` among equals, and return it and its gain.

        gains: positions (n,) -> their gains (n,), at most those that were computed before.
        """
        if self.exact:
            self.exact = False
            return self._take(self.heap)
        computed: list[tuple[float, int]] = []
        self.computed.clear()
        look = self.look
        while self.heap and not (computed and self._is_behind(self.heap[0], computed[0])):
            places = [heappop(self.heap)[1] for _ in range(min(look, len(self.heap)))]
            at_n = torch.tensor([self.order[p] for p in places], device=self.device)
            self.computed.append((at_n, gains(at_n)))
            for gain, place in zip(self.computed[-1][1].tolist(), places):
                heappush(computed, (-gain, place))
            look *= 2
        best = self._take(computed)
        for other in computed:
            heappush(self.heap, other)
        return best

    def _take(self, heap: list[tuple[float, int]]) -> tuple[int, float]:
        """Take the highest gain out of a heap of exact ones, or the first in order of those that are equal to it."""
        near = [heappop(heap)]
        while self.equal and heap and heap[0][0] <= near[0][0] + self.equal * abs(near[0][0]):
            near.append(heappop(heap))
        first = min(near, key=lambda entry: entry[1])
        for other in near:
            if other is not first:
                heappush(heap, other)
        return self.order[first[1]], -first[0]

    def _is_behind(self, bound: tuple[float, int], best: tuple[float, int]) -> bool:
        """Whether a candidate with this bound cannot be before the best; both are (−gain, place)."""
        if -bound[0] < -best[0] - max(LAZY_ROUNDING, self.equal) * abs(best[0]):
            return True
        return not self.equal and bound[0] == best[0] and bound[1] > best[1]

    def others(self, picks: list[int]) -> list[int]:
        """The candidates that are not among ``picks``, in their order."""
        taken = set(picks)
        return [j for j in self.order if j not in taken]


class LazyGainsTensor:
    """``LazyGains`` for a GPU: thousands of candidates are computed at a time, and Python loops over none of them."""

    def __init__(self, gains_U: Tensor, order_U: Tensor, look: int, equal: float = 0.0) -> None:
        self.order_U, self.look, self.equal = order_U, look, equal
        self.bound_U, self.exact = gains_U.clone(), True
        self.rank_U = torch.empty_like(order_U).scatter_(0, order_U, torch.arange(len(order_U))).to(gains_U.device)
        self.computed = list[tuple[Tensor, Tensor]]()

    def pop(self, gains: Callable[[Tensor], Tensor]) -> tuple[int, float]:
        """As ``LazyGains.pop``."""
        self.computed.clear()
        best, stale_U = -torch.inf, self.bound_U.clone()  # bounds that are not computed again
        while not self.exact:
            top = stale_U.topk(min(self.look, len(stale_U)))
            highest = float(top.values[0])
            if highest == -torch.inf or highest < best - max(LAZY_ROUNDING, self.equal) * abs(best):
                break
            at_n = top.indices[top.values > -torch.inf]
            gains_n = gains(at_n)
            self.computed.append((at_n, gains_n))
            self.bound_U[at_n], stale_U[at_n] = gains_n, -torch.inf
            best = max(best, float(gains_n.max()))
        self.exact = False
        highest_gain = self.bound_U.max()
        lower_U = self.bound_U < highest_gain - self.equal * highest_gain.abs()
        j = int(self.rank_U.masked_fill(lower_U, len(lower_U)).argmin())
        gain = float(self.bound_U[j])
        self.bound_U[j] = -torch.inf
        return j, gain

    def others(self, picks: list[int]) -> list[int]:
        """As ``LazyGains.others``."""
        return self.order_U[~torch.isin(self.order_U, torch.tensor(picks, dtype=torch.int64))].tolist()
