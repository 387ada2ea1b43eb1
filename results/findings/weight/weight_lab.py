"""Runs cells and writes a record: all arms and seeds of a cell train together.

python results/findings/weight/weight_lab.py OUT.json 0-15 all c10-few:ce digits-few:ce
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from weight_asked import Asked, DeepAsked, ask, greedy
from weight_cells import ARMS, DEVICE, Cell, make_cell, problem
from weight_train import accuracy, train, train_deep

torch.set_grad_enabled(False)
RANKED = ("cov", "p", "gap", "ent", "phi", "cgap")  # weights whose ranking of real errors is recorded


def permutation(n: int, seed: int) -> Tensor:
    """Of n, from a seed."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def auc(score: Tensor, wrong: Tensor) -> Tensor:
    """(S,): area under the curve of a weight for real errors."""
    rank = score.argsort(1).argsort(1).double() + 1
    errors = wrong.sum(1).double()
    return ((rank * wrong).sum(1) - errors * (errors + 1) / 2) / (errors * (wrong.shape[1] - errors)).clamp_min(1)


def shared(a: np.ndarray, b: np.ndarray) -> float:
    """The share of a batch that two kernels have in common, mean over seeds."""
    return float(np.mean([len(set(x) & set(z)) / len(x) for x, z in zip(a, b)]))


def compare_draws(asked: Asked) -> list[list[float]]:
    """Shares in common between the batches of all draws, under cover's weight; last, trace with 1 − gap."""
    found = []
    for kernel in asked.draws:
        coverage = asked.coverage(kernel)
        found.append(greedy(*coverage, asked.weight("cov", kernel), asked.cell.per).cpu().numpy())
        if kernel == "trace":
            last = greedy(*coverage, asked.weight("gap", kernel), asked.cell.per).cpu().numpy()
        asked.forget(kernel)
    found.append(last)
    return [[shared(a, b) for b in found] for a in found]


def candidates(cell: Cell, L: Tensor, orders: Tensor) -> Tensor:
    """(S, u): the first unlabelled points of each seed's order."""
    free = torch.ones_like(orders, dtype=torch.bool).scatter_(1, L, False)
    u = min(cell.subset, orders.shape[1] - L.shape[1])
    return torch.stack([order[is_free[order]][:u] for order, is_free in zip(orders, free)])


def run(cell: Cell, arms: list[str], seeds: list[int], draws: bool = True, deep: bool = False) -> dict:
    """The record of a cell. The arms share the first labels and the first network."""
    make, teach = (DeepAsked, train_deep) if deep else (Asked, train)
    N, S, A = len(problem(cell.data).X), len(seeds), len(arms)
    L = torch.stack([permutation(N, seed + 5000)[: cell.init] for seed in seeds]).to(DEVICE)[:, None]  # (S, 1 or A, n)
    found, learned = np.zeros((2, A, S, cell.cycles + 1))
    overlap, aucs, collapses = [], [], []
    points = min(cell.subset, N) + cell.init + cell.per * cell.cycles
    together = max(1, min(S, int(1.2e8 / points**2)))  # seeds whose kernels fit into memory
    parts = torch.arange(S, device=DEVICE).chunk(-(-S // together))
    for cycle in range(cell.cycles + 1):
        net, fitted = teach(cell, L, seeds, cycle)
        found[:, :, cycle] = accuracy(cell, net).view(S, -1).T.cpu().numpy()
        learned[:, :, cycle] = fitted.view(S, -1).T.cpu().numpy()
        if cycle == cell.cycles:
            break
        orders = torch.stack([permutation(N, seed * 100 + cycle + 7) for seed in seeds]).to(DEVICE)
        labelled: list[list[Tensor]] = [[] for _ in arms]
        networks = L.shape[1]
        for part in parts:
            for a, arm in enumerate(arms):
                if a < networks:
                    L_a = L[part, a]
                    own = [p[part * networks + a] for p in net]
                    asked = make(cell, own, L_a, candidates(cell, L_a, orders[part]))
                    u = asked.U.shape[1]
                random = torch.stack([permutation(u, seeds[s] * 1000 + cycle) for s in part.tolist()]).to(DEVICE)
                picks = ask(asked, arm, random)
                labelled[a].append(torch.cat([asked.L, asked.U.gather(1, picks)], 1))
                if arm == "signs0:cov":
                    wrong = asked.f_U.argmax(2) != asked.y_U
                    aucs.append([float(auc(asked.weight(name, "signs0"), wrong).mean()) for name in RANKED])
                    collapses.append(float(asked.collapsed("signs0").double().mean()))
                    if draws:
                        overlap.append(compare_draws(asked))
                asked.forget()
        L = torch.stack([torch.cat(rows) for rows in labelled], 1)
    return {
        "cell": asdict(cell),
        "seeds": list(seeds),
        "arms": list(arms),
        "accuracy": found.round(3).tolist(),
        "learned": learned.mean(1).round(4).tolist(),
        "overlap": np.round(overlap, 4).tolist(),
        "draws": [*make.draws, "trace:gap"],
        "auc": np.round(aucs, 4).tolist(),
        "collapsed": collapses,
    }


def main() -> None:
    """Run cells one after the other; the record is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where the record is written")
    parser.add_argument("seeds", help="the first and the last: 0-15")
    parser.add_argument("arms", help=f"one of {', '.join(ARMS)}, or arms with commas between")
    parser.add_argument("cells", nargs="+", help="a cell of weight_cells.py with a loss: c10-few:ce")
    parser.add_argument("--no-draws", action="store_true", help="do not compare the batches of several draws")
    parser.add_argument("--deep", action="store_true", help="two hidden layers")
    args = parser.parse_args()
    first, last = map(int, args.seeds.split("-"))
    if last >= 50:
        parser.error(f"seeds from 50 on are held back; got {args.seeds}")
    arms = ARMS.get(args.arms) or args.arms.split(",")
    records = []
    for name in args.cells:
        began = time.time()
        record = run(make_cell(name), arms, list(range(first, last + 1)), not args.no_draws, args.deep)
        records.append(record | {"seconds": round(time.time() - began, 2)})
        args.out.write_text(json.dumps(records), encoding="utf-8")
        after = np.array(record["accuracy"])[:, :, 1:].mean((1, 2)).round(1).tolist()
        print(name, f"{records[-1]['seconds']} s", dict(zip(arms, after)), flush=True)


if __name__ == "__main__":
    main()
