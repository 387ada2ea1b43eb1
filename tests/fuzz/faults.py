"""Ctrl-C at random moments of a query, and two threads that query one network: nothing is left behind."""

import random
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

import foretaste as ft
from foretaste.testing.contracts import describe_changes, snapshot_network

from .calls import Problem
from .outcomes import PACKAGE, Tally

STRATEGIES = ["gain", "mlmoc", "entropy", "badge", "infinite", "naive", "ll4al", "onestep"]


def ask(p: Problem, strategy: str) -> Any:
    options: dict[str, Any] | None = {"epochs": 1} if strategy == "naive" else None
    if strategy == "ll4al":
        options = {"layers": ["layers.1"], "steps": 3}
    return ft.query(p.net, p.x_L, p.y_L, p.x_U, strategy=strategy, batch_size=2, ridge=1e-3, options=options)


def interrupts(count: int, seed: int = 0) -> Tally:
    """Raise KeyboardInterrupt at a random line of ours that a query runs, ``count`` times."""
    tally, draw = Tally(), random.Random(seed)
    lines: dict[str, int] = {}
    for k in range(count):
        p, strategy = Problem(draw), STRATEGIES[k % len(STRATEGIES)]
        if strategy not in lines:
            lines[strategy] = _count_lines(lambda p=p, strategy=strategy: ask(p, strategy))
        left = [draw.randrange(1, max(2, lines[strategy]))]
        place = [""]

        def trace(frame: FrameType, event: str, arg: Any, left: list[int] = left, place: list[str] = place) -> Any:
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            if event == "line":
                left[0] -= 1
                if left[0] == 0:
                    place[0] = f"{frame.f_code.co_filename[len(PACKAGE) :]}:{frame.f_lineno}"
                    raise KeyboardInterrupt
            return trace

        before = snapshot_network(p.net, p.x_L, p.y_L, p.x_U)
        with suppress(KeyboardInterrupt):  # the one that trace raises
            sys.settrace(trace)
            try:
                ask(p, strategy)
            finally:
                sys.settrace(None)
        changed = describe_changes(before, snapshot_network(p.net, p.x_L, p.y_L, p.x_U))
        tally.add("left behind" if changed else "right", f"{strategy} at {place[0]}: {changed[:3]}")
    return tally


def _count_lines(call: Any) -> int:
    seen = [0]

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        seen[0] += event == "line"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return seen[0]


def threads(count: int, seed: int = 0) -> Tally:
    """Two threads ask ``count`` queries each of one network: the answers of one thread alone, and nothing changed."""
    tally, draw = Tally(), random.Random(seed)
    p = Problem(draw)
    strategies = ["gain", "mlmoc", "entropy", "badge"]
    alone = {s: ask(p, s).indices.tolist() for s in strategies}
    before = snapshot_network(p.net, p.x_L, p.y_L, p.x_U)
    lock = threading.Lock()

    def work(offset: int) -> None:
        for k in range(count):
            strategy = strategies[(k + offset) % len(strategies)]
            try:
                got = ask(p, strategy).indices.tolist()
                outcome, words = (
                    ("right", "") if got == alone[strategy] else ("wrong", f"{got}, alone {alone[strategy]}")
                )
            except Exception as error:
                outcome, words = "raw error", f"{type(error).__name__}: {error}"
            with lock:
                tally.add(outcome, f"{strategy}: {words}")

    workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if changed := describe_changes(before, snapshot_network(p.net, p.x_L, p.y_L, p.x_U)):
        tally.add("left behind", f"{changed[:3]}")
    return tally
