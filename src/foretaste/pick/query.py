"""``ft.query``: which points to label next. It checks, linearises, scores, picks and answers."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.acquire import DEFAULT_STRATEGY, SELECTS, Strategy, find_strategy, finish_scores
from foretaste.errors import counted, did_you_mean, whole_number
from foretaste.given import (
    ClassName,
    GivenPoints,
    check_index,
    holds_classes,
    labels_as_numbers,
    name_labels,
    names_to_ids,
    read_sets,
    resolve_class_names,
    text_labels,
)
from foretaste.lookahead import (
    PRECISION_CHOICES,
    State,
    binary_params,
    check_settings,
    check_watch,
    seeded_generator,
)
from foretaste.losses import BinaryOutputs
from foretaste.pick.labelled_copies import labelled_copies
from foretaste.pick.request import Query, Request
from foretaste.pick.select import (
    Picked,
    ProgressCounter,
    pick_by_strategy,
    pick_covering,
    pick_each,
    pick_top,
    restore_copies,
)
from foretaste.tangent import (
    Output,
    Params,
    check_inputs,
    check_precision,
    probe_outputs,
    read_output,
    resolve_budget,
    without_modes,
)

log = logging.getLogger("foretaste")


@without_modes
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
            copies of labelled points are picked only when nothing else is left.
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
            Default: the index of a data frame, the ids of what ``ft.open`` returns, else positions in x_U.
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
        method: "auto" (default), "dense" (Eq. 12), or "direct" (Eq. 11 for each candidate, slow). See ``ft.linearize``.
        budget: memory for the tangent engine, in bytes or as "8GB". None (default): half of the free memory on a CPU,
            nine tenths on a GPU.
        params: the parameters to differentiate: a function of the name, or names. None (default): all that require
            grad. Fewer parameters are faster, and mean that only those would be trained.
        precision: of Θ on a CUDA device: "float32", "tf32", "half", or "auto" (default), the fastest that ranks a
            sample as float64 does. On a CPU Θ is computed in float32, and of a float64 network in "float64". In a
            loop, pass on what the first query used, ``q.info["precision"]``.
        classes: the names of the classes, text or whole numbers, in the order of the outputs. Labels are names then;
            class ids too, where names are text. Default: if labels are text, the sorted labels, provided that there are
            as many as outputs.
        options: the strategy's own settings, a dict; for example {"scale": 0.1} for gain.
        progress: ``progress(done, total)``, called after each pick, or by a strategy that retrains for each candidate.

    Returns:
        A ``Query``: ``q.indices`` are positions in x_U, best first; also ids, scores, labels, seconds and info.

    Raises:
        ValueError: arguments do not fit; all wrong ones are named at once, before any work.
        TypeError: points are of a kind that is not read, or are text.

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
    begin = time.perf_counter()
    # Check.
    generator, counter = torch.Generator(), ProgressCounter(progress)
    request = Request(
        net, x_L, y_L, x_U, batch_size, generator, loss=loss, watch=watch, ridge=ridge, output=output, method=method,
        budget=budget, params=params, precision=precision, seed=seed, classes=classes, progress=counter,
    )  # fmt: skip
    auto = select == "auto"
    check_alone = partial(check_request, request.changed(x_U=None, watch=None), strategy, select, oracle, None)
    if not isinstance(x_U, Tensor | Mapping):
        check_alone(options, progress)  # before a dataset is read
    try:
        given = read_sets(net, x_L, y_L, x_U, watch, classes, pool_only=True)
    except (TypeError, ValueError) as unread:
        try:
            check_alone(options, progress)
        except ValueError as error:
            raise ValueError(f"{error}; {unread}") from unread
        raise
    x_L, ids = given.x_L, candidate_ids(given.candidates, ids, x_U)
    request = request.changed(x_L=x_L, y_L=given.y_L, x_U=given.x_U, watch=given.watch, classes=given.classes)
    how, select, settings = check_request(request, strategy, select, oracle, ids, options, progress)
    generator.manual_seed(int(seed))
    if auto and how.first is not None and _is_empty(x_L):
        request.info["first"], how = how.first, replace(find_strategy(how.first), name=how.name)
        settings = how.settings(None)
    request = prepare_request(request, how)
    if how.check_points is not None:
        how.check_points(request.x_U, **settings)
    copies_U = labelled_copies(request.x_L, request.x_U)
    seconds = {"outputs": 0.0, "kernel": 0.0}
    if how.picks:
        asked = request if copies_U is None else request.restrict_to((~copies_U).nonzero()[:, 0])
        got, state, kernel = pick_by_strategy(how, asked, settings, counter), asked.made, False
        if copies_U is not None:
            got = restore_copies(got, copies_U, request.batch_size, generator)
    else:
        # Linearise. One pass over the pool gives f and, where the strategy needs it, Θ.
        state = request.state
        seconds["kernel" if request.eager else "outputs"] = time.perf_counter() - begin
        if request.eager:
            start = time.perf_counter()
            _ = state.u
            seconds["kernel"] += time.perf_counter() - start
        # Score and pick.
        got = _pick_by_score(request, how, select, settings, oracle, ids, copies_U, counter, given.candidates.at)
        kernel = request.eager or (select != "top" and len(got.indices) > (0 if select == "sequential" else 1))
    # Answer.
    seconds |= got.seconds | {"total": time.perf_counter() - begin}
    info = {"strategy": how.name, "select": select, "options": settings, "loss": loss, "seed": seed}
    if state is not None:
        info |= {"method": state.method, "residual_L": state.residual_L, "watched": state.W} | state.precision_info
        info["output"] = how.kernel_output(output)
    # If no kernel was needed, λ and s² are not worth one.
    info |= {"ridge": state.ridge, "scale": state.scale} if state and kernel else {"ridge": ridge, "scale": None}
    info |= request.info
    indices, scores_U = np.asarray(got.indices, dtype=np.int64), got.scores_U
    picked = indices.tolist() if ids is None else [ids[j] for j in got.indices]
    if (at := given.candidates.at) is not None:  # of what ft.open returned, the points without a label
        indices = np.asarray(at, dtype=np.int64)[indices]
        if scores_U is not None:
            scores_U = scores_U.new_full((len(x_U),), -torch.inf).index_copy(
                0, torch.as_tensor(at, device=scores_U.device), scores_U
            )
    return Query(indices, picked, scores_U, got.labels, seconds, info)


def candidate_ids(candidates: GivenPoints, ids: Any, source: Any) -> Any:
    """The ids of the candidates, by position: as given, else those of their source. None for positions."""
    if ids is None:
        if candidates.ids is not None:
            check_index(candidates.ids, "x_U")
        return candidates.ids
    if not hasattr(ids, "__len__") or not hasattr(ids, "__getitem__") or isinstance(ids, Mapping):
        return ids  # told by check_request
    listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)  # a Series would be asked by its index
    if candidates.at is None or not isinstance(listed, list) or len(listed) != len(source):
        return listed
    return [listed[i] for i in candidates.at]


def _is_empty(x: Any) -> bool:
    parts = list(x.values()) if isinstance(x, Mapping) else [] if x is None else [x]
    return all(isinstance(p, Tensor) and p.dim() > 0 and len(p) == 0 for p in parts)


def _pick_by_score(
    request: Request,
    how: Strategy,
    select: str,
    settings: dict[str, Any],
    oracle: Callable[[Any], Any] | None,
    ids: Sequence[Any] | None,
    copies_U: Tensor | None,
    counter: ProgressCounter,
    at: Sequence[int] | None,
) -> Picked:
    """A batch by a strategy that scores."""

    def score(state: State) -> Tensor:
        try:
            scores_U = how.fn(state, **settings)
        except RuntimeError as e:
            if state.B == 1:
                raise
            raise ValueError(
                f'strategy {how.name!r} fails with output="full", where S and u come in C × C blocks: '
                f"{str(e).splitlines()[0]}; let it handle state.B > 1, or use another output"
            ) from e
        return finish_scores(state, scores_U, how.name)

    n, generator = request.batch_size, request.generator
    if select == "greedy" and how.coverage is not None:
        coverage = partial(how.coverage, **settings)
        return pick_covering(request.state, coverage, n, generator, counter, request.info, copies_U)
    if select == "top":
        got = pick_top(request.state, score, n, generator, counter, copies_U)
    else:
        ask = None if oracle is None else (lambda j: oracle(j if ids is None else ids[j]))
        names, binary = request.info.get("classes"), isinstance(request.net, BinaryOutputs)
        read = partial(labels_as_numbers, names=names, binary=binary, name="y") if names else None
        got = pick_each(request.state, score, select, n, generator, counter, ask, copies_U, read, at)
    if copies_U is not None and got.scores_U is not None:
        got.scores_U = got.scores_U.masked_fill(copies_U.to(got.scores_U.device), -torch.inf)
    return got


def prepare_request(request: Request, how: Strategy) -> Request:
    """The request as the strategy gets it: no more points than there are, class ids for names, two outputs for one.

    The network is run on three points, unless the strategy and the labels need nothing of it.
    """
    if not isinstance(request.x_U, Tensor) or request.x_U.dim() == 0:
        given = request.x_U.values() if isinstance(request.x_U, Mapping) else ()
        tensors = [t for t in given if isinstance(t, Tensor)]
        check_inputs(request.x_U, "x_U", tensors[0].device if tensors else torch.device("cpu"))
    if request.batch_size > request.U:
        log.warning(
            "batch_size is %d and the pool has %s; all of it is picked", request.batch_size, counted(request.U, "point")
        )
    changes: dict[str, Any] = {
        "batch_size": min(request.batch_size, request.U),
        "eager": not how.picks and "kernel" in how.needs,
        "watch_by": how.watch_by,
        "ridge": how.ridge if request.ridge is None else request.ridge,
        "output": how.kernel_output(request.output),
    }
    y_L, named = request.y_L, request.classes is not None or text_labels(request.y_L) is not None
    if how.picks and not how.needs and not named:
        return request.changed(**changes)
    check_inputs(request.x_U, "x_U", request.frozen.device)
    C = probe_outputs(request.frozen, request.x_U, "x_U", kernel_follows=bool(changes["eager"]))
    if C == 1 and holds_classes(y_L, request.loss, request.classes):
        two = BinaryOutputs(request.frozen.net, request.loss)
        changes |= {"net": two, "params": binary_params(request.params), "output": two.kernel_output}
        request.info["binary"] = f"one output, two classes: 1 where f > {'1/2' if two.quadratic else '0'}"
        C = 2
    if {"classes", "regression"} & {*how.needs}:
        how.check(C)
    if (names := resolve_class_names(y_L, request.classes, C)) is not None:
        request.info["classes"] = list(names)
        changes["classes"] = names if isinstance(names[0], str) else None  # a state would take class ids for names
        if y_L is not None and name_labels(y_L, names, "y_L") is not None:
            changes["y_L"] = names_to_ids(y_L, names).to(next(request.net.parameters()).device)
    request = request.changed(**changes)
    vars(request)["C"] = C  # known, so that the points are not run again
    return request


# --- what is wrong with a query: all of it at once, before any work ---


def check_request(
    request: Request, strategy: Any, select: Any, oracle: Any, ids: Any, options: Any, progress: Any
) -> tuple[Strategy, str, dict[str, Any]]:
    """The strategy, its selection ("auto" resolved) and its settings. Raises with every fault, before any work."""
    faults: list[str] = []
    how, settings = _resolve_strategy(strategy, options, faults)
    select = _resolve_select(how, select, faults)
    if oracle is not None and not callable(oracle):
        faults.append(f"oracle is a {type(oracle).__name__}; expected a function of an id that returns its label")
    elif select == "sequential" and oracle is None:
        faults.append(
            'select="sequential" asks for a label after each pick; give oracle=, or use "greedy" or "fantasy"'
        )
    elif select in ("top", "greedy", "fantasy", "own") and oracle is not None:
        faults.append(f'an oracle is only asked with select="sequential", and select is {select!r}')
    x_U, batch_size = request.x_U, request.batch_size
    tensors = list(x_U.values()) if isinstance(x_U, Mapping) else [x_U]
    good = bool(tensors) and isinstance(tensors[0], Tensor) and tensors[0].dim() > 0
    U = request.U if good else None  # else: check_inputs raises
    if U == 0:
        faults.append("x_U is empty; expected at least one candidate")
    _collect_fault(faults, whole_number, "batch_size", batch_size, 1)
    _collect_fault(faults, seeded_generator, request.seed)
    if ids is not None and U is not None:
        _check_ids(ids, U, faults)
    _collect_fault(faults, check_settings, request.ridge, request.method, request.loss, math.inf, 1.0)
    if how is not None and how.picks and isinstance(request.ridge, str):
        faults.append(f"ridge='misfit' is for scores of a state, and strategy {how.name!r} picks by itself")
    if request.budget is not None:
        _collect_fault(faults, resolve_budget, request.budget)
    if not isinstance(request.precision, str) or request.precision not in PRECISION_CHOICES:
        faults.append(
            f"unknown precision {request.precision!r}{did_you_mean(request.precision, PRECISION_CHOICES, 'Known')}"
        )
    elif isinstance(request.net, nn.Module):
        dtype = next((p.dtype for p in request.net.parameters()), torch.float32)
        _collect_fault(faults, check_precision, request.precision, dtype)
    if not (isinstance(request.output, str) and request.output == "auto"):  # that is the strategy's own
        _collect_fault(faults, read_output, request.output)
    if U is not None:
        _collect_watch(request, faults)
    if progress is not None and not callable(progress):
        faults.append(f"progress is a {type(progress).__name__}; expected a function of (done, total)")
    if faults:
        raise ValueError("; ".join(faults))
    assert how is not None
    return how, select, settings


def _resolve_strategy(strategy: Any, options: Any, faults: list[str]) -> tuple[Strategy | None, dict[str, Any]]:
    if options is not None and not isinstance(options, Mapping):
        faults.append(f"options is a {type(options).__name__}; expected a dict")
        options = None
    try:
        if isinstance(strategy, str):
            how = find_strategy(strategy)
        elif callable(strategy):
            how = Strategy(getattr(strategy, "__name__", repr(strategy)), strategy)
            if options:
                faults.append("options are of named strategies; bind a function's own with functools.partial")
                options = None
        else:
            faults.append(f"strategy is a {type(strategy).__name__}; expected a name or a function of a state")
            return None, {}
        return how, how.settings(options)
    except (ValueError, TypeError) as e:
        faults.append(str(e))
        return None, {}


def _resolve_select(how: Strategy | None, select: Any, faults: list[str]) -> str:
    if not isinstance(select, str) or select not in ("auto", *SELECTS):
        shown = repr(select) if isinstance(select, str) else f"a {type(select).__name__}"
        faults.append(f"unknown select {shown}{did_you_mean(select, ('auto', *SELECTS), 'Known')}")
        return "unknown"
    if how is not None and how.picks:
        if select != "auto":
            faults.append(f'strategy {how.name!r} picks by itself; select must be "auto", and it is {select!r}')
        return "own"
    if select == "auto":
        return "unknown" if how is None else how.select
    return str(select)


def _collect_fault(faults: list[str], check: Callable[..., Any], *args: Any) -> None:
    try:
        check(*args)
    except (ValueError, TypeError) as e:
        faults.append(str(e))


def _collect_watch(request: Request, faults: list[str]) -> None:
    device = torch.device("cpu")
    if isinstance(request.watch, Tensor | Mapping):  # compared with x_U, if net and x_U are good themselves
        try:
            device = request.frozen.device
            check_inputs(request.x_U, "x_U", device)
        except (ValueError, TypeError):  # raised later
            return
    _collect_fault(faults, check_watch, request.watch, request.x_U, device)


def _check_ids(ids: Any, U: int, faults: list[str]) -> None:
    try:
        if not hasattr(ids, "__getitem__"):
            raise TypeError("it has no order")
        if len(ids) != U:
            faults.append(
                f"ids has {counted(len(ids), 'entry', 'entries')} and the pool {counted(U, 'point')}; expected one each"
            )
        seen: dict[Any, int] = {}
        for i, one in enumerate(ids.tolist() if hasattr(ids, "tolist") else ids):
            if one in seen:
                faults.append(f"ids repeats {one!r}, at {seen[one]} and {i}; expected each once")
                return
            seen[one] = i
    except TypeError as e:
        faults.append(f"ids is a {type(ids).__name__} ({e}); expected a sequence of hashable ids")
