"""What is wrong with a query, all of it at once and before any work."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from foretaste.acquire import SELECTS, Strategy, find, nearest
from foretaste.query._request import Request
from foretaste.retrain._settings import PRECISIONS, check_settings
from foretaste.tangent._memory import resolve


def check_request(
    request: Request, strategy: Any, select: Any, oracle: Any, ids: Any, options: Any, progress: Any
) -> tuple[Strategy, str, dict[str, Any]]:
    """The strategy, the selection that "auto" stands for and the strategy's settings; raises with every fault."""
    faults: list[str] = []
    how, settings = _strategy(strategy, options, faults)
    select = _select(how, select, faults)
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
        _ids(ids, U, faults)
    _told(faults, check_settings, request.ridge, request.method, request.loss, math.inf, 1.0)
    if request.budget is not None:
        _told(faults, resolve, request.budget)
    if request.precision not in PRECISIONS:
        faults.append(f"unknown precision {request.precision!r}{nearest(request.precision, PRECISIONS, 'Known')}")
    if progress is not None and not callable(progress):
        faults.append(f"progress is a {type(progress).__name__}; expected a function of (done, total)")
    if faults:
        raise ValueError("; ".join(faults))
    assert how is not None
    return how, select, settings


def _strategy(strategy: Any, options: Any, faults: list[str]) -> tuple[Strategy | None, dict[str, Any]]:
    if options is not None and not isinstance(options, Mapping):
        faults.append(f"options is a {type(options).__name__}; expected a dict")
        options = None
    try:
        if isinstance(strategy, str):
            how = find(strategy)
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


def _select(how: Strategy | None, select: Any, faults: list[str]) -> str:
    if select != "auto" and select not in SELECTS:
        faults.append(f"unknown select {select!r}{nearest(select, ('auto', *SELECTS), 'Known')}")
        return "unknown"
    if how is not None and how.picks:
        if select != "auto":
            faults.append(f'strategy {how.name!r} picks by itself; select must be "auto", and it is {select!r}')
        return "own"
    if select == "auto":
        return "unknown" if how is None else how.select
    return str(select)


def _told(faults: list[str], check: Callable[..., Any], *args: Any) -> None:
    try:
        check(*args)
    except (ValueError, TypeError) as e:
        faults.append(str(e))


def _ids(ids: Any, U: int, faults: list[str]) -> None:
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
