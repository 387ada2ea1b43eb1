"""``python -m benchmarks.kept FILE``: keep the ratios that ``python -m benchmarks --out FILE`` measured, by commit.

Only ratios are kept: seconds are of one machine and one day. Lower is better for all of them. A ratio that is more than
a fifth above the median of the last five runs of the same kind (device and size) ends the command with 1. The figure
docs/benchmarks-kept.svg shows all runs.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "results" / "benchmarks" / "ratios.jsonl"
FIGURE = ROOT / "docs" / "benchmarks-kept.svg"
ALARM = 1.2
RECENT = 5  # runs that a new one is compared with


@dataclass(frozen=True)
class KeptRun:
    """The ratios of one run."""

    commit: str
    at: str  # when it was measured, ISO
    device: str
    quick: bool
    ratios: dict[str, float]


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """The ratios of ``ft.ntk`` in the results of ``python -m benchmarks``: to one forward pass, and to torch.func."""
    kept = {}
    for row in found["kernels"]:
        if row["name"].startswith("ft.ntk") and not row["failed"]:
            name = f"{row['workload']}: {re.sub(' in .*', ' in a fifth of the memory', row['name'])}"
            kept[f"{name}, seconds to a forward pass"] = row["forwards"]
            kept[f"{name}, seconds to torch.func"] = 1 / row["speedup"]
            kept[f"{name}, memory to torch.func"] = row["memory"]
    return {name: float(f"{value:.3g}") for name, value in kept.items()}


def read_kept(path: Path = KEPT) -> list[KeptRun]:
    """All runs, oldest first."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [KeptRun(**json.loads(line)) for line in lines if line]


def compare(run: KeptRun, before: Sequence[KeptRun]) -> list[str]:
    """A sentence for each ratio that rose by more than a fifth."""
    same = [old for old in before if (old.device, old.quick) == (run.device, run.quick)]
    told = []
    for name, value in run.ratios.items():
        recent = [old.ratios[name] for old in same if name in old.ratios][-RECENT:]
        if recent and value > ALARM * (usual := median(recent)):
            told.append(f"{name}: {value:g}, before {usual:g} (+{100 * (value / usual - 1):.0f} %)")
    return told


def keep(run: KeptRun, path: Path = KEPT) -> None:
    """Add a run to the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(run), ensure_ascii=False) + "\n")


def draw(runs: Sequence[KeptRun], path: Path = FIGURE) -> None:
    """Every ratio over the runs that are not quick; each beside its own first value, so that all share one axis."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    runs = [run for run in runs if not run.quick]
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(name for run in runs for name in run.ratios):
        points = [(k, run.ratios[name]) for k, run in enumerate(runs) if name in run.ratios]
        at, values = zip(*points)
        axes.plot(
            at, [value / values[0] for value in values], marker="o", markersize=3, label=f"{name} ({values[-1]:g})"
        )
    axes.axhline(ALARM, color="#8a8f98", linestyle="--", linewidth=1)
    axes.set_xticks(range(len(runs)), [f"{run.commit[:7]}\n{run.at[:10]}" for run in runs], fontsize=7)
    axes.set_ylabel("of the first run")
    axes.set_ylim(0, None)
    figure.legend(loc="outside right upper", fontsize=6)
    with rc_context({"svg.hashsalt": "kept"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def main(words: Sequence[str]) -> None:
    """Compare, keep, draw."""
    parser = argparse.ArgumentParser("python -m benchmarks.kept", description=__doc__.replace("``", ""))
    parser.add_argument("file", type=Path, help="what python -m benchmarks --out wrote")
    parser.add_argument("--commit", help="default: that of the clone")
    parser.add_argument("--kept", type=Path, default=KEPT, help="the file of all runs")
    parser.add_argument("--figure", type=Path, default=FIGURE)
    given = parser.parse_args(words)
    found = json.loads(given.file.read_text(encoding="utf-8"))
    words = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    commit = given.commit or subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    [about] = found["about"]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    run = KeptRun(commit, at, about["device"], about["quick"], ratios(found))
    before = read_kept(given.kept)
    keep(run, given.kept)
    draw([*before, run], given.figure)
    print(f"{len(run.ratios)} ratios of {commit} kept in {given.kept}, beside {len(before)} runs")
    if told := compare(run, before):
        sys.exit("more than a fifth above the last runs:\n  " + "\n  ".join(told))


if __name__ == "__main__":
    main(sys.argv[1:])
