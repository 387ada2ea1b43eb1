"""What a query costs beside its rivals, on trained networks. The unit is a forward pass over the pool: entropy.

``python -m benchmarks.queries [NAME] [--small]``: precisions side by side on one network (default wrn1, the paper's).
"""

import argparse
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from rich import box
from rich.table import Table
from torch import Tensor, nn

from benchmarks.measure import Contender, Measured, Progress, no_progress, peak_bytes, synchronize, take_turns
from benchmarks.rivals import forward_pass, per_point_gradients, time_block_pairs
from foretaste.data import load
from foretaste.errors import format_bytes
from foretaste.network import WideResNet, fit, resnet18
from foretaste.pick import query
from foretaste.tangent import ntk, rank_correlation

NAIVE_CANDIDATES = 50  # candidates that are really retrained; the time of the others is extrapolated
NAIVE_LR = 0.005  # small: with frozen statistics a network with BatchNorm diverges sooner. The time is the same.
BLOCKS = (64, 256)  # points in a block whose Jacobians are recomputed
ENTROPY = "entropy: one forward pass"
NAN = float("nan")


@dataclass(frozen=True)
class TrainedPool:
    """A network, the labelled points it was trained on, and a pool."""

    name: str
    net: nn.Module
    x_L: Tensor
    y_L: Tensor
    x_U: Tensor
    residual: float

    @property
    def P(self) -> int:
        return sum(p.numel() for p in self.net.parameters())


@dataclass(frozen=True)
class QueryWorkload:
    """What is measured on one network. ``training`` has the arguments of ``fit``; it is shorter than a study's."""

    name: str
    title: str
    data: str
    net: Callable[[], nn.Module]
    L: int
    U: int
    classes: int = 10
    training: dict[str, Any] = field(default_factory=dict)
    precisions: tuple[str, ...] = ("half", "auto")
    budgets: tuple[str, ...] = ()
    reference: bool = False  # also compare the ranking with one in float64 throughout
    rivals: bool = False  # also time torch.func, pairs of blocks and naive retraining

    def small(self) -> "QueryWorkload":
        """The same with tens of points."""
        net = partial(WideResNet, widen=1, channels=3, classes=self.classes)
        return QueryWorkload(
            self.name, f"{self.title} (small)", self.data, net, 12, 48, self.classes,
            {"steps": 60, "batch_size": 12}, self.precisions, (), self.reference, self.rivals,
        )  # fmt: skip


QUERY_WORKLOADS = (
    QueryWorkload(
        "wrn1", "WRN1 of widen 10", "mnist", lambda: WideResNet(layers=1, widen=10), 100, 4000,
        precisions=("half", "auto", "tf32", "float32"), budgets=("16GB",), reference=True, rivals=True,
    ),
    QueryWorkload(
        "resnet18", "ResNet18", "cifar10", resnet18, 1000, 6000,
        training={"steps": 900, "batch_size": 64}, budgets=("16GB",),
    ),
    QueryWorkload(
        "wrn2", "WRN2 of widen 10", "cifar10", lambda: WideResNet(layers=2, widen=10, channels=3), 1000, 6000,
        training={"steps": 500, "batch_size": 64}, precisions=("half",), budgets=("80GB", "16GB"),
    ),
    QueryWorkload(
        "resnet18-10000", "ResNet18, L = 10,000", "cifar100", lambda: resnet18(classes=100), 10000, 6000, classes=100,
        training={"steps": 600, "batch_size": 256}, precisions=("half",), budgets=("16GB",),
    ),
)  # fmt: skip


def train_on(work: QueryWorkload, device: torch.device) -> TrainedPool:
    """Train the workload's network. Images are real if $FORETASTE_DATA has them, otherwise synthetic (see its name)."""
    net = work.net().to(device)
    stem = next(m for m in net.modules() if isinstance(m, nn.Conv2d))
    try:
        x, y, what = *real_images(work.data, work.L + work.U, device), work.data
    except (FileNotFoundError, ValueError):
        x, y, what = *synthetic_images(work, stem.in_channels, device), "synthetic images"
    if x.shape[1] != stem.in_channels:
        x = x.expand(-1, stem.in_channels, -1, -1).contiguous()
    x_L, y_L, x_U = x[: work.L], y[: work.L], x[work.L : work.L + work.U]
    done = fit(net, x_L, y_L, start="cold", seed=0, **work.training)
    title = f"{work.title}, {what}, L = {work.L}, U = {work.U}, labelled MSE {done.residual:.1e}"
    return TrainedPool(title, net, x_L, y_L, x_U, done.residual)


def real_images(name: str, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """n images of the pool in random order: a data set that foretaste knows, or name.npz in the same folder."""
    try:
        data = load(name)
    except (FileNotFoundError, ValueError):
        data = load(f"{name}.npz")
    if len(data.pool) < n:
        raise ValueError(f"{name} has {len(data.pool)} images in its pool; the workload needs {n}")
    at = torch.as_tensor(data.pool)[torch.randperm(len(data.pool), generator=torch.Generator().manual_seed(0))[:n]]
    x = data.x[at].to(device).float() / 255
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    return (x - mean) / std, data.y[at].to(device)


def synthetic_images(work: QueryWorkload, channels: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A blurred pattern for each class plus noise: as large as the real images, and separable."""
    g = torch.Generator().manual_seed(0)
    n, edge = work.L + work.U, 28 if channels == 1 else 32
    y = torch.randint(0, work.classes, (n,), generator=g)
    coarse = torch.randn(work.classes, channels, 7, 7, generator=g)
    pattern = nn.functional.interpolate(coarse, size=(edge, edge), mode="bilinear")
    x = pattern[y] + 0.7 * torch.randn(n, channels, edge, edge, generator=g)
    return x.to(device), y.to(device)


@dataclass(frozen=True)
class QueryRow:
    """One contender on one workload."""

    workload: str
    name: str
    seconds: float
    forwards: float  # seconds in units of one forward pass over the pool
    nbytes: int
    spearman: float  # of mlmoc's scores to those from float64 passes and products; NaN if not compared
    note: str = ""
    tflops: float = NAN  # 2P for each pair of points that Θ needs, over the time of the whole query


def compare_queries(
    pool: TrainedPool,
    *,
    precisions: tuple[str, ...] = ("half", "auto", "tf32", "float32"),
    budgets: tuple[str, ...] = (),
    rivals: bool = True,
    reference: bool = True,
    rounds: int = 3,
    progress: Progress = no_progress,
) -> list[QueryRow]:
    """One row for each contender. ``budgets``: the first precision again within that much memory."""
    net, x_U = pool.net, pool.x_U

    def ask(strategy: str, net: nn.Module = net, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
        return query(net, pool.x_L.to(dtype), pool.y_L, x_U.to(dtype), strategy=strategy, batch_size=20, **options)

    contenders: dict[str, Contender] = {ENTROPY: lambda: forward_pass(net, x_U), "badge": lambda: ask("badge")}
    for p in precisions:
        contenders[f"mlmoc, {p}"] = lambda p=p: ask("mlmoc", precision=p)  # type: ignore[misc]
    if "auto" in precisions:  # a network that is new to it; above, what was measured in the first turn is remembered
        contenders["mlmoc, auto, a new network"] = lambda: ask("mlmoc", deepcopy(net))
    contenders[f"gain, {precisions[0]}, 20 greedy"] = lambda: ask("gain", precision=precisions[0])
    for b in budgets:
        contenders[f"mlmoc, {precisions[0]}, in {b}"] = lambda b=b: ask("mlmoc", precision=precisions[0], budget=b)  # type: ignore[misc]
    if rivals:
        x_LU = torch.cat([pool.x_L, x_U])
        contenders["torch.func by 64, Θ alone"] = lambda: per_point_gradients(net, x_LU, 64)
    measured = take_turns(contenders, x_U.device, rounds=rounds, patience=3.0, progress=progress)
    unit = measured[ENTROPY].seconds
    truth = None
    if reference:
        progress("float64")
        truth = ask("mlmoc", deepcopy(net).double(), torch.float64, precision="float32").scores
    rows = [_query_row(pool, name, m, unit, truth) for name, m in measured.items()]
    if rivals:
        rows += [_block_pairs_row(pool, block, unit) for block in BLOCKS]
        progress("naive")
        rows.append(_naive_row(pool, unit))
    return rows


def _query_row(pool: TrainedPool, name: str, m: Measured, unit: float, truth: Tensor | None) -> QueryRow:
    agree, tflops, note = NAN, NAN, m.failed
    if name.startswith(("mlmoc", "gain")) and m.result is not None:
        n = len(pool.x_L) + len(pool.x_U)
        tflops = pool.P * n * (n + 1) / m.seconds / 1e12
        if truth is not None and name.startswith("mlmoc"):
            agree = rank_correlation(m.result.scores, truth)
        if tried := m.result.info.get("precision_measured"):
            values = ", ".join(f"{k} {v:.5f}" for k, v in tried["spearman"].items())
            note = f"took {m.result.info['precision']} ({values or tried['why']})"
    return QueryRow(pool.name, name, m.seconds, m.seconds / unit, m.nbytes, agree, note, tflops)


def _block_pairs_row(pool: TrainedPool, block: int, unit: float) -> QueryRow:
    """Θ in pairs of blocks with recomputed Jacobians. The note states the kernel's difference from ours."""
    x = torch.cat([pool.x_L, pool.x_U])
    name = f"Jacobians recomputed for each pair of blocks of {block}, Θ alone"
    try:
        pairs = time_block_pairs(pool.net, x, block)
    except Exception as e:  # of another library, in another process
        return QueryRow(pool.name, name, NAN, NAN, 0, NAN, f"failed: {str(e).splitlines()[0][:80]}")
    ours = ntk(pool.net, x[:8], x[pairs.block : pairs.block + 8]).cpu()
    error = float((pairs.kernel[:8, :8].double().cpu() - ours).norm() / ours.norm())
    note = f"{pairs.library}, extrapolated from one of {pairs.count} pairs; its Θ is within {error:.0e} of ours"
    return QueryRow(pool.name, name, pairs.seconds, pairs.seconds / unit, 0, NAN, note)


def _naive_row(pool: TrainedPool, unit: float) -> QueryRow:
    few = pool.x_U[:NAIVE_CANDIDATES]
    name, device = "naive: SGD, 15 epochs a candidate", pool.x_U.device
    took = [0.0]

    def run() -> None:
        start = time.perf_counter()
        query(pool.net, pool.x_L, pool.y_L, few, strategy="naive", batch_size=1, options={"lr": NAIVE_LR})
        synchronize(device)
        took[0] = time.perf_counter() - start

    try:
        nbytes, _ = peak_bytes(run, device)
    except torch.OutOfMemoryError:
        return QueryRow(pool.name, name, NAN, NAN, 0, NAN, "out of memory")
    whole = took[0] * len(pool.x_U) / len(few)
    note = f"extrapolated from {len(few)} candidates in {took[0]:.2g} s"
    return QueryRow(pool.name, name, whole, whole / unit, nbytes, NAN, note)


def queries_table(rows: list[QueryRow], ceiling: float) -> Table:
    """For the terminal. ``ceiling``: TFLOP/s that plain products reach on this device."""
    table = Table(title=rows[0].workload, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("", "seconds", "forwards", "peak", "to float64", f"TFLOP/s of {ceiling:.0f}", ""):
        table.add_column(name, justify="left" if not name else "right")
    for r in rows:
        table.add_row(*_query_cells(r))
    return table


def queries_markdown(rows: list[QueryRow]) -> str:
    """One table for each workload."""
    out: list[str] = []
    for workload in dict.fromkeys(r.workload for r in rows):
        out += [f"\n**{workload}**\n", "| | seconds | forward passes | peak memory | Spearman to float64 | TFLOP/s | |"]
        out += ["|---|---|---|---|---|---|---|"]
        out += ["| " + " | ".join(_query_cells(r)) + " |" for r in rows if r.workload == workload]
    return "\n".join(out) + "\n"


def _query_cells(r: QueryRow) -> list[str]:
    if r.seconds != r.seconds:
        return [r.name, "–", "–", "–", "", "", r.note]
    agree = "" if r.spearman != r.spearman else f"{r.spearman:.5f}"
    tflops = "" if r.tflops != r.tflops else f"{r.tflops:.3g}"
    memory = format_bytes(r.nbytes) if r.nbytes else ""
    return [r.name, f"{r.seconds:.3g}", f"{r.forwards:.3g}", memory, agree, tflops, r.note]


def main() -> None:
    """The precisions of one workload, in turns."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queries", description="precisions side by side")
    parser.add_argument("name", nargs="?", default="wrn1", choices=[w.name for w in QUERY_WORKLOADS])
    parser.add_argument("--small", action="store_true", help="tens of points, to try it out")
    asked = parser.parse_args()
    work = next(w for w in QUERY_WORKLOADS if w.name == asked.name)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pool = train_on(work.small() if asked.small else work, device)
    precisions = ("half", "auto", "tf32", "float32")
    rows = compare_queries(
        pool,
        precisions=precisions,
        rivals=False,
        reference=False,
        rounds=7,
        progress=lambda name: print(name, flush=True),
    )
    print(pool.name)
    for row in rows:
        print(f"{row.name:40} {row.seconds:8.4f} s {row.forwards:7.2f} forward passes  {row.note}")


if __name__ == "__main__":
    main()
