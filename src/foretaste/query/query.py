"""``ft.query``: which points to label next."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.acquire import SELECTS, Strategy, find_strategy, finish_scores
from foretaste.errors import did_you_mean
from foretaste.lookahead import PRECISION_CHOICES, State, check_settings
from foretaste.query.request import Query, Request
from foretaste.query.select import ProgressCounter, pick_by_strategy, pick_each, pick_top
from foretaste.tangent import Inputs, Output, Params, resolve_budget

# What is wrong with a query, all of it at once and before any work.


def check_request(
    request: Request, strategy: Any, select: Any, oracle: Any, ids: Any, options: Any, progress: Any
) -> tuple[Strategy, str, dict[str, Any]]:
    """The strategy, the selection that "auto" stands for and the strategy's settings; raises with every fault."""
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
    U = request.U if isinstance(x_U, Tensor) or (isinstance(x_U, Mapping) and x_U) else None  # else: linearize tells
    if U == 0:
        faults.append("x_U is empty; expected at least one candidate")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int):
        faults.append(f"batch_size is {batch_size!r}; expected a whole number")
    elif batch_size < 1:
        faults.append(f"batch_size is {batch_size}; expected at least 1")
    elif U and batch_size > U:
        faults.append(f"batch_size is {batch_size} and the pool has {U} points; expected at most {U}")
    if ids is not None and U is not None:
        _check_ids(ids, U, faults)
    _collect_fault(faults, check_settings, request.ridge, request.method, request.loss, math.inf, 1.0)
    if request.budget is not None:
        _collect_fault(faults, resolve_budget, request.budget)
    if request.precision not in PRECISION_CHOICES:
        faults.append(
            f"unknown precision {request.precision!r}{did_you_mean(request.precision, PRECISION_CHOICES, 'Known')}"
        )
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
    if select != "auto" and select not in SELECTS:
        faults.append(f"unknown select {select!r}{did_you_mean(select, ('auto', *SELECTS), 'Known')}")
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


def _check_ids(ids: Any, U: int, faults: list[str]) -> None:
    try:
        if len(ids) != U:
            faults.append(f"ids has {len(ids)} entries and the pool {U} points; expected one each")
        seen: dict[Any, int] = {}
        for i, one in enumerate(ids.tolist() if hasattr(ids, "tolist") else ids):
            if one in seen:
                faults.append(f"ids repeats {one!r}, at {seen[one]} and {i}; expected each once")
                return
            seen[one] = i
    except TypeError as e:
        faults.append(f"ids is a {type(ids).__name__} ({e}); expected a sequence of hashable ids")


# ``ft.query``: which points to label next.


def query(
    net: nn.Module,
    x_L: Inputs | None,
    y_L: Any,
    x_U: Inputs,
    *,
    strategy: str | Callable[[State], Tensor] = "gain",
    select: str = "auto",
    batch_size: int = 20,
    oracle: Callable[[Any], Any] | None = None,
    ids: Sequence[Any] | None = None,
    seed: int = 0,
    loss: str = "l2",
    watch: Inputs | int | None = None,
    ridge: float | None = None,
    output: Output = "sum",
    method: str = "auto",
    budget: int | str | None = None,
    params: Params = None,
    precision: str = "auto",
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Query:
    """The next ``batch_size`` points of x_U to label (Eq. 1; docs/mathematics.md, Batches).

    strategy: a name of ``ft.strategies()``, or fn(state) -> (U,). select: "auto" (the strategy's own), "top", "greedy",
    "fantasy", or "sequential", which calls ``oracle(id, or position if there are none) -> label`` after each pick;
    None skips. progress(done, total) is called after each pick, or by a strategy that retrains as it goes on. The rest
    is of ``ft.linearize``, and changes nothing where a strategy has no use for it (docs/strategies.md).
    """
    begin = time.perf_counter()
    generator, tally = torch.Generator().manual_seed(seed), ProgressCounter(progress)
    request = Request(
        net, x_L, y_L, x_U, batch_size, generator, loss=loss, watch=watch, ridge=ridge, output=output, method=method,
        budget=budget, params=params, precision=precision, seed=seed, progress=tally,
    )  # fmt: skip
    how, select, settings = check_request(request, strategy, select, oracle, ids, options, progress)
    seconds = {"outputs": 0.0, "kernel": 0.0}
    # One pass over the pool gives f and, where it is needed, Θ.
    request = replace(request, eager=not how.picks and "kernel" in how.needs)
    if {"classes", "regression"} & {*how.needs}:
        how.check(request.C)
    if how.picks:
        got, kernel = pick_by_strategy(how, request, settings, tally), False
    else:
        _ = request.state
        seconds["kernel" if request.eager else "outputs"] = time.perf_counter() - begin
        if kernel := "kernel" in how.needs:
            start = time.perf_counter()
            _ = request.state.u
            seconds["kernel"] += time.perf_counter() - start
        ask = None if oracle is None else (lambda j: oracle(j if ids is None else ids[j]))

        def score(state: State) -> Tensor:
            return finish_scores(state, how.fn(state, **settings), how.name)

        if select == "top":
            got = pick_top(request.state, score, batch_size, generator, tally)
        else:
            got = pick_each(request.state, score, select, batch_size, generator, tally, ask)
            kernel |= len(got.indices) > (0 if select == "sequential" else 1)
    seconds |= got.seconds | {"total": time.perf_counter() - begin}
    info = {"strategy": how.name, "select": select, "options": settings, "loss": loss, "seed": seed}
    if (state := request.made) is not None:
        info |= {"method": state.method, "residual_L": state.residual_L, "watched": state.W}
        info |= precision_info(state)
    # Of a strategy that needed no kernel, λ and s² are not worth one.
    info |= {"ridge": state.ridge, "scale": state.scale} if state and kernel else {"ridge": ridge, "scale": None}
    info |= request.info
    return Query(
        np.asarray(got.indices, dtype=np.int64),
        None if ids is None else [ids[j] for j in got.indices],
        got.scores_U,
        got.labels,
        seconds,
        info,
    )


def precision_info(state: State) -> dict[str, Any]:
    """The arithmetic Θ was computed in (what was asked for, if it was not), and with "auto" what it was chosen by."""
    choice = state._problem.kernels.choice
    taken: dict[str, Any] = {"precision": choice.used or choice.asked}
    if choice.asked == "auto" and choice.used:
        taken["precision_measured"] = {"asked": "auto", "spearman": dict(choice.spearman), "why": choice.why}
    return taken
