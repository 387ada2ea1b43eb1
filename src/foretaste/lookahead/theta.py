"""Θ between L, W and U, in site layout: rows (n, b), b < B. Computed when first asked for."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from foretaste.tangent import (
    BudgetError,
    FrozenNetwork,
    Inputs,
    PrecisionChoice,
    count_points,
    gram,
    kernel_holds,
    precisions_to_try,
    take_points,
)

MOST_WATCHED = 4096  # points that an error suggests to watch: with more, rankings hardly change (docs/guide.md, watch)


@dataclass(frozen=True)
class ThetaBlocks:
    """The blocks that f_lin on L+ needs. With W = U, ``WL`` is ``UL`` and ``WU`` is Θ_UU."""

    LL: Tensor
    WL: Tensor
    UL: Tensor
    WU: Tensor
    diag_U: Tensor  # (U, B, B)
    diag_W: Tensor | None

    def scaled(self, by: float) -> "ThetaBlocks":
        if by == 1.0:
            return self
        UL = self.UL * by
        WL = UL if self.WL is self.UL else self.WL * by
        diag_W = None if self.diag_W is None else self.diag_W * by
        return ThetaBlocks(self.LL * by, WL, UL, self.WU * by, self.diag_U * by, diag_W)


@dataclass(frozen=True)
class KernelSource:
    """Where Θ comes from: ``load`` gives all blocks at once, ``row(j)`` Θ(x_j, U) of one candidate, (B, U·B)."""

    load: Callable[[], ThetaBlocks]
    row: Callable[[int], Tensor]
    ours: bool  # whether what load gives may be overwritten
    choice: PrecisionChoice = field(
        default_factory=lambda: PrecisionChoice("given")
    )  # of the arithmetic; filled when Θ is loaded


def kernels_of_network(
    frozen: FrozenNetwork,
    C: int,
    x_L: Inputs | None,
    x_U: Inputs,
    x_W: Inputs | None,
    *,
    y_LC: Tensor | None,
    ridge: float | None,
    budget: int | str | None,
    precision: str,
    scale: float,
    f: dict[str, Tensor] | None = None,
) -> KernelSource:
    """From one run of the tangent engine, with x_W None for W = U and x_L None for an empty L.

    ``f`` is filled with the outputs on L, W and U when that run is made. The network and the inputs were checked.
    ``y_LC`` and ``ridge`` only help to choose the precision.
    """
    B = C if frozen.output == "full" else 1
    how: dict[str, Any] = {"budget": budget, "classes": C}
    choice = PrecisionChoice(precision)

    def load() -> ThetaBlocks:
        sets = {k: x for k, x in (("L", x_L), ("U", x_U), ("W", x_W)) if x is not None}
        points = sum(count_points(x) for x in sets.values())
        own = None if ridge is None else ridge / scale
        ways = precisions_to_try(choice, frozen, C, x_L, x_U, y_LC, own, points, budget)
        for choice.used in ways[:-1]:
            theta = blocks_in(choice.used, sets)
            if kernel_holds(theta.LL, theta.UL, theta.diag_U, own):
                return theta.scaled(scale)
            choice.spearman[choice.used] = math.nan
            del theta  # before the next is made
        choice.used = ways[-1]
        return blocks_in(choice.used, sets).scaled(scale)

    def blocks_in(precision: str, sets: dict[str, Inputs]) -> ThetaBlocks:
        w = "U" if x_W is None else "W"
        blocks = [(w, "U")]
        if x_L is not None:
            blocks += [("L", "L"), ("U", "L")] + ([("W", "L")] if w == "W" else [])
        diagonals = ["U", "W"] if w == "W" else []
        try:
            theta, diag = gram(frozen, sets, blocks, diagonals, precision=precision, **how, f=f)
        except BudgetError as e:
            raise ValueError(f"{e}{suggest_watch(e, w == 'W')}") from None
        none = theta[w, "U"].new_zeros
        LL = theta.get(("L", "L"), none(0, 0))
        UL = theta.get(("U", "L"), none(count_points(x_U) * B, 0))
        if w == "U":
            diag_U = diagonal_blocks(theta["U", "U"], B)
            return ThetaBlocks(LL, UL, UL, theta["U", "U"], diag_U, diag_U)
        WL = theta.get(("W", "L"), none(theta["W", "U"].shape[0], 0))
        return ThetaBlocks(LL, WL, UL, theta["W", "U"], diag["U"], diag["W"])

    def row(j: int) -> Tensor:
        sets = {"j": take_points(x_U, slice(j, j + 1)), "U": x_U}
        precision = choice.used or ("float32" if choice.asked == "auto" else choice.asked)
        return gram(frozen, sets, [("j", "U")], [], precision=precision, **how)[0]["j", "U"] * scale

    return KernelSource(load, row, True, choice)


def suggest_watch(e: BudgetError, watched: bool) -> str:
    """The end of an error about a pool too large for memory: how many watched points would fit.

    watched: some points are watched already, rather than the whole pool.
    """
    U, L = e.job.sizes["U"], e.job.sizes.get("L", 0)
    blocks = [("W", "U")] + ([("L", "L"), ("U", "L"), ("W", "L")] if L else [])

    def fits(W: int) -> bool:
        return e.fits({"L": L, "U": U, "W": W} if L else {"U": U, "W": W}, blocks, ["U", "W"])

    low, high = 0, min(U, MOST_WATCHED)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    if not low:
        return f"; or take a random part of the {U} candidates"
    digits = 10 ** max(0, len(str(low)) - 2)
    most = low if low == MOST_WATCHED else low // digits * digits  # rounded down to two digits
    if watched:
        return f"; or keep this budget and watch at most {most} points: watch={most}"
    return f"; or keep this budget and give watch={most}: scores then sum over {most} points of the pool, not over all"


def given_kernels(theta: ThetaBlocks, theta_UU: Tensor | None, B: int, scale: float) -> KernelSource:
    def row(j: int) -> Tensor:
        if theta_UU is None:
            raise ValueError(
                f"keeping candidate {j} needs Θ(x_{j}, U), and the watched points are not the pool; give theta_UU"
            )
        return theta_UU[j * B : (j + 1) * B].double() * scale

    return KernelSource(lambda: theta.scaled(scale), row, ours=scale != 1.0)


def diagonal_blocks(theta: Tensor, B: int) -> Tensor:
    """(N, B, B), copied out of (N·B, N·B)."""
    n = theta.shape[0] // B
    return theta.reshape(n, B, n, B).diagonal(dim1=0, dim2=2).permute(2, 0, 1).clone()


def load_now(kernels: KernelSource) -> KernelSource:
    """The same, computed now; handed out once, so that nobody else keeps Θ."""
    box = [kernels.load()]
    return KernelSource(box.pop, kernels.row, kernels.ours, kernels.choice)


@dataclass(eq=False)
class LoadedTheta:
    """Θ held as it came, for the direct solve; shared by all states of one linearisation."""

    kernels: KernelSource
    rows: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def theta(self) -> ThetaBlocks:
        return self.kernels.load()


def to_sites(t_NC: Tensor, B: int) -> Tensor:
    """(N, C) as right-hand sides in site space, (N·B, C/B)."""
    return t_NC.reshape(t_NC.shape[0] * B, t_NC.shape[1] // B)


def site_index(js: list[int], B: int, device: torch.device) -> Tensor:
    j = torch.tensor(js, dtype=torch.int64, device=device)
    return (j[:, None] * B + torch.arange(B, device=device)).flatten()
