"""What stopping rules would have saved: runs to many labels, the rules asked after every batch, and a figure.

``python -m benchmarks.stopping run OUT.json [FEATURES.npz TEST.npz]``, then ``figure OUT.svg RUN.json ...``

How far the expected error is from the true one: ``expected OUT.json SEEDS FIRST_SEED [FEATURES.npz TEST.npz]
[TEXTS.npz]`` adds runs to OUT.json, on digits or on what is given, and ``ratios OUT.json`` prints the tables.
"""

import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.first_batch import FirstBatchProblem, digits_problem, feature_problem
from foretaste.label import Learner
from foretaste.lookahead import linearize
from foretaste.network import MLP, fit
from foretaste.pick import Budget, ErrorLeft, Round, SmallChange, StablePredictions, StopRule, look, query

WATCHED = 300
EXPECTED_AT = {10: (20, 40, 80, 120, 200), 77: (77, 154, 300, 500)}  # labels at which errors are compared, by classes
LEARNER_POOL = 600
RULES: dict[str, StopRule] = {
    "ErrorLeft(0.05)": ErrorLeft(0.05),
    "SmallChange(0.02, rounds=2)": SmallChange(0.02, rounds=2),
    "StablePredictions(0.98)": StablePredictions(0.98),
    "ErrorLeft(0.05) & StablePredictions(0.98)": ErrorLeft(0.05) & StablePredictions(0.98),
    "Budget(100)": Budget(100),
}


def run_rounds(
    problem: FirstBatchProblem, seed: int, *, batch_size: int, most: int, steps: int = 1200
) -> list[dict[str, Any]]:
    """Batches by ``gain``, until there are ``most`` labels. One record a round, with what ``look`` saw."""
    C = int(problem.y.max()) + 1
    order = torch.randperm(len(problem.x), generator=torch.Generator().manual_seed(seed))
    watched, offered = order[:WATCHED], order[WATCHED:][: problem.subset]
    labelled, records = offered[:batch_size].tolist(), []
    while len(labelled) <= most:
        pool = offered[~torch.isin(offered, torch.tensor(labelled))]
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            net = MLP(problem.x.shape[1], problem.hidden, C)
        x_L, y_L, x_U = problem.x[labelled], problem.y[labelled], problem.x[pool]
        fit(net, x_L, y_L, steps=steps, start="cold", seed=seed)
        q = query(net.eval(), x_L, y_L, x_U, batch_size=batch_size, strategy="gain", watch=WATCHED, seed=seed)
        seen = look(linearize(net, x_L, y_L, x_U, watch=problem.x[watched]), q.indices)
        assert seen.predictions is not None
        with torch.no_grad():
            right = net(problem.x_test).argmax(1) == problem.y_test
        records.append(
            {
                "problem": problem.name,
                "seed": seed,
                "labelled": seen.labelled,
                "error_left": seen.error_left,
                "change": seen.change,
                "predictions": seen.predictions.tolist(),
                "wrong": float((seen.predictions != problem.y[watched]).double().mean()),
                "accuracy": float(right.double().mean()),
            }
        )
        print(problem.name, seed, {k: v for k, v in records[-1].items() if k != "predictions"}, file=sys.stderr)
        labelled += pool[q.indices].tolist()
    return records


def stopped_at(rule: StopRule, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record at which the rule stops; the last, if it never does."""
    rounds: list[Round] = []
    for r in records:
        rounds.append(Round(r["labelled"], r["error_left"], r["change"], torch.tensor(r["predictions"])))
        if rule(rounds):
            return r
    return records[-1]


def stopping_markdown(runs: Sequence[Sequence[dict[str, Any]]]) -> str:
    """For each rule: labels at which it stops, what is saved, and the accuracy that is given up; means over seeds."""
    lines = ["| problem | rule | labels | saved | accuracy there | given up |", "|---|---|---|---|---|---|"]
    for problem in dict.fromkeys(run[0]["problem"] for run in runs):
        own = [run for run in runs if run[0]["problem"] == problem]
        for name, rule in RULES.items():
            at = [stopped_at(rule, run) for run in own]
            labels = [r["labelled"] for r in at]
            accuracy = sum(r["accuracy"] for r in at) / len(at)
            last = sum(run[-1]["accuracy"] for run in own) / len(own)
            whole = own[0][-1]["labelled"]
            mean = sum(labels) / len(labels)
            lines.append(
                f"| {problem} | `{name}` | {mean:.0f} ({min(labels)} to {max(labels)}) | "
                f"{1 - mean / whole:.0%} of {whole} | {100 * accuracy:.1f} | {100 * (last - accuracy):.1f} |"
            )
    return "\n".join(lines)


def draw_stopping(runs: Sequence[Sequence[dict[str, Any]]], path: Path) -> None:
    """Test error, expected error and predicted change by labels, and where each rule stops."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "foretaste"
    import matplotlib.pyplot as plt

    problems = list(dict.fromkeys(run[0]["problem"] for run in runs))
    figure, axes = plt.subplots(1, len(problems), figsize=(5.6 * len(problems), 4.4), squeeze=False)
    for ax, problem in zip(axes[0], problems):
        own = [run for run in runs if run[0]["problem"] == problem]
        labels = [r["labelled"] for r in own[0]]
        curves = {
            "test error": [[1 - r["accuracy"] for r in run] for run in own],
            "expected error": [[r["error_left"] for r in run] for run in own],
            "predicted change of the next batch": [[r["change"] for r in run] for run in own],
        }
        for (name, values), colour in zip(curves.items(), ("black", "tab:blue", "tab:orange")):
            for one in values:
                ax.plot(labels, one, color=colour, linewidth=0.6, alpha=0.3)
            ax.plot(labels, [sum(v) / len(v) for v in zip(*values)], color=colour, linewidth=1.8, label=name)
        for (name, rule), marker in zip(RULES.items(), "ovs^D"):
            at = [stopped_at(rule, run) for run in own]
            spots = [r["labelled"] for r in at], [1 - r["accuracy"] for r in at]
            ax.scatter(*spots, marker=marker, s=34, zorder=3, edgecolor="white", linewidth=0.5, label=name)
        ax.set(title=problem, xlabel="labels", yscale="log")
        ax.set_ylabel("share of points")
    axes[0][-1].legend(fontsize=7, frameon=False, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def expected_by_look(problem: FirstBatchProblem, loss: str, seed: int) -> list[dict[str, Any]]:
    """Batches by ``ft.query``, and the call of the documentation: what ``look`` expects, and what is wrong."""
    C, watched, y = int(problem.y.max()) + 1, problem.x_test[:500], problem.y_test[:500]
    offered = torch.randperm(len(problem.x), generator=torch.Generator().manual_seed(seed))[: problem.subset]
    counts, records = EXPECTED_AT[C], []
    labelled = offered[: counts[0]].tolist()
    for more in (*(b - a for a, b in pairwise(counts)), 0):
        pool = offered[~torch.isin(offered, torch.tensor(labelled))]
        x_L, y_L, x_U = problem.x[labelled], problem.y[labelled], problem.x[pool]
        net = MLP(problem.x.shape[1], problem.hidden, C)
        fitted = fit(net, x_L, y_L, loss=loss, steps=1200, start="cold", seed=seed)
        seen = look(linearize(net, x_L, y_L, x_U[:1], watch=watched, loss=loss))
        with torch.no_grad():
            wrong = float((net(watched).argmax(1) != y).double().mean())
        found = {"labels": len(labelled), "expected": seen.error_left, "wrong": wrong, "residual": fitted.residual}
        records.append({"problem": problem.name, "by": "look", "loss": loss, "seed": seed, **found})
        if more:
            q = query(net, x_L, y_L, x_U, batch_size=more, watch=WATCHED, seed=seed, loss=loss)
            labelled += pool[q.indices].tolist()
    return records


def expected_by_learner(problem: FirstBatchProblem, loss: str, seed: int) -> list[dict[str, Any]]:
    """One label at a time: what ``status()["error"]`` expects of the open items, and what is wrong there."""
    C = int(problem.y.max()) + 1
    at = torch.randperm(len(problem.x), generator=torch.Generator().manual_seed(seed))[:LEARNER_POOL]
    truth: dict[Any, int] = dict(enumerate(problem.y[at].tolist()))
    records = []
    learner = Learner(pool=problem.x[at], classes=C, seed=seed, loss=loss, fit_options={"steps": 600})
    for n in range(1, min(EXPECTED_AT[C][-1], LEARNER_POOL // 2) + 1):
        [i] = learner.query(1)
        learner.teach(i, truth[i])
        if learner.ready and learner.drift()["retrain"]:
            learner.retrain(wait=True)
        if n in EXPECTED_AT[C] and learner.ready:
            error = learner.status()["error"]
            left = [i for i in truth if i not in learner.labels]
            wrong = sum(y != truth[i] for i, y in zip(left, learner.predict(left))) / len(left)
            found = {"labels": n, "expected": error["corrected"], "model": error["model"], "wrong": wrong}
            records.append({"problem": problem.name, "by": "learner", "loss": loss, "seed": seed, **found})
    return records


def expected_markdown(records: Sequence[dict[str, Any]]) -> str:
    """Mean expected error over mean true error by labels, and in how many runs less is expected than is wrong."""
    lines = ["| | problem | loss | labels: expected / true error (runs in which it is too low) |", "|---|---|---|---|"]
    for key in dict.fromkeys((r["by"], r["problem"], r["loss"]) for r in records):
        own = [r for r in records if (r["by"], r["problem"], r["loss"]) == key]
        cells = []
        for n in dict.fromkeys(r["labels"] for r in own):
            here = [r for r in own if r["labels"] == n]
            ratio = sum(r["expected"] for r in here) / max(sum(r["wrong"] for r in here), 1e-9)
            low = sum(r["expected"] < r["wrong"] for r in here)
            cells.append(f"{n}: {ratio:.2f} ({low} of {len(here)})")
        lines.append(f"| {' | '.join(key)} | {', '.join(cells)} |")
    return "\n".join(lines)


def text_problem(path: str) -> FirstBatchProblem:
    """Embeddings of texts: arrays x_train, y_train, x_test and y_test."""
    made = np.load(path)
    x, x_test = (torch.from_numpy(made[name].astype(np.float32)) for name in ("x_train", "x_test"))
    y, y_test = (torch.from_numpy(made[name]).long() for name in ("y_train", "y_test"))
    return FirstBatchProblem("BANKING77", x, y, x_test, y_test, (256,), 2000)


def read_runs(paths: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Runs of one or more files."""
    return [run for path in paths for run in json.loads(Path(path).read_text())]


if __name__ == "__main__":
    if sys.argv[1] == "expected":
        out, seeds, first, *files = sys.argv[2:]
        problem = digits_problem()
        if files:
            texts = len(files) == 1
            problem = text_problem(files[0]) if texts else feature_problem(files[0], files[1], "CIFAR10 features")
        found = json.loads(Path(out).read_text()) if Path(out).exists() else []
        for seed in range(int(first), int(first) + int(seeds)):
            for loss in ("l2", "ce"):
                found += expected_by_look(problem, loss, seed) + expected_by_learner(problem, loss, seed)
                Path(out).write_text("[\n" + ",\n".join(json.dumps(r) for r in found) + "\n]\n")
    elif sys.argv[1] == "ratios":
        print(expected_markdown(json.loads(Path(sys.argv[2]).read_text())))
    elif sys.argv[1] == "run":
        made = []
        if len(sys.argv) == 5:
            features = feature_problem(sys.argv[3], sys.argv[4], "CIFAR10 features")
        for seed in range(6):
            if len(sys.argv) == 5:
                made.append(run_rounds(features, seed, batch_size=20, most=300))
            else:
                made.append(run_rounds(digits_problem(), seed, batch_size=10, most=200))
            Path(sys.argv[2]).write_text(json.dumps(made))
    else:
        runs = read_runs(sys.argv[3:])
        draw_stopping(runs, Path(sys.argv[2]))
        print(stopping_markdown(runs))
