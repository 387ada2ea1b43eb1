"""Batches from pools that are read chunk by chunk: ``cover`` on a sample of watched points, scores of outputs alone.

And shortlists: some points of the pool, for strategies that need all points at once.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.acquire import (
    SPREAD_POINTS,
    Coverage,
    FittingScore,
    Shortlist,
    Strategy,
    StreamedCover,
    covered_errors,
    sample_watched,
    stream_chunk,
)
from foretaste.errors import format_bytes, format_seconds, is_out_of_memory
from foretaste.executors import Executor
from foretaste.given import SlicedPoints
from foretaste.lookahead import LANDMARKS, KernelSettings, LargeLabels, State
from foretaste.losses import probabilities
from foretaste.pick.parts import LARGE_BATCH, read_parts
from foretaste.pick.phases import ProgressCounter
from foretaste.pick.request import Request
from foretaste.pick.select import Batch, Picked, find_copies, highest, pick, pick_covering, scores_by
from foretaste.pick.shards import ShardedPasses
from foretaste.tangent import (
    FactorSource,
    FrozenNetwork,
    Inputs,
    count_points,
    free_memory,
    freeze,
    outputs,
    resolve_budget,
    take_points,
)

log = logging.getLogger("foretaste")

LARGE_L = 4096  # labels from which no L × L matrix is made
WATCHED = 4096  # points of the pool that a streamed query watches
WATCHED_WIDE = 1024  # where one κ costs more than WIDE multiplications, as with convolutions
WIDE = 1 << 13
SKETCHED = 1 << 15  # numbers of a tangent from which sketches take its place,
SKETCH_SIDE = 64  # of so many numbers squared
ENOUGH_RECALL = 0.9  # of the exact top tenth among the top fifth by sketches: else they get an exact part
SHORTLIST, SHORTLIST_EACH = 1024, 16  # candidates of which a batch is chosen again: at least, and for each pick
SHORTLIST_NUMBERS = {"cpu": 1 << 27, "cuda": 1 << 29}  # of their κ, at most
KEPT_ROWS = {"cpu": 1 << 15, "cuda": 1 << 19}  # candidates that lazy evaluation asked for, whose κ is kept, at most
SECOND_SAMPLE = {"cpu": 16384, "cuda": 65536}  # points by which they are chosen, at first
OUTPUT_CHUNK = {"cpu": 256, "cuda": 4096}  # points that go through the network at once, for outputs alone
ROWS_EACH = 250  # candidates of the pass cost as much as a pick by lazy evaluation, which reads about 100, few by few
ERRORS_SHARE = 0.05  # of a query: the forward pass by which watched points are drawn
AGREED = 0.05  # of the value of a batch: so far apart its values on two samples may be
STREAM_BUDGET = 1_500_000_000  # bytes, by default on a CPU: more would not make it faster


@dataclass
class SeenPool:
    """What is collected while a pool is read: copies of labelled points, and progress."""

    x_L: Inputs | None
    U: int
    n: int
    report: ProgressCounter
    copies_U: Tensor = field(init=False)
    read: int = 0

    def __post_init__(self) -> None:
        self.copies_U = torch.zeros(self.U, dtype=torch.bool)

    def begin(self, share: float) -> None:
        """The next phase begins, with this share of the work that is left."""
        self.read = 0
        self.report.begin(share)

    def __call__(self, at: slice, x: Inputs) -> None:
        if (found := find_copies(self.x_L, x)) is not None:
            self.copies_U[at] = found
        self.count(at)

    def note(self, at: slice, copies: Tensor) -> None:
        """The same of a shard, whose points another process has read. Shards come in any order."""
        self.copies_U[at] = copies
        self.count(at)

    def count(self, at: slice) -> None:
        """Points of which nothing but their number is of interest."""
        self.read += at.stop - at.start
        self.report(self.read, self.U)

    def batch(self, generator: torch.Generator) -> Batch:
        """The batch to pick from what was read."""
        some = bool(self.copies_U.any()) and not bool(self.copies_U.all())
        return Batch(self.n, generator, self.copies_U if some else None, progress=self.report)


def seen_pool(request: Request, pool: SlicedPoints) -> SeenPool:
    progress = request.progress if isinstance(request.progress, ProgressCounter) else ProgressCounter(request.progress)
    return SeenPool(request.x_L, len(pool), request.batch_size, progress)


@contextmanager
def sharded(
    executor: Executor, request: Request, pool: SlicedPoints, seen: SeenPool, *, by_gradients: bool
) -> Iterator[ShardedPasses]:
    with executor.started() as runner:
        yield ShardedPasses(executor, runner, pool, request.frozen, request.x_L, by_gradients, seen.note)


def pick_streamed(
    request: Request,
    pool: SlicedPoints,
    how: Strategy,
    select: str,
    options: Mapping[str, Any],
    executor: Executor | None = None,
) -> tuple[Picked, dict[str, Any]]:
    """A batch of ``request.batch_size`` points of the pool, and what goes into ``q.info``.

    request: the question, with a few points of the pool in the place of all.
    executor: what computes the passes over the pool, shard by shard. None: they are made here, chunk by chunk.
    """
    request = replace(request, kernel=replace(request.kernel, method="auto"))  # of the states
    seen = seen_pool(request, pool)
    try:
        if executor is None or how.picks:
            return _pick_streamed(request, pool, how, select, options, seen, None)
        with sharded(executor, request, pool, seen, by_gradients=how.coverage is covered_errors) as passes:
            got, info = _pick_streamed(request, pool, how, select, options, seen, passes)
        return got, info | {"executor": executor.kind, "shards": passes.counts}
    except Exception as e:
        if not is_out_of_memory(e):
            raise
        raise no_memory(e, request, len(pool), executor) from e


def no_memory(e: Exception, request: Request, U: int, executor: Executor | None) -> Exception:
    """The error of a streamed query for which there is no memory: what to set, and what is kept."""
    device = request.frozen.device
    budget = stream_budget(request.kernel, device)
    kept = "" if executor is None else "; the same query with Executor(folder=...) would keep what is complete"
    if executor is not None and executor.folder is not None:
        kept = f"; what is complete is kept in {executor.folder}, and the same query resumes"
    workers = "" if executor is None or executor.kind == "serial" else "use fewer workers, "
    said = (
        f"out of memory on {device}, by a streamed query of {U} candidates within a budget of {format_bytes(budget)}, "
        f"where {format_bytes(free_memory(device))} are free; give a smaller budget=, such as {budget // 4}, or a "
        f"smaller watch=, {workers}or free some memory{kept} ({str(e).splitlines()[0] if str(e) else type(e).__name__})"
    )
    return (torch.OutOfMemoryError if device.type == "cuda" else MemoryError)(said)


def _pick_streamed(
    request: Request,
    pool: SlicedPoints,
    how: Strategy,
    select: str,
    options: Mapping[str, Any],
    seen: SeenPool,
    passes: ShardedPasses | None,
) -> tuple[Picked, dict[str, Any]]:
    if how.coverage is covered_errors:
        return _stream_cover(request, pool, select, options, seen, passes)
    seen.begin(len(pool) / (len(pool) + request.batch_size))
    if how.picks:  # it looks at no point
        for at, x in pool.chunks(stream_chunk(torch.device("cpu"))):
            seen(at, x)
        seen.begin(1)
        got = pick(how, replace(request, x_U=torch.empty(len(pool), 0)), seen.batch(request.generator), options=options)
        return got, {"method": "streamed"}
    start, scores = time.perf_counter(), list[Tensor]()
    score, step = OutputScores(how, options, request.for_workers(labels=False)), stream_chunk(request.frozen.device)
    # The first state has the labels: they say whether the network fits. Scores do not depend on them.
    first = None if passes is None else replace(request, x_U=pool.take(slice(0, step))).state
    if passes is not None:
        scores.append(passes.scores("scores", step, score, score.made_by).to(request.frozen.device))
    fitting = FittingScore(score)
    for at, x in pool.chunks(step) if passes is None else ():
        first = replace(request, x_U=x).state if first is None else first
        scores.append(fitting(at, x) if at.start else scores_by(how, options, first))
        seen(at, x)
    seen.begin(1)
    middle, batch, scores_U = time.perf_counter(), seen.batch(request.generator), torch.cat(scores)
    got = Picked(highest(scores_U, batch), state=first)
    got.scores_U = without_copies(scores_U, batch)
    got.seconds = {"score": middle - start, "select": time.perf_counter() - middle}
    batch.progress.count_all(batch.n)
    return got, {"method": "streamed", "watched": len(pool)}


def without_copies(scores_U: Tensor, batch: Batch) -> Tensor:
    """The scores, −inf for copies of labelled points."""
    return scores_U if batch.last_U is None else scores_U.masked_fill(batch.last_U.to(scores_U.device), -torch.inf)


@dataclass(frozen=True, eq=False)
class OutputScores:
    """Scores of outputs alone, for a chunk of points in the place of those of a request."""

    how: Strategy
    options: Mapping[str, Any]
    request: Request

    def __call__(self, at: slice, x: Inputs) -> Tensor:
        return scores_by(self.how, self.options, replace(self.request, x_U=x).state)

    @property
    def made_by(self) -> list[object]:
        return [self.how.name, {key: repr(value) for key, value in self.options.items()}, self.request.loss]


@dataclass(frozen=True, eq=False)
class OutputErrors:
    """1 − p, p the largest probability: the network's own chance of error."""

    frozen: FrozenNetwork
    loss: str

    def __call__(self, at: slice, x: Inputs) -> Tensor:
        step = OUTPUT_CHUNK.get(self.frozen.device.type, OUTPUT_CHUNK["cpu"])
        f_nC = outputs(self.frozen, x, name="x_U", chunk_size=step, precision="tf32")  # of a GPU: sampled by, no more
        return 1 - probabilities(f_nC, self.loss).amax(1).cpu()


@dataclass(frozen=True, eq=False)
class Linearise:
    """Points -> a state of L with these watched; at most how many of them are candidates; with Θ at once.

    precisions: the last is that of Θ. measured_once: the first state with Θ measures it for all.
    """

    request: Request
    budget: int
    precisions: list[str]
    measured_once: bool

    def __call__(self, x: Inputs, candidates: int, eager: bool) -> State:
        few = take_points(x, slice(None, None, -(-count_points(x) // candidates)))
        own = replace(
            self.request.kernel, watch=x, watch_by="random", budget=self.budget, precision=self.precisions[-1]
        )
        state = replace(self.request, x_U=few, kernel=own, eager=eager).state
        if eager and self.measured_once:
            self.precisions.append(state.precision_info["precision"])
        return state


def _stream_cover(
    request: Request,
    pool: SlicedPoints,
    select: str,
    options: Mapping[str, Any],
    seen: SeenPool,
    passes: ShardedPasses | None,
) -> tuple[Picked, dict[str, Any]]:
    start, kernel = time.perf_counter(), request.kernel
    C, x_L = request.C, request.x_L if request.L else None
    # κ of the full kernel is that of its blocks' mean diagonals.
    frozen = freeze(request.frozen, output="trace" if kernel.output == "full" else kernel.output, params=kernel.params)
    budget = stream_budget(kernel, frozen.device)
    width, sketch = FactorSource(frozen, request.x_U, C).width, None
    if width > SKETCHED and kernel.watched_points is None:
        sketch, width = SKETCH_SIDE, SKETCH_SIDE**2
    # Θ_LL of more labels would be made and solved for each chunk of points, or not fit.
    large = request.L > LARGE_L and sketch is None and kernel.output != "full" and 8 * request.L * width <= budget // 2
    W = watched_count(kernel, len(pool), LANDMARKS if large else request.L, width, budget)
    x_W, sample, error_U = kernel.watched_points, None, np.zeros(len(pool))
    if x_W is None and len(pool) == W:
        x_W = pool.all()
    elif x_W is None:
        error_U = error_of_outputs(request, pool, passes, seen) if request.L else error_U
        sample = sample_watched(error_U, W, 0, int(kernel.seed))
        x_W = pool.take(sample.at_W)

    precisions = [kernel.precision]
    if kernel.precision == "auto" and frozen.device.type == "cuda" and sketch is None:
        precisions = ["float32"]  # Θ is small: measuring what others lose would cost more

    linearise = Linearise(request.for_workers(labels=True), budget, precisions, measured_once=sketch is not None)
    kept = min(KEPT_ROWS.get(frozen.device.type, 0), budget // 3 // 8 // count_points(x_W))
    labels = None
    if large and x_L is not None:
        most = min(LANDMARKS, budget // 4 // (8 * request.L))
        labels = LargeLabels(frozen, x_L, C, linearise(take_points(x_W, slice(1)), 1, False), most)
    cover = StreamedCover(
        linearise, frozen, x_L, x_W, pool, sample, **options, kept=kept, sketch=sketch, budget=budget, labels=labels
    )
    _ = cover.chance_work  # before anything else asks for the state
    cover = settle_sketches(cover)
    if select == "greedy" and sample is not None and request.batch_size > LARGE_BATCH:
        return _pick_in_parts(request, cover, seen, budget, start, passes)
    n, greedy = request.batch_size, select != "top"
    second = second_step(cover, n, budget) if greedy else None
    # The work of each step, in candidates of the pass.
    growing = (1 if second is None else 2) * n * ROWS_EACH if greedy else 0
    choosing = 0.0 if second is None else cover.compare_cost(second.most) * second.work(second.most)
    work, spent = len(pool) + growing + choosing, time.perf_counter() - start
    reading, picking = cover.estimate_seconds(), cover.trial[0] * (growing + choosing)
    log.info(
        "streamed: %d candidates against %d watched points; about %s (%s so far, %s for the pass over the pool, %s for "
        "the picks), and %s", len(pool), len(cover.held), format_seconds(spent + reading + picking),
        format_seconds(spent), format_seconds(reading), format_seconds(picking), format_bytes(cover.nbytes),
    )  # fmt: skip
    ready = time.perf_counter()
    seen.begin(len(pool) / work)
    F = cover.coverage(seen, None if passes is None else passes.gains)
    assert F.first_U is not None
    middle, batch = time.perf_counter(), seen.batch(request.generator)
    told: Mapping[str, Any] = {}
    if select == "top":
        seen.begin(1)
        got = Picked(highest(F.first_U, batch), scores_U=without_copies(F.first_U, batch), info=F.info)
        batch.progress.count_all(batch.n)
    else:
        seen.begin(growing / (growing + choosing))
        got, told = pick_twice(cover, F, batch, error_U, second, int(kernel.seed))
    if not told:
        told = {"batch_value": {"watched": cover.watched_value(got.indices)}}
    got.state = cover.state
    got.seconds = {"kernel": ready - start, "score": middle - ready, "select": time.perf_counter() - middle}
    told = {"watched": len(cover.held), "rows_read": sum(cover.rows_read), **told}
    return got, {"method": "streamed", **cover_info(cover), **told}


def _pick_in_parts(
    request: Request, cover: StreamedCover, seen: SeenPool, budget: int, start: float, passes: ShardedPasses | None
) -> tuple[Picked, dict[str, Any]]:
    ready = time.perf_counter()
    parts = read_parts(cover, budget, request.generator, seen, passes, seen.begin)
    middle = time.perf_counter()
    seen.begin(1)
    got, told = parts.pick(seen.batch(request.generator), int(request.kernel.seed), passes)
    got.state = cover.state
    got.seconds = {"kernel": ready - start, "score": middle - ready, "select": time.perf_counter() - middle}
    return got, {"method": "streamed", **cover_info(cover), **told}


def settle_sketches(cover: StreamedCover) -> StreamedCover:
    """The cover, with an exact part in its sketches where they rank badly without. Says how well they do."""
    if cover.sketched and cover.sketch_recall["among_twice"] < ENOUGH_RECALL:
        cover = cover.with_landmarks()
    if cover.sketched:
        told = cover.sketch_recall
        log.info(
            "streamed: sketches have %.0f %% of the exact top %d of %d random candidates among their top %d%s",
            100 * told["among_twice"], told["top"], told["points"], 2 * told["top"],
            f", with the exact part of {cover.landmarks} points" if cover.landmarks else "",
        )  # fmt: skip
    return cover


def cover_info(cover: StreamedCover) -> dict[str, Any]:
    """For ``q.info``: how very many labels were solved, the numbers of a sketch, and how well sketches rank."""
    labels = cover.labels
    told = {} if labels is None else {"labels": labels.info, "ridge": labels.ridge, "scale": labels.scale}
    if cover.sketch is None or not cover.sketched:
        return told
    return told | {"sketch": cover.sketch**2, "landmarks": cover.landmarks, "sketch_recall": cover.sketch_recall}


@dataclass(frozen=True)
class SecondStep:
    """How a batch is chosen again: among at most ``most`` candidates of U, by samples that double as long as they fit.

    numbers: of κ, at most. first: points of the first sample. fit: of any.
    """

    U: int
    most: int
    numbers: int
    first: int
    fit: int

    def sizes(self, S: int) -> list[int]:
        """The points of each sample, besides S candidates."""
        rest = self.U - S
        fit = min(rest, self.numbers // S - S, self.fit)
        sizes, size = list[int](), self.first
        while not sizes or sizes[-1] != fit:
            sizes.append(min(rest if 2 * size > rest else size, fit))
            size *= 2
        return sizes

    def work(self, S: int) -> int:
        """Points that are compared with S candidates if all samples are needed, with those that are held out."""
        return sum(S + size + min(size, self.U - S - size) for size in self.sizes(S))


def second_step(cover: StreamedCover, n: int, budget: int) -> SecondStep | None:
    """How a batch of n is chosen again; None if it is not: all is watched, or there is no memory for it."""
    device, U = cover.covered_W.device.type, len(cover.pool)
    numbers = SHORTLIST_NUMBERS.get(device, SHORTLIST_NUMBERS["cpu"])
    numbers = min(budget // 2 // cover.held.factors.rows.element_size(), numbers)
    most = min(max(SHORTLIST, SHORTLIST_EACH * n), math.isqrt(numbers // 2))
    if (cover.sample is None and not cover.sketched) or most < 2 * n:
        return None
    first = SECOND_SAMPLE["cuda" if device == "cuda" and not cover.sketched else "cpu"]
    # A κ costs as much by sketches as thousands of others.
    return SecondStep(U, min(most, U), numbers, first, SECOND_SAMPLE["cpu"] if cover.sketched else U)


def pick_twice(
    cover: StreamedCover, F: Coverage, batch: Batch, error_U: np.ndarray, second: SecondStep | None, seed: int
) -> tuple[Picked, dict[str, Any]]:
    """A batch grown on F; if F is of a sample, chosen again among those that came nearest, by a larger one.

    That sample doubles until the value of the batch on it and on as many points held out agree, or memory ends.
    """
    if second is None:
        return pick_covering(F, len(cover.pool), batch), {}
    near_U = F.covered_W.new_zeros(len(cover.pool))
    first = pick_covering(F, len(cover.pool), replace(batch, n=2 * batch.n), near_U)
    cover.forget_rows()
    nearest = near_U.topk(second.most)
    at_S = np.sort(nearest.indices[nearest.values > 0].cpu().numpy())
    if len(at_S) < batch.n:
        first.indices = first.indices[: batch.n]
        return first, {}
    work, done = second.work(len(at_S)), 0
    batch.progress.begin(1)

    def count(points: int) -> None:
        nonlocal done
        done += points
        batch.progress(min(done, work - 1), work)  # all is done when the batch is chosen

    for size in second.sizes(len(at_S)):
        again = Shortlist(cover, at_S, error_U, size, seed, count)
        quiet = Batch(batch.n, batch.generator)
        picks = pick_covering(again.coverage, len(at_S), quiet).indices
        value = again.value(picks)
        apart = value["watched"] - value["held_out"]
        if apart <= AGREED * value["watched"]:
            break
    batch.progress(work, work)
    first.indices = at_S[picks].tolist()
    return first, {"shortlist": len(at_S), "sample": len(again.sample.at_W), "batch_value": value}


def stream_budget(kernel: KernelSettings, device: torch.device) -> int:
    """Bytes."""
    budget = resolve_budget(kernel.budget, device)
    return min(budget, STREAM_BUDGET) if kernel.budget is None and device.type == "cpu" else budget


def watched_count(kernel: KernelSettings, U: int, L: int, width: int, budget: int) -> int:
    """How many points of the pool are watched.

    width: numbers of a point's tangent. Fewer points are watched if these and Θ_WL do not fit into half of the budget.
    """
    W = kernel.watch if isinstance(kernel.watch, int) else WATCHED if width <= WIDE else WATCHED_WIDE
    fit = max(1, budget // 2 // (8 * width + 24 * (SPREAD_POINTS + L)))
    if min(W, U) > fit:
        log.warning(
            "%d watched points do not fit into a budget of %s; %d are watched", min(W, U), format_bytes(budget), fit
        )
    return min(W, U, fit)


def error_of_outputs(request: Request, pool: SlicedPoints, passes: ShardedPasses | None, seen: SeenPool) -> np.ndarray:
    """(U,): the network's own chance of error. One forward pass over the pool."""
    error, step = OutputErrors(request.frozen, request.loss), stream_chunk(request.frozen.device)
    seen.begin(ERRORS_SHARE)
    if passes is not None:
        return passes.scores("errors", step, error, [request.loss], lambda at, copies: seen.count(at)).numpy()
    score, parts = FittingScore(error), list[Tensor]()
    for at, x in pool.chunks(step):
        parts.append(score(at, x))
        seen.count(at)
    return torch.cat(parts).numpy()


# --- a shortlist, for strategies that need all points at once ---


def draw_shortlist(request: Request, pool: SlicedPoints, executor: Executor | None) -> Callable[[int], np.ndarray]:
    """How many -> positions of so many points, in order, half drawn evenly and half by the network's chance of error.

    Evenly only, where nothing is labelled or there are no classes.
    """
    error_U = np.zeros(len(pool))
    if request.L and request.C > 1:
        seen = seen_pool(request, pool)
        if executor is None:
            error_U = error_of_outputs(request, pool, None, seen)
        else:
            with sharded(executor, request, pool, seen, by_gradients=False) as passes:
                error_U = error_of_outputs(request, pool, passes, seen)

    def draw(size: int) -> np.ndarray:
        if size >= len(pool):
            return np.arange(len(pool))
        return sample_watched(error_U, size, 0, int(request.kernel.seed)).at_W

    return draw
