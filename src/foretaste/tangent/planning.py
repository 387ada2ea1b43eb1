"""How to fit a kernel into memory: which gradients are formed in which pass, and how many points go at a time.

``resolve_budget`` reads the budget, ``make_plan`` fits a ``KernelJob`` into it. Each pass over all points serves one
``LayerGroup``. A layer is handled in one of these ways, whichever is cheapest and fits:

    formed      its rows of gradients are written during the pass
    in place    likewise, and formed where they stay: the weight of a Linear layer at several positions, on a CPU
    stashed     A and G are kept, and rows are formed from them after the pass, in slabs of some columns at a time
    products    A and G are kept, and no row is formed (``rules.ProductLayer``)
    functional  it has no rule: torch.func gives its rows during the pass
"""

import itertools
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from numbers import Real

import torch
from torch import nn

from foretaste.errors import counted, format_bytes, real_number
from foretaste.tangent.accumulate import Block, ThetaSum
from foretaste.tangent.rules import CONVOLUTIONS, ProductLayer
from foretaste.tangent.survey import CHECK_POINTS, LayerParameter, Survey, modules_of, points_compared

# A chunk is the points of one pass. Passes of more bytes than CHUNK_BYTES are no faster per point.
CHUNK_BYTES = {"cpu": 1 << 27, "cuda": 1 << 34}
CHUNK_LEAST = 8  # points
CHUNK_MOST = 1024  # points, on a GPU
# Fresh memory is slow on a CPU. So rows that are SLAB_WORTH times as large as their A and G are formed in slabs of
# SLAB_BYTES, always in the same memory. But in slabs of SLAB_LEAST columns at least: each is added to all of Θ.
SLAB_BYTES = 1 << 24
SLAB_LEAST = 1 << 12
SLAB_WORTH = 4
SLAB_WORTH_LINEAR = 1  # a Linear layer's rows are formed as fast from A and G that were kept
KEPT_SHARES = (0.5, 0.8)  # with little memory: A and G are kept if they are smaller than this share of their rows
SLOW_PLAN = 4  # times the operations of a plan with ample memory: from here on the log warns
TILE_BYTES = 1 << 24  # of the intermediate results of a ProductLayer
# The cost of a float64 operation, relative to one in the rows' precision: 10 on an H200, more on consumer cards.
EXACT_COST = {"cpu": 2, "cuda": 32}
ENTRY_COST = 100  # operations that one entry of a formed row costs besides: fresh memory, written, centred, read
BYTE_UNITS = {
    "": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30,
}  # fmt: skip


def resolve_budget(budget: int | float | str | None, device: torch.device | None = None) -> int:
    """Bytes. None is 0.9 of what a GPU has free, or 0.5 of what a CPU has, which other programs share."""
    if budget is None:
        return int((0.9 if device is not None and device.type == "cuda" else 0.5) * free_memory(device))
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([a-zA-Z]*)\s*", budget)
        if not match or match[2].upper() not in BYTE_UNITS:
            raise ValueError(f"budget is {budget!r}; expected bytes or a size such as '8GB' or '500MiB'")
        budget = float(match[1]) * BYTE_UNITS[match[2].upper()]
    if isinstance(budget, bool) or not isinstance(budget, Real):
        raise TypeError(f"budget is a {type(budget).__name__}; expected bytes or a size such as '8GB'")
    return int(real_number("budget, in bytes,", budget, 1))


def free_memory(device: torch.device | None = None) -> int:
    """Free bytes of the device. A GPU's include torch's cache, and stay within this process's share of the card.

    The share is set by ``torch.cuda.set_per_process_memory_fraction``; the default is all of it.
    """
    if device is not None and device.type == "cuda":
        reserved, (free, total) = torch.cuda.memory_reserved(device), torch.cuda.mem_get_info(device)
        share = torch.cuda.get_per_process_memory_fraction(device.index)  # a device without an index is refused there
        return max(min(free, int(share * total) - reserved), 0) + reserved - torch.cuda.memory_allocated(device)
    try:
        with open("/proc/meminfo") as f:
            return int(re.search(r"MemAvailable:\s+(\d+)", f.read())[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
        return pages * os.sysconf("SC_PAGE_SIZE") if pages else 4 * 10**9


# ---- The plan and the job ----


@dataclass
class LayerGroup:
    """What one pass over all points serves; see the top of this file."""

    formed: list[tuple[LayerParameter, slice]] = field(default_factory=list)
    in_place: list[tuple[LayerParameter, slice]] = field(default_factory=list)
    functional: list[tuple[str, slice]] = field(default_factory=list)
    stashed: list[LayerParameter] = field(default_factory=list)
    products: list[ProductLayer] = field(default_factory=list)
    width: int = 0  # columns of the rows that are written during the pass, or formed in place
    kept_bytes: int = 0  # of A and G
    slab: int = 0  # columns of a slab

    @property
    def modules(self) -> list[nn.Module]:
        """Those whose A and G the pass records."""
        return modules_of([*(layer for layer, _ in self.formed + self.in_place), *self.stashed, *self.products])

    @property
    def written(self) -> int:
        """Columns of the rows that are not formed in place."""
        return self.width - sum(layer.width(at) for layer, at in self.in_place)


@dataclass(frozen=True)
class KernelPlan:
    """How a kernel is computed. ``str(plan)`` says it in one line."""

    groups: list[LayerGroup] = field(repr=False)  # one for each pass over all points
    chunk_size: int  # points that go through the network at once
    slab_size: int  # points whose rows are formed at once from stashed A and G
    tile_bytes: int  # of the intermediate results of a ProductLayer
    nbytes: int  # estimated peak of the tensors that computing Θ makes, Θ included
    budget: int  # bytes
    slowdown: float = 1.0  # its operations, relative to those of a plan with all the memory it could use

    def __str__(self) -> str:
        passes = counted(len(self.groups), "pass", "passes")
        size, budget = format_bytes(self.nbytes), format_bytes(self.budget)
        cost = f", at {self.slowdown:.0f} times the work of an ample one" if self.slowdown >= SLOW_PLAN else ""
        return f"{passes} in chunks of {self.chunk_size}, about {size} of a budget of {budget}{cost}"


@dataclass(frozen=True)
class KernelJob:
    """What has to be computed: blocks and diagonals of Θ between sets of points, for a network that was surveyed."""

    survey: Survey
    functional_entries: Mapping[str, int]  # of each parameter that goes through torch.func
    sizes: Mapping[str, int]  # points of each set
    blocks: Sequence[Block]
    diagonals: Sequence[str]
    entry_bytes: int  # of one entry of a row of gradients
    device: str

    @cached_property
    def points(self) -> int:
        return sum(self.sizes.values())

    @cached_property
    def pairs(self) -> int:
        """Pairs of points in all blocks; a symmetric block has half."""
        return sum(self.sizes[a] * self.sizes[b] // (2 if a == b else 1) for a, b in self.blocks)

    @cached_property
    def column_bytes(self) -> int:
        """Of one parameter entry, in the rows of all points and heads."""
        return self.points * self.survey.heads * self.survey.folded * self.entry_bytes

    @cached_property
    def slab_bytes(self) -> int:
        """The best size of a slab; 0 means as large as there is room for."""
        least = SLAB_LEAST * self.column_bytes // self.survey.folded
        return max(SLAB_BYTES, least) if self.device == "cpu" else 0

    @cached_property
    def theta_bytes(self) -> int:
        return ThetaSum.nbytes(self.sizes, self.blocks, self.diagonals, self.survey.heads)

    @cached_property
    def split(self) -> tuple[list[ProductLayer], list[LayerParameter]]:
        """The layers that are cheaper as products, and the others."""
        return split_products(self)

    @cached_property
    def pass_operations(self) -> int:
        """Of one point's forward and backward pass, for one head."""
        s = self.survey
        layers = sum(2 * layer.numel * sum(s.positions[m] for m in layer.modules) for layer in s.layers)
        return layers + 2 * sum(self.functional_entries.values())

    @cached_property
    def compared(self) -> int:
        """Points of a set that are compared with autograd."""
        if self.device != "cpu":
            return CHECK_POINTS  # a coarse pass compares all that it draws
        return max(points_compared(n, self.survey.cheap)[0] for n in self.sizes.values())

    def forms_in_place(self, layer: LayerParameter) -> bool:
        return self.survey.forms_in_place(layer, self.device, half=self.entry_bytes == 2)

    def point_bytes(self, width: int) -> int:
        """Of a pass for one point that forms ``width`` columns: activations, their gradients, copies, and new rows."""
        s = self.survey
        marks = 4 * s.mark_bytes
        most = max((s.call_bytes[m] for layer in s.layers for m in layer.modules), default=0)
        if self.device == "cpu" and s.heads * s.folded == 1 and not self.functional_entries:  # nothing is copied
            return marks + 5 * s.pass_bytes // 4 + 3 * most + 2 * width * max(self.entry_bytes, 4)
        return marks + 2 * s.pass_bytes + 4 * most + 3 * width * s.heads * s.folded * max(self.entry_bytes, 4)


# ---- Making a plan ----


class BudgetError(ValueError):
    """A budget is too small for a kernel. ``fits`` tells whether a smaller kernel would fit.

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
        ample = made if is_ample(job, made) else try_plan(job, 1 << 62)
        assert ample is not None
        return replace(made, slowdown=count_operations(job, made) / max(count_operations(job, ample), 1.0))
    high = least_budget(budget, 50, lambda some: try_plan(job, some) is not None)
    while not try_plan(job, needed := resolve_budget(enough := format_bytes(1.01 * high))):
        high = int(1.02 * high)
    free = free_memory(torch.device(job.device))
    if needed <= free:
        remedy = f"budget={enough!r} would do"
    else:
        remedy = f"it needs {enough}, and only {format_bytes(free)} are free: take fewer points"
    message = (
        f"a budget of {format_bytes(budget)} is too small for {job.points} points: Θ takes "
        f"{format_bytes(job.theta_bytes)}, one point's pass {format_bytes(job.point_bytes(0))}, and gradients need "
        f"room beside them; {remedy}"
    )
    raise BudgetError(message, job, needed, budget)


def budget_for_speed(job: KernelJob, slow: KernelPlan) -> int:
    """A budget with which the kernel takes at most twice the operations that it takes with ample memory."""
    wanted = 2 * count_operations(job, slow) / slow.slowdown

    def enough(budget: int) -> bool:
        made = try_plan(job, budget)
        return made is not None and count_operations(job, made) <= wanted

    return least_budget(slow.budget, 20, enough)


def least_budget(low: int, parts: int, enough: Callable[[int], bool]) -> int:
    """A budget above ``low`` that is enough, at most 1/parts larger than it must be."""
    high = 2 * low
    while not enough(high):
        low, high = high, 2 * high
    while high - low > high // parts:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def make_smaller_plan(job: KernelJob, failed: KernelPlan) -> KernelPlan:
    """Half the chunk of a plan that ran out of memory; half its memory too, if that can be planned."""
    made = try_plan(job, failed.nbytes // 2) or failed
    chunk = min(made.chunk_size, max(1, failed.chunk_size // 2))
    tight = min(made.nbytes, made.budget)  # nothing may count on more memory than that
    return replace(made, chunk_size=chunk, slab_size=min(made.slab_size, chunk), budget=tight)


def try_plan(job: KernelJob, budget: int) -> KernelPlan | None:
    """The plan of fewest operations that fits, or None. Each ProductLayer gets a part of the memory, or all, or none.

    A chunk's pass gets a quarter of the memory beside Θ, or else room for one point. On a CPU, smaller parts are tried
    too: a pass of four points is nearly as fast per point as one of many, so fewer passes are worth smaller chunks.
    """
    if job.survey.survey_bytes > budget or job.theta_bytes >= budget:
        return None
    chunk_parts = (4, 6, 8, 12, 16) if job.device == "cpu" else (4,)
    kept_shares = KEPT_SHARES if any(map(job.forms_in_place, job.split[1])) else KEPT_SHARES[:1]
    best: list[KernelPlan] = []
    for product_part in (4, 2, 1, math.inf):
        if best and is_ample(job, best[-1]):
            break
        made: list[KernelPlan] = []
        for part, share in itertools.product(chunk_parts, kept_shares):
            if plan := lay_out_groups(job, budget, product_part, part, share):
                made.append(plan)
                if len(plan.groups) == 1 and plan.chunk_size >= job.points:
                    break  # no other part is better
        if made:
            best.append(min(made, key=lambda plan: len(plan.groups) * (1 + 1 / plan.chunk_size)))
        elif plan := lay_out_groups(job, budget, product_part, math.inf):
            best.append(plan)
    return min(best, key=partial(count_operations, job)) if best else None


def is_ample(job: KernelJob, plan: KernelPlan) -> bool:
    """Whether no plan takes fewer operations: one pass, and every layer a ProductLayer that is cheaper as one."""
    return len(plan.groups) == 1 and len(plan.groups[0].products) == len(job.split[0])


def count_operations(job: KernelJob, plan: KernelPlan) -> float:
    """What a plan costs: passes, products of A and G, and rows that are formed for each point and multiplied."""
    s, wide = job.survey, job.survey.heads * job.survey.folded
    operations = 3.0 * len(plan.groups) * job.points * job.pass_operations * wide
    for g in plan.groups:
        rows = g.width + sum(layer.numel for layer in g.stashed)
        operations += rows * wide * (s.heads * job.pairs + ENTRY_COST * job.points)
        for layer in g.products:
            t, (d, o) = sum(s.positions[m] for m in layer.modules), weight_shape(layer.modules[0])
            operations += product_operations(job, t, d, o) * job.pairs
    return operations


def lay_out_groups(
    job: KernelJob, budget: int, product_part: float, chunk_part: float, kept_share: float = KEPT_SHARES[0]
) -> KernelPlan | None:
    """A plan where a ProductLayer may take 1/product_part of the memory beside Θ, and a chunk's pass 1/chunk_part.

    kept_share: where memory is scarce, keep A and G that take less than this share of the rows.

    None if that does not fit.
    """
    survey, column_bytes, points = job.survey, job.column_bytes, job.points
    spare = budget - job.theta_bytes
    products, layers = job.split
    # A ProductLayer needs A and G twice, in float64. If that is too much, form rows in slices instead.
    product_bytes = {layer: 2 * 8 * points * layer.entries for layer in products}
    large = [layer for layer in products if product_bytes[layer] > spare / product_part]
    products = [layer for layer in products if layer not in large]
    layers = layers + [layer for layer in survey.layers if any(layer.modules == other.modules for other in large)]
    layers = layers[::-1]  # from the top: then the first groups need less of the backward pass
    summed = any(sum(survey.positions[m] for m in layer.modules) > 1 for layer in products)
    tile_bytes = min(TILE_BYTES, spare // 16) if summed else 0
    contraction = ThetaSum.working_bytes(job.sizes, job.blocks, survey.heads, job.device)
    contraction += max((product_bytes[layer] for layer in products), default=0) + tile_bytes

    functional_width = sum(job.functional_entries.values())  # torch.func gives whole parameters
    copied = [layer.numel for layer in layers if not job.forms_in_place(layer)]
    widest = max([*copied, functional_width], default=0)
    width = min(widest, spare // column_bytes + 1)  # rows that are formed at once are no wider
    point_bytes = job.point_bytes(max(width, functional_width))
    useful = max(CHUNK_LEAST, CHUNK_BYTES.get(job.device, 1 << 28) // max(point_bytes, 1))
    chunk = max(1, min(useful, points, int(spare / chunk_part / max(point_bytes, 1))))
    work = max(contraction, chunk * point_bytes + survey.check_bytes(chunk, job.compared))
    room = spare - work
    slab = job.slab_bytes // column_bytes
    groups = fill_groups(job, products, layers, room, slab, kept_share)
    if groups is None:
        return None
    for g in groups:
        slab_room = min(room, g.kept_bytes + slab * column_bytes) if slab else room
        g.slab = slab_columns(g, slab_room, column_bytes)
    peak = max(g.kept_bytes + max(g.width, g.slab) * column_bytes for g in groups)
    nbytes = max(job.theta_bytes + work + peak, survey.survey_bytes)
    if nbytes > budget:
        return None
    chunk_size, work = larger_chunk(job, groups, chunk, work, budget - nbytes)
    nbytes = max(job.theta_bytes + work + peak, survey.survey_bytes)
    return KernelPlan(groups, chunk_size, chunk, tile_bytes, nbytes, budget)


def larger_chunk(job: KernelJob, groups: list[LayerGroup], chunk: int, work: int, left: int) -> tuple[int, int]:
    """On a GPU, where small passes wait for launches: more points for a pass, and the bytes that it then takes.

    The pass only needs room for the rows that it forms itself, and may take half of what the plan leaves.
    """
    if job.device != "cuda":
        return chunk, work
    formed = [layer.width(at) for g in groups for layer, at in g.formed]
    point_bytes = max(job.point_bytes(max([*formed, sum(job.functional_entries.values())])), 1)
    check_bytes = job.survey.check_bytes(job.points)
    points = max(chunk, min(job.points, CHUNK_MOST, (work - check_bytes + left // 2) // point_bytes))
    return points, max(work, points * point_bytes + job.survey.check_bytes(points))


def slab_columns(group: LayerGroup, room: int, column_bytes: int) -> int:
    """Columns of a slab: as many as fit, at least one slice of every stashed layer."""
    if not group.stashed:
        return 0
    least = max(layer.width(slice(0, layer.grain)) for layer in group.stashed)
    most = max(layer.numel for layer in group.stashed)
    return max(min((room - group.kept_bytes) // column_bytes, most), least)


def fill_groups(
    job: KernelJob,
    products: list[ProductLayer],
    layers: list[LayerParameter],
    room: int,
    slab: int,
    kept_share: float,
) -> list[LayerGroup] | None:
    """Groups of at most ``room`` bytes, or None if something does not fit.

    Rows are cut as finely as they must be. A and G are stashed if they are smaller than the rows, or if rows are better
    formed in slabs of ``slab`` columns.
    """
    column_bytes = job.column_bytes

    def calls_bytes(modules: Sequence[nn.Module]) -> int:
        return job.points * sum(job.survey.call_bytes[m] for m in dict.fromkeys(modules))

    rows_bytes = sum(layer.numel for layer in layers) * column_bytes
    rows_bytes += sum(job.functional_entries.values()) * column_bytes
    ample = rows_bytes + calls_bytes([m for layer in products for m in layer.modules]) <= room
    # Memory for the slabs.
    most = min(room // 4, slab * column_bytes) if slab else room // 4
    reserve = max([most, *(layer.width(slice(0, layer.grain)) * column_bytes for layer in layers)])
    groups = [group := LayerGroup()]
    for product in products:
        if group.kept_bytes and group.kept_bytes + calls_bytes(product.modules) > room - reserve:
            groups.append(group := LayerGroup())
        group.products.append(product)
        group.kept_bytes += calls_bytes(product.modules)
    items: list[LayerParameter | tuple[str, int]] = [*layers, *job.functional_entries.items()]
    for item in items:
        if isinstance(item, LayerParameter):
            kept, formed = calls_bytes(item.modules), item.numel * column_bytes
            worth = SLAB_WORTH_LINEAR if all(type(m) is nn.Linear for m in item.modules) else SLAB_WORTH
            stash = slab and item.numel > 2 * slab and worth * kept < formed if ample else kept < kept_share * formed
            if stash and kept <= room - reserve:
                if group.kept_bytes + kept + max(reserve, group.width * column_bytes) > room:
                    groups.append(group := LayerGroup())
                group.stashed.append(item)
                group.kept_bytes += kept
                continue
            length, columns, grain = item.length, item.width(slice(0, 1)), item.grain
        else:
            (_, length), columns, grain = item, 1, 1
        start = 0
        while start < length:
            fit = room - group.kept_bytes - group.width * column_bytes
            fit = fit // (columns * column_bytes) // grain * grain
            if fit <= 0:
                if not (group.modules or group.functional):
                    return None
                groups.append(group := LayerGroup())
                continue
            at = slice(start, min(start + fit, length))
            if isinstance(item, LayerParameter):
                (group.in_place if job.forms_in_place(item) else group.formed).append((item, at))
            else:
                group.functional.append((item[0], at))
            group.width += (at.stop - at.start) * columns
            start = at.stop
    return groups


# ---- Which layers are cheaper as products ----


def split_products(job: KernelJob) -> tuple[list[ProductLayer], list[LayerParameter]]:
    """The layers that are cheaper as products, and the others."""
    survey = job.survey
    products: dict[tuple[nn.Module, ...], dict[str, bool]] = {}
    rest: list[LayerParameter] = []
    for layer in survey.layers:
        kinds = {type(m) for m in layer.modules}
        t = sum(survey.positions[m] for m in layer.modules)
        same_name = len({name for _, name in layer.uses}) == 1
        local = layer.uses[0][1]
        if kinds == {nn.Linear} and same_name:
            pays = t == 1 or (local == "weight" and product_is_cheaper(job, layer, t))
        elif kinds == {nn.Embedding} and len({getattr(m, "padding_idx", None) for m in layer.modules}) == 1:
            pays = t * t <= layer.shape[0]
        elif len(layer.modules) == 1 and kinds <= set(CONVOLUTIONS) and getattr(layer.modules[0], "groups", 0) == 1:
            pays = local == "weight" and product_is_cheaper(job, layer, t)
        else:
            pays = False
        if pays or (same_name and layer.modules in products):
            products.setdefault(layer.modules, {})[local] = True
        else:
            rest.append(layer)
    made = []
    for modules, of in products.items():
        d, o = weight_shape(modules[0])
        entries = sum(survey.positions[m] for m in modules) * (d + survey.heads * survey.folded * o)
        made.append(ProductLayer(modules, of.get("weight", False), of.get("bias", False), entries))
    return made, rest


def product_is_cheaper(job: KernelJob, layer: LayerParameter, t: int) -> bool:
    """Whether products of A and G at t positions cost less than rows, formed per point and multiplied per pair."""
    o, heads = layer.shape[0], job.survey.heads
    d, wide = layer.numel // o, o * job.survey.folded
    rows = heads**2 * d * wide + heads * d * wide * (ENTRY_COST + t) * job.points / max(job.pairs, 1)
    return product_operations(job, t, d, o) <= rows


def product_operations(job: KernelJob, t: int, d: int, o: int) -> int:
    """For one pair of points, with d entries of A and o of G at each of t positions."""
    heads, folded = job.survey.heads, job.survey.folded
    product = t * t * d + (t * t * o * folded if heads == 1 else t * heads * o * (t + heads))
    return EXACT_COST.get(job.device, 2) * product


def weight_shape(m: nn.Module) -> tuple[int, int]:
    """The entries of A and of G at one position of a ProductLayer's module. An embedding's A is an index."""
    weight = m._parameters["weight"]
    assert weight is not None
    return (1, weight.shape[1]) if type(m) is nn.Embedding else (weight[0].numel(), weight.shape[0])
