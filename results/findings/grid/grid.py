"""Key presses to label a whole pool without an error, by single questions and by the grid.

``python results/findings/grid/grid.py`` adds what is missing to records.jsonl and prints README.md's table; it needs
$FORETASTE_DATA with ``features/cifar10_f16.npz`` and ``cifar10_ft16.npz``. The annotator knows the truth. By single
questions every item takes one press. By the grid the first 40 are asked singly; then walls of 24, the surest items of
the class that has most: one press for the class, one to accept the rest, and one for each wrong item, its class key
while the mouse points at it. With ``--mark`` a wrong item is only marked, and asked singly later: as it was at first.
When no class has four items left, the rest is asked singly.
"""

import argparse
import json
import os
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch

import foretaste as ft

RECORDS = Path(__file__).parent / "records.jsonl"
POOL, FIRST, WALL, LEAST = 600, 40, 24, 4


def simulate(seed: int, mark: bool = False) -> dict:
    """One pool of random CIFAR10 features."""
    folder = Path(os.environ.get("FORETASTE_DATA", ".")) / "features"
    f, y = np.load(folder / "cifar10_f16.npz")["f"], np.load(folder / "cifar10_ft16.npz")["y"]
    at = np.random.default_rng(seed).permutation(len(f))[:POOL]
    x, truth = torch.tensor(f[at].astype(np.float32) / 36), [int(c) for c in y[at]]
    learner = ft.Learner(pool=x, classes=10, seed=seed, fit_options={"steps": 100})
    for _ in range(FIRST):
        [i] = learner.query(1)
        learner.teach(i, truth[i])
    learner.retrain(wait=True)
    presses, walls, wrong, refused = FIRST, 0, 0, [set[int]() for _ in range(10)]
    while True:
        p_NC = learner.predict_proba().numpy()
        said = p_NC.argmax(1)
        open_ = [i for i in range(POOL) if i not in learner.labels]
        of = [[i for i in open_ if said[i] == c and i not in refused[c]] for c in range(10)]
        c = max(range(10), key=lambda k: len(of[k]))
        if len(of[c]) < LEAST:
            break
        shown = sorted(of[c], key=lambda i: -p_NC[i, c])[:WALL]
        right = [i for i in shown if truth[i] == c]
        bad = [i for i in shown if truth[i] != c]
        refused[c] |= set(bad)
        presses, walls, wrong = presses + 2 + len(bad), walls + 1, wrong + len(bad)
        given = right if mark else shown
        if given:
            learner.teach(given, [truth[i] for i in given])
        if learner.drift()["retrain"]:
            learner.retrain(wait=True)
    left = POOL - len(learner.labels)
    return {
        "seed": seed,
        "mark": mark,
        "single": POOL,
        "grid": presses + left,
        "walls": walls,
        "wrong": wrong,
        "left": left,
    }


def read() -> list[dict]:
    return [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []


def table(records: list[dict]) -> str:
    """A line of Markdown."""
    if not records:
        return ""
    share = [r["grid"] / r["single"] for r in records]
    spread = f" ± {stdev(share) / len(share) ** 0.5:.3f}" if len(share) > 1 else ""
    keys = ("single", "grid", "walls", "wrong", "left")
    cells = " | ".join(f"{fmean(r[k] for r in records):.0f}" for k in keys)
    return (
        f"| {'marked, asked again' if records[0]['mark'] else 'named on the wall'} | {len(records)} | {cells} "
        f"| {fmean(share):.2f}{spread} |\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(100, 110)))
    parser.add_argument("--mark", action="store_true")
    options = parser.parse_args()
    done = {(r["seed"], r["mark"]) for r in read()}
    for seed in options.seeds:
        if (seed, options.mark) not in done:
            with RECORDS.open("a") as file:
                file.write(json.dumps(simulate(seed, options.mark)) + "\n")
    print("| wrong items are | seeds | single questions | grid | walls | wrong | asked singly after | grid / single |")
    print(f"|{'---|' * 8}")
    for mark in (True, False):
        print(table([r for r in read() if r["mark"] == mark]), end="")


if __name__ == "__main__":
    main()
