"""How to fit the work in memory: which gradients are formed in which pass, and how many points go at a time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from foretaste.errors import format_bytes
from foretaste.tangent.accumulate import Block, ThetaSum
from foretaste.tangent.memory import free_memory, resolve_budget
from foretaste.tangent.products import ProductLayer, split_products
from foretaste.tangent.survey import LayerParameter, Survey

# Bytes of a chunk's pass beyond which more points at a time gain nothing, and how few points are ever wasteful.
CHUNK_BYTES = {"cpu": 1 << 27, "cuda": 1 << 34}
CHUNK_LEAST = 8
CHUNK_MOST = 1024
# On a CPU fresh memory is slow, so that rows much larger than the A and G they come from are formed in slabs of so
# many bytes, in memory used over and over; but of so many columns at least, for each slab is added to all of Θ.
SLAB_BYTES = 3 << 24
SLAB_LEAST = 1 << 12
SLAB_WORTH = 4  # times that rows are larger than their A and G, at least
TILE_BYTES = 1 << 24  # of the kernels between positions that a product sums


@dataclass
class LayerGroup:
    """What one pass over all points brings home.

    ``formed`` are rows written during the pass. ``stashed`` layers keep A and G, smaller than their rows, and form
    rows slab by slab afterwards; ``products`` keep A and G and never form any; ``functional`` rows are torch.func's.
    """

    formed: list[tuple[LayerParameter, slice]] = field(default_factory=list)
    functional: list[tuple[str, slice]] = field(default_factory=list)
    stashed: list[LayerParameter] = field(default_factory=list)
    products: list[ProductLayer] = field(default_factory=list)
    width: int = 0  # columns of the rows written during the pass
    held: int = 0  # bytes of A and G kept
    slab: int = 0  # columns of rows formed at once from what is stashed

    @property
    def modules(self) -> list[nn.Module]:
        formed = [m for ly, _ in self.formed for m in ly.modules]
        return list(dict.fromkeys([*formed, *self.kept]))

    @property
    def kept(self) -> list[nn.Module]:
        stashed = [m for ly in self.stashed for m in ly.modules]
        return list(dict.fromkeys([*stashed, *(m for pr in self.products for m in pr.modules)]))


@dataclass(frozen=True)
class KernelPlan:
    groups: list[LayerGroup] = field(repr=False)
    chunk_size: int  # points of a pass
    slab_size: int  # points whose rows are formed at once from what is stashed
    tile_bytes: int  # of the kernels between positions that a product layer sums
    nbytes: int  # estimated peak of the engine's own tensors
    budget: int

    def __str__(self) -> str:
        passes = "1 pass" if len(self.groups) == 1 else f"{len(self.groups)} passes"
        size, budget = format_bytes(self.nbytes), format_bytes(self.budget)
        return f"{passes} in chunks of {self.chunk_size}, about {size} of a budget of {budget}"


@dataclass(frozen=True)
class KernelJob:
    """What has to be planned for."""

    survey: Survey
    numels: Mapping[str, int]  # entries of each parameter that goes through torch.func
    sizes: Mapping[str, int]
    blocks: Sequence[Block]
    diagonals: Sequence[str]
    item: int  # bytes of one entry of a gradient row
    device: str

    @property
    def points(self) -> int:
        return sum(self.sizes.values())

    @property
    def pairs(self) -> int:
        """Of points in the blocks; a symmetric block has half."""
        return sum(self.sizes[a] * self.sizes[b] // (2 if a == b else 1) for a, b in self.blocks)

    @property
    def row(self) -> int:
        """Bytes of one parameter's column of rows."""
        return self.points * self.survey.heads * self.survey.folded * self.item

    @property
    def slab(self) -> int:
        """Bytes of rows that are best formed at once; 0: as many as there is room for."""
        return max(SLAB_BYTES, SLAB_LEAST * self.row // self.survey.folded) if self.device == "cpu" else 0

    @property
    def theta(self) -> int:
        return ThetaSum.nbytes(self.sizes, self.blocks, self.diagonals, self.survey.heads)

    def a_point(self, width: int) -> int:
        """Bytes of a pass for one point: activations and their gradients, padded copies, rows not yet in place."""
        s = self.survey
        most = max((s.held[m] for ly in s.layers for m in ly.modules), default=0)
        if self.device == "cpu" and s.heads * s.folded == 1 and not self.numels:  # nothing is copied beside the pass
            return 5 * s.pass_bytes // 4 + 3 * most + 2 * width * max(self.item, 4)
        return 2 * s.pass_bytes + 4 * most + 3 * width * s.heads * s.folded * max(self.item, 4)


class BudgetError(ValueError):
    """A budget is too small for a kernel. The caller may know a smaller kernel that serves, and ask whether it fits.

    needed: bytes of the smallest budget that would do.
    budget: bytes that were given, or chosen from what is free.
    """

    def __init__(self, message: str, job: KernelJob, needed: int, budget: int) -> None:
        super().__init__(message)
        self.job, self.needed, self.budget = job, needed, budget

    def fits(self, sizes: Mapping[str, int], blocks: Sequence[Block], diagonals: Sequence[str] = ()) -> bool:
        """Whether these blocks of Θ, between sets of so many points, fit the same budget with the same network."""
        smaller = replace(self.job, sizes=sizes, blocks=blocks, diagonals=diagonals)
        return try_plan(smaller, self.budget) is not None


def make_plan(job: KernelJob, budget: int) -> KernelPlan:
    """The plan for ``job``. Raises a BudgetError that says what budget would do, if this one is too small."""
    if made := try_plan(job, budget):
        return made
    low, high = budget, 2 * budget
    while not try_plan(job, high):
        low, high = high, 2 * high
    while high - low > high // 50:
        middle = (low + high) // 2
        low, high = (low, middle) if try_plan(job, middle) else (middle, high)
    while not try_plan(job, needed := resolve_budget(enough := format_bytes(1.01 * high))):
        high = int(1.02 * high)
    free = free_memory(torch.device(job.device))
    if needed <= free:
        remedy = f"budget={enough!r} would do"
    else:
        remedy = f"it needs {enough}, and only {format_bytes(free)} are free: take fewer points"
    message = (
        f"a budget of {format_bytes(budget)} is too small for {job.points} points: Θ takes {format_bytes(job.theta)}, "
        f"one point's pass {format_bytes(job.a_point(0))}, and gradients need room beside them; {remedy}"
    )
    raise BudgetError(message, job, needed, budget)


def try_plan(job: KernelJob, budget: int) -> KernelPlan | None:
    """The first that fits of: products kept whole, many points at a time; fewer points; every gradient formed.

    On a CPU a pass of four points is nearly as fast for each as one of many: fewer passes are worth fewer points.
    """
    if job.survey.survey_bytes > budget or job.theta >= budget:
        return None
    shares = (4, 6, 8, 12, 16) if job.device == "cpu" else (4,)
    for part in (4, 1, math.inf):
        made = [plan for most in shares if (plan := lay_out_groups(job, budget, part, most))]
        if made:
            return min(made, key=lambda plan: len(plan.groups) * (1 + 1 / plan.chunk_size))
        if plan := lay_out_groups(job, budget, part, math.inf):
            return plan
    return None


def lay_out_groups(job: KernelJob, budget: int, part: float, most: float) -> KernelPlan | None:
    """Products may take 1/part of what Θ leaves free, a chunk's pass 1/most; None where that leads nowhere."""
    survey, row, points = job.survey, job.row, job.points
    spare = budget - job.theta
    products, layers = split_products(survey, points, job.pairs, job.device)
    # A product needs A and G once more, in float64. Where that is too much, rows are formed in slices instead.
    doubled = {pr: 2 * 8 * points * pr.entries for pr in products}
    large = [pr for pr in products if doubled[pr] > spare / part]
    products = [pr for pr in products if pr not in large]
    layers += [ly for ly in survey.layers if any(ly.modules == pr.modules for pr in large)]
    layers = layers[::-1]  # from the top: the first groups then need less of the backward pass
    summed = any(sum(survey.positions[m] for m in pr.modules) > 1 for pr in products)
    tile_bytes = min(TILE_BYTES, spare // 16) if summed else 0
    tile = ThetaSum.working_bytes(job.sizes, job.blocks, survey.heads, job.device)
    tile += max((doubled[pr] for pr in products), default=0) + tile_bytes

    widest = max([ly.p for ly in layers] + [sum(job.numels.values())], default=0)
    width = min(widest, spare // row + 1)  # a piece of rows is no wider
    a_point = job.a_point(max(width, sum(job.numels.values())))  # torch.func gives whole parameters
    useful = max(CHUNK_LEAST, CHUNK_BYTES.get(job.device, 1 << 28) // max(a_point, 1))
    chunk = max(1, min(useful, points, int(spare / most / max(a_point, 1))))
    work = max(tile, chunk * a_point)
    room = spare - work
    few = job.slab // row
    groups = fill_groups(survey, products, layers, job.numels, room, row, points, few)
    if groups is None:
        return None
    for g in groups:
        g.slab = slab_columns(g, min(room, g.held + few * row) if few else room, row)
    peak = max(g.held + max(g.width, g.slab) * row for g in groups)
    nbytes = max(job.theta + work + peak, survey.survey_bytes)
    if nbytes > budget:
        return None
    many, work = larger_chunk(job, groups, chunk, work, budget - nbytes)
    nbytes = max(job.theta + work + peak, survey.survey_bytes)
    return KernelPlan(groups, many, chunk, tile_bytes, nbytes, budget)


def larger_chunk(job: KernelJob, groups: list[LayerGroup], chunk: int, work: int, left: int) -> tuple[int, int]:
    """Points of a pass and the bytes of its work, on a GPU, where a pass of few points waits for its launches.

    The pass need not have room for rows wider than those it forms itself, and may take what the plan leaves.
    """
    if job.device != "cuda":
        return chunk, work
    width = max([ly.width(at) for g in groups for ly, at in g.formed] + [sum(job.numels.values())])
    a_point = max(job.a_point(width), 1)
    points = max(chunk, min(job.points, CHUNK_MOST, (work + left // 2) // a_point))
    return points, max(work, points * a_point)


def slab_columns(group: LayerGroup, room: int, row: int) -> int:
    if not group.stashed:
        return 0
    least = max(ly.width(slice(0, ly.grain)) for ly in group.stashed)
    return max(min((room - group.held) // row, max(ly.p for ly in group.stashed)), least)


def fill_groups(
    survey: Survey,
    products: list[ProductLayer],
    layers: list[LayerParameter],
    numels: Mapping[str, int],
    room: int,
    row: int,
    points: int,
    few: int,
) -> list[LayerGroup] | None:
    """Groups of at most ``room`` bytes, or None where something does not fit.

    Rows are cut where they must be; A and G are kept where that is smaller, or where ``few`` columns at a time are
    better than all of them.
    """

    def held(modules: Sequence[nn.Module]) -> int:
        return points * sum(survey.held[m] for m in dict.fromkeys(modules))

    everything = sum(ly.p for ly in layers) * row + sum(numels.values()) * row
    ample = everything + held([m for pr in products for m in pr.modules]) <= room
    # For the rows formed from what is stashed.
    reserve = max([room // 4, *(ly.width(slice(0, ly.grain)) * row for ly in layers)])
    groups = [group := LayerGroup()]
    for pr in products:
        if group.held and group.held + held(pr.modules) > room - reserve:
            groups.append(group := LayerGroup())
        group.products.append(pr)
        group.held += held(pr.modules)
    for ly in layers:
        keep = held(ly.modules)
        small = keep < ly.p * row // 2 if not ample else few and ly.p > 2 * few and SLAB_WORTH * keep < ly.p * row
        if small and keep <= room - reserve:
            if group.held + keep + max(reserve, group.width * row) > room:
                groups.append(group := LayerGroup())
            group.stashed.append(ly)
            group.held += keep
            continue
        start = 0
        while start < ly.length:
            fit = (room - group.held - group.width * row) // (ly.width(slice(0, 1)) * row)
            fit = fit // ly.grain * ly.grain
            if fit <= 0:
                if not (group.modules or group.functional):
                    return None
                groups.append(group := LayerGroup())
                continue
            at = slice(start, min(start + fit, ly.length))
            group.formed.append((ly, at))
            group.width += ly.width(at)
            start = at.stop
    for name, p in numels.items():
        start = 0
        while start < p:
            fit = (room - group.held) // row - group.width
            if fit <= 0:
                if not (group.modules or group.functional):
                    return None
                groups.append(group := LayerGroup())
                continue
            at = slice(start, min(start + fit, p))
            group.functional.append((name, at))
            group.width += at.stop - at.start
            start = at.stop
    return groups
