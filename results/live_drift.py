"""Is the advice to train anew sensible? ``python results/live_drift.py mnist --seeds 3``.

A learner asks for items by its default strategy. A network trained on the first n0 of these labels absorbs those up
to n. Its test accuracy is compared with that of a network trained on all n. What ``drift`` says before is noted. One
JSON line a pair (n0, n).
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from live_labelling import LABELS, load

import foretaste as ft
from foretaste.network import MLP

HERE = Path(__file__).parent / "live"
TRAINED = (5, 10, 20, 40, 80)
GROWTH = (1.25, 1.5, 2, 3, 4)


def study(name: str, seed: int, steps: int, deep: bool, loss: str) -> list[dict]:
    """All pairs of one seed. ``deep``: an MLP of two hidden layers in place of the learner's own head."""
    x, y, x_test, y_test = load(name, seed)
    most = LABELS[name]

    def learner(labels: dict[int, int]) -> ft.Learner:
        if deep and labels:
            net = MLP(x[0].numel(), (256, 256), 10)
            at = list(labels)
            ft.fit(net, x[at], torch.tensor(list(labels.values())), steps=2 * steps, start="cold", seed=seed, loss=loss)
            return ft.Learner(net, x, seed=seed, labels=labels, loss=loss)
        return ft.Learner(pool=x, classes=10, seed=seed, labels=labels, loss=loss, fit_options={"steps": steps})

    def accuracy(model: ft.Learner) -> float:
        return float((torch.as_tensor(model.predict(x_test)) == y_test).double().mean())

    live = learner({})
    order: list[int] = []
    while len(order) < most:
        [i] = live.query(1)
        order.append(int(i))
        live.teach(i, int(y[i]))
        if live.ready and live.drift()["retrain"]:
            live.retrain(wait=True)
    sizes = sorted({n for old in TRAINED for n in (old, *(round(old * by) for by in GROWTH)) if n <= most})
    trained = {n: accuracy(learner({i: int(y[i]) for i in order[:n]})) for n in sizes}
    found = []
    for old in TRAINED:
        model = learner({i: int(y[i]) for i in order[:old]})
        for n in [n for n in sizes if old < n <= 4 * old]:
            for i in order[len(model.labels) : n]:
                model.teach(i, int(y[i]))
            found.append(
                {"data": name, "seed": seed, "n0": old, "n": n, "absorbed": accuracy(model), "trained": trained[n]}
                | {"drift": {k: v for k, v in model.drift().items() if k not in ("retrain", "reason")}}
            )
    return found


def table(rows: list[dict]) -> str:
    """What training anew gains, by the share of new labels; ± two standard errors over pairs."""
    lines = ["| labels since / labels trained on | pairs | gain of training anew, points |", "|---|---|---|"]
    groups: dict[str, list[float]] = {}
    for r in rows:
        gain = 100 * (r["trained"] - r["absorbed"])
        share = r["drift"]["new"] / r["n0"]
        for low, high in ((0, 0.4), (0.4, 0.75), (0.75, 1.5), (1.5, 9)):
            if low <= share < high:
                groups.setdefault(f"{low} to {high}", []).append(gain)
    for name in sorted(groups):
        v = np.array(groups[name])
        lines.append(f"| {name} | {len(v)} | {v.mean():+.1f} ± {2 * v.std(ddof=1) / len(v) ** 0.5:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=LABELS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--deep", action="store_true", help="an MLP of two hidden layers, not the learner's own head")
    parser.add_argument("--loss", choices=("l2", "ce"), default="l2")
    given = parser.parse_args()
    kind = ("-deep" if given.deep else "") + ("-ce" if given.loss == "ce" else "")
    path = HERE / f"drift-{given.data}{kind}.jsonl"
    HERE.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for seed in range(given.seeds):
        if any(r["seed"] == seed for r in rows):
            continue
        new = study(given.data, seed, given.steps, given.deep, given.loss)
        rows += new
        with path.open("a") as file:
            file.writelines(json.dumps(r) + "\n" for r in new)
        print(seed, flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
