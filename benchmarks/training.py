"""What a training costs, launched step by step and as a CUDA graph.

``python -m benchmarks.training cuda mnist.npz``: the file has x (N, 28, 28), in bytes, and y (N,). Without a file,
scikit-learn's digits are used, enlarged. Both ways start from the same weights and see the same batches. Seconds are
those of the whole ``fit``, with capture and measurement.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Progress, no_progress, synchronize
from foretaste.network import WideResNet, fit, resnet18

TEST_POINTS = 4000


@dataclass(frozen=True)
class TrainingWorkload:
    """A network, the number of labelled points, and the arguments of ``fit``."""

    name: str
    make: Callable[[], nn.Module]
    labelled: int
    batch_size: int = 32
    steps: int = 1200
    max_lr: float = 0.5
    seeds: int = 3


@dataclass(frozen=True)
class TrainingRow:
    """One way to train. Seconds are the least of all seeds; residuals and accuracies have one number for each seed."""

    workload: str
    fast: str
    seconds: float
    ms_a_step: float
    residuals: list[float]
    accuracies: list[float]


TRAINING_WORKLOADS = [
    TrainingWorkload("WRN1, widen 4, L = 100, batch 32", lambda: WideResNet(1, widen=4), 100),
    TrainingWorkload("WRN1, widen 4, L = 280, batch 32", lambda: WideResNet(1, widen=4), 280),
    TrainingWorkload("WRN1, widen 4, L = 280, 320 epochs", lambda: WideResNet(1, widen=4), 280, steps=2800, seeds=2),
    TrainingWorkload("WRN1, widen 10, L = 100, batch 32", lambda: WideResNet(1, widen=10), 100),
    TrainingWorkload("ResNet18, L = 500, batch 128", lambda: resnet18(1), 500, 128, 400, 0.1),
]


def training_images(path: str | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images of 28 × 28 pixels and their classes, in an order that is always the same."""
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


def compare_trainings(w: TrainingWorkload, x: Tensor, y: Tensor, ways: tuple[str, ...]) -> list[TrainingRow]:
    """Each way in turn. A seed also chooses the labelled points. The first turn warms up and does not count."""
    device = x.device
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    test = min(TEST_POINTS, len(x) // 2)
    x_T, y_T = x[-test:], y[-test:]
    for turn in range(-1, w.seeds):
        seed = max(turn, 0)
        at = torch.randperm(len(x) - test, generator=torch.Generator().manual_seed(seed))[: w.labelled].to(device)
        for way in ways:
            net = w.make().to(device)
            steps = w.steps if turn >= 0 else min(w.steps, 100)
            options = {"steps": steps, "batch_size": w.batch_size, "max_lr": w.max_lr}
            done = fit(net, x[at], y[at], start="cold", seed=seed, fast=way, **options)  # type: ignore[arg-type]
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


def training_markdown(rows: Sequence[TrainingRow]) -> str:
    """Ratios and differences of accuracy are relative to the first way of each workload, seed by seed."""
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


def time_trainings(x: Tensor, y: Tensor, quick: bool = False, progress: Progress = no_progress) -> list[TrainingRow]:
    """All of TRAINING_WORKLOADS; quick: a few steps of the first, with a smaller network and fewer images."""
    rows: list[TrainingRow] = []
    workloads = TRAINING_WORKLOADS
    if quick:
        small = replace(workloads[0], make=lambda: WideResNet(1, widen=1), labelled=20, steps=4, seeds=2)
        workloads, x, y = [small], x[:200], y[:200]
    for w in workloads:
        progress(w.name)
        rows += compare_trainings(w, x, y, ("off", "auto") if x.is_cuda else ("off",))
    return rows


if __name__ == "__main__":
    arguments = [*sys.argv[1:], None, None]
    images = training_images(arguments[1], torch.device(arguments[0] or "cpu"))
    print(training_markdown(time_trainings(*images, progress=lambda name: print(name, file=sys.stderr))))
