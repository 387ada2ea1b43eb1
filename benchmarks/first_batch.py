"""What a first batch is worth, chosen with no label at all: accuracy of a network trained on it, beside random points.

``python -m benchmarks.first_batch [FEATURES.npz TEST.npz]``: scikit-learn's digits, and features, arrays f and y (pool)
and ft and yt (test).
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.data import digits
from foretaste.network import MLP, fit, prepare
from foretaste.pick import query

# arguments of a query, by the name of a row
FIRST_BATCHES: Mapping[str, dict[str, Any]] = {
    "random": {"strategy": "random"},
    "the default": {},
    "gain": {"strategy": "gain", "select": "greedy"},
    "variance": {"strategy": "variance"},
    "kmeans": {"strategy": "kmeans"},
    "typiclust": {"strategy": "typiclust"},
    "maxherding": {"strategy": "maxherding"},
    "maxherding, tangent": {"strategy": "maxherding", "options": {"space": "tangent"}},
    "probcover": {"strategy": "probcover"},
    "coreset": {"strategy": "coreset", "options": {"space": "inputs"}},
}


@dataclass(frozen=True)
class FirstBatchProblem:
    """A pool and a test set of vectors, and the hidden layers of the network."""

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    hidden: tuple[int, ...]
    subset: int


@dataclass(frozen=True)
class FirstBatchRow:
    """Accuracies of one way to choose, one for each seed, and how many classes its batches had on average."""

    problem: str
    name: str
    labels: int
    accuracies: tuple[float, ...]
    classes: float


def digits_problem() -> FirstBatchProblem:
    """1,000 digits to choose from, and 797 to test."""
    data = digits()
    x = prepare(data.x, normalise=data.normalise).flatten(1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    pool, test = order[:1000], order[1000:]
    return FirstBatchProblem("digits", x[pool], data.y[pool], x[test], data.y[test], (256, 256), 1000)


def feature_problem(pool: str, test: str, name: str = "features") -> FirstBatchProblem:
    """Features of a backbone, standardised already, divided by √D. A random 2,000 of the pool are offered."""
    a, b = np.load(pool), np.load(test)
    y, y_test = (a if "y" in a else b)["y"], (b if "yt" in b else a)["yt"]
    scale = a["f"].shape[1] ** 0.5
    x, x_test = (torch.from_numpy(v.astype(np.float32)) / scale for v in (a["f"], b["ft"]))
    return FirstBatchProblem(
        name, x, torch.from_numpy(y).long(), x_test, torch.from_numpy(y_test).long(), (512,), 2000
    )  # fmt: skip


def measure_first_batches(
    problem: FirstBatchProblem,
    sizes: Sequence[int],
    *,
    names: Sequence[str] = tuple(FIRST_BATCHES),
    seeds: Sequence[int] = range(6),
    steps: int = 1200,
) -> list[FirstBatchRow]:
    """For each seed: the same random part of the pool and the same untrained network for every way to choose."""
    C = int(problem.y.max()) + 1
    accuracies: dict[tuple[str, int], list[float]] = {}
    seen: dict[tuple[str, int], list[int]] = {}
    for seed in seeds:
        offered = torch.randperm(len(problem.x), generator=torch.Generator().manual_seed(seed))[: problem.subset]
        x_U, y_U = problem.x[offered], problem.y[offered]
        for size in sizes:
            for name in names:
                with torch.random.fork_rng([]):
                    torch.manual_seed(seed)
                    net = MLP(x_U.shape[1], problem.hidden, C).eval()
                picked = query(net, None, None, x_U, batch_size=size, seed=seed, **FIRST_BATCHES[name]).indices
                fit(net, x_U[picked], y_U[picked], steps=steps, start="cold", seed=seed)
                with torch.no_grad():
                    right = net.eval()(problem.x_test).argmax(1) == problem.y_test
                accuracies.setdefault((name, size), []).append(float(right.double().mean()))
                seen.setdefault((name, size), []).append(len(y_U[picked].unique()))
                print(problem.name, seed, size, name, accuracies[name, size][-1], file=sys.stderr, flush=True)
    return [
        FirstBatchRow(problem.name, name, size, tuple(values), sum(seen[name, size]) / len(values))
        for (name, size), values in accuracies.items()
    ]


def first_batch_markdown(rows: Sequence[FirstBatchRow]) -> str:
    """Mean accuracy, and the difference to random points with its 95 % interval, paired by seed."""
    lines = ["| problem | labels | first batch | accuracy | − random | classes |", "|---|---|---|---|---|---|"]
    for row in rows:
        base = next(r for r in rows if (r.problem, r.labels, r.name) == (row.problem, row.labels, "random"))
        d = np.array(row.accuracies) - np.array(base.accuracies)
        half = STUDENT_95.get(len(d), 1.96) * d.std(ddof=1) / len(d) ** 0.5 if len(d) > 1 else float("nan")
        difference = "" if row is base else f"{100 * d.mean():+.1f} ± {100 * half:.1f}"
        mean = 100 * float(np.mean(row.accuracies))
        lines.append(f"| {row.problem} | {row.labels} | {row.name} | {mean:.1f} | {difference} | {row.classes:.1f} |")
    return "\n".join(lines)


STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}  # by the number of seeds


if __name__ == "__main__":
    found = measure_first_batches(digits_problem(), (10, 20))
    if len(sys.argv) == 3:
        found += measure_first_batches(feature_problem(sys.argv[1], sys.argv[2], "CIFAR10 features"), (20, 40))
    print(first_batch_markdown(found))
