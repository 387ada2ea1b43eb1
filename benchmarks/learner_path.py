"""What a learner's settings are worth: accuracy over simulated answers, on the same seeds, paired.

``python -m benchmarks.learner_path SETTING SETTING ... [--seeds 10] [--answers 60] [--features FILE.npz]``

A setting is ``NAME=SRC``, with an optional ``:RIDGE``: the folder of a foretaste to import (another checkout's ``src``,
or ``src``), and the learner's ridge. All are compared with the first. Each runs in processes of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from itertools import product
from typing import Any

CASES = [
    {"loss": loss, "strategy": strategy, "batch": batch}
    for loss, strategy, batch in product(("l2", "ce"), ("cover", "gain"), (1, 5))
]
POOL, TEST, RETRAIN_EVERY, MEASURED_EVERY, COLUMNS = 400, 500, 20, 5, 64


def read_points(features: str | None, seed: int) -> tuple[Any, Any, Any, Any]:
    """A random pool and test set: digits of scikit-learn, or rows of an .npz (x and y, or ft and yt)."""
    import numpy as np
    from sklearn.datasets import load_digits

    if features is None:
        x, y = load_digits(return_X_y=True)
        x = x / 16
    else:
        with np.load(features) as file:
            x, y = (next(file[n] for n in names if n in file.files) for names in (("ft", "x"), ("yt", "y")))
        x = x.astype("float32")
        x = x @ np.linalg.svd(x[:1000], full_matrices=False)[2][:COLUMNS].T  # or a run takes minutes
        x /= np.linalg.norm(x, axis=1).mean()
    order = np.random.default_rng(seed).permutation(len(x))[: POOL + TEST]
    x, y = x[order].astype("float32"), y[order].astype(int)
    return x[:POOL], y[:POOL], x[POOL:], y[POOL:]


def run_case(case: dict[str, Any], ridge: Any, seed: int, answers: int, features: str | None, steps: int) -> float:
    """The mean accuracy on the test set after every fifth of the answers."""
    import logging

    import foretaste as ft

    logging.disable()
    x, y, x_test, y_test = read_points(features, seed)
    more = {} if ridge is None else {"ridge": ridge}
    learner = ft.Learner(
        pool=x, classes=int(y.max()) + 1, loss=case["loss"], strategy=case["strategy"], seed=seed,
        fit_options={"steps": steps}, **more,
    )  # fmt: skip
    found, done = [], 0
    while done < answers:
        asked = learner.query(case["batch"])
        learner.teach(asked, [int(y[i]) for i in asked])
        done += len(asked)
        if done % RETRAIN_EVERY == 0:
            learner.retrain(wait=True)
        if done >= 10 and done % MEASURED_EVERY == 0 and learner.ready:
            found.append(float((learner.predict(x_test) == y_test).mean()))
    return statistics.mean(found)


def run_setting(setting: str, chosen: argparse.Namespace) -> list[list[float]]:
    """Accuracies of each case and seed, in a process that imports the setting's foretaste."""
    source, _, ridge = setting.partition("=")[2].partition(":")
    asked = json.dumps([ridge or None, chosen.seeds, chosen.answers, chosen.features, chosen.steps])
    command = [sys.executable, __file__, "--run", asked, *(["--loss", chosen.loss] if chosen.loss else [])]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": source}
    )  # fmt: skip
    return json.loads(done.stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Learners side by side.")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--answers", type=int, default=60)
    parser.add_argument("--features")
    parser.add_argument("--steps", type=int, default=200, help="of each training")
    parser.add_argument("--loss", choices=("l2", "ce"), help="one loss only")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    cases = [case for case in CASES if chosen.loss in (None, case["loss"])]
    if chosen.run:
        ridge, seeds, *rest = json.loads(chosen.run)
        ridge = ridge if ridge in (None, "misfit") else float(ridge)
        print(json.dumps([[run_case(c, ridge, s, *rest) for s in range(seeds)] for c in cases]))
        return
    found = {s: run_setting(s, chosen) for s in chosen.settings}
    first = chosen.settings[0]
    for k, case in enumerate(cases):
        mean = 100 * statistics.mean(found[first][k])
        parts = [f"{case['loss']:>3} {case['strategy']:>5} batch {case['batch']}: {mean:.1f} %"]
        for other in chosen.settings[1:]:
            gaps = [100 * (b - a) for a, b in zip(found[first][k], found[other][k])]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")
            parts.append(f"{other.partition('=')[0]} {statistics.mean(gaps):+.2f} ± {error:.2f}")
        print(", ".join(parts), flush=True)


if __name__ == "__main__":
    main()
