"""``ft.query``: which points to label next."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretaste.acquire import finish
from foretaste.query._checks import check_request
from foretaste.query._own import pick_itself
from foretaste.query._pick import Progress, pick_each, pick_top
from foretaste.query._request import Request
from foretaste.query._result import Query
from foretaste.retrain import State
from foretaste.tangent import Inputs, Output, Params


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
    generator, tally = torch.Generator().manual_seed(seed), Progress(progress)
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
        got, kernel = pick_itself(how, request, settings, tally), False
    else:
        _ = request.state
        seconds["kernel" if request.eager else "outputs"] = time.perf_counter() - begin
        if kernel := "kernel" in how.needs:
            start = time.perf_counter()
            _ = request.state.u
            seconds["kernel"] += time.perf_counter() - start
        ask = None if oracle is None else (lambda j: oracle(j if ids is None else ids[j]))

        def score(state: State) -> Tensor:
            return finish(state, how.fn(state, **settings), how.name)

        if select == "top":
            got = pick_top(request.state, score, batch_size, generator, tally)
        else:
            got = pick_each(request.state, score, select, batch_size, generator, tally, ask)
            kernel |= len(got.indices) > (0 if select == "sequential" else 1)
    seconds |= got.seconds | {"total": time.perf_counter() - begin}
    info = {"strategy": how.name, "select": select, "options": settings, "loss": loss, "seed": seed}
    if (state := request.made) is not None:
        info |= {"method": type(state).__name__.lower(), "residual_L": state.residual_L, "watched": state.W}
        info |= precision_of(state)
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


def precision_of(state: State) -> dict[str, Any]:
    """The arithmetic Θ was computed in (what was asked for, if it was not), and with "auto" what it was chosen by."""
    choice = state._problem.kernels.choice
    taken: dict[str, Any] = {"precision": choice.used or choice.asked}
    if choice.asked == "auto" and choice.used:
        taken["precision_measured"] = {"asked": "auto", "spearman": dict(choice.spearman), "why": choice.why}
    return taken
