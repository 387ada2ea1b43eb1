"""What the overview says from 60 items drawn at random, against the whole pool: labels saved, and what more brings.

``python results/findings/overview/overview.py`` makes records.jsonl and prints README.md's table; digits need no
download, CIFAR10's features need $FORETASTE_DATA with ``features/cifar10_f16.npz`` and ``cifar10_ft16.npz``. A learner
asks for 200 labels of 1,200 items. 60 more are drawn at random and never taught: from them come ``Learner.saved`` and,
at 100 labels, the accuracy that is foretold for 200 (``accuracy_after``). The truth comes from the other items: the
accuracy of the learner, and of learners that were taught 10 to 59 random items, three orders of each.
"""

import argparse
import json
import os
from math import log2
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
from sklearn.datasets import load_digits

import foretaste as ft
from foretaste.label.overview import accuracy_after
from foretaste.label.progress import WORTHS

RECORDS = Path(__file__).parent / "records.jsonl"
POOL, DRAWN, HALF, ASKED = 1200, 60, 100, 200
SIZES, ORDERS, FIT = (10, 20, 30, 40, 50, 59), 3, {"steps": 150}


def read_pool(name: str, seed: int) -> tuple[torch.Tensor, list[int]]:
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        x = x / 16
    else:
        folder = Path(os.environ.get("FORETASTE_DATA", ".")) / "features"
        x, y = np.load(folder / "cifar10_f16.npz")["f"] / 36, np.load(folder / "cifar10_ft16.npz")["y"]
    at = np.random.default_rng(seed).permutation(len(x))[:POOL]
    return torch.tensor(np.asarray(x[at], np.float32)), [int(c) for c in y[at]]


def simulate(name: str, seed: int) -> dict:
    """One pool."""
    x, truth = read_pool(name, seed)
    drawn, rest = list(range(DRAWN)), list(range(DRAWN, POOL))

    def right(learner: ft.Learner, items: list[int]) -> int:
        return int((learner.predict(items) == np.array([truth[i] for i in items])).sum())

    learner = ft.Learner(pool=x, classes=10, seed=seed, fit_options=FIT)
    learner.ignore(drawn)
    checked, curve = list[tuple[int, int, int]](), {0: 0.1}
    while len(learner.labels) < ASKED:
        [i] = learner.query(1)
        learner.teach(i, truth[i])
        n = len(learner.labels)
        if learner.ready and n % 2 == 0:
            curve[n] = right(learner, rest) / len(rest)
            checked.append((n, right(learner, drawn), DRAWN))
        if learner.ready and learner.drift()["retrain"]:
            learner.retrain(wait=True)
    at_random = {}
    for size in SIZES:
        found = []
        for order in range(ORDERS):
            some = np.random.default_rng(1000 * seed + order).permutation(rest)[:size].tolist()
            other = ft.Learner(pool=x, classes=10, seed=order, fit_options=FIT, labels={i: truth[i] for i in some})
            found.append(right(other, rest) / len(rest))
        at_random[size] = fmean(found)
    ns = sorted(curve)

    def misfit(worth: float) -> float:
        return sum((np.interp(j / worth, ns, [curve[n] for n in ns]) - a) ** 2 for j, a in at_random.items())

    saved = learner.saved({i: truth[i] for i in drawn})
    at_half = [point for point in checked if point[0] <= HALF]
    told = accuracy_after(at_half, ASKED - HALF)
    return {
        "data": name, "seed": seed, "worth": saved["worth"], "saved": saved["saved"], "low": saved["low"],
        "high": saved["high"], "true_worth": min((s for s in WORTHS if SIZES[-1] / s <= ASKED), key=misfit),
        "at_half": at_half[-1][1] / DRAWN, "told": told[0], "told_low": told[1], "told_high": told[2],
        "true": curve[max(ns)], "true_at_half": curve[HALF],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["digits", "cifar10"])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(100, 106)))
    chosen = parser.parse_args()
    rows = [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []
    for name in chosen.data:
        for seed in chosen.seeds:
            if not any((row["data"], row["seed"]) == (name, seed) for row in rows):
                rows.append(simulate(name, seed))
                with RECORDS.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    columns = ("data", "seeds", "an answer is worth, told", "true", "in the interval", "accuracy at 200, told at 100")
    print(f"| {' | '.join((*columns, 'true', 'in the interval'))} |")
    print("|---|---|---|---|---|---|---|---|")
    for name in chosen.data:
        some = [row for row in rows if row["data"] == name]
        told, true = ([log2(row[key]) for row in some] for key in ("worth", "true_worth"))
        need = [round((DRAWN - 1) / row["true_worth"]) for row in some]
        inside = sum(row["low"] <= DRAWN - 1 - n <= row["high"] for row, n in zip(some, need))
        hit = sum(row["told_low"] <= row["true"] <= row["told_high"] for row in some)
        off = [abs(row["told"] - row["true"]) for row in some]
        cells = [
            name,
            len(some),
            *(f"{2 ** fmean(logs):.2f} (× or / {2 ** stdev(logs):.2f})" for logs in (told, true)),
            f"{inside} of {len(some)}",
            f"{fmean(r['told'] for r in some):.1%}, off by {fmean(off):.1%}",
            f"{fmean(r['true'] for r in some):.1%}",
            f"{hit} of {len(some)}",
        ]
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
