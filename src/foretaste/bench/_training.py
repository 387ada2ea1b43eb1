"""What a training costs, launched step by step and as a CUDA graph.

``python -m foretaste.bench._training cuda mnist.npz``: the file has x (N, 28, 28) bytes and y (N,); without one,
scikit-learn's digits are drawn larger. Both ways start from the same weights and see the same batches; seconds are of
the whole of ``fit``, capture and measurement included.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretaste.bench._measure import synchronize
from foretaste.network import WideResNet, fit, resnet18

TEST = 4000


@dataclass(frozen=True)
class Workload:
    name: str
    make: Callable[[], nn.Module]
    labelled: int
    batch_size: int = 32
    steps: int = 1200
    max_lr: float = 0.5
    seeds: int = 3


@dataclass(frozen=True)
class TrainingRow:
    """Of one way to train; seconds are the least of all seeds, the others one for each."""

    workload: str
    fast: str
    seconds: float
    ms_a_step: float
    residuals: list[float]
    accuracies: list[float]


WORKLOADS = [
    Workload("WRN1, widen 4, L = 100, batch 32", lambda: WideResNet(1, widen=4), 100),
    Workload("WRN1, widen 4, L = 280, batch 32", lambda: WideResNet(1, widen=4), 280),
    Workload("WRN1, widen 4, L = 280, 320 epochs", lambda: WideResNet(1, widen=4), 280, steps=2800, seeds=2),
    Workload("WRN1, widen 10, L = 100, batch 32", lambda: WideResNet(1, widen=10), 100),
    Workload("ResNet18, L = 500, batch 128", lambda: resnet18(1), 500, 128, 400, 0.1),
]


def images(path: str | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mixed once, the same way every time."""
    if path is None:
        from sklearn.datasets import load_digits

        pixels, y_N = load_digits(return_X_y=True)
        x = F.interpolate(torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, (28, 28))
    else:
        with np.load(Path(path)) as file:
            pixels, y_N = file["x"], file["y"]
        x = torch.tensor(pixels).view(-1, 1, 28, 28).float() / 255
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order].to(device), torch.tensor(y_N).long()[order].to(device)


def compare(w: Workload, x: Tensor, y: Tensor, ways: tuple[str, ...]) -> list[TrainingRow]:
    """Each way in turn, on seeds that choose the labelled points as well; a first turn warms up and does not count."""
    device = x.device
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    test = min(TEST, len(x) // 2)
    x_T, y_T = x[-test:], y[-test:]
    for turn in range(-1, w.seeds):
        seed = max(turn, 0)
        at = torch.randperm(len(x) - test, generator=torch.Generator().manual_seed(seed))[: w.labelled].to(device)
        for way in ways:
            net = w.make().to(device)
            steps = w.steps if turn >= 0 else min(w.steps, 100)
            how = {"steps": steps, "batch_size": w.batch_size, "max_lr": w.max_lr}
            done = fit(net, x[at], y[at], start="cold", seed=seed, fast=way, **how)  # type: ignore[arg-type]
            synchronize(device)
            with torch.no_grad():
                right = torch.cat([net(part).argmax(1) for part in x_T.split(500)]) == y_T
            if turn >= 0:
                found[way].append((done.seconds, done.residual, float(right.double().mean())))
    rows = []
    for way, results in found.items():
        seconds, residuals, accuracies = (list(column) for column in zip(*results))
        rows.append(TrainingRow(w.name, way, min(seconds), 1e3 * min(seconds) / w.steps, residuals, accuracies))
    return rows


def markdown(rows: list[TrainingRow]) -> str:
    """Ratios and differences of accuracy are to the first way of each workload, seed by seed."""
    out = ["| workload | way | s | ms a step | ratio | residual, mean (most) | test accuracy, % | difference |"]
    out.append("|---|---|---|---|---|---|---|---|")
    first: dict[str, TrainingRow] = {}
    for r in rows:
        base = first.setdefault(r.workload, r)
        hits = 100 * torch.tensor(r.accuracies, dtype=torch.float64)
        apart = hits - 100 * torch.tensor(base.accuracies, dtype=torch.float64)
        error = float(apart.std()) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
        gap = "" if r is base else f"{float(apart.mean()):+.2f} ± {error:.2f}"
        residual = f"{sum(r.residuals) / len(r.residuals):.1e} ({max(r.residuals):.1e})"
        out.append(
            f"| {r.workload} | {r.fast} | {r.seconds:.2f} | {r.ms_a_step:.2f} | {base.seconds / r.seconds:.1f} "
            f"| {residual} | {float(hits.mean()):.1f} | {gap} |"
        )
    return "\n".join(out)


def standard(
    x: Tensor, y: Tensor, quick: bool = False, said: Callable[[str], None] = lambda name: None
) -> list[TrainingRow]:
    """All of WORKLOADS; quick: a few steps of the first."""
    rows: list[TrainingRow] = []
    for w in [replace(WORKLOADS[0], labelled=20, steps=4, seeds=2)] if quick else WORKLOADS:
        said(w.name)
        rows += compare(w, x, y, ("off", "auto") if x.is_cuda else ("off",))
    return rows


def main(arguments: list[str]) -> None:
    device = torch.device(arguments[0] if arguments else "cpu")
    x, y = images(arguments[1] if len(arguments) > 1 else None, device)
    print(markdown(standard(x, y, said=lambda name: print(name, file=sys.stderr))))


if __name__ == "__main__":
    main(sys.argv[1:])
