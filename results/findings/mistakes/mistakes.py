"""Planted errors that ``Learner.mistakes`` and cleanlab find in their first 50.

Each run plants errors in the labels of a random part of a pool, and counts how many of them are among the first 50 of
each order. It needs cleanlab 2.9, and $FORETASTE_DATA with ``features/cifar10_f16.npz`` and ``cifar10_ft16.npz`` and
``text/banking77.npz``. Runs that are in records.jsonl are not run again. ``python
results/findings/mistakes/mistakes.py`` runs the rest and prints README.md's table; ``--table`` prints it only. The
records of seeds 100 to 109 are those of an earlier setting.
"""

import argparse
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

import foretaste as ft
from foretaste.lookahead import cholesky
from foretaste.losses import sharpened

RECORDS = Path(__file__).parent / "records.jsonl"
SIZES = {"digits": (1797, 1000), "cifar10": (2500, 1000), "banking77": (3000, 1500)}  # pool, labels
# C of LogisticRegression: the best on seeds 0 to 3, of 0.3, 1, 3, 10, 30 and 100.
PENALTIES = {"digits": (1,), "cifar10": (1, 3), "banking77": (10,)}  # 30 was no better on seeds 100 to 109
SHARES = (0.01, 0.1, 1.0, 10.0)  # λ of the kernel, of its mean diagonal
ERRORS = (("any", 0.05), ("any", 0.10))
SEEDS = range(200, 210)
FIRST = 50
OURS = "Learner.mistakes"


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their true classes."""
    folder = Path(os.environ.get("FORETASTE_DATA", "."))
    if name == "digits":
        found = load_digits()
        return found.data / 16, found.target
    if name == "cifar10":
        x, y = (
            np.load(folder / "features" / f"cifar10_{part}.npz")[key] for part, key in (("f16", "f"), ("ft16", "y"))
        )
        return x.astype(np.float64) / 36, y.astype(int)
    found = np.load(folder / "text" / "banking77.npz")
    return found["x_train"].astype(np.float64), found["y_train"].astype(int)


def plant(x: np.ndarray, y: np.ndarray, kind: str, rate: float, C: int, rng: np.random.Generator) -> np.ndarray:
    """The same labels, a share of them wrong: "any" other class, or "alike": that of the nearest other mean."""
    bad = rng.permutation(len(y))[: round(rate * len(y))]
    wrong = y.copy()
    wrong[bad] = (y[bad] + rng.integers(1, C, len(bad))) % C
    if kind == "alike":
        means = np.stack([x[y == c].mean(0) if (y == c).any() else np.full(x.shape[1], np.inf) for c in range(C)])
        far = ((x[bad, None] - means) ** 2).sum(2)
        far[np.arange(len(bad)), y[bad]] = np.inf
        wrong[bad] = far.argmin(1)
    return wrong


def rivals(name: str, x: np.ndarray, y: np.ndarray, C: int, theta: torch.Tensor, seed: int) -> Iterator:
    """cleanlab's orders, by the model that its out-of-sample probabilities come from."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    for tag, p in probabilities(name, x, y, C, theta, seed):
        p = np.clip(p, 1e-6, None)
        p /= p.sum(1, keepdims=True)
        for how in ("self_confidence", "normalized_margin", "confidence_weighted_entropy"):
            yield f"{tag}, {how}", np.argsort(get_label_quality_scores(y, p, method=how), kind="stable")
        yield f"{tag}, find_label_issues", find_label_issues(y, p, return_indices_ranked_by="self_confidence", n_jobs=1)


def probabilities(name: str, x: np.ndarray, y: np.ndarray, C: int, theta: torch.Tensor, seed: int) -> Iterator:
    """(tag, (L, C)): of logistic regressions by five folds, and of the learner's kernel by ten."""
    for penalty in PENALTIES[name]:
        p = np.zeros((len(y), C))
        for train, test in StratifiedKFold(5, shuffle=True, random_state=seed).split(x, y):
            model = LogisticRegression(C=penalty, max_iter=300, tol=1e-3).fit(x[train], y[train])
            p[np.ix_(test, model.classes_)] = model.predict_proba(x[test])
        yield f"logistic regression C={penalty:g}", p
    e_LC = torch.nn.functional.one_hot(torch.tensor(y), C).double() - 1 / C
    for share in SHARES:
        p, ridge = np.zeros((len(y), C)), share * float(theta.diagonal().mean())
        for train, test in StratifiedKFold(10, shuffle=True, random_state=seed).split(x, y):
            A = theta[train][:, train]
            A.diagonal().add_(ridge)
            w = torch.cholesky_solve(e_LC[train], cholesky(A, ridge))
            p[test] = sharpened(1 / C + theta[test][:, train] @ w).numpy()
        yield f"the learner's kernel, λ={share:g}", p


def run(name: str, kind: str, rate: float, seed: int) -> dict:
    """One record: how many of the first 50 are planted, by order, and how many ours expects."""
    (x, y), (M, L), rng = load(name), SIZES[name], np.random.default_rng(seed)
    C, at = int(y.max()) + 1, rng.permutation(len(x))[:M]
    x, y = x[at], y[at]
    said = plant(x[:L], y[:L], kind, rate, C, rng)
    bad = {*np.flatnonzero(said != y[:L]).tolist()}
    learner = ft.Learner(
        pool=torch.tensor(x, dtype=torch.float32), classes=C, labels=dict(enumerate(said.tolist())),
        fit_options={"steps": 20}, seed=seed,
    )  # fmt: skip
    ours = learner.mistakes()
    found = {OURS: len(bad & {row["id"] for row in ours[:FIRST]})}
    theta = learner._now.judged_kernels(range(L))[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a class of two items; a fit that stops at 300 steps
        for tag, order in rivals(name, x[:L], said, C, theta, seed):
            found[f"cleanlab: {tag}"] = len(bad & {*order[:FIRST].tolist()})
    expected = sum(row["wrong"] for row in ours[:FIRST])
    return {"data": name, "kind": kind, "rate": rate, "seed": seed, "expected": round(expected, 2), "found": found}


def read() -> list[dict]:
    return [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []


def tables(records: list[dict]) -> Iterator[str]:
    """Markdown: found by ours, what ours expected, and by cleanlab: a plain order, and the best in hindsight."""
    yield "| data | errors | seeds | ours | expected | cleanlab, plain | cleanlab, best | ours − best | the best |\n"
    yield f"|{'---|' * 9}\n"
    for name in SIZES:
        for kind, rate in ERRORS:
            here = [r for r in records if r["seed"] in SEEDS]
            some = [r for r in here if (r["data"], r["kind"], r["rate"]) == (name, kind, rate)]
            if not some:
                continue
            mean = {tag: fmean(r["found"][tag] for r in some) for tag in some[0]["found"]}
            plain = f"cleanlab: logistic regression C={PENALTIES[name][0]:g}, self_confidence"
            best = max((tag for tag in mean if tag != OURS), key=lambda tag: mean[tag])
            gap = [r["found"][OURS] - r["found"][best] for r in some]
            spread = f" ± {stdev(gap) / len(gap) ** 0.5:.1f}" if len(gap) > 1 else ""
            yield (
                f"| {name} | {100 * rate:.0f} %, {kind} | {len(some)} | {mean[OURS]:.1f} "
                f"| {fmean(r['expected'] for r in some):.1f} | {mean[plain]:.1f} | {mean[best]:.1f} "
                f"| {fmean(gap):+.1f}{spread} | {best.removeprefix('cleanlab: ')} |\n"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", default=list(SIZES))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    done = {(r["data"], r["kind"], r["rate"], r["seed"]) for r in read()}
    for kind, rate in () if options.table else ERRORS:
        for seed in options.seeds:
            for name in options.data:
                if (name, kind, rate, seed) not in done:
                    with RECORDS.open("a") as file:
                        file.write(json.dumps(run(name, kind, rate, seed)) + "\n")
    print("".join(tables(read())), end="")


if __name__ == "__main__":
    main()
