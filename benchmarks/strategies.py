"""Tables of docs/strategies.md: seconds and bytes of every strategy, of large batches, and what LL4AL's loss does.

``python -m benchmarks.strategies [ll4al | large [full | NAME ...]]``
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Measured, Progress, no_progress, take_turns
from foretaste.acquire import find_strategy, strategies
from foretaste.data import digits
from foretaste.lookahead import linearize
from foretaste.network import MLP, fit, fit_ll4al, predict_losses, prepare
from foretaste.pick import query
from foretaste.tangent import PeakMemory, rank_correlation


@dataclass(frozen=True)
class StrategyRow:
    """One strategy: the best time of its turns, the peak of the tensors it made, and its picks."""

    name: str
    seconds: float
    nbytes: int
    picked: list[int]
    failed: str = ""


@dataclass(frozen=True)
class StrategyProblem:
    """A trained network, L, and a pool. Labels are numbers for strategies of regression, otherwise classes."""

    net: nn.Module
    x_L: Tensor
    y_L: Tensor
    x_U: Tensor
    options: dict[str, Any] | None = None


def time_strategies(
    names: Sequence[str] | None = None,
    *,
    L: int = 50,
    U: int = 300,
    batch_size: int = 10,
    hidden: tuple[int, ...] = (256, 256),
    steps: int = 1200,
    rounds: int = 7,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = no_progress,
) -> list[StrategyRow]:
    """One query by each strategy, in turns, on scikit-learn's digits. Default: all strategies of foretaste.

    Training is not counted, nor is that of ll4al's module. naive, eer_retrain and onestep train inside their query, so
    theirs is. ``change`` is for regression: its network has one output and learns the digit as a number.
    """
    names = list(names or (n for n in strategies() if find_strategy(n).fn.__module__.startswith("foretaste.")))
    problem = _problem_maker(L, U, hidden, steps, seed, device)

    dropout = {"bald": {"rate": 0.5}, "batchbald": {"rate": 0.5}}  # this network has no dropout of its own

    def contender(name: str) -> Callable[[], Any]:
        p = problem("regression" if "regression" in find_strategy(name).needs else name)
        options = dropout.get(name, p.options)
        return lambda: query(
            p.net, p.x_L, p.y_L, p.x_U, strategy=name, batch_size=batch_size, seed=seed, options=options
        )

    contenders = {name: contender(name) for name in names}
    measured = take_turns(contenders, torch.device(device), rounds=rounds, progress=progress)
    return [_strategy_row(name, m) for name, m in measured.items()]


def _strategy_row(name: str, m: Measured) -> StrategyRow:
    return StrategyRow(name, m.seconds, m.nbytes, [] if m.result is None else m.result.indices.tolist(), m.failed)


def _problem_maker(
    L: int, U: int, hidden: tuple[int, ...], steps: int, seed: int, device: str
) -> Callable[[str], StrategyProblem]:
    """A function from "ll4al", "regression" or another name (classes) to a problem, which is trained once."""
    data = digits()
    if len(data.x) < L + U:
        raise ValueError(f"L={L} and U={U} need {L + U} points; there are {len(data.x)} digits")
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed))
    x = prepare(data.x[order], normalise=data.normalise).flatten(1).to(device)
    y = data.y[order].to(device)
    x_L, y_L, x_U = x[:L], y[:L], x[L : L + U]
    D, C = x.shape[1], len(data.classes)
    made: dict[str, StrategyProblem] = {}

    def problem(kind: str) -> StrategyProblem:
        kind = kind if kind in ("ll4al", "regression") else "classes"
        if kind not in made:
            with torch.random.fork_rng([]):
                net = MLP(D, hidden, 1 if kind == "regression" else C).to(device)
            options, z_L = None, (y_L / (C - 1)).to(x.dtype) if kind == "regression" else y_L
            if kind == "ll4al":
                layers = [f"layers.{2 * i + 1}" for i in range(len(hidden))]
                _, module = fit_ll4al(net, x_L, z_L, layers=layers, steps=steps, start="cold", seed=seed)
                options = {"module": module}
            else:
                fit(net, x_L, z_L, steps=steps, start="cold", seed=seed)
            made[kind] = StrategyProblem(net, x_L, z_L, x_U, options)
        return made[kind]

    return problem


KERNEL_ALONE = "the kernel and S alone"
FEW_WATCHED = 1000  # no fewer than the picks: a pick that is not watched costs a pass over the pool
ONE_BY_ONE = ("gain", "variance", "epig")  # each pick changes every score: b·WU
RETRAINING = ("naive", "eer_retrain", "onestep")  # a training for each of 6,000 candidates
OTHER_TRAINING = ("ll4al", "change")  # a module of its own; one output


def large_names(full: bool = False) -> list[str]:
    """The rows of the table of large batches. ``full``: ONE_BY_ONE with all points watched too, which takes minutes."""
    ours = [n for n in strategies() if find_strategy(n).fn.__module__.startswith("foretaste.")]
    quick = [n for n in ours if n not in (*ONE_BY_ONE, *RETRAINING, *OTHER_TRAINING)]
    return [KERNEL_ALONE, *quick, *(f"{n}, watch={FEW_WATCHED}" for n in ONE_BY_ONE), *(ONE_BY_ONE if full else ())]


def time_large_batches(
    names: Sequence[str] | None = None, *, L: int = 1000, U: int = 6000, batch_size: int = 1000, D: int = 64,
    steps: int = 600,
) -> list[StrategyRow]:  # fmt: skip
    """Many picks from many points, once each; seconds are those of the processor.

    Points lie around 50 centres, five of each class; the network is an MLP with two hidden layers, trained on L. It is
    right about three quarters of the others.
    """
    g = torch.Generator().manual_seed(0)
    kind_N = torch.randint(50, (L + U,), generator=g)
    x = 0.4 * torch.randn(50, D, generator=g)[kind_N] + 0.7 * torch.randn(L + U, D, generator=g)
    x_L, y_L, x_U = x[:L], kind_N[:L] % 10, x[L:]
    with torch.random.fork_rng([]):
        net = MLP(D, (256, 256))
    fit(net, x_L, y_L, steps=steps, start="cold", seed=0)
    rows = []
    for name in names or large_names():
        strategy, _, watched = name.partition(", watch=")
        options = {"rate": 0.5} if name in ("bald", "batchbald") else None
        with PeakMemory() as memory:
            start = time.process_time()
            if name == KERNEL_ALONE:
                _, picked = linearize(net, x_L, y_L, x_U, eager=True).u, list[int]()
            else:
                how: dict[str, Any] = {"watch": int(watched) if watched else None, "options": options}
                picked = query(net, x_L, y_L, x_U, strategy=strategy, batch_size=batch_size, **how).indices.tolist()
            seconds = time.process_time() - start
        rows.append(StrategyRow(name, seconds, memory.peak, picked))
        print(strategies_markdown(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    return rows


def strategies_markdown(rows: Sequence[StrategyRow]) -> str:
    """A table, fastest first."""
    lines = ["| strategy | seconds | memory |", "|---|---|---|"]
    for row in sorted(rows, key=lambda r: (r.failed, r.seconds)):
        took = row.failed or (f"{row.seconds:.2g}" if row.seconds < 10 else f"{row.seconds:.0f}")
        name, *more = row.name.split(", ")
        shown = name if name == KERNEL_ALONE else ", ".join([f"`{name}`", *more])
        lines.append(f"| {shown} | {took} | {row.nbytes / 1e6:.3g} MB |")
    return "\n".join(lines)


@dataclass(frozen=True)
class LL4ALRow:
    """One training. On held-out points: accuracy, and Spearman correlation of predicted and true losses."""

    method: str  # "fit" (without LL4AL), or the reduction of its loss: "mean" or "sum"
    max_lr: float
    seed: int
    residual: float
    accuracy: float
    ranking: float


def train_ll4al(
    rates: Sequence[float] = (0.5, 0.1, 0.05, 0.02),
    seeds: Sequence[int] = (0, 1),
    *,
    L: int = 100,
    steps: int = 1200,
    methods: Sequence[str] = ("fit", "mean", "sum"),
) -> list[LL4ALRow]:
    """Train by each method, learning rate and seed: digits, an MLP with two hidden layers of 256, L labels.

    The last 797 points of each seed's order are held out.
    """
    data, rows = digits(), []
    inputs = prepare(data.x, normalise=data.normalise).flatten(1)
    for seed in seeds:
        order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed))
        at_L, held = order[:L], order[1000:]
        x_L, y_L, x, y = inputs[at_L], data.y[at_L], inputs[held], data.y[held]
        for method in methods:
            for rate in rates:
                net, ranking = MLP(inputs.shape[1], (256, 256)), float("nan")
                how: dict[str, Any] = {"steps": steps, "max_lr": rate, "seed": seed, "start": "cold"}
                if method == "fit":
                    done = fit(net, x_L, y_L, **how)
                else:
                    layers = ("layers.1", "layers.3")
                    done, module = fit_ll4al(net, x_L, y_L, layers=layers, reduction=method, **how)
                with torch.no_grad():
                    f_NC = net(x)
                if method != "fit":
                    true_N = (f_NC - F.one_hot(y, f_NC.shape[1])).square().mean(1)
                    ranking = rank_correlation(predict_losses(net, module, x), true_N.double())
                accuracy = float((f_NC.argmax(1) == y).double().mean())
                rows.append(LL4ALRow(method, rate, seed, done.residual, accuracy, ranking))
    return rows


def ll4al_markdown(rows: Sequence[LL4ALRow]) -> str:
    """One line for each method and learning rate, one number for each seed."""
    lines = ["| method | max_lr | residual on L | accuracy | Spearman |", "|---|---|---|---|---|"]
    for method, rate in dict.fromkeys((r.method, r.max_lr) for r in rows):
        same = [r for r in rows if (r.method, r.max_lr) == (method, rate)]
        cells = (
            ", ".join(f"{r.residual:.0e}" for r in same),
            ", ".join(f"{r.accuracy:.2f}" for r in same),
            ", ".join("–" if method == "fit" else f"{r.ranking:.2f}" for r in same),
        )
        lines.append(f"| {method} | {rate:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["large"]:
        given = sys.argv[2:]
        print(strategies_markdown(time_large_batches(large_names(full=True) if given == ["full"] else given)))
    elif sys.argv[1:] == ["ll4al"]:
        print(ll4al_markdown(train_ll4al()))
    else:
        print(strategies_markdown(time_strategies(progress=lambda name: print(name, file=sys.stderr))))
