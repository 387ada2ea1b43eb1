"""Live labelling against random and margin order: ``python results/live_labelling.py mnist --seeds 5``.

Every run is one ``ft.Learner`` with no label at the start and its own small network. It asks for one item at a time, is
told the true label, and trains anew when ``drift`` says so. Runs differ in the strategy only; before the first training
all of them ask by coverage. Test accuracy is that of ``predict``, which knows every label at once. One JSON line a run.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

import numpy as np
import torch

import foretaste as ft
from foretaste.data import load as load_data
from foretaste.network import prepare

HERE = Path(__file__).parent / "live"
STRATEGIES = ("cover", "gain", "margin", "random")
LABELS = {"digits": 60, "mnist": 100, "cifar10": 200}
POOL = 2000
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26}  # Student's t, two-sided, by seeds


def load(name: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A random pool of at most 2000 items and its labels, and at most 2500 test items."""
    g = torch.Generator().manual_seed(seed)
    if name == "cifar10":
        folder = Path(os.environ["FORETASTE_FEATURES"])  # cifar10_f16.npz: f; cifar10_ft16.npz: ft, y, yt
        train, test = (np.load(folder / f"cifar10_{part}.npz") for part in ("f16", "ft16"))
        x, y = torch.tensor(train["f"], dtype=torch.float32), torch.tensor(test["y"]).long()
        x_test, y_test = torch.tensor(test["ft"], dtype=torch.float32), torch.tensor(test["yt"]).long()
    else:
        data = load_data(name)
        some = data.test[torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))[:2500]]
        x, y, x_test, y_test = data.x[data.pool], data.y[data.pool], data.x[some], data.y[some]
    at = torch.randperm(len(x), generator=g)[:POOL]
    parts = []
    for t in (x[at], x_test):
        t = prepare(t)
        if t.dim() == 4 and t.shape[-1] == 28:
            t = torch.nn.functional.avg_pool2d(t, 2)
        parts.append(t)
    return parts[0], y[at].long(), parts[1], y_test.long()


def simulate(name: str, strategy: str, seed: int, labels: int, steps: int, **options: object) -> dict:
    """One run; the accuracy after every tenth label."""
    x, y, x_test, y_test = load(name, seed)
    begin = time.process_time()
    learner = ft.Learner(
        pool=x, classes=10, strategy=strategy, seed=seed, fit_options={"steps": steps}, **options
    )  # fmt: skip
    curve: dict[int, float] = {}
    waits = []
    for n in range(1, labels + 1):
        start, before = time.process_time(), learner.net
        [i] = learner.query(1)
        learner.teach(i, int(y[i]))
        if learner.ready and learner.net is before:  # else it has just been trained for the first time
            waits.append(time.process_time() - start)
        if learner.ready and learner.drift()["retrain"]:
            learner.retrain(wait=True)
        if n % 10 == 0 and learner.ready:
            curve[n] = float((torch.as_tensor(learner.predict(x_test)) == y_test).double().mean())
    status = learner.status()
    return {
        "data": name,
        "strategy": strategy,
        "seed": seed,
        "accuracy": curve,
        "trainings": status["training"]["count"],
        "cpu_seconds": round(time.process_time() - begin, 1),
        "cpu_ms_a_label": round(1000 * float(np.median(waits)), 1),
        "expected_error": status["error"],
    }


def interval(values: list[float]) -> str:
    """Mean ± 95 % interval, in points."""
    n, v = len(values), np.array(values)
    half = T95.get(n, 2.0) * v.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
    return f"{100 * v.mean():.1f} ± {100 * half:.1f}"


def table(name: str) -> str:
    """The accuracy at the end and averaged over the run; differences paired by seed."""
    runs = [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]
    at = str(LABELS[name])
    found = {s: {r["seed"]: r["accuracy"] for r in runs if r["strategy"] == s} for s in STRATEGIES}
    most = max(map(len, found.values()))
    found = {s: by_seed for s, by_seed in found.items() if len(by_seed) >= most - 1}  # not those that were broken off
    seeds = sorted(set.intersection(*(set(f) for f in found.values())))
    ends = {s: [found[s][k][at] for k in seeds] for s in found}
    means = {s: [np.mean([v for n, v in found[s][k].items() if int(n) >= 20]) for k in seeds] for s in found}
    first = next(iter(found))
    head = f"| order | after {at} labels | {first} − it | mean from 20 labels on | {first} − it |"
    lines = [f"{name}, {len(seeds)} seeds, accuracy in %", "", head, "|---|---|---|---|---|"]
    for s in found:
        row = [s]
        for values in (ends, means):
            less = [a - b for a, b in zip(values[first], values[s])]
            row += [interval(values[s]), "" if s == first else interval(less)]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=LABELS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--strategies", nargs="*", default=STRATEGIES)
    parser.add_argument("--table", action="store_true", help="only print the table of what was recorded")
    given = parser.parse_args()
    path = HERE / f"{given.data}.jsonl"
    HERE.mkdir(exist_ok=True)
    done = set()
    if path.exists():
        done = {(r["strategy"], r["seed"]) for r in map(json.loads, path.read_text().splitlines())}
    for seed in range(0 if given.table else given.seeds):
        for strategy in given.strategies:
            if (strategy, seed) in done:
                continue
            found = simulate(given.data, strategy, seed, LABELS[given.data], given.steps)
            with path.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(strategy, seed, found["accuracy"].get(LABELS[given.data]), found["cpu_seconds"], flush=True)
    print(table(given.data))


if __name__ == "__main__":
    main()
