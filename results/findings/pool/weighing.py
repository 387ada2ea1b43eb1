"""Along which γ should κ̃ of ``cover`` be bent? The posterior predicts; no network is trained.

python results/findings/pool/weighing.py SEEDS CELL ...
"""

import sys

import numpy as np
import torch
from pool_loop import greedy_cover, kappa2
from torch.nn.functional import one_hot
from verdict import CELLS, DEVICE, POOL, SeedPool, problem
from weight_asked import gap, probabilities

import foretaste.lookahead.graph as graph

graph.GAMMAS = (0.0, 1.0, 10.0, 1e2, 1e3, 1e4, 1e5)
ARMS = {  # γ of κ̃, from the γ of the evidence
    "own": lambda g: g,
    "0": lambda g: 0.0,
    "1": lambda g: min(g, 1.0),
    "10": lambda g: min(g, 10.0),
    "100": lambda g: min(g, 100.0),
    "tenth": lambda g: g / 10,
    "hundredth": lambda g: g / 100,
    "root": lambda g: 10 ** np.floor(np.log10(max(g, 1)) / 2),
}


def main() -> None:
    seeds = [int(s) for s in sys.argv[1].split(",")]
    for name in sys.argv[2:]:
        data, init, per, cycles, _ = CELLS[name]
        X, Y, XT, YT, C, _ = problem(data)
        N, found, gammas = min(POOL, len(X)), {arm: [] for arm in ARMS}, []
        for seed in seeds:
            G = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed + 5000))[:N].to(DEVICE)
            pool = SeedPool(X[G].double(), XT.double())
            pool.kept[0.0] = pool.theta_GG, pool.theta_GT.T
            for arm, bent in ARMS.items():
                L, hits = list(range(init)), []
                for cycle in range(cycles + 1):
                    rows = torch.tensor(L, device=DEVICE)
                    y_LC = one_hot(Y[G[rows]], C).double()
                    evidence = pool.weigh(rows, y_LC)
                    mean_G, mean_T = pool.means(rows, y_LC, evidence)
                    hits.append(100 * float((mean_T.argmax(1) == YT).double().mean()))
                    gammas.append(evidence.gamma)
                    free = torch.ones(N, dtype=torch.bool, device=DEVICE)
                    free[rows] = False
                    U = free.nonzero()[:, 0]
                    weight = 1 - gap(probabilities(mean_G[U], "l2"))
                    if cycle < cycles:
                        L += greedy_cover(kappa2(pool.bent(bent(evidence.gamma))[0]), rows, U, weight, per).tolist()
                found[arm].append(np.mean(hits[1:]))
        print(
            name.ljust(15),
            *(f"{arm}={np.mean(v):.2f}" for arm, v in found.items()),
            f"median γ {np.median(gammas):g}",
            flush=True,
        )


if __name__ == "__main__":
    with torch.no_grad():
        main()
