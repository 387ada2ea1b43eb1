"""``ft.query``: which points to label next. It checks, linearises, scores, picks and answers."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.acquire import DEFAULT_STRATEGY, SELECTS, Strategy, find_strategy
from foretaste.errors import Faults, counted, did_you_mean, is_out_of_memory, whole_number
from foretaste.executors import Executor, as_executor
from foretaste.given import (
    ClassName,
    GivenPoints,
    GivenSets,
    SlicedPoints,
    check_index,
    labels_as_numbers,
    names_to_ids,
    point_format,
    read_sets,
    resolve_class_names,
    text_labels,
)
from foretaste.lookahead import KernelSettings, PoolState, State, check_points, settle_binary
from foretaste.losses import BinaryOutputs
from foretaste.pick.phases import PhasedProgress, ProgressCounter
from foretaste.pick.request import Query, Request, silent
from foretaste.pick.select import Batch, Oracle, Picked, labelled_copies, pick
from foretaste.pick.streamed import draw_shortlist, pick_streamed
from foretaste.pick.ways import SHARE_IN_MEMORY, Way, as_source, choose_way
from foretaste.tangent import (
    PROBE_POINTS,
    BudgetError,
    Output,
    Params,
    check_inputs,
    check_precision,
    count_points,
    freeze,
    resolve_budget,
    without_modes,
)

log = logging.getLogger("foretaste")
# Of the work of a dense query, Θ: where a batch is picked from one score or a coverage, and where each pick is scored.
KERNEL_SHARE, KERNEL_SHARE_GREEDY = 0.9, 0.5


@without_modes()
def query(
    net: nn.Module,
    x_L: Any,
    y_L: Any,
    x_U: Any,
    *,
    strategy: str | Callable[[State], Tensor] = DEFAULT_STRATEGY,
    select: str = "auto",
    batch_size: int = 20,
    oracle: Callable[[Any], Any] | None = None,
    ids: Sequence[Any] | None = None,
    seed: int = 0,
    loss: str = "l2",
    watch: Any = None,
    ridge: float | str | None = None,
    output: Output = "auto",
    method: str = "auto",
    budget: int | str | None = None,
    params: Params = None,
    precision: str = "auto",
    classes: Sequence[ClassName] | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], object] | None = None,
    pool: Any = None,
    executor: Executor | str | None = None,
) -> Query:
    """The next ``batch_size`` points of a pool to label (Eq. 1).

    docs/strategies.md lists the strategies and which arguments each of them uses. An argument that a strategy does not
    use changes nothing.

    Args:
        net: a trained network in eval mode, float32 or float64, that returns (N, C). It is only read.
        x_L: the labelled points: a tensor, a numpy array, a data frame of numbers (rows are points), a list, a
            map-style dataset of x or (x, y), a DataLoader that does not shuffle, what ``ft.open`` returns, or a dict of
            tensors for a network called as ``net(**x)``. A tensor is taken as it is. All else gets the dtype and the
            device of the network: bytes become numbers in [0, 1], as in ``ft.fit``, and whole numbers floats, unless
            the network has an embedding, whose token ids they are. Of what ``ft.open`` returns, these are the points
            that have a label, and y_L may be None. None: nothing is labelled, and y_L is None too. No random start is
            needed: gain then covers the pool by the kernel of the untrained network (cover), and ``q.info["first"]``
            says so.
        y_L: their labels. Integers (L,) are class ids, text (L,) class names, floats (L, C) targets. Floats (L,)
            with one output are numbers to predict (regression). One output with labels 0 and 1, booleans or two names
            is binary classification: the network then counts as one with two outputs, (0, f) with loss="ce" and
            (1 − f, f) with "l2".
        x_U: the pool of candidates, as x_L. Of what ``ft.open`` returns, these are the points without a label. Exact
            copies of labelled points are picked only when nothing else is left. An array that is mapped from a file
            (``np.load(path, mmap_mode="r")``), a dataset, a DataLoader, or the file that a name ending in
            .parquet, .arrow or .feather stands for, need not fit into memory: docs/scaling.md.
        strategy: a name of ``ft.strategies()``, or a function of a ``State`` that returns (U,) scores. Default "cover"
            (docs/findings.md); in regression name "variance".
        select: how a batch is made from scores. "top": the highest. "greedy": one by one; after each pick the state
            counts its label as given but unknown. "fantasy": the state keeps the likeliest label. "sequential": the
            state keeps the label that the oracle gives.
            "auto" (default): greedy for gain, cover, variance and epig, top for other scores; some strategies pick by
            themselves.
        batch_size: how many points to pick, default 20. If the pool has fewer, all of them are picked, with a warning.
        oracle: for select="sequential", a function that takes a point's id, as in ``q.ids``, and returns its label.
            None skips the point.
        ids: your ids of the candidates, one each and all different; returned as ``q.ids`` and given to the oracle.
            Default: the index of a data frame, the ids of what ``ft.open`` returns, a Parquet file's column id, else
            positions in x_U.
        seed: of ties, random strategies and randomly watched points; default 0. The same seed gives the same query.
        loss: what the network was trained with, "l2" (default) or "ce", cross-entropy.
        watch: the points over which scores sum. None (default): the pool. Points, as x_L: those instead, for example
            the population you care about; of what ``ft.open`` returns, all points. A number: that many points of the
            pool, for pools too large for memory.
        ridge: λ, in units of Θ. Raise it for labels that are noisy. "misfit": so large that it accounts for what the
            network left unfitted on L. None (default): the strategy's own, "misfit" for cover, else 1e-6 of the mean
            diagonal of Θ_LL.
        output: the output whose gradient makes Θ: "auto" (default, the strategy's own: "signs" for cover, else "sum"),
            "sum", "signs", "first", a number, "trace", or "full", which costs
            C² times the memory. See ``ft.ntk``.
        method: "dense" (Eq. 12), "direct" (Eq. 11 for each candidate, slow), or "streamed": the pool is read in chunks,
            and cover watches a sample of it, 4096 points unless ``watch`` says otherwise. For cover, margin, entropy,
            least_confidence and random. "auto" (default): dense if that fits the budget, else streamed where that is
            possible, else dense among a shortlist, as many points as fit, with a warning. ``q.info["method"]`` says
            which, and the log why. See docs/scaling.md and ``ft.linearize``.
        budget: memory for the tangent engine, in bytes or as "8GB". None (default): half of the free memory on a CPU,
            nine tenths on a GPU.
        params: the parameters to differentiate: "head", the last layer; "last-block", the last block and what follows;
            "lora"; "re:PATTERN"; names, or a function of a name. None (default): all that require grad. Fewer
            parameters are faster, and mean that only those would be trained.
        precision: of Θ on a CUDA device: "float32", "tf32", "half", or "auto" (default), the fastest that ranks a
            sample as float64 does. On a CPU Θ is computed in float32, and of a float64 network in "float64". In a
            loop, pass on what the first query used, ``q.info["precision"]``.
        classes: the names of the classes, text or whole numbers, in the order of the outputs. Labels are names then;
            class ids too, where names are text. Default: if labels are text, the sorted labels, provided that there are
            as many as outputs.
        options: the strategy's own settings, a dict; for example {"scale": 0.1} for gain.
        pool: whether the unlabelled points enter the kernel, None (default), "auto" or an ``ft.Graph``: see
            ``ft.linearize``. For a model that learns from the pool too, as ``ft.fit(..., pool=x_U)`` trains it. What
            leave-one-out says of it is in ``q.info["pool"]``.
        progress: ``progress(done, total)``. ``done`` never falls, and is ``total`` once, at the end. It counts picks,
            or what a strategy that picks by itself counts. Where there is a kernel, or a pool that is read in chunks,
            ``total`` is the candidates and the picks, and ``done`` goes by the work that is expected of each step.
        executor: what computes a streamed query's passes over the pool. None (default): this one. "processes", "ray"
            or an ``ft.Executor``: shards of the pool, on several machines too. The answer has the same bits. With
            ``ft.Executor(..., folder=...)`` an interrupted query resumes. A dense query does not use it.

    Returns:
        A ``Query``: ``q.indices`` are positions in x_U, best first; also ids, scores, labels, seconds and info.

    Raises:
        ValueError: arguments do not fit; all wrong ones are named at once, before any work.
        TypeError: points have a type that cannot be read, or are text.

    Example:
        >>> import torch, foretaste as ft
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).eval()
        >>> x, y = torch.randn(40, 2), torch.arange(40) % 3
        >>> q = ft.query(net, x[:10], y[:10], x[10:], batch_size=3)
        >>> len(q), q.info["strategy"], q.info["select"]
        (3, 'cover', 'greedy')
        >>> names = ["cat", "dog", "eel"]
        >>> y_L = [names[c] for c in y[:10]]
        >>> q = ft.query(net, x[:10], y_L, x[10:], batch_size=2, select="sequential", oracle=lambda j: "dog")
        >>> q.labels
        ['dog', 'dog']
    """
    begin, runner = time.perf_counter(), as_executor(executor)
    # Check.
    settings: dict[str, Any] = {
        "loss": loss, "ridge": ridge, "output": output, "method": method, "budget": budget, "params": params,
        "precision": precision, "seed": seed, "pool": pool,
    }  # fmt: skip
    check = partial(
        check_query, net, strategy=strategy, select=select, batch_size=batch_size, oracle=oracle, options=options,
        progress=progress, **settings,
    )  # fmt: skip
    if not isinstance(x_U, Tensor | Mapping):
        check()  # before a dataset is read
    try:
        given = read_sets(net, x_L, y_L, x_U, watch, classes, pool_only=True, unread=True)
    except (TypeError, ValueError) as unread:
        faults = Faults()
        with faults:
            check()
        if faults:
            faults.add(str(unread))
        faults.raise_all()
        raise
    ids = candidate_ids(given.candidates, ids, x_U)
    asked = check(x_U=given.x_U, watch=given.watch, ids=ids, unlabelled=_is_empty(given.x_L))
    how, select, chosen = asked.how, asked.select, asked.options
    way, extra = choose_query_way(net, given, asked), dict[str, Any]()
    if method == "auto":
        log.info('method="auto" is %s: %s', way.kind, way.why)
    counter = ProgressCounter(progress)
    if way.kind != "dense" or "kernel" in how.needs:
        counter = PhasedProgress(progress, total=max(1, int(way.U + min(batch_size, way.U))))
    unfit: Exception = ValueError(way.why)
    if way.kind == "dense":
        try:
            request, got, seconds = pick_dense(net, given, asked, batch_size, counter, oracle, ids, begin)
        except Exception as e:
            if way.instead is None or not does_not_fit(e):
                raise
            way, unfit = replace(way, kind=way.instead), without_frames(e)
            extra["not_dense"] = unfit_words(e)
            if isinstance(counter, PhasedProgress):
                counter.restart()
            else:
                counter = PhasedProgress(progress, total=int(way.U + min(batch_size, way.U)))
    # Outside of ``except``: inside it, the error's frames keep the tensors alive.
    if way.kind == "shortlist":
        request, got, seconds, told = pick_listed(
            net, given, asked, batch_size, counter, oracle, ids, begin, unfit, runner
        )
        extra |= told
    elif runner is not None and way.kind == "dense":
        log.info("the query is dense, and makes no use of the executor")
    if way.kind == "streamed":
        if extra:
            level = logging.INFO if isinstance(unfit, BudgetError) else logging.WARNING
            log.log(level, "%s; so the pool is streamed", extra["not_dense"])
        points = as_source(given.x_U)
        request = probe_request(net, given, points, asked, batch_size, counter)
        how.settings(chosen, request.x_U)
        got, told = pick_streamed(request, points, how, select, chosen, runner)
        extra, seconds = extra | told, {"outputs": 0.0, "kernel": 0.0}
    counter.finish()
    # Answer.
    seconds |= got.seconds | {"total": time.perf_counter() - begin}
    info = {"strategy": how.name, "select": select, "options": chosen, "loss": loss, "seed": seed}
    if (state := got.state) is not None:
        info |= {"method": state.method, "residual_L": state.residual_L, "watched": state.W} | state.precision_info
        info["output"] = asked.kernel.output
        if state.pool is not None:
            info["pool"] = state.pool.as_dict()
    # If no kernel was needed, λ and s² are not worth one.
    alone = 0 if select == "sequential" else 1
    kernel = request.eager or (select not in ("top", "own") and len(got.indices) > alone)
    kernel &= "labels" not in extra  # there are so many that no state has solved them; ``extra`` has both
    info |= {"ridge": state.ridge, "scale": state.scale} if state and kernel else {"ridge": ridge, "scale": None}
    info |= request.info | dict(got.info) | extra
    indices, scores_U = np.asarray(got.indices, dtype=np.int64), got.scores_U
    picked = indices.tolist() if ids is None else [ids[j] for j in got.indices]
    if (at := given.candidates.at) is not None:  # of what ft.open returned, the points without a label
        indices = np.asarray(at, dtype=np.int64)[indices]
        if scores_U is not None:
            scores_U = scores_U.new_full((len(x_U),), -torch.inf).index_copy(
                0, torch.as_tensor(at, device=scores_U.device), scores_U
            )
    return Query(indices, picked, scores_U, got.labels, seconds, info)


def pick_dense(
    net: nn.Module,
    given: GivenSets,
    asked: "CheckedQuery",
    batch_size: int,
    counter: ProgressCounter,
    oracle: Callable[[Any], Any] | None,
    ids: Any,
    begin: float,
) -> tuple[Request, Picked, dict[str, float]]:
    """The batch where all points are in memory; the request, and the seconds since ``begin``."""
    how, select, chosen = asked.how, asked.select, asked.options
    given = replace(given, x_U=given.x_U.all()) if isinstance(given.x_U, SlicedPoints) else given
    request = make_request(net, given, asked, batch_size, counter)
    how.settings(chosen, request.x_U)
    last_U = labelled_copies(request.x_L, request.x_U)
    batch = Batch(request.batch_size, request.generator, last_U, progress=counter)
    if request.eager:
        counter.begin(KERNEL_SHARE if select == "top" or how.coverage is not None else KERNEL_SHARE_GREEDY)
    seconds, answers = {"outputs": 0.0, "kernel": 0.0}, None
    if not how.picks:
        # Linearise. One pass over the pool gives f and, where the strategy needs it, Θ.
        linearised = request.state
        if request.eager and not isinstance(linearised, PoolState):  # with the pool, cover needs the means alone
            _ = linearised.u
        seconds["kernel" if request.eager else "outputs"] = time.perf_counter() - begin
    counter.begin(1)
    if oracle is not None:
        names, binary = request.info.get("classes"), isinstance(request.net, BinaryOutputs)
        answers = Oracle(lambda j: oracle(j if ids is None else ids[j]), at=given.candidates.at)
        if names:
            answers = replace(answers, read=partial(labels_as_numbers, names=names, binary=binary, name="y"))
    # Score and pick.
    subject = request if how.picks else request.state
    return request, pick(how, subject, batch, select=select, options=chosen, oracle=answers), seconds


def pick_listed(
    net: nn.Module,
    given: GivenSets,
    asked: "CheckedQuery",
    batch_size: int,
    counter: ProgressCounter,
    oracle: Callable[[Any], Any] | None,
    ids: Any,
    begin: float,
    unfit: Exception,
    executor: Executor | None,
) -> tuple[Request, Picked, dict[str, float], dict[str, Any]]:
    """The batch of ``pick_dense`` among a shortlist, as many points as the budget holds; and what goes into ``q.info``.

    unfit: why not among all. It is raised where not even the batch fits.
    """
    pool = as_source(given.x_U)
    U = len(pool)
    request = probe_request(net, given, pool, asked, batch_size, counter)
    L, n = request.L, request.batch_size
    budget = resolve_budget(asked.kernel.budget, request.frozen.device)
    size = min(U, budget // (SHARE_IN_MEMORY * pool.point_bytes), (math.isqrt(L * L + budget // 4) - L) // 2)
    draw, kept = draw_shortlist(request, pool, executor), given.candidates.at
    while size > n or size == U:
        at_S = draw(size)
        log.info("trying a shortlist of %d of %d candidates", size, U)
        own = at_S.tolist() if kept is None else [kept[j] for j in at_S]
        listed = replace(given, x_U=pool.take(at_S), candidates=GivenPoints(None, at=own))
        ids_S = at_S.tolist() if ids is None else [ids[j] for j in at_S]
        counter.restart()
        try:
            request, got, seconds = pick_dense(net, listed, asked, n, counter, oracle, ids_S, begin)
        except Exception as e:
            if not does_not_fit(e):
                raise
            size = int(0.7 * size)
            continue
        log.warning(
            "%s. So %d of the %d candidates were looked at (%.2g %%), drawn half evenly and half by the network's own "
            "chance of error", unfit_words(unfit), size, U, 100 * size / U,
        )  # fmt: skip
        got.indices = at_S[got.indices].tolist()
        if got.scores_U is not None:
            at_U = torch.from_numpy(at_S).to(got.scores_U.device)
            got.scores_U = got.scores_U.new_full((U,), -torch.inf).index_copy(0, at_U, got.scores_U)
        return request, got, seconds, {"method": "shortlist", "shortlist": size}
    raise unfit


def choose_query_way(net: nn.Module, given: GivenSets, asked: "CheckedQuery") -> Way:
    """``choose_way`` of a query. A pool that is no points is dense, where other checks report it."""
    x_U = given.x_U
    if not isinstance(x_U, SlicedPoints):
        parts = list(x_U.values()) if isinstance(x_U, Mapping) else [x_U]
        if not parts or not all(isinstance(p, Tensor) and p.dim() for p in parts):
            return Way("dense", 0)
    L = 0 if _is_empty(given.x_L) else count_points(given.x_L)
    return choose_way(asked.how, asked.select, asked.kernel, x_U, L, point_format(net).device)


def probe_request(
    net: nn.Module,
    given: GivenSets,
    pool: SlicedPoints,
    asked: "CheckedQuery",
    batch_size: int,
    counter: ProgressCounter,
) -> Request:
    """A request with a few points of the pool in the place of all."""
    n, probe = fewer_than_pool(batch_size, len(pool)), replace(given, x_U=pool.take(slice(0, PROBE_POINTS)))
    return replace(make_request(net, probe, asked, 1, counter), batch_size=n)


def does_not_fit(e: Exception) -> bool:
    """Whether there is too little memory, as planned or in fact. Not if an oracle has answered: that would be lost."""
    return not getattr(e, "answered", ()) and (isinstance(e, BudgetError) or is_out_of_memory(e))


def without_frames(e: Exception) -> Exception:
    """The error without what keeps the tensors of its frames alive."""
    e.__cause__ = e.__context__ = None
    return e.with_traceback(None)


def unfit_words(e: Exception) -> str:
    return (str(e) or type(e).__name__).splitlines()[0]


def fewer_than_pool(batch_size: int, U: int) -> int:
    """At most U, with a warning if that is less than ``batch_size``."""
    if batch_size > U:
        log.warning("batch_size is %d and the pool has %s; all of it is picked", batch_size, counted(U, "point"))
    return min(batch_size, U)


def candidate_ids(candidates: GivenPoints, ids: Any, source: Any) -> Any:
    """The ids of the candidates, by position: as given, else those of their source. None for positions."""
    if ids is None:
        if candidates.ids is not None:
            check_index(candidates.ids, "x_U")
        return candidates.ids
    if not hasattr(ids, "__len__") or not hasattr(ids, "__getitem__") or isinstance(ids, Mapping):
        return ids  # check_query reports it
    listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)  # a Series would be asked by its index
    if candidates.at is None or not isinstance(listed, list) or len(listed) != len(source):
        return listed
    return [listed[i] for i in candidates.at]


def _is_empty(x: Any) -> bool:
    parts = list(x.values()) if isinstance(x, Mapping) else [] if x is None else [x]
    return all(isinstance(p, Tensor) and p.dim() > 0 and len(p) == 0 for p in parts)


@dataclass(frozen=True)
class CheckedQuery:
    """A query without its points: the strategy, its selection ("auto" resolved), its options and its kernel.

    While nothing is labelled, another strategy may choose in the place of the one that was asked for: ``info`` says so.
    """

    how: Strategy
    select: str
    options: dict[str, Any]
    kernel: KernelSettings
    info: dict[str, Any] = field(default_factory=dict)


def make_request(
    net: nn.Module,
    given: GivenSets,
    asked: CheckedQuery,
    batch_size: int,
    progress: ProgressCounter,
) -> Request:
    """The request as the strategy gets it: no more points than there are, class ids for names, two outputs for one.

    The network is run on three points, unless the strategy and the labels need nothing of it.
    """
    how, x_U, y_L, classes, info = asked.how, given.x_U, given.y_L, given.classes, dict(asked.info)
    if not isinstance(x_U, Tensor) or x_U.dim() == 0:
        tensors = [t for t in (x_U.values() if isinstance(x_U, Mapping) else ()) if isinstance(t, Tensor)]
        check_inputs(x_U, "x_U", tensors[0].device if tensors else torch.device("cpu"))
    n, generator = fewer_than_pool(batch_size, count_points(x_U)), torch.Generator().manual_seed(int(asked.kernel.seed))
    eager = not how.picks and "kernel" in how.needs
    told = progress if how.picks or progress.report is not None else silent
    request = Request(net, given.x_L, y_L, x_U, n, generator, asked.kernel, classes, eager, told, info)
    if how.picks and not how.needs and classes is None and text_labels(y_L) is None:
        return request
    own, C, kernel = settle_binary(request.frozen.net, request.C, y_L, asked.kernel, classes)
    subject = request.frozen
    if isinstance(own, BinaryOutputs):
        net, subject = own, freeze(own, params=lambda name: True)
        info["binary"] = f"one output, two classes: 1 where f > {'1/2' if own.quadratic else '0'}"
    if {"classes", "regression"} & {*how.needs}:
        how.check(C)
    if (names := resolve_class_names(y_L, classes, C)) is not None:
        info["classes"] = list(names)
        classes = names if isinstance(names[0], str) else None  # a state would take class ids for names
        if y_L is not None and (ids := names_to_ids(y_L, names)) is not None:
            y_L = ids.to(subject.device)
    return replace(request, net=net, y_L=y_L, kernel=kernel, classes=classes, subject=subject, outputs=C)


# --- what is wrong with a query: all of it at once, before any work ---


def check_query(
    net: Any,
    *,
    strategy: Any,
    select: Any,
    batch_size: Any,
    x_U: Any = None,
    ids: Any = None,
    oracle: Any = None,
    options: Any = None,
    progress: Any = None,
    unlabelled: bool = False,
    **kernel: Any,
) -> CheckedQuery:
    """What is asked for. Raises with every fault, before any work. ``x_U``: where the points are read already."""
    faults, how, chosen, settings, made = Faults(), None, dict[str, Any](), None, "unknown"
    if options is not None and not isinstance(options, Mapping):
        faults.add(f"options is a {type(options).__name__}; expected a dict")
        options = None
    with faults:
        how = as_strategy(strategy, options)
        chosen = how.settings(options)
    with faults:
        made = resolve_select(how, select)
    if oracle is not None and not callable(oracle):
        faults.add(f"oracle is a {type(oracle).__name__}; expected a function of an id that returns its label")
    elif made == "sequential" and oracle is None:
        faults.add('select="sequential" asks for a label after each pick; give oracle=, or use "greedy" or "fantasy"')
    elif made in ("top", "greedy", "fantasy", "own") and oracle is not None:
        faults.add(f'an oracle is only asked with select="sequential", and select is {made!r}')
    with faults:
        whole_number("batch_size", batch_size, 1)
    info = {}
    if how is not None and unlabelled and "labels" in how.needs and made != "unknown" and select == "auto":
        info["first"], how = DEFAULT_STRATEGY, replace(find_strategy(DEFAULT_STRATEGY), name=how.name)
        chosen = how.settings(None)
    with faults:
        settings = KernelSettings(**kernel)
    if settings is not None and isinstance(net, nn.Module):
        with faults:
            check_precision(settings.precision, next((p.dtype for p in net.parameters()), torch.float32))
    if how is not None and how.picks and isinstance(kernel.get("ridge"), str):
        faults.add(f"ridge='misfit' is for scores of a state, and strategy {how.name!r} picks by itself")
    if how is not None and how.picks and kernel.get("pool") is not None:
        faults.add(f"pool= is for scores of a state, and strategy {how.name!r} picks by itself; leave it out")
    if progress is not None and not callable(progress):
        faults.add(f"progress is a {type(progress).__name__}; expected a function of (done, total)")
    _check_pool(x_U, kernel.get("watch"), ids, faults)
    faults.raise_all()
    assert how is not None
    assert settings is not None
    return CheckedQuery(how, made, chosen, settings.for_strategy(how.kernel), info)


def as_strategy(strategy: Any, options: Any) -> Strategy:
    """A strategy by its name, or of a function of a state."""
    if isinstance(strategy, str):
        return find_strategy(strategy)
    if not callable(strategy):
        raise ValueError(f"strategy is a {type(strategy).__name__}; expected a name or a function of a state")
    if options:
        raise ValueError("options are for named strategies; give a function its own with functools.partial")
    return Strategy(getattr(strategy, "__name__", repr(strategy)), strategy)


def resolve_select(how: Strategy | None, select: Any) -> str:
    """How a batch is made; "own" for a strategy that picks by itself."""
    if not isinstance(select, str) or select not in ("auto", *SELECTS):
        shown = repr(select) if isinstance(select, str) else f"a {type(select).__name__}"
        raise ValueError(f"unknown select {shown}{did_you_mean(select, ('auto', *SELECTS), 'Known')}")
    if how is not None and how.picks:
        if select != "auto":
            raise ValueError(f'strategy {how.name!r} picks by itself; select must be "auto", and it is {select!r}')
        return "own"
    return how.select if how is not None and select == "auto" else select


def _check_pool(x_U: Any, watch: Any, ids: Any, faults: Faults) -> None:
    """The faults of ids and of watched points; those of a pool that is no points are raised later."""
    if isinstance(x_U, SlicedPoints):
        if ids is not None:
            _check_ids(ids, len(x_U), faults)
        return
    tensors = list(x_U.values()) if isinstance(x_U, Mapping) else [x_U]
    if not tensors or not isinstance(tensors[0], Tensor) or tensors[0].dim() == 0:
        return
    if (U := count_points(x_U)) == 0:
        faults.add("x_U is empty; expected at least one candidate")
        return
    if ids is not None:
        _check_ids(ids, U, faults)
    if watch is not None and not isinstance(watch, int):
        pool = Faults()
        with pool:
            check_points(None, x_U, None, tensors[0].device)
        if not pool:
            with faults:
                check_points(None, x_U, watch, tensors[0].device)


def _check_ids(ids: Any, U: int, faults: Faults) -> None:
    try:
        if not hasattr(ids, "__getitem__"):
            raise TypeError("it has no order")
        if len(ids) != U:
            faults.add(
                f"ids has {counted(len(ids), 'entry', 'entries')} and the pool {counted(U, 'point')}; expected one each"
            )
        seen: dict[Any, int] = {}
        for i, one in enumerate(ids.tolist() if hasattr(ids, "tolist") else ids):
            if one in seen:
                faults.add(f"ids repeats {one!r}, at {seen[one]} and {i}; expected each once")
                return
            seen[one] = i
    except TypeError as e:
        faults.add(f"ids is a {type(ids).__name__} ({e}); expected a sequence of hashable ids")
