"""What stopping rules would have saved: runs to many labels, the rules asked after every batch, and a figure.

``python -m benchmarks.stopping run OUT.json [FEATURES.npz TEST.npz]``, then ``figure OUT.svg RUN.json ...``
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.first_batch import FirstBatchProblem, digits_problem, feature_problem
from foretaste.lookahead import linearize
from foretaste.network import MLP, fit
from foretaste.query import Budget, ErrorLeft, Round, SmallChange, StablePredictions, StopRule, look, query

WATCHED = 300
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


def read_runs(paths: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Runs of one or more files."""
    return [run for path in paths for run in json.loads(Path(path).read_text())]


if __name__ == "__main__":
    if sys.argv[1] == "run":
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
