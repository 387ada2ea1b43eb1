"""ft.ntk beside torch.func's per-point gradients and one forward, on the same network and points."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from foretaste.bench._measure import Measured, turns
from foretaste.errors import format_bytes
from foretaste.network import MLP, WideResNet
from foretaste.tangent import ntk


@dataclass(frozen=True)
class Workload:
    name: str
    net: nn.Module
    x: Tensor


@dataclass(frozen=True)
class Row:
    workload: str
    name: str
    seconds: float
    forwards: float  # in forward passes over the same points
    speedup: float  # over torch.func
    nbytes: int
    memory: float  # of torch.func's
    error: float  # relative, to torch.func in float64 on a few points
    failed: str = ""


def workloads(device: torch.device, quick: bool = False) -> list[Workload]:
    """An MLP (784-512-512-10), and the paper's WRN1 (L = 50, U = 300), at widen 4 on a CPU."""
    g = torch.Generator().manual_seed(0)
    widen = 4 if device.type == "cpu" else 10
    shrink = 8 if quick else 1
    nets = {
        f"MLP, {800 // shrink} points": (MLP(784, (512, 512), 10), (800 // shrink, 784)),
        f"WRN1 ×{widen}, {350 // shrink} points": (WideResNet(layers=1, widen=widen), (350 // shrink, 1, 28, 28)),
    }
    return [Workload(k, net.to(device).eval(), torch.rand(s, generator=g).to(device)) for k, (net, s) in nets.items()]


def per_point_gradients(net: nn.Module, x: Tensor, chunk_size: int | None = None) -> Tensor:
    """The usual way: vmap(grad) of the sum of logits, all gradients side by side, one product."""
    params = {k: p.detach() for k, p in net.named_parameters()}
    buffers = dict(net.named_buffers())

    def head(params: dict[str, Tensor], one: Tensor) -> Tensor:
        f_C = functional_call(net, {**params, **buffers}, (one[None],))[0]
        return f_C.sum() / len(f_C) ** 0.5

    rows = vmap(grad(head), in_dims=(None, 0), chunk_size=chunk_size)(params, x)
    flat = torch.cat([r.flatten(1) for r in rows.values()], 1)
    del rows
    return flat @ flat.T


def forward(net: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return net(x)


def compare(work: Workload, *, quick: bool = False, said: Callable[[str], None] = lambda name: None) -> list[Row]:
    net, x = work.net, work.x
    reference = "torch.func"
    least = turns({reference: lambda: per_point_gradients(net, x)}, x.device, rounds=1, said=said)[reference]
    budget = least.nbytes // 5 if least.nbytes else None
    measured = turns(
        {
            "one forward": lambda: forward(net, x),
            reference: lambda: per_point_gradients(net, x),
            "torch.func by 32": lambda: per_point_gradients(net, x, 32),
            "ft.ntk": lambda: ntk(net, x),
            f"ft.ntk in {format_bytes(budget) if budget else 0}": lambda: ntk(net, x, budget=budget),
        },
        x.device,
        rounds=1 if quick else 3,
        said=said,
    )
    few = min(len(x), 40)
    wide = net.double()
    truth = per_point_gradients(wide, x[:few].double())
    net.float()
    return [row(work.name, k, m, measured["one forward"], measured[reference], truth) for k, m in measured.items()]


def row(workload: str, name: str, m: Measured, one: Measured, func: Measured, truth: Tensor) -> Row:
    error = float("nan")
    if isinstance(m.result, Tensor) and m is not one:
        few = len(truth)
        error = float((m.result[:few, :few].double() - truth).norm() / truth.norm())
    return Row(
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
