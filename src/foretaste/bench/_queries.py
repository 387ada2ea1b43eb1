"""What a query costs beside its rivals, on one trained network. The unit is a forward pass over the pool: entropy."""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.bench._kernels import forward, per_point_gradients
from foretaste.bench._measure import Contender, Measured, peak, synchronize, turns
from foretaste.bench._pairs import recomputed
from foretaste.bench._pools import Pool
from foretaste.errors import format_bytes
from foretaste.query import query
from foretaste.tangent import ntk, rank_correlation

NAIVE = 50  # candidates that are really retrained; the rest is extrapolated
NAIVE_LR = 0.005  # small: with its statistics frozen a network of BatchNorms diverges sooner; the time is the same
BLOCKS = (64, 256)  # points of a block whose Jacobians are recomputed
ENTROPY = "entropy: one forward pass"
NOTHING = float("nan")


@dataclass(frozen=True)
class QueryRow:
    workload: str
    name: str
    seconds: float
    forwards: float
    nbytes: int
    spearman: float  # of MLMOC's scores to those of float64 passes and products; NaN where there is nothing to compare
    note: str = ""
    tflops: float = NOTHING  # 2P a pair of points that Θ needs, over the whole query's time


def cost(
    pool: Pool,
    *,
    precisions: tuple[str, ...] = ("half", "auto", "tf32", "float32"),
    budgets: tuple[str, ...] = (),
    rivals: bool = True,
    reference: bool = True,
    rounds: int = 3,
    said: Callable[[str], None] = lambda name: None,
) -> list[QueryRow]:
    """One row a contender. ``budgets``: the first precision again in that much memory."""
    net, x_U = pool.net, pool.x_U

    def ask(strategy: str, net: nn.Module = net, dtype: torch.dtype = torch.float32, **how: Any) -> Any:
        return query(net, pool.x_L.to(dtype), pool.y_L, x_U.to(dtype), strategy=strategy, batch_size=20, **how)

    contenders: dict[str, Contender] = {ENTROPY: lambda: forward(net, x_U), "badge": lambda: ask("badge")}
    for p in precisions:
        contenders[f"mlmoc, {p}"] = lambda p=p: ask("mlmoc", precision=p)  # type: ignore[misc]
    contenders[f"gain, {precisions[0]}, 20 greedy"] = lambda: ask("gain", precision=precisions[0])
    for b in budgets:
        contenders[f"mlmoc, {precisions[0]}, in {b}"] = lambda b=b: ask("mlmoc", precision=precisions[0], budget=b)  # type: ignore[misc]
    if rivals:
        everything = torch.cat([pool.x_L, x_U])
        contenders["torch.func by 64, Θ alone"] = lambda: per_point_gradients(net, everything, 64)
    found = turns(contenders, x_U.device, rounds=rounds, patience=3.0, said=said)
    unit = found[ENTROPY].seconds
    truth = None
    if reference:
        said("float64")
        truth = ask("mlmoc", deepcopy(net).double(), torch.float64, precision="float32").scores
    rows = [row(pool, name, m, unit, truth) for name, m in found.items()]
    if rivals:
        rows += [pairs_row(pool, block, unit) for block in BLOCKS]
        said("naive")
        rows.append(naive_row(pool, unit))
    return rows


def row(pool: Pool, name: str, m: Measured, unit: float, truth: Tensor | None) -> QueryRow:
    agree, tflops, note = NOTHING, NOTHING, m.failed
    if name.startswith(("mlmoc", "gain")) and m.result is not None:
        n = len(pool.x_L) + len(pool.x_U)
        tflops = pool.P * n * (n + 1) / m.seconds / 1e12
        if truth is not None and name.startswith("mlmoc"):
            agree = rank_correlation(m.result.scores, truth)
        if tried := m.result.info.get("precision_measured"):
            values = ", ".join(f"{k} {v:.5f}" for k, v in tried["spearman"].items())
            note = f"took {m.result.info['precision']} ({values or tried['why']})"
    return QueryRow(pool.name, name, m.seconds, m.seconds / unit, m.nbytes, agree, note, tflops)


def pairs_row(pool: Pool, block: int, unit: float) -> QueryRow:
    """Θ in pairs of blocks, Jacobians recomputed for each; its error is said, for it is a kernel of another library."""
    x = torch.cat([pool.x_L, pool.x_U])
    name = f"Jacobians anew for each pair of blocks of {block}, Θ alone"
    try:
        got = recomputed(pool.net, x, block)
    except Exception as e:  # another library's, in another process
        return QueryRow(pool.name, name, NOTHING, NOTHING, 0, NOTHING, f"failed: {str(e).splitlines()[0][:80]}")
    want = ntk(pool.net, x[:8], x[got.block : got.block + 8]).cpu()
    error = float((got.kernel[:8, :8].double().cpu() - want).norm() / want.norm())
    note = f"{got.by}, extrapolated from one of {got.count} pairs; its Θ is within {error:.0e} of ours"
    return QueryRow(pool.name, name, got.seconds, got.seconds / unit, 0, NOTHING, note)


def naive_row(pool: Pool, unit: float) -> QueryRow:
    few = pool.x_U[:NAIVE]
    name, device = "naive: SGD, 15 epochs a candidate", pool.x_U.device
    took = [0.0]

    def run() -> None:
        start = time.perf_counter()
        query(pool.net, pool.x_L, pool.y_L, few, strategy="naive", batch_size=1, options={"lr": NAIVE_LR})
        synchronize(device)
        took[0] = time.perf_counter() - start

    try:
        nbytes, _ = peak(run, device)
    except torch.OutOfMemoryError:
        return QueryRow(pool.name, name, NOTHING, NOTHING, 0, NOTHING, "out of memory")
    whole = took[0] * len(pool.x_U) / len(few)
    note = f"extrapolated from {len(few)} candidates in {took[0]:.2g} s"
    return QueryRow(pool.name, name, whole, whole / unit, nbytes, NOTHING, note)


def markdown(rows: list[QueryRow]) -> str:
    """One table a workload."""
    out: list[str] = []
    for workload in dict.fromkeys(r.workload for r in rows):
        out += [f"\n**{workload}**\n", "| | seconds | forward passes | peak memory | Spearman to float64 | TFLOP/s | |"]
        out += ["|---|---|---|---|---|---|---|"]
        out += ["| " + " | ".join(cells(r)) + " |" for r in rows if r.workload == workload]
    return "\n".join(out) + "\n"


def cells(r: QueryRow) -> list[str]:
    if r.seconds != r.seconds:
        return [r.name, "–", "–", "–", "", "", r.note]
    agree = "" if r.spearman != r.spearman else f"{r.spearman:.5f}"
    tflops = "" if r.tflops != r.tflops else f"{r.tflops:.3g}"
    memory = format_bytes(r.nbytes) if r.nbytes else ""
    return [r.name, f"{r.seconds:.3g}", f"{r.forwards:.3g}", memory, agree, tflops, r.note]
