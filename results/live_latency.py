"""How long an answer takes: ``python results/live_latency.py``: teach one label, then query(1), and other calls.

A pool of 5000 items of 1280 features, in ten clusters that overlap (or rows of ``--features``), and a head trained on
20 of them; without the pool in the kernel, and with it. Times are of one CPU core as the process uses it
(``time.process_time``): other work on the machine does not count.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

import foretaste as ft


def timed(call: Callable[[], object]) -> tuple[object, float]:
    start = time.process_time()
    result = call()
    return result, 1000 * (time.process_time() - start)


def read_points(features: str | None, items: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of an .npz with f and y, or points of ten clusters."""
    if features is not None:
        with np.load(features) as file:
            return torch.from_numpy(file["f"][:items].astype("float32")), torch.from_numpy(file["y"][:items]).long()
    g = torch.Generator().manual_seed(0)
    y = torch.randint(10, (items,), generator=g)
    return torch.randn(items, 1280, generator=g) + 0.08 * torch.randn(10, 1280, generator=g)[y], y


def measure(given: argparse.Namespace, graph: ft.Graph | str | None) -> None:
    """One learner, and a table of its times."""
    (x, y), g = read_points(given.features, given.items), torch.Generator().manual_seed(1)
    learner = ft.Learner(
        pool=x, classes=10, loss=given.loss, strategy=given.strategy, fit_options={"steps": 300}, graph=graph
    )  # fmt: skip
    first = learner.query(20)
    _, start = timed(lambda: learner.teach(first, y[first].tolist()))
    _, training = timed(lambda: learner.retrain(wait=True))
    times: dict[str, list[float]] = {"teach": [], "query(1)": [], "teach + query(1)": [], "status": [], "explain": []}
    [i] = learner.query(1)
    for _ in range(given.labels):
        label = int(y[i]) if torch.rand((), generator=g) > 0.1 else int(torch.randint(10, (), generator=g))
        _, teach = timed(lambda i=i, label=label: learner.teach(i, label))
        (i,), query = timed(lambda: learner.query(1))  # type: ignore[misc]
        _, status = timed(learner.status)
        _, explain = timed(lambda i=i: learner.explain(i))
        for name, ms in zip(times, (teach, query, teach + query, status, explain)):
            times[name].append(ms)
    [last] = [i]
    _, relabel = timed(lambda: (learner.relabel(first[0], 0), learner.release(last), learner.query(1)))
    pool = learner.status()["pool"]
    said = "without the pool" if pool is None else f"with the pool, γ = {pool['gamma']:g}"
    print(f"{len(x)} items, {given.loss}, {said}; first training {start / 1000:.1f} s, next {training / 1000:.1f} s")
    print("| ms | median | 99th percentile |\n|---|---|---|")
    for name, ms in times.items():
        print(f"| {name} | {np.median(ms):.1f} | {np.percentile(ms, 99):.1f} |")
    print(f"| relabel of a label that the network was trained on, query(1) | {relabel:.0f} | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--labels", type=int, default=100)
    parser.add_argument("--loss", default="l2")
    parser.add_argument("--strategy", default=None)
    parser.add_argument("--features", help="an .npz with f (N, D) and y")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for graph in (None, "auto"):
        measure(given, graph)


if __name__ == "__main__":
    main()
