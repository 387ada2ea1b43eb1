"""The empirical neural tangent kernel Θ (Eq. 4 without the expectation), between sets of points.

``ntk`` is Θ of one or two sets. ``gram`` computes the blocks of a ``GramJob`` at once, for look-ahead. ``plan`` says
what ``ntk`` would do.

Each pass is one forward and one backward, which give every layer's input A and output gradient G at every point. From
them each layer's gradient is formed, multiplied, added to Θ and freed. So the gradients of all P parameters are never
in memory at once. In order: frozen.py checks and freezes the network, survey.py looks at its layers, planning.py cuts
the work to the memory, ``LayerPass`` runs the points, rules.py and functional.py form gradients, rule_checks.py checks
them, accumulate.py adds them up.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.batches import cut_padding, longest_first
from foretaste.errors import did_you_mean, format_bytes, is_out_of_memory
from foretaste.given import given_tensors
from foretaste.tangent.accumulate import EVEN, Block, GradientRows, ThetaSum, keep_memory, slices
from foretaste.tangent.frozen import (
    PRECISIONS,
    FrozenNetwork,
    Inputs,
    Output,
    Params,
    check_inputs,
    count_points,
    find_not_finite,
    freeze,
    isolated,
    outputs,
    probe_outputs,
    take_points,
    to_float64,
    without_modes,
)
from foretaste.tangent.functional import TF32_BATCHED, functional_rows
from foretaste.tangent.planning import (
    SLOW_PLAN,
    BudgetError,
    KernelJob,
    KernelPlan,
    LayerGroup,
    budget_for_speed,
    free_memory,
    make_plan,
    make_smaller_plan,
    resolve_budget,
)
from foretaste.tangent.rule_checks import RuleChecks, points_to_draw, settle_rules
from foretaste.tangent.rules import LayerCalls
from foretaste.tangent.survey import (
    CHECK_POINTS,
    LayerParameter,
    LostRowsError,
    Survey,
    align_calls,
    largest_entry,
    modules_of,
    overflow_error,
    record_pass,
    survey_network,
)

log = logging.getLogger("foretaste")
HALF_WIDER, HALF_TRIES = 128.0, 2  # if float16 overflows, assume gradients this much larger; try so often, then TF32
BACK_ENTRIES = 1 << 20  # of Θ whose points are brought back to their order at a time
OWN_POINTS, OWN_NUMBERS = 64, 1 << 24  # whose diagonal is made at once; numbers of that on a GPU, if it is more
KernelProgress = Callable[[int, int], object]


def ntk(
    net: nn.Module,
    x: Any,
    x2: Any = None,
    *,
    output: Output = "sum",
    params: Params = None,
    budget: int | float | str | None = None,
    precision: str = "float32",
    progress: KernelProgress | None = None,
) -> Tensor:
    """The neural tangent kernel of a network in eval mode, Θ(x, x2) = ∇f(x) ∇f(x2)ᵀ (Eq. 4).

    Args:
        net: the network, in eval mode. It returns a tensor (N, C), or an object or dict with such a tensor ``logits``.
        x: N points: a tensor, or a dict of tensors that is given as ``net(**x)``. The first dimension counts the
            points. Tensors are not converted: a float32 network needs float32 points. Arrays, data frames, lists,
            datasets and what ``ft.open`` returns are, as in ``ft.query``.
        x2: N2 points of the same kind. None (default) means ``x``, at half the work.
        output: which function of the C outputs is differentiated. "sum" (default) is Σ_c f_c / √C. "signs" is
            Σ_c ±f_c / √C with fixed signs, half of them −1: nearer to "trace", at the cost of "sum". "first" is the
            first output, as in the paper; an int is the output of that number. "full" is all of them. "trace" is the
            mean of the diagonal of "full", Σ_c Θ_cc / C, at less cost.
        params: which parameters count. None (default) means all that require grad. "head" is the last layer,
            "last-block" the last of a list of blocks and all after it, "lora" the names with "lora_", "re:PATTERN" the
            names that match; or a sequence of names, or a function from a name to a bool.
        budget: how much memory the computation may take, Θ included: bytes, or a string such as "8GB". None (default)
            means half of what is free, or 0.9 of it on a GPU.
        precision: "float32" (default), or on a CUDA device "tf32" or "half", which are several times faster and keep
            about three digits of the gradients' differences. A float64 network is computed in float64.
        progress: a function that is called with (points done, points to do) after each chunk. None (default): none.

    Returns:
        A float64 tensor (N, N2), on the network's device; for ``output="full"``, (N, N2, C, C).

    Raises:
        ValueError: if the network is in train mode or has NaN weights, if it does not take the points, or if an
            argument is unknown. ``BudgetError``, a ValueError, if the budget is too small: it names one that would do.
        TypeError: if an argument has the wrong type.

    Example:
        >>> import foretaste as ft
        >>> import torch
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> x = torch.randn(10, 4)
        >>> theta = ft.ntk(net, x)
        >>> theta.shape
        torch.Size([10, 10])
        >>> ft.ntk(net, x[:2], x, output="full").shape
        torch.Size([2, 10, 3, 3])
    """
    job = replace(pair_job(net, x, x2, output, params), budget=budget, precision=precision, progress=progress)
    (a, b), *_ = job.blocks
    theta = gram(job).blocks[a, b]
    if output != "full":
        return theta
    n, m = job.sizes[a], job.sizes[b]
    return theta.view(n, theta.shape[0] // n, m, -1).permute(0, 2, 1, 3)


@without_modes()
def plan(
    net: nn.Module,
    x: Any,
    x2: Any = None,
    *,
    output: Output = "sum",
    params: Params = None,
    budget: int | float | str | None = None,
) -> KernelPlan:
    """What ``ntk`` would do with these arguments. It runs a few points only.

    Args:
        net: the network, in eval mode.
        x: the points, as for ``ntk``.
        x2: other points, or None (default) for ``x``.
        output: as for ``ntk`` (default "sum").
        params: as for ``ntk`` (default None).
        budget: bytes, a string such as "8GB", or None (default), as for ``ntk``.

    Returns:
        A ``KernelPlan``. ``groups`` has an entry for each pass over all points, ``chunk_size`` is how many points go
        through the network at once, ``nbytes`` the estimated peak memory in bytes. ``str(plan)`` is a summary.

    Raises:
        BudgetError: if the budget is too small. It names one that would do.
        ValueError: as for ``ntk``.

    Example:
        >>> import torch
        >>> from foretaste.tangent import plan
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
        >>> made = plan(net, torch.randn(100, 4), budget="1GB")
        >>> len(made.groups), made.chunk_size
        (1, 100)
    """
    job = replace(pair_job(net, x, x2, output, params), budget=budget)
    return plan_gram(settle_sets(job))[1]


def settle_sets(job: "GramJob") -> "GramJob":
    """The job without the rules that fail on the first points of its largest set (``settle_rules``)."""
    name, x = job.largest_set
    if not count_points(x):
        return job
    C = probe_outputs(job.frozen, x, name) if job.classes is None else job.classes
    return replace(job, frozen=settle_rules(job.frozen, x, C))


def pair_job(net: Any, x: Any, x2: Any, output: Output, params: Params) -> "GramJob":
    """The job of the block between x and x2. Raises unless network and points are valid."""
    given = given_tensors(net, {"x": x} if x2 is None else {"x": x, "x2": x2})
    sets = {name: points.x for name, points in given.items()}
    frozen = freeze(net, output=output, params=params)
    for name, points in sets.items():
        check_inputs(points, name, frozen.device, like=None if name == "x" else sets["x"])
    return GramJob(frozen, sets, [("x", "x" if x2 is None else "x2")])


@dataclass(frozen=True, eq=False)
class GramJob:
    """Several blocks of Θ between named sets of points, to be computed in the same passes.

    ``frozen`` and ``sets`` are taken as checked (``freeze``, ``check_inputs``). On a CUDA device, ``precision`` "tf32"
    makes passes and products in TF32, and "half" stores and multiplies gradients in float16 besides. Rankings survive
    these two only because gradients are centred first (accumulate.py).
    """

    frozen: FrozenNetwork
    sets: Mapping[str, Inputs]  # by name, all with points of one shape; a set may be empty
    blocks: Sequence[Block] = ()  # pairs of names; a pair (a, a) costs half the work
    diagonals: Sequence[str] = ()  # names of sets whose points are wanted each with itself
    budget: int | float | str | None = None  # as for ``ntk``
    precision: str = "float32"  # of a float32 network; a float64 network is computed in float64
    classes: int | None = None  # C, if it is known; else the network is probed for it
    progress: KernelProgress | None = None  # called with (points done, points to do) after each chunk
    check: bool = True  # whether rules are compared with autograd; False if another job does so for the same points

    def __post_init__(self) -> None:
        double, precision = self.frozen.dtype == torch.float64, self.precision
        if not isinstance(precision, str) or precision not in (*PRECISIONS, *["float64"] * double):
            raise ValueError(f"unknown precision {precision!r}{did_you_mean(precision, PRECISIONS)}")
        if precision == "half" and double:
            raise ValueError(
                "precision='half' is for float32 networks, and net is float64; use precision='float32', or net.float()"
            )

    @property
    def coarse(self) -> bool:
        """Whether passes are in TF32."""
        return self.precision in ("tf32", "half")

    @property
    def sizes(self) -> dict[str, int]:
        return {name: count_points(x) for name, x in self.sets.items()}

    @property
    def largest_set(self) -> tuple[str, Inputs]:
        return max(self.sets.items(), key=lambda item: count_points(item[1]))


@dataclass(frozen=True, eq=False)
class Gram:
    """What a ``GramJob`` gives, in float64. B is the number of heads: C for ``output="full"``, else 1."""

    blocks: dict[Block, Tensor]  # Θ of each pair (a, b), (N_a·B, N_b·B); rows are (point, head)
    diagonals: dict[str, Tensor]  # (N, B, B)
    outputs: dict[str, Tensor]  # f on each set, (N, C), from the same passes
    precision: str  # the one that was used: "tf32" if gradients overflow "half"
    frozen: FrozenNetwork = field(repr=False)  # the network, without the rules that failed


# ---- The computation ----


def own_memory(t: Tensor) -> Tensor:
    """The tensor, or a copy if its memory is not its own: a part of a larger one's, or a few numbers that are many."""
    return t if t.untyped_storage().nbytes() == t.nbytes else t.clone(memory_format=torch.contiguous_format)


class HalfRangeError(RuntimeError):
    """Gradients overflow float16 at the scale that the first points suggested."""

    def __init__(self, largest: float) -> None:
        super().__init__(f"gradients far above {largest:g} overflow float16")
        self.largest = largest


@without_modes()
def gram(job: GramJob) -> Gram:
    """Compute a job, and start again if something fails.

    It starts again without a rule that does not hold; with another scale, or in TF32, if gradients overflow float16;
    and with half the memory if that ran out.

    Raises:
        BudgetError: if the budget is too small. It names one that would do.
        ValueError: as for ``ntk``.

    Example:
        >>> import torch
        >>> from foretaste.tangent import GramJob, freeze, gram
        >>> net = torch.nn.Linear(4, 3).eval()
        >>> sets = {"L": torch.randn(5, 4), "U": torch.randn(20, 4)}
        >>> found = gram(GramJob(freeze(net), sets, blocks=[("L", "L"), ("U", "L")], diagonals=["U"]))
        >>> found.blocks["U", "L"].shape, found.diagonals["U"].shape, found.outputs["L"].shape
        (torch.Size([20, 5]), torch.Size([20, 1, 1]), torch.Size([5, 3]))
    """
    device = job.frozen.device
    failed: KernelPlan | None = None
    largest, widened, emptied = 0.0, 0, job.budget is not None or device.type != "cuda"
    if job.progress and job.check:
        job = settle_sets(job)  # else progress would have reached its end when the work starts again without a rule
    while True:
        made: KernelPlan | None = None
        try:
            survey, made = plan_gram(job, failed)
            return compute_gram(job, survey, made, largest)
        except LostRowsError as e:  # such parameters go through torch.func
            lost = [layer.name for layer in survey.layers if layer.name in e.names or {*layer.modules} & {*e.modules}]
            log.info("no rule for %s: %s; starting again without it", ", ".join(lost), e)
            job = replace(job, frozen=replace(job.frozen, unruled=job.frozen.unruled | set(lost)))
            continue
        except BudgetError:  # planned with all rules; the budget that it names must also do without those that fail
            settled = settle_sets(job)
            if settled.frozen.unruled == job.frozen.unruled:
                raise
            job = settled
            continue
        except HalfRangeError as e:
            widened += 1
            log.info("%s; starting again %s", e, "at another scale" if widened <= HALF_TRIES else "in TF32")
            largest = HALF_WIDER * e.largest
            job = replace(job, precision="half" if widened <= HALF_TRIES else "tf32")
            continue
        except Exception as e:
            if not is_out_of_memory(e):
                raise
            if made is None or made.chunk_size == 1:
                raise memory_error(e, job) from e
        # Outside of ``except``: inside it, the error's frames keep the tensors alive.
        if not emptied:
            # The free memory was fragmented. Return it to the device and plan again.
            log.info("out of memory: emptying torch's cache and trying once more")
            torch.cuda.empty_cache()
            emptied = True
        else:
            failed = made
            log.info("out of memory with %s; starting again with half of it", made)


def memory_error(e: Exception, job: GramJob) -> Exception:
    """The error if not even one point at a time fits."""
    device = job.frozen.device
    said = (
        f"out of memory on {device}: Θ of {sum(job.sizes.values())} points does not fit into what is free there "
        f"({format_bytes(free_memory(device))}), however it is cut; take fewer points, a smaller watch=, or free some "
        f"memory ({str(e).splitlines()[0] if str(e) else type(e).__name__})"
    )
    return (torch.OutOfMemoryError if device.type == "cuda" else MemoryError)(said)


def compute_gram(job: GramJob, survey: Survey, plan: KernelPlan, largest: float = 0.0) -> Gram:
    """``gram`` by a plan. largest: the largest entry of a gradient, for the scale of float16; 0 if unknown."""
    log.debug("Θ: %s", plan)
    frozen, sizes = job.frozen, job.sizes
    theta = ThetaSum(sizes, job.blocks, job.diagonals, survey.heads, next(iter(frozen.params.values())))
    points = sum(sizes.values())
    total, done = len(plan.groups) * points, 0
    f_chunks: list[Tensor] = []
    # Points of the first and the last batch of each set are checked.
    draws = points_to_draw(list(sizes.values()), plan.chunk_size, survey.cheap)
    unchecked = survey.layers if job.check else []
    late = may_check_late(survey, plan, len(sizes), job.coarse)
    orders = {name: longest_first(frozen.net, x) for name, x in job.sets.items()}
    keep_memory()
    with isolated(frozen.device, job.precision):
        if job.precision == "half" and not largest:
            largest = largest_entry(frozen, job.largest_set[1])
        for k, group in enumerate(plan.groups):
            modules = set(group.modules)
            checked = [layer for layer in unchecked if modules.issuperset(layer.modules)]
            unchecked = [layer for layer in unchecked if layer not in checked]
            layer_pass = LayerPass(job, survey, group, points, largest, checked, late)
            for at, x in iterate_chunks(job.sets, plan.chunk_size, orders):
                told = PointCount(job.progress, done, total)
                f_nC = layer_pass.add(at, cut_padding(frozen.net, x), draws.get(at.start), told)
                if k == 0 and f_nC is not None:
                    f_chunks.append(f_nC)
                done += at.stop - at.start
                if told.done < done:
                    told.reach(done)
            layer_pass.contract(theta, plan)
            del layer_pass  # frees its A and G before the next group's are recorded
    if f_chunks:
        f = dict(zip(sizes, to_float64(torch.cat(f_chunks)).split(list(sizes.values()))))
        f = {name: put_back(f_NC, [orders[name]]) for name, f_NC in f.items()}
    else:  # no layer has a rule, so none was recorded
        found = {k: outputs(frozen, x, name=k, precision=job.precision) for k, x in job.sets.items() if sizes[k]}
        f = {name: found.get(name, next(iter(found.values()))[:0]) for name in sizes}
    blocks, diagonals = theta.finish()
    blocks = {(a, b): put_back(block, [orders[a], orders[b]]) for (a, b), block in blocks.items()}
    diagonals = {a: put_back(diagonal, [orders[a]]) for a, diagonal in diagonals.items()}
    if find_not_finite({str(key): t for part in (blocks, diagonals) for key, t in part.items()}) is not None:
        if job.precision == "half":
            raise HalfRangeError(largest)
        raise overflow_error(frozen.dtype)
    return Gram(blocks, diagonals, f, job.precision, frozen)


def plan_gram(job: GramJob, failed: KernelPlan | None = None) -> tuple[Survey, KernelPlan]:
    """Survey the network with a few points and plan the work. failed: a plan that ran out of memory."""
    frozen, (name, x) = job.frozen, job.largest_set
    if count_points(x) == 0:
        raise ValueError(f"{' and '.join(job.sets)} have no points; give at least one")
    available = resolve_budget(job.budget, frozen.device)
    C = probe_outputs(frozen, x, name, kernel_follows=job.check) if job.classes is None else job.classes
    survey = survey_network(frozen, x, C)
    work = KernelJob(
        survey,
        {k: frozen.params[k].numel() for k in survey.functional},
        job.sizes,
        job.blocks,
        job.diagonals,
        2 if job.precision == "half" else next(iter(frozen.params.values())).element_size(),
        frozen.device.type,
    )
    if failed is not None:
        return survey, make_smaller_plan(work, failed)
    made = make_plan(work, available)
    if made.slowdown >= SLOW_PLAN:
        log.warning(
            "a budget of %s makes Θ of %d points take about %.0f times as long as a budget of %s would",
            format_bytes(made.budget), work.points, made.slowdown, format_bytes(1.01 * budget_for_speed(work, made)),
        )  # fmt: skip
    return survey, made


def may_check_late(survey: Survey, plan: KernelPlan, sets: int, coarse: bool) -> bool:
    """Whether there is room to check the rules once, after the pass, on the points of all sets together.

    That is faster than a check in each batch, and a GPU is then still busy with the pass. The points are in memory
    three times: as drawn, by themselves, and for autograd. A coarse pass keeps little of the drawn points, and the
    memory of a batch is free after it.
    """
    point_bytes = CHECK_POINTS * sets * survey.alone_bytes
    ample = plan.nbytes + 3 * point_bytes <= plan.budget
    return ample or (coarse and 2 * point_bytes <= plan.chunk_size * survey.pass_bytes)


def iterate_chunks(
    sets: Mapping[str, Inputs], chunk_size: int, orders: Mapping[str, Tensor | None]
) -> Iterator[tuple[slice, Inputs]]:
    """Every point once: its place among the points of all sets, and the points themselves.

    orders: in which the points of a set come; None: as they stand.
    """
    start = 0
    for name, x in sets.items():
        order = orders[name]
        for at in slices(count_points(x), chunk_size):
            yield slice(start + at.start, start + at.stop), take_points(x, at if order is None else order[at])
        start += count_points(x)


def put_back(t: Tensor, orders: Sequence[Tensor | None]) -> Tensor:
    """Bring dimension k from the order ``orders[k]`` of its points back to their own, in place. A point has B rows.

    A part at a time: a second Θ beside the first would not fit into the budget.
    """
    for k, order in enumerate(orders):
        if order is None or not len(order):
            continue
        back = order.argsort().to(t.device)
        heads = t.shape[k] // len(back)
        rows = (back[:, None] * heads + torch.arange(heads, device=back.device)).flatten()
        others = t.movedim(k, 0).flatten(1) if t.dim() > 1 else t[:, None]
        step = max(1, BACK_ENTRIES // len(rows))
        for at in slices(others.shape[1], step):
            others[:, at] = others[rows, at]
    return t


def grown(kept: Tensor, at: slice, t: Tensor) -> Tensor:
    """``kept``, padded with zeros to the larger shape of ``t``. Only points before ``at`` are copied.

    A network that cuts its batch to the longest text has fewer positions in some chunks. Padded positions have G = 0
    and add nothing.
    """
    shape = [max(a, b) for a, b in zip(kept.shape[1:], t.shape[1:])]
    if shape == list(kept.shape[1:]):
        kept[at] = 0
        return kept
    wide = kept.new_zeros(len(kept), *shape)
    wide[(slice(at.start), *map(slice, kept.shape[1:]))] = kept[: at.start]
    return wide


@dataclass
class PointCount:
    """Points of a chunk, counted one by one if they go so."""

    progress: KernelProgress | None
    done: int
    total: int

    def reach(self, done: int) -> None:
        self.done = done
        if self.progress:
            self.progress(done, self.total)

    def one_more(self) -> None:
        self.reach(self.done + 1)


class LayerPass:
    """One pass over all points, for one group of layers. ``add`` takes the points, ``contract`` adds to Θ.

    Rows of ``group.formed`` and ``group.functional`` are written during the pass; A and G are kept for the others.
    """

    def __init__(
        self,
        job: GramJob,
        survey: Survey,
        group: LayerGroup,
        points: int,
        largest: float,
        checked: Sequence[LayerParameter],
        check_late: bool,
    ) -> None:
        self.frozen, self.survey, self.group, self.points = job.frozen, survey, group, points
        self.half, self.coarse, self.largest = job.precision == "half", job.coarse, largest
        self.checks = RuleChecks(job.frozen, survey, checked, self.coarse) if checked else None
        self.check_late = check_late
        self.rows = self.new_rows(group.written) if group.written else None
        self.in_place = [self.new_rows(layer.width(cut)) for layer, cut in group.in_place]
        device = job.frozen.device.type
        self.held_layers = [layer for layer in group.stashed if survey.forms_in_place(layer, device, self.half)]
        others = [layer for layer in group.stashed if layer not in self.held_layers]
        self.copied = modules_of([*others, *group.products])
        self.kept: LayerCalls = {}  # of these
        self.held: list[tuple[slice, LayerCalls]] = []  # A and G of the held layers, by chunk
        self.finite = torch.ones((), dtype=torch.bool, device=job.frozen.device)

    def new_rows(self, width: int, old: GradientRows | None = None) -> GradientRows:
        """Room for ``width`` columns of all points, in the memory of ``old`` if that is large enough."""
        like = next(iter(self.frozen.params.values()))
        wide = width * self.survey.folded
        return GradientRows(self.points, self.survey.heads, wide, like, self.half, self.largest, old)

    def write(self, rows: GradientRows, at: slice, start: int, rows_nBw: Tensor) -> int:
        """Write the rows of a chunk from column ``start`` on; returns the column after them."""
        stop, fold = start + rows_nBw.shape[2], self.survey.folded
        rows.write(at, slice(start * fold, stop * fold), rows_nBw.flatten(1)[:, None] if fold > 1 else rows_nBw)
        return stop

    def add(self, at: slice, x: Inputs, draw: tuple[int, int] | None, told: PointCount) -> Tensor | None:
        """Run a chunk of points, which are the points ``at`` of all; returns f on them, if this pass computes it.

        draw: how many are checked (``points_to_draw``), if any. told: counts points that go one by one.
        """
        start, f_NC = 0, None
        if modules := self.group.modules:
            calls, f_NC = record_pass(self.frozen, modules, x)
            self.finite &= torch.isfinite(f_NC).all()  # read at the end only: a read waits for the device
            n, heads = at.stop - at.start, self.survey.heads * self.survey.folded
            ready = align_calls(calls, self.survey.axes, self.survey.folds, n, heads)
            if self.checks and draw:
                self.checks.draw(x, ready, f_NC, *draw)
                if not self.check_late:
                    self.checks.compare()
                    if not self.coarse:
                        self.read_checks()  # frees the points
            for layer, cut in self.group.formed:
                assert self.rows is not None
                start = self.write(self.rows, at, start, layer.rows(cut, ready))
            for (layer, cut), rows in zip(self.group.in_place, self.in_place):
                rows.form(at, partial(layer.rows_into, cut, ready))
            for m in self.copied:
                self.keep(m, at, ready[m])
            if self.held_layers:
                held = {m: [(own_memory(a), own_memory(g)) for a, g in ready[m]] for m in modules_of(self.held_layers)}
                self.held.append((at, held))
        if self.group.functional:
            names = list(dict.fromkeys(name for name, _ in self.group.functional))
            gradients = functional_rows(self.frozen, x, names, TF32_BATCHED if self.coarse else None, told.one_more)
            for name, cut in self.group.functional:
                assert self.rows is not None
                start = self.write(self.rows, at, start, gradients[name][:, :, cut])
        return f_NC

    def keep(self, m: nn.Module, at: slice, calls: list[tuple[Tensor, Tensor]]) -> None:
        """Copy A and G of a module's calls to where those of all points are kept."""
        if m not in self.kept:
            self.kept[m] = [tuple(t.new_empty(self.points, *t.shape[1:]) for t in call) for call in calls]  # type: ignore[misc]
        if len(calls) != len(self.kept[m]):
            times = f"{len(self.kept[m])} times for some points and {len(calls)} for others"
            raise ValueError(
                f"a {type(m).__name__} is called {times}; Θ needs the same calls for every point: let net's forward "
                "not depend on the points' values"
            )
        for k, (kept, call) in enumerate(zip(self.kept[m], calls)):
            if any(to.shape[1:] != t.shape[1:] for to, t in zip(kept, call)):
                if type(m) not in (nn.Linear, nn.Embedding):
                    raise LostRowsError(f"a {type(m).__name__} sees more of some points than of others", modules=[m])
                kept = self.kept[m][k] = (grown(kept[0], at, call[0]), grown(kept[1], at, call[1]))
            for to, t in zip(kept, call):
                to[(at, *map(slice, t.shape[1:]))] = t

    def contract(self, theta: ThetaSum, plan: KernelPlan) -> None:
        """Add what the group's layers contribute to Θ. Raises if a rule does not hold.

        A GPU gets this work before the checks are read, so that it does not wait for the host.
        """
        if self.checks:
            self.checks.compare()
        if self.frozen.device.type == "cuda":
            self.add_to(theta, plan)
            self.read_checks()
        else:
            self.read_checks()
            self.add_to(theta, plan)

    def read_checks(self) -> None:
        """Raise if an output is not finite, or if a rule does not hold. A read waits for the device."""
        if not self.finite:
            raise ValueError("net returns NaN or infinite outputs for some of the points")
        if self.checks:
            self.checks.read()

    def add_to(self, theta: ThetaSum, plan: KernelPlan) -> None:
        if self.rows is not None:
            theta.add_rows(self.rows)
            self.rows = None  # frees their memory for the slabs below
        while self.in_place:
            theta.add_rows(self.in_place.pop(0))
        for product in self.group.products:
            a, g = product.gather(self.kept, self.survey.folded)
            kernel = partial(product.kernel, a, g, tile_bytes=plan.tile_bytes)
            own = max(OWN_POINTS, OWN_NUMBERS // (g.shape[1] * g.shape[2]) ** 2) if g.is_cuda else OWN_POINTS
            theta.add_kernel(kernel, partial(product.diagonal, a, g), own)
        rows: GradientRows | None = None
        for layer in self.group.stashed:
            held = layer in self.held_layers
            inputs = held and layer.shape[1] > layer.shape[0]  # cut along these, slabs are less narrow
            length, width = (layer.shape[1], layer.shape[0]) if inputs else (layer.length, layer.width(slice(0, 1)))
            channels = max(layer.grain, self.group.slab // width // layer.grain * layer.grain)
            channels -= channels % EVEN if channels > EVEN and layer.grain == 1 else 0
            for cut in slices(length, channels):
                rows = self.new_rows(width * (cut.stop - cut.start), rows)
                if held:
                    for at, calls in self.held:
                        rows.form(at, partial(layer.rows_into, cut, calls, inputs=inputs))
                else:
                    for at in slices(self.points, plan.slab_size):
                        part = {m: [(a[at], g[at]) for a, g in self.kept[m]] for m in layer.modules}
                        self.write(rows, at, 0, layer.rows(cut, part))
                theta.add_rows(rows)
