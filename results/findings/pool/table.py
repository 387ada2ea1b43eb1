"""The final table from the records of verdict.py: python results/findings/pool/table.py FOLDER

Accuracy of ``cover`` without the pool, mean over the cycles after the first; for the others the difference to it, with
the 95 % interval of the mean over seeds. "saved": the share of random labels that are not needed to be where the
network trained on random labels ends.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
from scipy.stats import t as student

COLUMNS = (  # what predicts, who asks
    ("net", "random"), ("net", "gain"), ("net", "uherding"), ("net", "margin"), ("pool", "random"), ("pool", "cover"),
    ("pool", "cover~"), ("pool", "gain~"), ("pool", "herding~"), ("pool", "margin~"), ("soft", "random"),
    ("soft", "cover~"), ("soft", "gain~"),
)  # fmt: skip


def curve(record: dict, what: str, arm: str) -> np.ndarray:
    """(seeds, cycles + 1)."""
    return np.array(record[what])[record["arms"].index(arm)]


def labels_needed(sizes: list[int], mean: np.ndarray, goal: float) -> float:
    """Labels at which a mean curve first reaches the goal, by linear interpolation; NaN if it does not."""
    for k, value in enumerate(mean):
        if value >= goal:
            before = mean[k - 1] if k else value
            share = (goal - before) / (value - before) if k and value > before else 0.0
            return sizes[k - 1] + share * (sizes[k] - sizes[k - 1]) if k else sizes[0]
    return math.nan


def main(folder: Path) -> None:
    """Print the table in Markdown."""
    print("| cell | cover |", " | ".join(f"{what}: {arm}" for what, arm in COLUMNS), "| saved: cover | saved: pool |")
    print("|---" * (len(COLUMNS) + 4) + "|")
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text())
        base = curve(record, "net", "cover")[:, 1:].mean(1)
        cells = []
        for what, arm in COLUMNS:
            if arm not in record["arms"]:
                cells.append("not run")
                continue
            difference = curve(record, what, arm)[:, 1:].mean(1) - base
            n = len(difference)
            within = student.ppf(0.975, n - 1) * difference.std(ddof=1) / math.sqrt(n)
            text = f"{difference.mean():+.1f} ± {within:.1f}"
            cells.append(f"**{text}**" if abs(difference.mean()) > within else text)
        sizes, goal = record["labels"], curve(record, "net", "random").mean(0)[-1]
        for what, arm in (("net", "cover"), ("pool", "cover~")):
            needed = labels_needed(sizes, curve(record, what, arm).mean(0), goal)
            cells.append("–" if math.isnan(needed) else f"{1 - needed / sizes[-1]:.0%}")
        print(f"| {record['cell']}, {record['loss']} | {base.mean():.1f} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
