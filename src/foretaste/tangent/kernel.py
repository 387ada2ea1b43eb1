"""Θ between named sets of points (Eq. 4 without the expectation): one engine run for all the blocks that are needed.

One forward and one backward give every layer's input A and output gradient G at every point; each layer's gradient is
formed, contracted, added to Θ and freed, so that P never stands in memory at once. See _rules.py for how a gradient is
formed, _products.py for layers that need none, _theta.py for the contraction, _plan.py for how it is cut to the budget.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.errors import did_you_mean
from foretaste.tangent.accumulate import EVEN, Block, GradientRows, ThetaSum, slices
from foretaste.tangent.frozen import (
    PRECISIONS,
    FrozenNetwork,
    Inputs,
    Output,
    Params,
    check_inputs,
    count_points,
    freeze,
    isolated,
    probe_outputs,
    take_points,
    to_float64,
)
from foretaste.tangent.functional import functional_rows
from foretaste.tangent.memory import keep_memory, resolve_budget
from foretaste.tangent.planning import KernelJob, KernelPlan, LayerGroup, make_plan
from foretaste.tangent.survey import LayerCalls, LayerParameter, Survey, align_calls, record_pass, survey_network

log = logging.getLogger("foretaste")
KernelProgress = Callable[[int, int], None]


def gram(
    net: nn.Module | FrozenNetwork,
    sets: Mapping[str, Inputs],
    blocks: Sequence[Block],
    diagonals: Sequence[str] = (),
    *,
    output: Output = "sum",
    params: Params = None,
    budget: int | float | str | None = None,
    precision: str = "float32",
    progress: KernelProgress | None = None,
    f: dict[str, Tensor] | None = None,
    classes: int | None = None,
) -> tuple[dict[Block, Tensor], dict[str, Tensor]]:
    """Θ for each block (a, b), float64 (N_a·B, N_b·B), and for each diagonal, (N_a, B, B). B is 1, or C for "full".

    precision, of a float32 network: "float32"; "tf32", passes and products in TF32 on a CUDA device; "half", the same
    with rows kept and multiplied in float16. Rankings survive the latter two only because rows are centred (_rows.py).
    f: a dict to be filled with the network's outputs on each set, (N, C) in float64, which a pass has anyway.
    net: a Subject, with its ``classes``, was checked and so were the sets; it has its own output and params.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}{did_you_mean(precision, PRECISIONS)}")
    if isinstance(net, FrozenNetwork):
        frozen = net
    else:
        frozen = freeze(net, output=output, params=params)
        sets = check_sets(frozen, sets)
    if precision == "half" and frozen.dtype == torch.float64:
        raise ValueError("precision='half' is for float32 networks; this one is float64, whose digits it would waste")
    try:
        return compute_gram(frozen, sets, blocks, diagonals, budget, precision, progress, f, classes)
    except torch.OutOfMemoryError:
        if budget is not None or frozen.device.type != "cuda":
            raise
    # What torch had free lay in pieces: give them back, and plan anew with what there is then.
    log.info("out of memory: once more, with what torch had cached given back to the device")
    torch.cuda.empty_cache()
    return compute_gram(frozen, sets, blocks, diagonals, budget, precision, progress, f, classes)


def compute_gram(
    frozen: FrozenNetwork,
    sets: Mapping[str, Inputs],
    blocks: Sequence[Block],
    diagonals: Sequence[str],
    budget: int | float | str | None,
    precision: str,
    progress: KernelProgress | None,
    f: dict[str, Tensor] | None,
    classes: int | None,
) -> tuple[dict[Block, Tensor], dict[str, Tensor]]:
    """``gram`` of a network and sets that were checked."""
    found, plan = plan_gram(frozen, sets, blocks, diagonals, budget, 2 if precision == "half" else None, classes)
    log.debug("Θ: %s", plan)
    like = next(iter(frozen.params.values()))
    theta = ThetaSum({k: count_points(x) for k, x in sets.items()}, blocks, diagonals, found.heads, like)
    points = sum(count_points(x) for x in sets.values())
    total, done = len(plan.groups) * points, 0
    seen: list[Tensor] = []
    keep_memory()
    with isolated(frozen.device, precision):
        for k, group in enumerate(plan.groups):
            run = LayerPass(frozen, found, group, points, half=precision == "half")
            for at, x in iterate_chunks(sets, plan.chunk_size):
                f_nC = run.add(at, x)
                if k == 0 and f_nC is not None:
                    seen.append(f_nC)
                done += at.stop - at.start
                if progress:
                    progress(done, total)
            run.contract(theta, plan)
            del run  # its A and G, before the next group's are made
    if f is not None and seen:
        f |= zip(sets, to_float64(torch.cat(seen)).split([count_points(x) for x in sets.values()]))
    return theta.finish()


def check_sets(frozen: FrozenNetwork, sets: Mapping[str, Inputs]) -> dict[str, Inputs]:
    """The sets that have points; all of one shape."""
    first: Inputs | None = None
    for name, x in sets.items():
        check_inputs(x, name, frozen.device, like=first)
        first = x if first is None else first
    return dict(sets)


def plan_gram(
    frozen: FrozenNetwork,
    sets: Mapping[str, Inputs],
    blocks: Sequence[Block],
    diagonals: Sequence[str],
    budget: int | float | str | None,
    item: int | None = None,
    classes: int | None = None,
) -> tuple[Survey, KernelPlan]:
    """Look at the network with a few points, unless its C is known, and plan the work."""
    name, x = max(sets.items(), key=lambda kv: count_points(kv[1]))
    if count_points(x) == 0:
        raise ValueError(f"{' and '.join(sets)} have no points")
    found = survey_network(frozen, x, probe_outputs(frozen, x, name) if classes is None else classes)
    job = KernelJob(
        found,
        {k: frozen.params[k].numel() for k in found.functional},
        {k: count_points(v) for k, v in sets.items()},
        blocks,
        diagonals,
        item=item or next(iter(frozen.params.values())).element_size(),
        device=frozen.device.type,
    )
    return found, make_plan(job, resolve_budget(budget, frozen.device))


def iterate_chunks(sets: Mapping[str, Inputs], chunk_size: int) -> Iterator[tuple[slice, Inputs]]:
    """Every point once: its place among all points, and itself."""
    start = 0
    for x in sets.values():
        for at in slices(count_points(x), chunk_size):
            yield slice(start + at.start, start + at.stop), take_points(x, at)
        start += count_points(x)


class LayerPass:
    """One pass over all points for one group of layers: rows formed on the way, A and G kept for the rest."""

    def __init__(self, frozen: FrozenNetwork, found: Survey, group: LayerGroup, points: int, half: bool) -> None:
        self.frozen, self.found, self.group, self.points, self.half = frozen, found, group, points, half
        self.rows = self.new_rows(group.width) if group.width else None
        self.kept: LayerCalls = {}
        self.finite = torch.ones((), dtype=torch.bool, device=frozen.device)

    def new_rows(self, width: int, old: GradientRows | None = None) -> GradientRows:
        like = next(iter(self.frozen.params.values()))
        wide = width * self.found.folded
        return GradientRows(self.points, self.found.heads, wide, like, self.half, self.found.largest, old)

    def write(self, rows: GradientRows, at: slice, start: int, rows_nBw: Tensor) -> int:
        """Rows of a chunk from parameter ``start`` on; returns the parameter after them."""
        stop, fold = start + rows_nBw.shape[2], self.found.folded
        rows.write(at, slice(start * fold, stop * fold), rows_nBw.flatten(1)[:, None] if fold > 1 else rows_nBw)
        return stop

    def add(self, at: slice, x: Inputs) -> Tensor | None:
        """Take a chunk of points; returns f on them, if this pass has it."""
        start, f_NC = 0, None
        if modules := self.group.modules:
            calls, f_NC = record_pass(self.frozen, modules, x)
            self.finite &= torch.isfinite(f_NC).all()  # read once, at the end: reading waits for the device
            ready = align_calls(calls, self.found.axes, at.stop - at.start, self.found.heads * self.found.folded)
            for layer, cut in self.group.formed:
                assert self.rows is not None
                start = self.write(self.rows, at, start, layer.heads(cut, ready))
            for m in self.group.kept:
                self.keep(m, at, ready[m])
        if self.group.functional:
            found = functional_rows(self.frozen, x, list(dict.fromkeys(name for name, _ in self.group.functional)))
            for name, cut in self.group.functional:
                assert self.rows is not None
                start = self.write(self.rows, at, start, found[name][:, :, cut])
        return f_NC

    def keep(self, m: nn.Module, at: slice, calls: list[tuple[Tensor, Tensor]]) -> None:
        if m not in self.kept:
            self.kept[m] = [tuple(t.new_empty(self.points, *t.shape[1:]) for t in call) for call in calls]  # type: ignore[misc]
        if len(calls) != len(self.kept[m]):
            times = f"{len(self.kept[m])} times for some points and {len(calls)} for others"
            raise ValueError(f"a {type(m).__name__} is called {times}; Θ needs the same of every point")
        for (to_a, to_g), (a, g) in zip(self.kept[m], calls):
            to_a[at], to_g[at] = a, g

    def contract(self, theta: ThetaSum, plan: KernelPlan) -> None:
        if not self.finite:
            raise ValueError("net returns NaN or infinite outputs for some of the points")
        if self.rows is not None:
            theta.add_rows(self.rows)
            self.rows = None  # frees its memory for the slabs below
        for product in self.group.products:
            a, g = product.gather(self.kept, self.found.folded)
            kernel = partial(product.kernel, a, g, tile_bytes=plan.tile_bytes)
            theta.add_product(kernel, partial(product.diagonal, a, g))
        for layer in self.group.stashed:
            channels = self.group.slab // layer.width(slice(0, 1))
            channels = max(layer.grain, channels // layer.grain * layer.grain)
            channels -= channels % EVEN if channels > EVEN and layer.grain == 1 else 0
            rows: GradientRows | None = None
            for cut in slices(layer.length, channels):
                rows = self.slab(layer, cut, plan.slab_size, rows)
                theta.add_rows(rows)

    def slab(self, layer: LayerParameter, cut: slice, slab_size: int, old: GradientRows | None) -> GradientRows:
        rows = self.new_rows(layer.width(cut), old)
        for at in slices(self.points, slab_size):
            part = {m: [(a[at], g[at]) for a, g in self.kept[m]] for m in layer.modules}
            self.write(rows, at, 0, layer.heads(cut, part))
        return rows


# The empirical neural tangent kernel (Eq. 4).


def ntk(
    net: nn.Module,
    x: Inputs,
    x2: Inputs | None = None,
    *,
    output: Output = "sum",
    params: Params = None,
    budget: int | float | str | None = None,
    precision: str = "float32",
    progress: KernelProgress | None = None,
) -> Tensor:
    """Θ(x, x2) = ∇f(x) ∇f(x2)ᵀ of a network in eval mode, (N, N2) in float64; x2 None is x, at half the work.

    output: which function of the outputs is differentiated. "sum" is Σ_c f_c / √C, "first" the paper's single logit,
        an int that logit, "full" all of them: (N, N2, C, C), "trace" the mean of its diagonal, Σ_c Θ_cc / C, for less.
    params: None is every parameter that requires grad; else a callable(name) -> bool, or names.
    budget: bytes, or "8GB", that the engine's own tensors may take, Θ included; ``plan`` tells what it would do.
    precision: "float32", or on a CUDA device "tf32" or "half", several times faster: see ``tangent.gram``.
    progress: called with (points done, points to do), once a chunk.
    """
    sets, pair = pair_sets(x, x2)
    how: dict[str, Any] = {"output": output, "params": params, "budget": budget, "precision": precision}
    theta = gram(net, sets, [pair], **how, progress=progress)[0][pair]
    if output != "full":
        return theta
    n, m = count_points(sets[pair[0]]), count_points(sets[pair[1]])
    return theta.view(n, theta.shape[0] // n, m, -1).permute(0, 2, 1, 3)


def plan(
    net: nn.Module,
    x: Inputs,
    x2: Inputs | None = None,
    *,
    output: Output = "sum",
    params: Params = None,
    budget: int | float | str | None = None,
) -> KernelPlan:
    """What ``ntk`` would do: passes, points at a time, estimated peak memory. Costs a few points' passes."""
    sets, pair = pair_sets(x, x2)
    frozen = freeze(net, output=output, params=params)
    return plan_gram(frozen, check_sets(frozen, sets), [pair], (), budget)[1]


def pair_sets(x: Inputs, x2: Inputs | None) -> tuple[dict[str, Inputs], tuple[str, str]]:
    return ({"x": x}, ("x", "x")) if x2 is None else ({"x": x, "x2": x2}, ("x", "x2"))
