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
BEFORE = ["cover before", "cover sequential"]  # other forms of cover, in a table of their own


def read(folder: str = ".") -> dict[str, dict]:
    """Records by cell: mean accuracy after the first query, (strategies, seeds), and what they are of."""
    cells = {}
    for file in sorted((HERE / "records" / folder).glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        accuracy = np.array(record["accuracy"])
        cells[file.stem] = record | {"mean": dict(zip(record["arms"], accuracy[:, :, 1:].mean(2)))}
    return cells


def difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """The mean of paired differences and half of its 95 % interval."""
    d = a - b
    return float(d.mean()), STUDENT[len(d)] * float(d.std(ddof=1)) / math.sqrt(len(d))


def to_cover(cell: dict, other: str) -> tuple[float, float]:
    return difference(cell["mean"][other], cell["mean"]["cover"])


def shown(cell: dict, other: str) -> str:
    """The difference to cover. Bold: the interval excludes 0."""
    if other not in cell["mean"]:
        return ""
    d, half = to_cover(cell, other)
    return f"**{d:+.1f} ± {half:.1f}**" if abs(d) > half else f"{d:+.1f} ± {half:.1f}"


def table(cells: dict[str, dict], others: list[str] = SHOWN[1:]) -> str:
    """A line a cell: the accuracy of cover, and how far the others are from it."""
    lines = ["| cell | cover | " + " | ".join(others) + " |", "|---" * (len(others) + 2) + "|"]
    for name, cell in cells.items():
        row = [f"{cell['mean']['cover'].mean():.1f}", *(shown(cell, other) for other in others)]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def rule(cells: dict[str, dict]) -> str:
    """Where the default misses its rule, a line for each cell and part of the rule."""
    lines = []
    for name, cell in cells.items():
        rivals = [other for other in SHOWN[1:] if other != "cover trace"]
        ahead = [f"{o} {shown(cell, o).strip('*')}" for o in rivals if to_cover(cell, o)[0] > to_cover(cell, o)[1]]
        if ahead:
            lines.append(f"- {name}: significantly ahead of `cover`: {', '.join(ahead)}.")
        to_random = {
            o: difference(cell["mean"][o], cell["mean"]["random"]) for o in ["cover", *rivals] if o != "random"
        }
        better = [o for o, (d, half) in to_random.items() if d > half]
        if better and "cover" not in better:
            d, half = to_random["cover"]
            lines.append(f"- {name}: {', '.join(better)} beat random points, `cover` does not ({d:+.1f} ± {half:.1f}).")
        level = [o for o in ("margin", "badge") if "-few-" in name and to_cover(cell, o)[0] + to_cover(cell, o)[1] >= 0]
        if level:
            lines.append(f"- {name}: not significantly behind `cover`: {', '.join(level)}.")
    return "\n".join(lines)


def verdict(cells: dict[str, dict]) -> str:
    """How often each strategy is significantly ahead of cover, and behind it; and its mean distance to it."""
    lines = ["| | ahead of cover | behind cover | cells | mean difference |", "|---|---|---|---|---|"]
    for other in [*SHOWN[1:], *BEFORE]:
        found = [to_cover(cell, other) for cell in cells.values() if other in cell["mean"]]
        if not found:
            continue
        ahead, behind = sum(d > half for d, half in found), sum(-d > half for d, half in found)
        lines.append(f"| {other} | {ahead} | {behind} | {len(found)} | {np.mean([d for d, _ in found]):+.1f} |")
    return "\n".join(lines)


def figure(cells: dict[str, dict], into: Path) -> None:
    """A row a cell, a point a strategy: its difference to cover, with the interval."""
    others = ["uherding", "gain", "margin", "random"]
    colours = dict(zip(others, ("#0072b2", "#d55e00", "#009e73", "#999999")))
    with mpl.rc_context({"svg.hashsalt": "findings", "svg.fonttype": "none", "font.size": 9}):
        fig = Figure(figsize=(8, 0.42 * len(cells) + 1.2), layout="constrained")
        ax = fig.subplots()
        for row, cell in enumerate(cells.values()):
            for k, other in enumerate(others):
                d, half = to_cover(cell, other)
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
    print(table(found), verdict(found), rule(found), table(found, BEFORE), sep="\n\n")
    figure(found, HERE.parent.parent / "docs" / "findings.svg")
