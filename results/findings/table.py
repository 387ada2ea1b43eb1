"""The tables and the figure of docs/findings.md, from the records alone.

python results/findings/table.py
"""

import json
import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

HERE = Path(__file__).parent
STUDENT = {4: 3.182, 6: 2.571, 10: 2.262}  # of 95 %, by the number of seeds
SHOWN = ["cover", "cover trace", "uherding", "maxherding", "typiclust", "gain", "margin", "badge", "random"]


def read() -> dict[str, dict]:
    """Records by cell: mean accuracy after the first query, (strategies, seeds), and what they are of."""
    cells = {}
    for file in sorted((HERE / "records").glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        accuracy = np.array(record["accuracy"])
        cells[file.stem] = record | {"mean": dict(zip(record["arms"], accuracy[:, :, 1:].mean(2)))}
    return cells


def difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """The mean of paired differences and half of its 95 % interval."""
    d = a - b
    return float(d.mean()), STUDENT[len(d)] * float(d.std(ddof=1)) / math.sqrt(len(d))


def table(cells: dict[str, dict]) -> str:
    """A line a cell: the accuracy of cover, and how far the others are from it. Bold: the interval excludes 0."""
    lines = ["| cell | " + " | ".join(SHOWN) + " |", "|---" * (len(SHOWN) + 1) + "|"]
    for name, cell in cells.items():
        own, row = cell["mean"]["cover"], [f"{cell['mean']['cover'].mean():.1f}"]
        for other in SHOWN[1:]:
            d, half = difference(cell["mean"][other], own)
            row.append(f"**{d:+.1f} ± {half:.1f}**" if abs(d) > half else f"{d:+.1f} ± {half:.1f}")
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def verdict(cells: dict[str, dict]) -> str:
    """How often each strategy is significantly ahead of cover, and behind it; and its mean distance to it."""
    lines = ["| | ahead of cover | behind cover | cells | mean difference |", "|---|---|---|---|---|"]
    for other in SHOWN[1:]:
        found = [difference(cell["mean"][other], cell["mean"]["cover"]) for cell in cells.values()]
        ahead, behind = sum(d > half for d, half in found), sum(-d > half for d, half in found)
        lines.append(f"| {other} | {ahead} | {behind} | {len(found)} | {np.mean([d for d, _ in found]):+.1f} |")
    return "\n".join(lines)


def figure(cells: dict[str, dict], into: Path) -> None:
    """A row a cell, a point a strategy: its difference to cover, with the interval."""
    shown = ["uherding", "gain", "margin", "random"]
    colours = dict(zip(shown, ("#0072b2", "#d55e00", "#009e73", "#999999")))
    with mpl.rc_context({"svg.hashsalt": "findings", "svg.fonttype": "none", "font.size": 9}):
        fig = Figure(figsize=(8, 0.42 * len(cells) + 1.2), layout="constrained")
        ax = fig.subplots()
        for row, cell in enumerate(cells.values()):
            for k, other in enumerate(shown):
                d, half = difference(cell["mean"][other], cell["mean"]["cover"])
                at = row + 0.16 * (k - 1.5)
                label = other if row == 0 else None
                ax.errorbar(d, at, xerr=half, fmt="o", ms=3.5, lw=1.2, color=colours[other], label=label)
        ax.axvline(0, color="black", lw=0.8)
        ax.set_yticks(range(len(cells)), list(cells))
        ax.invert_yaxis()
        ax.set_xlabel("accuracy less that of cover, in points (95 % intervals, paired by seed)")
        ax.grid(axis="x", alpha=0.3)
        ax.legend(loc="lower left", fontsize=8)
        fig.savefig(into, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    found = read()
    print(table(found), verdict(found), sep="\n\n")
    figure(found, HERE.parent.parent / "docs" / "findings.svg")
