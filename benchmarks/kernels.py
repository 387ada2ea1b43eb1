"""ft.ntk beside torch.func and one forward pass on the same points; and whether float32 keeps the ranking."""

from copy import deepcopy
from dataclasses import dataclass

import torch
from rich import box
from rich.table import Table
from torch import Tensor, nn

from benchmarks.measure import Measured, Progress, no_progress, take_turns
from benchmarks.rivals import forward_pass, per_point_gradients
from foretaste.acquire import gain, mlmoc
from foretaste.data import digits
from foretaste.errors import format_bytes
from foretaste.lookahead import linearize
from foretaste.network import MLP, WideResNet, fit, prepare
from foretaste.tangent import ntk, rank_correlation

FORWARD, FUNC = "one forward", "torch.func"


@dataclass(frozen=True)
class KernelWorkload:
    """A network and the points whose kernel is computed."""

    name: str
    net: nn.Module
    x: Tensor


@dataclass(frozen=True)
class KernelRow:
    """One contender on one workload."""

    workload: str
    name: str
    seconds: float
    forwards: float  # seconds in units of one forward pass over the same points
    speedup: float  # over torch.func
    nbytes: int
    memory: float  # as a fraction of torch.func's
    error: float  # relative, to torch.func in float64 on a few points
    failed: str = ""


def kernel_workloads(device: torch.device, quick: bool = False) -> list[KernelWorkload]:
    """An MLP (784-512-512-10), and the paper's WRN1 with L = 50 and U = 300. Smaller on a CPU and if quick."""
    g = torch.Generator().manual_seed(0)
    widen = 1 if quick else 4 if device.type == "cpu" else 10
    flat, images = (40, 43) if quick else (800, 350)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        nets = {
            f"MLP, {flat} points": (MLP(784, (512, 512), 10), (flat, 784)),
            f"WRN1 ×{widen}, {images} points": (WideResNet(layers=1, widen=widen), (images, 1, 28, 28)),
        }
    return [
        KernelWorkload(name, net.to(device).eval(), torch.rand(shape, generator=g).to(device))
        for name, (net, shape) in nets.items()
    ]


def compare_kernels(work: KernelWorkload, *, quick: bool = False, progress: Progress = no_progress) -> list[KernelRow]:
    """One forward pass, torch.func and ft.ntk in turns; ft.ntk also in a fifth of torch.func's memory."""
    net, x = work.net, work.x
    first = take_turns({FUNC: lambda: per_point_gradients(net, x)}, x.device, rounds=1, progress=progress)[FUNC]
    budget = first.nbytes // 5 if first.nbytes else None
    measured = take_turns(
        {
            FORWARD: lambda: forward_pass(net, x),
            FUNC: lambda: per_point_gradients(net, x),
            "torch.func by 32": lambda: per_point_gradients(net, x, 32),
            "ft.ntk": lambda: ntk(net, x),
            f"ft.ntk in {format_bytes(budget) if budget else 0}": lambda: ntk(net, x, budget=budget),
        },
        x.device,
        rounds=1 if quick else 3,
        progress=progress,
    )
    few = min(len(x), 40)
    truth = per_point_gradients(net.double(), x[:few].double())
    net.float()
    return [_kernel_row(work.name, name, m, measured[FORWARD], measured[FUNC], truth) for name, m in measured.items()]


def _kernel_row(workload: str, name: str, m: Measured, one: Measured, func: Measured, truth: Tensor) -> KernelRow:
    error = float("nan")
    if isinstance(m.result, Tensor) and m is not one:
        few = len(truth)
        error = float((m.result[:few, :few].double() - truth).norm() / truth.norm())
    return KernelRow(
        workload,
        name,
        m.seconds,
        m.seconds / one.seconds,
        func.seconds / m.seconds,
        m.nbytes,
        m.nbytes / func.nbytes if func.nbytes else float("nan"),
        error,
        m.failed,
    )


@dataclass(frozen=True)
class RankingRow:
    """How well scores from float32 passes agree with scores from float64 passes."""

    network: str
    residual: float  # mean squared error on the labelled points
    mlmoc: float  # Spearman correlation of the scores
    gain: float
    shared: int  # how many of the first twenty points by mlmoc are the same


def compare_rankings(device: torch.device, quick: bool = False) -> list[RankingRow]:
    """Rank in float32 and in float64. Networks are trained on scikit-learn's digits: L = 100, U = 400.

    The error of a kernel does not show this: S subtracts nearly equal numbers.
    """
    data = digits()
    x = prepare(data.x.to(device), torch.float32, data.normalise)
    y = torch.as_tensor(data.y, device=device)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    L, U = order[:100], order[100 : 200 if quick else 500]
    nets: dict[str, tuple[nn.Module, Tensor]] = {
        "MLP 64-256-256-10": (MLP(64, (256, 256), 10), x.reshape(len(x), -1)),
        "WRN1 widen 1": (WideResNet(layers=1, widen=1), x.reshape(len(x), 1, 8, 8)),
    }
    rows = []
    for name, (net, points) in nets.items():
        net = net.to(device)
        trained = fit(net, points[L], y[L], steps=400 if quick else 1200, start="cold", seed=0)
        scores = []
        for copy, dtype in ((net, torch.float32), (deepcopy(net).double(), torch.float64)):
            state = linearize(copy, points[L].to(dtype), y[L], points[U].to(dtype))
            scores.append((mlmoc(state), gain(state)))
        (m32, g32), (m64, g64) = scores
        top = [set(s.argsort(descending=True)[:20].tolist()) for s in (m32, m64)]
        agreement = rank_correlation(m32, m64), rank_correlation(g32, g64)
        rows.append(RankingRow(name, trained.residual, *agreement, len(top[0] & top[1])))
    return rows


def kernel_table(rows: list[KernelRow], device: str) -> Table:
    """For the terminal."""
    table = Table(
        title=f"One tangent kernel, on {device}",
        caption="forwards: time in forward passes; × func, of func's: speed and peak memory beside torch.func",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in ("", "seconds", "forwards", "× func", "peak", "of func's", "error"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    last = None
    for r in rows:
        if r.workload != last:
            table.add_section()
            table.add_row(f"[bold]{r.workload}")
            last = r.workload
        if r.failed:
            table.add_row(r.name, r.failed)
            continue
        table.add_row(
            r.name, f"{r.seconds:.3f}", f"{r.forwards:.1f}", f"{r.speedup:.1f}×", format_bytes(r.nbytes),
            f"{r.memory:.3f}",
            "" if r.error != r.error else f"{r.error:.0e}",
        )  # fmt: skip
    return table


def ranking_table(rows: list[RankingRow]) -> Table:
    """For the terminal."""
    table = Table(
        title="Ranking from float32 against float64, trained on digits (Spearman)",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for name in ("", "labelled MSE", "mlmoc", "gain", "top 20 shared"):
        table.add_column(name, justify="left" if not name else "right")
    for r in rows:
        table.add_row(r.network, f"{r.residual:.1e}", f"{r.mlmoc:.5f}", f"{r.gain:.5f}", str(r.shared))
    return table
