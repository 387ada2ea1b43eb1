"""What is a streamed batch worth? F of it over the whole pool, divided by F of the dense batch.

    FORETASTE_DATA=... python results/findings/scale/value.py [--pool 5000] [--watch 512 1024 2048] [--seeds 2]

The data and the first network are those of loop.py.
"""

import argparse

import numpy as np
import torch
from loop import BATCH, DATA, HIDDEN, STEPS, read

import foretaste as ft
from foretaste.acquire import covered_errors
from foretaste.network import MLP


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pool", type=int, default=5000)
    parser.add_argument("--watch", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    args = parser.parse_args()
    for name in args.data:
        first, per, _, max_lr = DATA[name]
        x, y, _, _ = read(name)
        for seed in range(args.seeds):
            pool = np.random.default_rng(seed).permutation(len(x))[: args.pool].tolist()
            labelled = [pool.pop() for _ in range(first)]
            torch.manual_seed(100 * seed)
            net = MLP(x.shape[1], (HIDDEN,), int(y.max()) + 1)
            ft.fit(net, x[labelled], y[labelled], steps=STEPS, batch_size=BATCH, max_lr=max_lr, seed=seed)
            sets = net, x[labelled], y[labelled], x[pool]
            F = covered_errors(ft.linearize(*sets, output="signs", ridge="misfit"))
            found = {}
            for W in (None, *args.watch):
                q = ft.query(*sets, batch_size=per, seed=seed, method="streamed" if W else "dense", watch=W)
                best_U = F.rows(torch.as_tensor(q.indices)).amax(0)
                found[W] = float(((best_U - F.covered_W).clamp_min(0) * F.weight_W).sum())
            shares = ", ".join(f"W = {W}: {found[W] / found[None]:.3f}" for W in args.watch)
            print(f"{name}, seed {seed}, U = {len(pool)}: {shares}", flush=True)


if __name__ == "__main__":
    main()
