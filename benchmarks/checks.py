"""What the checks of the rules cost: queries with them and without, in turns.

``python -m benchmarks.checks [cpu | cuda]``. Untrained networks and random images: neither changes the work. Rules that
were given up are told.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.measure import synchronize
from foretaste import tangent
from foretaste.network import MLP, WideResNet, resnet18
from foretaste.pick import query

Row = tuple[str, Callable[[], nn.Module], tuple[int, ...], int, int, str]
CPU_ROWS: tuple[Row, ...] = (
    ("MLP 784-512-512-10", lambda: MLP(784, (512, 512), 10), (784,), 100, 700, "float32"),
    ("WRN1 of widen 4", lambda: WideResNet(layers=1, widen=4), (1, 28, 28), 50, 300, "float32"),
    ("ResNet18", lambda: resnet18(), (3, 32, 32), 20, 40, "float32"),
)
CUDA_ROWS: tuple[Row, ...] = (
    ("MLP 784-512-512-10", lambda: MLP(784, (512, 512), 10), (784,), 100, 2000, "float32"),
    ("WRN1 of widen 10", lambda: WideResNet(layers=1, widen=10), (1, 28, 28), 100, 400, "half"),
    ("WRN1 of widen 10", lambda: WideResNet(layers=1, widen=10), (1, 28, 28), 100, 4000, "half"),
    ("WRN1 of widen 10", lambda: WideResNet(layers=1, widen=10), (1, 28, 28), 100, 4000, "auto"),
    ("ResNet18", lambda: resnet18(), (3, 32, 32), 1000, 6000, "half"),
)


@dataclass(frozen=True)
class CheckRow:
    """Seconds of one query, medians."""

    name: str
    checked: float
    unchecked: float


def time_checks(rows: tuple[Row, ...], device: str, rounds: int = 7) -> Iterator[CheckRow]:
    for name, make, shape, L, U, precision in rows:
        torch.manual_seed(0)
        net, x = make().eval().to(device), torch.randn(L + U, *shape, device=device)
        y = torch.arange(L, device=device) % 10

        def ask(net: nn.Module = net, x: Any = x, y: Any = y, L: int = L, precision: str = precision) -> None:
            query(net, x[:L], y, x[L:], strategy="mlmoc", batch_size=20, precision=precision)

        took: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(rounds + 1):
            for checked in took:
                with checks(checked):
                    start = time.perf_counter()
                    ask()
                    synchronize(torch.device(device))
                if turn:  # the first warms up
                    took[checked].append(time.perf_counter() - start)
        yield CheckRow(f"{name}, L = {L}, U = {U}, {precision}", median(took[True]), median(took[False]))


@contextmanager
def checks(wanted: bool) -> Iterator[None]:
    """Inside, kernels are computed with their checks or without."""
    layer_pass: Any = tangent.kernel.LayerPass
    add = layer_pass.add
    if not wanted:
        layer_pass.add = lambda self, at, x, draw, told: add(self, at, x, (0, 0), told)
    try:
        yield
    finally:
        layer_pass.add = add


if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger().handlers[0].addFilter(lambda record: "no rule" in record.getMessage())
    logging.getLogger("foretaste").setLevel(logging.INFO)
    print("| | with checks, ms | without | ratio |\n|---|---|---|---|")
    for row in time_checks(CUDA_ROWS if device.startswith("cuda") else CPU_ROWS, device):
        ratio = row.checked / row.unchecked
        print(f"| {row.name} | {1000 * row.checked:.0f} | {1000 * row.unchecked:.0f} | {ratio:.2f} |", flush=True)
