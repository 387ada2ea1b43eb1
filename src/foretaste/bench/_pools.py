"""The workloads of a GPU's benchmark: a network, its labelled points and a pool, trained as far as a look needs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretaste.data import load
from foretaste.network import WideResNet, fit, resnet18


@dataclass(frozen=True)
class Pool:
    """A network with its labelled points and a pool, trained on the former."""

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
class Work:
    """What is measured on one network; ``settings`` are those of its training, shorter than a study's."""

    name: str
    title: str
    data: str
    net: Callable[[], nn.Module]
    L: int
    U: int
    classes: int = 10
    settings: dict[str, Any] = field(default_factory=dict)
    precisions: tuple[str, ...] = ("half", "auto")
    budgets: tuple[str, ...] = ()
    reference: bool = False  # the ranking against float64 throughout
    rivals: bool = False  # torch.func, pairs of blocks, naive retraining

    def small(self) -> "Work":
        """A look: tens of points."""
        net = partial(WideResNet, widen=1, channels=3, classes=self.classes)
        return Work(
            self.name, f"{self.title} (small)", self.data, net, 12, 48, self.classes,
            {"steps": 60, "batch_size": 12}, self.precisions, (), self.reference, self.rivals,
        )  # fmt: skip


WORKS = (
    Work(
        "wrn1", "WRN1 of widen 10", "mnist", lambda: WideResNet(layers=1, widen=10), 100, 4000,
        precisions=("half", "auto", "tf32", "float32"), budgets=("16GB",), reference=True, rivals=True,
    ),
    Work(
        "resnet18", "ResNet18", "cifar10", resnet18, 1000, 6000,
        settings={"steps": 900, "batch_size": 64}, budgets=("16GB",),
    ),
    Work(
        "wrn2", "WRN2 of widen 10", "cifar10", lambda: WideResNet(layers=2, widen=10, channels=3), 1000, 6000,
        settings={"steps": 500, "batch_size": 64}, precisions=("half",), budgets=("80GB", "16GB"),
    ),
    Work(
        "resnet18-10000", "ResNet18, L = 10,000", "cifar100", lambda: resnet18(classes=100), 10000, 6000, classes=100,
        settings={"steps": 600, "batch_size": 256}, precisions=("half",), budgets=("16GB",),
    ),
)  # fmt: skip


def trained(name: str, net: nn.Module, x: Tensor, y: Tensor, L: int, U: int, **settings: Any) -> Pool:
    done = fit(net, x[:L], y[:L], start="cold", seed=0, **settings)
    return Pool(name, net, x[:L], y[:L], x[L : L + U], done.residual)


def pool_of(work: Work, device: torch.device) -> Pool:
    """Real images where they are found ($FORETASTE_DATA), else made-up ones, and the title says so."""
    net = work.net().to(device)
    stem = next(m for m in net.modules() if isinstance(m, nn.Conv2d))
    try:
        x, y, what = *real(work.data, work.L + work.U, device), work.data
    except (FileNotFoundError, ValueError):
        x, y, what = *made_up(work, stem.in_channels, device), "made-up images"
    if x.shape[1] != stem.in_channels:
        x = x.expand(-1, stem.in_channels, -1, -1).contiguous()
    made = trained(work.title, net, x, y, work.L, work.U, **work.settings)
    title = f"{work.title}, {what}, L = {work.L}, U = {work.U}, labelled MSE {made.residual:.1e}"
    return Pool(title, net, made.x_L, made.y_L, made.x_U, made.residual)


def real(name: str, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """n images of the pool in random order; ``name`` as the library knows it, or name.npz in the same folder."""
    try:
        data = load(name)
    except (FileNotFoundError, ValueError):
        data = load(f"{name}.npz")
    if len(data.pool) < n:
        raise ValueError(f"{name} has {len(data.pool)} images to query; the workload needs {n}")
    at = torch.as_tensor(data.pool)[torch.randperm(len(data.pool), generator=torch.Generator().manual_seed(0))[:n]]
    x = data.x[at].to(device).float() / 255
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    return (x - mean) / std, data.y[at].to(device)


def made_up(work: Work, channels: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A blurred pattern for each class, and noise: as large as the real ones, and separable."""
    g = torch.Generator().manual_seed(0)
    n, edge = work.L + work.U, 28 if channels == 1 else 32
    y = torch.randint(0, work.classes, (n,), generator=g)
    coarse = torch.randn(work.classes, channels, 7, 7, generator=g)
    pattern = nn.functional.interpolate(coarse, size=(edge, edge), mode="bilinear")
    x = pattern[y] + 0.7 * torch.randn(n, channels, edge, edge, generator=g)
    return x.to(device), y.to(device)
