"""Coverage: a point is served by the one chosen point nearest to it. ``cover`` is one, herding and ProbCover others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

COVER_CHUNK = 2**18  # numbers of k at a time: 2 MB, which stay in the cache
COVER_CHUNK_GPU = 2**24


@dataclass(frozen=True, eq=False)
class Coverage:
    """F(B) = Σ_i w_i max(c_i, max_{j∈B} k_ij): a batch is grown on it greedily, by lazy evaluation.

    rows: positions of n candidates -> their k with the watched points, (n, W), between 0 and 1.
    covered_W: c_i, how well what is labelled covers point i.
    weight_W: w_i ≥ 0.
    info: what goes into ``q.info``.
    """

    rows: Callable[[Any], Tensor]
    covered_W: Tensor
    weight_W: Tensor
    info: Mapping[str, Any] = field(default_factory=dict)


def added_coverage(rows: Callable[[Any], Tensor], at_n: Tensor, covered_W: Tensor, weight_W: Tensor) -> Tensor:
    """(n,): what each of the candidates ``at_n`` alone would add to F, Σ_i w_i max(k_ij − c_i, 0)."""
    step = max(1, (COVER_CHUNK if covered_W.is_cpu else COVER_CHUNK_GPU) // max(1, len(covered_W)))
    # One buffer for all parts: fresh pages cost more than the arithmetic.
    room = covered_W.new_empty(min(step, len(at_n)), len(covered_W))
    parts = at_n.split(step)
    return torch.cat([torch.sub(rows(n), covered_W, out=room[: len(n)]).clamp_min_(0) @ weight_W for n in parts])
