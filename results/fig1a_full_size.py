"""Seconds of one query of Figure 1a at the paper's size: 100 labels, 4000 candidates, WRN1 of widen 10, MNIST at 28×28.

    python results/fig1a_full_size.py OUT.json

Naive retraining is timed on a few candidates, all 4000 points watched, and extrapolated.
"""

import json
import sys
import time

import numpy as np
import torch

import foretaste as ft
from foretaste.data import draw, load
from foretaste.network import fit, make_network, prepare

FEW = 32


def main(out: str, few: int = FEW, U: int = 4000, widen: int = 10) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = load("mnist").to(device)
    rows = []
    for seed in (10, 11):
        split = draw(data.pool, data.test, 100, seed).offer(U, seed)
        net = make_network("wrn1", options={"widen": widen, "blocks": 1}, classes=10, shape=(1, 28, 28)).to(device)
        fit(net, data.x[split.L], data.y[split.L], start="cold", max_lr=0.5, seed=seed, normalise=data.normalise)
        x_L, x_U = (prepare(data.x[ids], torch.float32, data.normalise) for ids in (split.L, split.U))
        y_L, chosen = data.y[split.L], {}
        for name, strategy, how, times in (
            ("block", "mlmoc", {"method": "dense"}, 3),
            ("no block", "mlmoc", {"method": "direct"}, 1),
            ("naive", "naive", {"options": {"epochs": 15, "lr": 0.005}, "watch": x_U}, 1),
        ):
            pool = x_U[:few] if name == "naive" else x_U
            for _ in range(times):  # the first compiles
                torch.cuda.synchronize() if device == "cuda" else None
                began = time.perf_counter()
                q = ft.query(net, x_L, y_L, pool, strategy=strategy, batch_size=20, output="first", **how)
                seconds = time.perf_counter() - began
            chosen[name] = np.asarray(q.indices).tolist()
            rows.append({"seed": seed, "name": name, "candidates": len(pool), "watched": U, "seconds": seconds,
                         "seconds_for_all": seconds * U / len(pool), "torch": torch.__version__,
                         "device": torch.cuda.get_device_name() if device == "cuda" else "cpu"})  # fmt: skip
            save(rows, out)
        same = len({*chosen["block"]} & {*chosen["no block"]})
        rows.append({"seed": seed, "name": "same points of 20, block and no block", "same": same})
        save(rows, out)


def save(rows: list, out: str) -> None:
    print(rows[-1], flush=True)
    with open(out, "w") as file:
        json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1])
