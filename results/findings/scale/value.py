"""What is an approximate batch worth? F of it over the whole pool, divided by F of the dense batch.

    FORETASTE_DATA=... python results/findings/scale/value.py [--pool 5000] [--watch 512 1024 2048] [--seeds 2]
    FORETASTE_DATA=... python results/findings/scale/value.py --batch 500 1500 --part 250 1000 [--pool 5000]

The second is of large batches, which are grown in parts of so many points. Lines are appended to value.jsonl beside
this file. The data and the first network are those of loop.py; MNIST is there for larger pools, as rows of 784 pixels.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loop import CASES, NAMES, Arm, Case, read, train

import foretaste as ft
from foretaste.acquire import covered_errors

RECORD = Path(__file__).with_suffix(".jsonl")
FIRST = CASES["usual"] | {"mnist": Case(500, 100, 0.5, 1000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pool", type=int, default=5000)
    parser.add_argument("--watch", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--batch", type=int, nargs="+", default=[])
    parser.add_argument("--part", type=int, nargs="+", default=[250, 1000])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--data", nargs="+", default=["banking77", "cifar10"], choices=list(NAMES))
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    arms = {f"W = {W}": Arm({"method": "streamed", "watch": W}) for W in asked.watch}
    if asked.batch:
        how = {"method": "streamed", "watch": min(4096, asked.pool // 2)}
        arms = {f"parts of {size}": Arm(how, {"LARGE_BATCH": 0}, size) for size in asked.part}
    for name in asked.data:
        case = FIRST[name]
        x, y, _, _ = read(name, asked.device)
        for seed in range(asked.seeds):
            pool = np.random.default_rng(seed).permutation(len(x))[: asked.pool].tolist()
            labelled = [pool.pop() for _ in range(case.first)]
            sets: Any = x[labelled], y[labelled], x[pool]
            sets = train(case, *sets[:2], int(y.max()) + 1, seed), *sets
            F = covered_errors(ft.linearize(*sets, output="signs", ridge="misfit", precision="float32"))

            def worth(picks: Any, F: Any = F) -> float:
                best_U = F.rows(torch.as_tensor(picks, device=F.covered_W.device)).amax(0)
                return float(((best_U - F.covered_W).clamp_min(0) * F.weight_W).sum())

            for n in asked.batch or [case.per]:
                found, seconds = dict[str, float](), dict[str, float]()
                for arm, by in {"dense": Arm({"method": "dense", "precision": "float32"}), **arms}.items():
                    start = time.perf_counter()
                    picks = by.query(*sets, batch_size=n, seed=seed).indices
                    seconds[arm] = round(time.perf_counter() - start, 2)
                    found[arm] = worth(picks)
                found["random"] = worth(np.random.default_rng(seed).permutation(len(pool))[:n])
                row = {
                    "data": name, "seed": seed, "U": len(pool), "batch": n, "device": asked.device, "seconds": seconds,
                    "share": {arm: round(value / found["dense"], 4) for arm, value in found.items()},
                }  # fmt: skip
                print(row, flush=True)
                with RECORD.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
