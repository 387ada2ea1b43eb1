"""What a query costs beside its rivals, on one trained network. The unit is a forward pass over the pool: entropy."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.bench._kernels import forward, per_point_gradients
from foretaste.bench._measure import Contender, turns
from foretaste.bench._ranking import spearman
from foretaste.network import fit
from foretaste.query import query
from foretaste.tangent._memory import human

NAIVE = 64  # candidates that are really retrained; the rest is extrapolated
NAIVE_LR = 0.005  # small: with its statistics frozen a network of BatchNorms diverges sooner; the time is the same


@dataclass(frozen=True)
class Pool:
    """A network with its labelled points and a pool, trained on the former."""

    name: str
    net: nn.Module
    x_L: Tensor
    y_L: Tensor
    x_U: Tensor
    residual: float


@dataclass(frozen=True)
class QueryRow:
    workload: str
    name: str
    seconds: float
    forwards: float
    nbytes: int
    spearman: float  # of MLMOC's scores to those of float64 passes and products; NaN where there is nothing to compare
    note: str = ""


def trained(name: str, net: nn.Module, x: Tensor, y: Tensor, L: int, U: int, **settings: Any) -> Pool:
    done = fit(net, x[:L], y[:L], start="cold", seed=0, **settings)
    return Pool(name, net, x[:L], y[:L], x[L : L + U], done.residual)


def cost(
    pool: Pool,
    *,
    precisions: tuple[str, ...] = ("half", "tf32", "float32"),
    budgets: tuple[str, ...] = (),
    naive: bool = True,
    reference: bool = True,
    rounds: int = 3,
    said: Callable[[str], None] = lambda name: None,
) -> list[QueryRow]:
    """One row a contender. ``budgets``: the first precision again in that much memory."""
    net, x_U = pool.net, pool.x_U

    def ask(strategy: str, net: nn.Module = net, dtype: torch.dtype = torch.float32, **how: Any) -> Any:
        return query(net, pool.x_L.to(dtype), pool.y_L, x_U.to(dtype), strategy=strategy, batch_size=20, **how)

    contenders: dict[str, Contender] = {
        "entropy: one forward pass": lambda: forward(net, x_U),
        "badge": lambda: ask("badge"),
    }
    for p in precisions:
        contenders[f"mlmoc, {p}"] = lambda p=p: ask("mlmoc", precision=p)  # type: ignore[misc]
    contenders[f"gain, {precisions[0]}, 20 greedy"] = lambda: ask("gain", precision=precisions[0])
    for b in budgets:
        contenders[f"mlmoc, {precisions[0]}, in {b}"] = lambda b=b: ask("mlmoc", precision=precisions[0], budget=b)  # type: ignore[misc]
    everything = torch.cat([pool.x_L, x_U])
    contenders["torch.func, Θ alone"] = lambda: per_point_gradients(net, everything, 64)
    found = turns(contenders, x_U.device, rounds=rounds, said=said)
    unit = found["entropy: one forward pass"].seconds
    truth = None
    if reference:
        said("float64")
        truth = ask("mlmoc", deepcopy(net).double(), torch.float64).scores
    rows = []
    for name, m in found.items():
        agree = float("nan")
        if truth is not None and name.startswith("mlmoc") and m.result is not None:
            agree = spearman(m.result.scores, truth)
        rows.append(QueryRow(pool.name, name, m.seconds, m.seconds / unit, m.nbytes, agree, m.failed))
    if naive:
        said("naive")
        few = x_U[:NAIVE]
        run = {
            "naive": lambda: query(
                net, pool.x_L, pool.y_L, few, strategy="naive", batch_size=1, options={"lr": NAIVE_LR}
            )
        }
        m = turns(run, x_U.device, rounds=1)["naive"]
        whole = m.seconds * len(x_U) / NAIVE
        rows.append(
            QueryRow(
                pool.name, "naive: SGD, 15 epochs a candidate", whole, whole / unit, m.nbytes, float("nan"),
                m.failed or f"extrapolated from {NAIVE} candidates in {m.seconds:.2g} s",
            )
        )  # fmt: skip
    return rows


def markdown(rows: list[QueryRow]) -> str:
    """One table a workload."""
    out: list[str] = []
    for workload in dict.fromkeys(r.workload for r in rows):
        out += [f"\n**{workload}**\n", "| | seconds | forward passes | peak memory | Spearman to float64 | |"]
        out += ["|---|---|---|---|---|---|"]
        for r in (r for r in rows if r.workload == workload):
            if r.seconds != r.seconds:
                out.append(f"| {r.name} | – | – | – | | {r.note} |")
                continue
            agree = "" if r.spearman != r.spearman else f"{r.spearman:.5f}"
            out.append(f"| {r.name} | {r.seconds:.3g} | {r.forwards:.3g} | {human(r.nbytes)} | {agree} | {r.note} |")
    return "\n".join(out) + "\n"
