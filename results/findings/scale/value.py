"""What is a streamed batch worth? F of it over the whole pool, divided by F of the dense batch.

    FORETASTE_DATA=... python results/findings/scale/value.py [--pool 5000] [--watch 512 1024 2048] [--seeds 2]
    FORETASTE_DATA=... python results/findings/scale/value.py --batch 500 1500 --part 250 1000 [--pool 5000]

The second is of large batches, which are grown in parts of so many points. The data and the first network are those of
loop.py.
"""

import argparse
from typing import Any

import numpy as np
import torch
from loop import BATCH, DATA, HIDDEN, STEPS, read

import foretaste as ft
from foretaste.acquire import Coverage, covered_errors
from foretaste.network import MLP
from foretaste.pick import streamed
from foretaste.pick.parts import PART_POINTS
from foretaste.pick.streamed import WATCHED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pool", type=int, default=5000)
    parser.add_argument("--watch", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--batch", type=int, nargs="+", default=[])
    parser.add_argument("--part", type=int, nargs="+", default=[250, 1000])
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

            def worth(picks: Any, F: Coverage = F) -> float:
                best_U = F.rows(torch.as_tensor(picks)).amax(0)
                return float(((best_U - F.covered_W).clamp_min(0) * F.weight_W).sum())

            def ask(n: int, W: int | None, sets: Any = sets, seed: int = seed) -> float:
                method = "streamed" if W else "dense"
                return worth(ft.query(*sets, batch_size=n, seed=seed, method=method, watch=W).indices)

            where = f"{name}, seed {seed}, U = {len(pool)}"
            for n in args.batch:
                streamed.LARGE_BATCH, dense, found = 0, ask(n, None), dict[str, float]()
                for size in args.part:
                    PART_POINTS["cpu"] = size
                    found[f"parts of {size}"] = ask(n, min(WATCHED, len(pool) // 2))
                found["random"] = worth(np.random.default_rng(seed).permutation(len(pool))[:n])
                print(f"{where}, n = {n}:", ", ".join(f"{k}: {v / dense:.3f}" for k, v in found.items()), flush=True)
            if not args.batch:
                dense = ask(per, None)
                print(f"{where}:", ", ".join(f"W = {W}: {ask(per, W) / dense:.3f}" for W in args.watch), flush=True)


if __name__ == "__main__":
    main()
