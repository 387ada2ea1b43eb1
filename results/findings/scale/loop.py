"""Is a streamed batch as good as a dense one? The loop on BANKING77 and CIFAR10 features, accuracy after each batch.

    FORETASTE_DATA=... python results/findings/scale/loop.py [--seeds 0 10] [--watch 2048] [--data cifar10]

writes a line for each data set, seed and arm to loop.jsonl beside this file, skips what is there, and prints the table.
Networks are trained from new weights after each batch, by ``ft.fit``. All arms of a seed have the same pool, the same
first labels and the same first network.
"""

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

import foretaste as ft
from foretaste.network import MLP

RECORDS = Path(__file__).with_name("loop.jsonl")
POOL = 5000  # points of the pool, a random part where there are more
HIDDEN, STEPS, BATCH = 256, 300, 64  # of the training
DATA = {"banking77": (154, 77, 3, 5.0), "cifar10": (60, 60, 3, 0.5)}  # first labels, labels a batch, batches, max_lr


def read(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    folder = Path(os.environ["FORETASTE_DATA"])
    if name == "banking77":
        z = np.load(folder / "text" / "banking77.npz")
        parts = z["x_train"], z["y_train"], z["x_test"], z["y_test"]
    else:
        a, b = (np.load(folder / "features" / f"{name}_{part}.npz") for part in ("f16", "ft16"))
        have = {**a, **b}
        parts = have["f"].astype("f4") / 36, have["y"], have["ft"].astype("f4") / 36, have["yt"]
    x, y, x_test, y_test = parts
    return (
        torch.from_numpy(x.astype("f4")), torch.from_numpy(y.astype("i8")),
        torch.from_numpy(x_test.astype("f4")), torch.from_numpy(y_test.astype("i8")),
    )  # fmt: skip


def loop(name: str, seed: int, arm: dict[str, Any]) -> list[float]:
    """Accuracy in percent after each batch; ``arm``: settings of ``ft.query``."""
    first, per, batches, max_lr = DATA[name]
    x, y, x_test, y_test = read(name)
    g = np.random.default_rng(seed)
    pool = g.permutation(len(x))[:POOL].tolist()
    labelled, curve = [pool.pop() for _ in range(first)], []
    for cycle in range(batches + 1):
        torch.manual_seed(100 * seed + cycle)
        net = MLP(x.shape[1], (HIDDEN,), int(y.max()) + 1)
        ft.fit(net, x[labelled], y[labelled], steps=STEPS, batch_size=BATCH, max_lr=max_lr, seed=seed)
        with torch.no_grad():
            curve.append(100 * float((net(x_test).argmax(1) == y_test).double().mean()))
        if cycle < batches:
            q = ft.query(net, x[labelled], y[labelled], x[pool], batch_size=per, seed=seed, **arm)
            picked = {pool[j] for j in q.indices}
            labelled += sorted(picked)
            pool = [j for j in pool if j not in picked]
    return curve[1:]


def table(rows: list[dict[str, Any]]) -> str:
    """Mean accuracy over batches and seeds, and the paired difference to dense with its standard error."""
    out = ["| data | arm | accuracy | less dense | seeds |", "|---|---|---|---|---|"]
    for name in DATA:
        means = {(r["arm"], r["seed"]): float(np.mean(r["accuracy"])) for r in rows if r["data"] == name}
        for arm in dict.fromkeys(a for a, _ in means):
            seeds = sorted(s for a, s in means if a == arm and ("dense", s) in means)
            if not seeds:
                continue
            gaps = [means[arm, s] - means["dense", s] for s in seeds]
            error = float(np.std(gaps, ddof=1)) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
            mean = float(np.mean([means[arm, s] for s in seeds]))
            apart = "" if arm == "dense" else f"{np.mean(gaps):+.2f} ± {error:.2f}"
            out.append(f"| {name} | {arm} | {mean:.2f} | {apart} | {len(seeds)} |")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 10), help="the first, and the one after the last")
    parser.add_argument("--watch", type=int, nargs="*", default=[2048])
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    args = parser.parse_args()
    arms: dict[str, dict[str, Any]] = {"dense": {"method": "dense"}}
    arms |= {f"streamed, W = {w}": {"method": "streamed", "watch": w} for w in args.watch}
    rows = [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []
    done = {(r["data"], r["arm"], r["seed"]) for r in rows}
    for seed in range(*args.seeds):
        for name in args.data:
            for arm, settings in arms.items():
                if (name, arm, seed) in done:
                    continue
                row = {"data": name, "arm": arm, "seed": seed, "accuracy": loop(name, seed, settings)}
                rows.append(row)
                with RECORDS.open("a") as f:
                    f.write(json.dumps(row) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
