"""Is a batch by an approximate method as good as a dense one? The loop on BANKING77 and CIFAR10 features.

    FORETASTE_DATA=... python results/findings/scale/loop.py [--seeds 0 10] [--only large] [--data cifar10]
                                                             [--device cuda --processes 12 --seconds 400]

writes a line for each case, seed and arm to loop.jsonl beside this file, skips what is there, and prints the table: the
accuracy after each batch, and the paired difference to dense. Networks are trained from new weights after each batch,
by ``ft.fit``. All arms of a seed have the same pool, the same first labels and the same first network.

A case is a data set and a size; an arm is a method, forced at that size where a query would not choose it:

- usual: batches of 77 and 60. Sketches and many labels are forced; the latter have a landmark for five labels, as 5,000
  labels have 1,024.
- large: batches of 600, in parts of 4,096 points, which a CPU takes, or of 1,024.
- many: 4,500 labels at first.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import foretaste as ft
from foretaste.data import load
from foretaste.network import MLP

RECORDS = Path(__file__).with_name("loop.jsonl")
HIDDEN, BATCH = 256, 64  # units, points a step
LEAST_SEEDS = 3  # of an arm in the table
GPU_SHARE = 0.4  # of a GPU's memory, for all processes together
NAMES = {"banking77": "BANKING77", "cifar10": "CIFAR10 features", "mnist": "MNIST"}
TOLD = ("sketch_recall", "landmarks", "labels", "parts", "precision", "space")  # of q.info
streamed, parts = (import_module(f"foretaste.pick.{name}") for name in ("streamed", "parts"))


@dataclass(frozen=True)
class Case:
    """first: labels at first. per: labels a batch. pool: points, a random part where there are more."""

    first: int
    per: int
    max_lr: float
    steps: int
    pool: int = 5000
    batches: int = 3


@dataclass(frozen=True)
class Arm:
    """ask: settings of ``ft.query``. forced: names of pick/streamed.py, with values or functions of L."""

    ask: dict[str, Any]
    forced: dict[str, int | float | Callable[[int], int]] = field(default_factory=dict)
    part: int | None = None

    def query(self, *sets: Any, **more: Any) -> ft.Query:
        forced = {k: v(len(sets[1])) if callable(v) else v for k, v in self.forced.items()}
        part = {} if self.part is None else dict.fromkeys(parts.PART_POINTS, self.part)
        with patch.dict(vars(streamed), forced), patch.dict(parts.PART_POINTS, part):
            return ft.query(*sets, **self.ask, **more)


CASES = {
    "usual": {"banking77": Case(154, 77, 20.0, 1000), "cifar10": Case(60, 60, 0.5, 300)},
    "large": {"banking77": Case(154, 600, 20.0, 1000, pool=9500), "cifar10": Case(60, 600, 1.0, 1000)},
    "many": {"banking77": Case(4500, 150, 20.0, 1000, pool=9500)},
}
DENSE, SAMPLED = {"method": "dense", "precision": "float32"}, {"method": "streamed", "watch": 2048}
ARMS: dict[str, dict[str, Arm]] = {
    "usual": {
        "dense": Arm(DENSE),
        "streamed, W = 1024": Arm(SAMPLED | {"watch": 1024}),
        "streamed, W = 2048": Arm(SAMPLED),
        "sketches": Arm(SAMPLED, {"SKETCHED": 0, "ENOUGH_RECALL": 0.0}),
        "sketches and landmarks": Arm(SAMPLED, {"SKETCHED": 0, "ENOUGH_RECALL": 2.0}),
        "many labels": Arm(SAMPLED, {"LARGE_L": 0, "LANDMARKS": lambda L: L // 5}),
        **{f"dense, {p}": Arm(DENSE | {"precision": p}) for p in ("tf32", "half")},
    },
    "large": {
        "dense": Arm(DENSE),
        "parts of 4096": Arm(SAMPLED, part=4096),
        "parts of 1024": Arm(SAMPLED, part=1024),
    },
    "many": {
        "dense": Arm(DENSE),
        "streamed, W = 2048": Arm(SAMPLED, {"LARGE_L": 10**9}),
        "many labels": Arm(SAMPLED),
    },
}


@cache
def read(name: str, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    folder = Path(os.environ["FORETASTE_DATA"])
    if name == "banking77":
        z = np.load(folder / "text" / "banking77.npz")
        given = z["x_train"], z["y_train"], z["x_test"], z["y_test"]
    elif name == "mnist":
        have = load(name)
        pixels = have.x.flatten(1).float().numpy() / 255 / 9.2  # rows of about unit length
        given = pixels[have.pool], have.y[have.pool].numpy(), pixels[have.test], have.y[have.test].numpy()
    else:
        a, b = (np.load(folder / "features" / f"{name}_{part}.npz") for part in ("f16", "ft16"))
        z = {**a, **b}
        given = z["f"].astype("f4") / 36, z["y"], z["ft"].astype("f4") / 36, z["yt"]
    x, y, x_test, y_test = given
    return (
        torch.from_numpy(x.astype("f4")).to(device), torch.from_numpy(y.astype("i8")).to(device),
        torch.from_numpy(x_test.astype("f4")).to(device), torch.from_numpy(y_test.astype("i8")).to(device),
    )  # fmt: skip


def train(case: Case, x_L: torch.Tensor, y_L: torch.Tensor, C: int, seed: int, cycle: int = 0) -> torch.nn.Module:
    torch.manual_seed(100 * seed + cycle)
    net = MLP(x_L.shape[1], (HIDDEN,), C).to(x_L.device)
    ft.fit(net, x_L, y_L, steps=case.steps, batch_size=BATCH, max_lr=case.max_lr, seed=seed)
    return net


def loop(size: str, name: str, arm: str, seed: int, device: str = "cpu") -> dict[str, Any]:
    """A line of the records: accuracy in percent after each batch, and what each query told."""
    case, start = CASES[size][name], time.perf_counter()
    x, y, x_test, y_test = read(name, device)
    pool = np.random.default_rng(seed).permutation(len(x))[: case.pool].tolist()
    labelled, accuracy, told = [pool.pop() for _ in range(case.first)], list[float](), list[dict[str, Any]]()
    for cycle in range(case.batches + 1):
        net = train(case, x[labelled], y[labelled], int(y.max()) + 1, seed, cycle)
        with torch.no_grad():
            accuracy.append(100 * float((net(x_test).argmax(1) == y_test).double().mean()))
        if cycle < case.batches:
            sets = net, x[labelled], y[labelled], x[pool]
            q = ARMS[size][arm].query(*sets, batch_size=case.per, seed=seed)
            told.append({k: q.info[k] for k in TOLD if k in q.info})
            picked = {pool[j] for j in q.indices}
            labelled += sorted(picked)
            pool = [j for j in pool if j not in picked]
    row = {"size": size, "data": name, "arm": arm, "seed": seed, "accuracy": accuracy[1:], "told": told}
    return row | {"device": device, "seconds": round(time.perf_counter() - start, 1)}


def prepare(device: str, processes: int) -> None:
    """One thread for a process, and its share of the GPU."""
    torch.set_num_threads(1)
    if device.startswith("cuda"):
        torch.cuda.set_per_process_memory_fraction(GPU_SHARE / processes)


def gaps(rows: list[dict[str, Any]], size: str, name: str) -> dict[str, tuple[list[float], list[float]]]:
    """Of each arm, by seed: the mean accuracy after the batches, and that less dense's."""
    means = {
        (r["arm"], r["seed"]): float(np.mean(r["accuracy"])) for r in rows if (r["size"], r["data"]) == (size, name)
    }
    found = {}
    for arm in ARMS[size]:
        seeds = sorted(s for a, s in means if a == arm and ("dense", s) in means)
        found[arm] = [means[arm, s] for s in seeds], [means[arm, s] - means["dense", s] for s in seeds]
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Mean accuracy over batches and seeds, and the paired difference to dense with its standard error.

    Arms of fewer than LEAST_SEEDS seeds are left out.
    """
    out = ["| data | labels | arm | accuracy | less dense | seeds |", "|---|---|---|---|---|---|"]
    for size, cases in CASES.items():
        for name, case in cases.items():
            labels = f"{case.first} + {case.batches} × {case.per}"
            for arm, (means, apart) in gaps(rows, size, name).items():
                if (n := len(apart)) >= LEAST_SEEDS:
                    error = float(np.std(apart, ddof=1)) / math.sqrt(n)
                    less = "" if arm == "dense" else f"{np.mean(apart):+.2f} ± {error:.2f}".replace("-", "−")
                    out.append(f"| {NAMES[name]} | {labels} | {arm} | {np.mean(means):.2f} | {less} | {n} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 10), help="the first, and the one after the last")
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--data", nargs="+", default=list(NAMES), choices=list(NAMES))
    parser.add_argument("--arms", nargs="+", help="all, unless told")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after these")
    parser.add_argument("--records", type=Path, default=RECORDS)
    asked = parser.parse_args()
    start = time.perf_counter()
    rows = [json.loads(line) for line in asked.records.read_text().splitlines()] if asked.records.exists() else []
    done = {(r["size"], r["data"], r["arm"], r["seed"]) for r in rows}
    tasks = [
        (size, name, arm, seed)
        for seed in range(*asked.seeds)
        for size in asked.only
        for name in CASES[size]
        for arm in ARMS[size]
        if name in asked.data and arm in (asked.arms or ARMS[size]) and (size, name, arm, seed) not in done
    ]
    how = get_context("spawn"), prepare, (asked.device, asked.processes)
    with ProcessPoolExecutor(asked.processes, *how) as workers:
        futures, failed = {workers.submit(loop, *task, asked.device): task for task in tasks}, 0
        for k, future in enumerate(as_completed(futures)):
            if future.exception() is not None:
                failed += 1
                print(f"failed: {futures[future]}: {future.exception()!r}", flush=True)
                if failed < 10:
                    continue
                workers.shutdown(wait=False, cancel_futures=True)
                break
            row = future.result()
            rows.append(row)
            with asked.records.open("a") as f:
                f.write(json.dumps(row) + "\n")
            took = time.perf_counter() - start
            print(f"{took:.0f} s, {k + 1} of {len(tasks)}: {[row[k] for k in ('size', 'data', 'arm', 'seed')]}")
            print(f"  {row['accuracy']} in {row['seconds']} s", flush=True)
            if took > asked.seconds:
                workers.shutdown(wait=False, cancel_futures=True)
                break
    print(table(rows))


if __name__ == "__main__":
    main()
