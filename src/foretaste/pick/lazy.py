"""Lazy greedy (Minoux 1978): where gains only shrink as a batch grows, an old gain is a bound on the new one.

So few gains are computed again for each pick: those whose bound is above the best gain so far. The picks are those of
plain greedy, which computes all.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

import torch
from torch import Tensor

FIRST_LOOK, FIRST_LOOK_GPU = 4, 32  # on a GPU so many cost what one does
LAZY_ROUNDING = 1e-12  # of a gain: bounds within it of the best are computed again


class LazyGains:
    """Candidates by a bound on their gain, the highest first, equal ones in a random order.

    The gains that it starts with are exact. ``look``: candidates computed again at first; twice as many each time that
    is not enough.
    """

    def __init__(self, gains_U: Tensor, generator: torch.Generator, look: int = FIRST_LOOK) -> None:
        self.order = torch.randperm(len(gains_U), generator=generator).tolist()
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
            bound, place = heappop(self.heap)
            return self.order[place], -bound
        computed: list[tuple[float, int]] = []
        look = self.look
        while self.heap and not (computed and _is_behind(self.heap[0], computed[0])):
            places = [heappop(self.heap)[1] for _ in range(min(look, len(self.heap)))]
            found = gains(torch.tensor([self.order[p] for p in places], device=self.device)).tolist()
            for gain, place in zip(found, places):
                heappush(computed, (-gain, place))
            look *= 2
        best, place = heappop(computed)
        for other in computed:
            heappush(self.heap, other)
        return self.order[place], -best

    def others(self, picks: list[int]) -> list[int]:
        """The candidates that are not among ``picks``, in random order."""
        taken = set(picks)
        return [j for j in self.order if j not in taken]


def _is_behind(bound: tuple[float, int], best: tuple[float, int]) -> bool:
    """Whether a candidate with this bound cannot be before the best; both are (−gain, place)."""
    return -bound[0] < -best[0] - LAZY_ROUNDING * abs(best[0]) or (bound[0] == best[0] and bound[1] > best[1])
