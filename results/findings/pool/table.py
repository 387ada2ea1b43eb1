"""The final table and figure from the records of verdict.py: python results/findings/pool/table.py

Accuracy of ``cover`` without the pool, mean over the cycles after the first; for the others the difference to it, with
the 95 % interval of the mean over seeds. "saved": the share of random labels that are not needed to be where the
network trained on random labels ends; ≥ where the first labels are already enough.
"""

import json
import math
import re
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import t as student

HERE = Path(__file__).parent
COLUMNS = (  # what predicts, who asks
    ("net", "random"), ("net", "gain"), ("net", "uherding"), ("net", "margin"), ("pool", "random"), ("pool", "cover"),
    ("pool", "cover~"), ("pool", "gain~"), ("pool", "herding~"), ("pool", "margin~"), ("soft", "random"),
    ("soft", "cover~"), ("soft", "gain~"),
)  # fmt: skip
TOLD = (("net", "random"), ("pool", "random"), ("pool", "cover~"), ("soft", "cover~"))
NAMES = {
    "c10": "CIFAR10 features", "c100": "CIFAR100 features", "bank": "BANKING77, embeddings",
    "banktfidf": "BANKING77, TF-IDF", "text": "docstrings, TF-IDF", "digits": "digits", "mnist": "MNIST 14 × 14",
    "c10-tail": "CIFAR10, long tail", "c10-noisy": "CIFAR10, a tenth wrong", "cancer": "breast cancer", "wine": "wine",
    "penguins": "penguins", "pima": "diabetes (Pima)",
}  # fmt: skip
SHOWN = ("c10-few", "bank-few", "mnist-few", "banktfidf-few")  # the panels of the figure
LINES = (
    ("net", "random", "network, random labels", "#747b84", ":"),
    ("net", "cover", "network, labels chosen by cover", "#0072b2", "--"),
    ("pool", "cover~", "with the pool, labels chosen by cover", "#d55e00", "-"),
)


def curve(record: dict, what: str, arm: str) -> np.ndarray:
    """(seeds, cycles + 1)."""
    return np.array(record[what])[record["arms"].index(arm)]


def interval(values_S: np.ndarray) -> tuple[float, float]:
    """The mean over seeds and half of its 95 % interval."""
    n = len(values_S)
    return values_S.mean(), student.ppf(0.975, n - 1) * values_S.std(ddof=1) / math.sqrt(n)


def to_cover(record: dict, what: str, arm: str) -> tuple[float, float]:
    return interval((curve(record, what, arm) - curve(record, "net", "cover"))[:, 1:].mean(1))


def shown(difference: tuple[float, float]) -> str:
    d, within = difference
    return f"**{d:+.1f} ± {within:.1f}**" if abs(d) > within else f"{d:+.1f} ± {within:.1f}"


def labels_needed(sizes: list[int], mean: np.ndarray, goal: float) -> float:
    """Labels at which a mean curve first reaches the goal, by linear interpolation; NaN if it does not."""
    for k, value in enumerate(mean):
        if value >= goal:
            before = mean[k - 1] if k else value
            share = (goal - before) / (value - before) if k and value > before else 0.0
            return sizes[k - 1] + share * (sizes[k] - sizes[k - 1]) if k else sizes[0]
    return math.nan


def saved(record: dict, what: str, arm: str) -> str:
    sizes, goal = record["labels"], curve(record, "net", "random").mean(0)[-1]
    needed = labels_needed(sizes, curve(record, what, arm).mean(0), goal)
    if math.isnan(needed):
        return "none"
    return f"{'≥ ' if needed == sizes[0] else ''}{1 - needed / sizes[-1]:.0%}"


def cell_name(record: dict) -> str:
    return f"{NAMES[record['cell'].rsplit('-', 1)[0]]}, {record['labels'][0]} to {record['labels'][-1]}"


def table(records: list[dict]) -> str:
    """Every arm in every cell, few labels first."""
    heads = " | ".join(f"{what}: {arm}" for what, arm in COLUMNS)
    lines = [f"| data, labels; loss | cover | {heads} | saved: cover | saved: pool |"]
    lines.append("|---" * (len(COLUMNS) + 4) + "|")
    for r in records:
        base = curve(r, "net", "cover")[:, 1:].mean()
        cells = [shown(to_cover(r, *column)) for column in COLUMNS]
        cells += [saved(r, "net", "cover"), saved(r, "pool", "cover~")]
        lines.append(f"| {cell_name(r)}; {r['loss']} | {base:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def short_table(records: list[dict]) -> str:
    """What docs/pool-notes.md shows: a row has the squared loss, a slash, cross-entropy."""
    heads = "| data, labels | `cover` | random | pool: random | pool: `cover` | trained on it | saved | with the pool |"
    lines = [heads, "|---|---|---|---|---|---|---|---|"]
    for ce, l2 in zip(records[::2], records[1::2]):
        assert (ce["cell"], ce["loss"], l2["loss"]) == (l2["cell"], "ce", "l2")
        both = [[f"{curve(r, 'net', 'cover')[:, 1:].mean():.1f}" for r in (l2, ce)]]
        both += [[shown(to_cover(r, *column)).split(" ±")[0] for r in (l2, ce)] for column in TOLD]
        both = [[c + "**" * c.startswith("**") for c in pair] for pair in both]
        both += [[saved(r, what, arm) for r in (l2, ce)] for what, arm in (("net", "cover"), ("pool", "cover~"))]
        lines.append(f"| {cell_name(ce)} | {' | '.join(' / '.join(pair) for pair in both)} |")
    return re.sub(r"-(?=\d)", "−", "\n".join(lines))


def verdict(records: list[dict]) -> str:
    """In how many cells an arm is significantly ahead of cover without the pool, and behind it."""
    lines = ["| | ahead | behind | mean, few labels | mean, many |", "|---|---|---|---|---|"]
    for what, arm in COLUMNS:
        found = {(r["cell"], r["loss"]): to_cover(r, what, arm) for r in records}
        ahead, behind = sum(d > w for d, w in found.values()), sum(-d > w for d, w in found.values())
        few, many = (
            np.mean([d for (cell, _), (d, _) in found.items() if cell.endswith(end)]) for end in ("-few", "-many")
        )
        lines.append(f"| {what}: {arm} | {ahead} | {behind} | {few:+.1f} | {many:+.1f} |")
    return "\n".join(lines)


def panel(ax: Axes, record: dict) -> None:
    """Curves with intervals, and how many random labels are saved."""
    sizes = record["labels"]
    for what, arm, name, colour, dash in LINES:
        ends = [interval(at_S) for at_S in curve(record, what, arm).T]
        mean, within = (np.array(e) for e in zip(*ends))
        ax.plot(sizes, mean, dash, color=colour, label=name, marker="o", ms=3)
        ax.fill_between(sizes, mean - within, mean + within, color=colour, alpha=0.15, lw=0)
    goal = curve(record, "net", "random").mean(0)[-1]
    needed = labels_needed(sizes, curve(record, "pool", "cover~").mean(0), goal)
    ax.annotate("", (needed, goal), (sizes[-1], goal), arrowprops={"arrowstyle": "->", "lw": 1.0})
    name = NAMES[record["cell"].rsplit("-", 1)[0]]
    ax.set_title(f"{name}\n{1 - needed / sizes[-1]:.0%} of the labels saved", fontsize=9)
    ax.set_xticks(sizes)
    ax.grid(alpha=0.3)
    ax.set_xlabel("labels")


def figure(records: list[dict], into: Path) -> None:
    with mpl.rc_context({"svg.hashsalt": "pool", "svg.fonttype": "none", "font.size": 8}):
        fig = Figure(figsize=(9.5, 2.9), layout="constrained")
        fig.patch.set_facecolor("white")
        for ax, cell in zip(fig.subplots(1, len(SHOWN)), SHOWN):
            panel(ax, next(r for r in records if (r["cell"], r["loss"]) == (cell, "ce")))
        fig.axes[0].set_ylabel("test accuracy, %")
        fig.legend(*fig.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        fig.savefig(into, metadata={"Date": None, "Creator": None})


def read(folder: Path = HERE) -> list[dict]:
    """The committed records of a folder: few labels first, in the order of NAMES."""
    found = [json.loads(file.read_text()) for file in (folder / "records").glob("*.json")]
    names = list(NAMES)
    order = [(r["cell"].endswith("-many"), names.index(r["cell"].rsplit("-", 1)[0]), r["loss"]) for r in found]
    return [found[k] for k in sorted(range(len(found)), key=order.__getitem__)]


if __name__ == "__main__":
    records = read()
    print(short_table(records), verdict(records), table(records), sep="\n\n")
    figure(records, HERE.parents[2] / "docs" / "pool.svg")
