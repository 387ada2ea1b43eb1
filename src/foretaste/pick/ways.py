"""Which way a query goes: dense, streamed or by a shortlist, from sizes and the budget, before anything is computed.

Dense has all points in memory, and all pairs in Θ. What fits is dense: then nothing is estimated.
"""

from dataclasses import dataclass
from typing import Any

import torch

from foretaste.acquire import Strategy, covered_errors
from foretaste.errors import format_bytes
from foretaste.given import SlicedPoints, sliced_tensors
from foretaste.lookahead import KernelSettings
from foretaste.tangent import count_points, resolve_budget

STREAMING = "cover (greedy or top), margin, entropy, least_confidence and random"
SHARE_IN_MEMORY = 4  # scores of outputs alone: a pool that takes less than 1/4 of the budget is read whole


@dataclass(frozen=True)
class Way:
    """How a pool of U points is asked.

    kind: "dense"; "streamed", chunk by chunk; "shortlist", dense among some of the points.
    why: what it needs of the budget, and how sure its scores are; of a shortlist, why it is not dense.
    instead: the kind that takes the place of dense if that turns out not to fit; None: it is refused then.
    """

    kind: str
    U: int
    why: str = ""
    instead: str | None = None


def as_source(x_U: Any) -> SlicedPoints:
    """The pool as points that can be read in chunks."""
    return x_U if isinstance(x_U, SlicedPoints) else sliced_tensors(x_U, "x_U")


def can_stream(how: Strategy, select: str, kernel: KernelSettings) -> bool:
    """Whether a strategy can be asked about a pool that is read in chunks."""
    if kernel.pool is not None or kernel.method == "direct":
        return False
    if how.coverage is covered_errors:
        return select in ("greedy", "top")
    return how.pointwise and select in ("top", "own")


def choose_way(how: Strategy, select: str, kernel: KernelSettings, x_U: Any, L: int, device: torch.device) -> Way:
    """The way of a query. Raises if there is none: the pool has to be in memory, and is too large for it."""
    able, stored = can_stream(how, select, kernel), isinstance(x_U, SlicedPoints)
    U = len(x_U) if stored else count_points(x_U)
    if kernel.method == "streamed":
        if not able:
            raise ValueError(
                f'method="streamed" is for {STREAMING}; strategy {how.name!r} with select={select!r} needs all points '
                'at once: use method="auto"'
            )
        return Way("streamed", U)
    budget, points = resolve_budget(kernel.budget, device), U * x_U.point_bytes if stored else 0
    auto = kernel.method == "auto" and kernel.pool is None
    of_budget = f"of a budget of {format_bytes(budget)}"
    if able and how.pointwise:
        needs = f"its {U} points take {format_bytes(points)} {of_budget}" if stored else f"its {U} points are in memory"
        kind = "streamed" if points > budget // SHARE_IN_MEMORY else "dense"
        return Way(kind, U, f"{needs}; one forward pass, and scores are exact", "streamed" if auto else None)
    W = min(U, kernel.watch) if isinstance(kernel.watch, int) else U
    if kernel.watched_points is not None:
        W = count_points(kernel.watched_points)
    needed = points + 8 * U * (W + L)
    needs = f"points and Θ of {U} candidates take about {format_bytes(needed)} {of_budget}"
    if able and auto and needed >= budget:
        sure = (
            "a sample of the pool is watched: q.info['batch_value'] has what the batch is worth, and the error of that"
        )
        return Way("streamed", U, f"{needs}; {sure}")
    if points > budget:
        words = (
            f"x_U has {U} points, {format_bytes(points)} in memory, and the budget is {format_bytes(budget)}; strategy "
            f"{how.name!r} needs all points at once. These read a pool in chunks: {STREAMING}. Or give a random part "
            "of x_U, or a larger budget="
        )
        if not auto:
            raise ValueError(words)
        return Way("shortlist", U, words)
    instead = ("streamed" if able else "shortlist") if auto else None
    sure = "scores are exact" if W == U else f"scores are exact sums over {W} watched points"
    if how.picks:
        needs = f"strategy {how.name!r} picks by itself among {U} candidates, in memory"
    elif needed >= budget and instead == "shortlist":
        sure = "if that does not fit, as many as do are looked at"
    return Way("dense", U, f"{needs}; {sure}", instead)
