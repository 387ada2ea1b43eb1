"""Greedy batches of gain, variance and epig: plain greedy, which scores all candidates, and by bounds, in turns.

``python results/findings/scale/batches.py --features FILE.npz --labels FILE.npz`` prints processor seconds of a pick
and whether the picks agree, and writes batches.jsonl beside it. FILE.npz have ``f`` (features) and ``y`` (classes).
"""

import argparse
import json
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from torch import nn

from foretaste.acquire import find_strategy
from foretaste.lookahead import State, linearize
from foretaste.network import fit
from foretaste.pick import Batch, pick

RECORD = Path(__file__).with_suffix(".jsonl")
lazy = import_module("foretaste.acquire.lazy_scores")


def grow(state: State, name: str, n: int, pairs: int) -> tuple[list[int], float, float]:
    """The picks, and processor and wall-clock seconds. pairs: of S, from which bounds are used."""
    lazy.LAZY_PAIRS, cpu, start = pairs, time.process_time(), time.perf_counter()
    batch = Batch(n, torch.Generator().manual_seed(0))
    got = pick(find_strategy(name), state, batch, select="greedy").indices
    return got, time.process_time() - cpu, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--plain", type=int, default=20, help="picks of plain greedy in a turn")
    parser.add_argument("--batch", type=int, default=300, help="picks by bounds")
    asked = parser.parse_args()
    x = torch.from_numpy(np.load(asked.features)["f"].astype(np.float32)) / 36
    y, L = torch.from_numpy(np.load(asked.labels)["y"]).long()[: len(x)], 200
    at = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[at], y[at]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, 10))
    fit(net, x[:L], y[:L])
    state = linearize(net, x[:L], y[:L], x[L:])
    _ = state.u
    for name in ("variance", "gain", "epig"):
        want, cpu, wall = grow(state, name, asked.plain, 2**62)
        got, lazy_cpu, lazy_wall = grow(state, name, asked.batch, 0)
        row = {
            "strategy": name, "L": L, "U": state.U, "plain_picks": asked.plain, "picks": asked.batch,
            "plain_cpu_ms": 1e3 * cpu / asked.plain, "cpu_ms": 1e3 * lazy_cpu / asked.batch,
            "plain_ms": 1e3 * wall / asked.plain, "ms": 1e3 * lazy_wall / asked.batch,
            "same": got[: asked.plain] == want, "threads": torch.get_num_threads(),
        }  # fmt: skip
        print(row, flush=True)
        with RECORD.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
