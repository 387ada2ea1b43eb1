"""Θ between named sets of points (Eq. 4 without the expectation): one engine run for all the blocks that are needed.

One forward and one backward give every layer's input A and output gradient G at every point; each layer's gradient is
formed, contracted, added to Θ and freed, so that P never stands in memory at once. See _rules.py for how a gradient is
formed, _products.py for layers that need none, _theta.py for the contraction, _plan.py for how it is cut to the budget.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from foretaste.tangent._functional import functional_rows
from foretaste.tangent._inputs import Inputs, check, size, take
from foretaste.tangent._layers import Calls, Layer, Survey, aligned, survey
from foretaste.tangent._memory import resolve
from foretaste.tangent._pages import keep_memory
from foretaste.tangent._plan import Group, Job, Plan, make_plan
from foretaste.tangent._record import record
from foretaste.tangent._rows import EVEN, Rows
from foretaste.tangent._subject import PRECISIONS, Output, Params, Subject, exact, nearest, probe, subject, untouched
from foretaste.tangent._theta import Block, Theta, steps

log = logging.getLogger("foretaste")
Progress = Callable[[int, int], None]


def gram(
    net: nn.Module | Subject,
    sets: Mapping[str, Inputs],
    blocks: Sequence[Block],
    diagonals: Sequence[str] = (),
    *,
    output: Output = "sum",
    params: Params = None,
    budget: int | float | str | None = None,
    precision: str = "float32",
    progress: Progress | None = None,
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
        raise ValueError(f"unknown precision {precision!r}{nearest(precision, PRECISIONS)}")
    if isinstance(net, Subject):
        subj = net
    else:
        subj = subject(net, output=output, params=params)
        sets = checked(subj, sets)
    if precision == "half" and subj.dtype == torch.float64:
        raise ValueError("precision='half' is for float32 networks; this one is float64, whose digits it would waste")
    try:
        return computed(subj, sets, blocks, diagonals, budget, precision, progress, f, classes)
    except torch.OutOfMemoryError:
        if budget is not None or subj.device.type != "cuda":
            raise
    # What torch had free lay in pieces: give them back, and plan anew with what there is then.
    log.info("out of memory: once more, with what torch had cached given back to the device")
    torch.cuda.empty_cache()
    return computed(subj, sets, blocks, diagonals, budget, precision, progress, f, classes)


def computed(
    subj: Subject,
    sets: Mapping[str, Inputs],
    blocks: Sequence[Block],
    diagonals: Sequence[str],
    budget: int | float | str | None,
    precision: str,
    progress: Progress | None,
    f: dict[str, Tensor] | None,
    classes: int | None,
) -> tuple[dict[Block, Tensor], dict[str, Tensor]]:
    """``gram`` of a network and sets that were checked."""
    found, plan = prepare(subj, sets, blocks, diagonals, budget, 2 if precision == "half" else None, classes)
    log.debug("Θ: %s", plan)
    like = next(iter(subj.params.values()))
    theta = Theta({k: size(x) for k, x in sets.items()}, blocks, diagonals, found.heads, like)
    points = sum(size(x) for x in sets.values())
    total, done = len(plan.groups) * points, 0
    seen: list[Tensor] = []
    keep_memory()
    with untouched(subj.device, precision):
        for k, group in enumerate(plan.groups):
            run = Pass(subj, found, group, points, half=precision == "half")
            for at, x in chunks(sets, plan.chunk_size):
                f_nC = run.add(at, x)
                if k == 0 and f_nC is not None:
                    seen.append(f_nC)
                done += at.stop - at.start
                if progress:
                    progress(done, total)
            run.contract(theta, plan)
            del run  # its A and G, before the next group's are made
    if f is not None and seen:
        f |= zip(sets, exact(torch.cat(seen)).split([size(x) for x in sets.values()]))
    return theta.finish()


def checked(subj: Subject, sets: Mapping[str, Inputs]) -> dict[str, Inputs]:
    """The sets that have points; all of one shape."""
    first: Inputs | None = None
    for name, x in sets.items():
        check(x, name, subj.device, like=first)
        first = x if first is None else first
    return dict(sets)


def prepare(
    subj: Subject,
    sets: Mapping[str, Inputs],
    blocks: Sequence[Block],
    diagonals: Sequence[str],
    budget: int | float | str | None,
    item: int | None = None,
    classes: int | None = None,
) -> tuple[Survey, Plan]:
    """Look at the network with a few points, unless its C is known, and plan the work."""
    name, x = max(sets.items(), key=lambda kv: size(kv[1]))
    if size(x) == 0:
        raise ValueError(f"{' and '.join(sets)} have no points")
    found = survey(subj, x, probe(subj, x, name) if classes is None else classes)
    job = Job(
        found,
        {k: subj.params[k].numel() for k in found.functional},
        {k: size(v) for k, v in sets.items()},
        blocks,
        diagonals,
        item=item or next(iter(subj.params.values())).element_size(),
        device=subj.device.type,
    )
    return found, make_plan(job, resolve(budget, subj.device))


def chunks(sets: Mapping[str, Inputs], chunk_size: int) -> Iterator[tuple[slice, Inputs]]:
    """Every point once: its place among all points, and itself."""
    start = 0
    for x in sets.values():
        for at in steps(size(x), chunk_size):
            yield slice(start + at.start, start + at.stop), take(x, at)
        start += size(x)


class Pass:
    """One pass over all points for one group of layers: rows formed on the way, A and G kept for the rest."""

    def __init__(self, subj: Subject, found: Survey, group: Group, points: int, half: bool) -> None:
        self.subj, self.found, self.group, self.points, self.half = subj, found, group, points, half
        self.rows = self.new_rows(group.width) if group.width else None
        self.kept: Calls = {}
        self.finite = torch.ones((), dtype=torch.bool, device=subj.device)

    def new_rows(self, width: int, old: Rows | None = None) -> Rows:
        like = next(iter(self.subj.params.values()))
        wide = width * self.found.folded
        return Rows(self.points, self.found.heads, wide, like, self.half, self.found.largest, old)

    def write(self, rows: Rows, at: slice, start: int, rows_nBw: Tensor) -> int:
        """Rows of a chunk from parameter ``start`` on; returns the parameter after them."""
        stop, fold = start + rows_nBw.shape[2], self.found.folded
        rows.write(at, slice(start * fold, stop * fold), rows_nBw.flatten(1)[:, None] if fold > 1 else rows_nBw)
        return stop

    def add(self, at: slice, x: Inputs) -> Tensor | None:
        """Take a chunk of points; returns f on them, if this pass has it."""
        start, f_NC = 0, None
        if modules := self.group.modules:
            calls, f_NC = record(self.subj, modules, x)
            self.finite &= torch.isfinite(f_NC).all()  # read once, at the end: reading waits for the device
            ready = aligned(calls, self.found.axes, at.stop - at.start, self.found.heads * self.found.folded)
            for layer, cut in self.group.formed:
                assert self.rows is not None
                start = self.write(self.rows, at, start, layer.heads(cut, ready))
            for m in self.group.kept:
                self.keep(m, at, ready[m])
        if self.group.functional:
            found = functional_rows(self.subj, x, list(dict.fromkeys(name for name, _ in self.group.functional)))
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

    def contract(self, theta: Theta, plan: Plan) -> None:
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
            rows: Rows | None = None
            for cut in steps(layer.length, channels):
                rows = self.slab(layer, cut, plan.slab_size, rows)
                theta.add_rows(rows)

    def slab(self, layer: Layer, cut: slice, slab_size: int, old: Rows | None) -> Rows:
        rows = self.new_rows(layer.width(cut), old)
        for at in steps(self.points, slab_size):
            part = {m: [(a[at], g[at]) for a, g in self.kept[m]] for m in layer.modules}
            self.write(rows, at, 0, layer.heads(cut, part))
        return rows
