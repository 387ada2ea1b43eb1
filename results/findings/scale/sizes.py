"""docs/scaling.svg: seconds and memory of a query from 10³ to 10⁶ candidates, of sizes.jsonl.

python -m benchmarks.scale --rows 1000 10000 100000 1000000 | grep '^{' > results/findings/scale/sizes.jsonl
python results/findings/scale/sizes.py
"""

import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

HERE = Path(__file__).parent
CARD = (10**6, 3.75, 9.12)  # python -m benchmarks.scale card, one H200: points, seconds, GB
AXES = (("seconds", "seconds", 1), ("gigabytes", "GB", 2))


def figure(into: Path) -> None:
    rows = [json.loads(line) for line in (HERE / "sizes.jsonl").read_text().splitlines()]
    with mpl.rc_context({"svg.hashsalt": "scaling", "svg.fonttype": "none", "font.size": 8}):
        fig = Figure(figsize=(7.2, 2.6), layout="constrained")
        fig.patch.set_facecolor("white")
        for ax, (key, unit, at) in zip(fig.subplots(1, 2), AXES):
            ax.plot([r["U"] for r in rows], [r[key] for r in rows], "-", color="#0072b2", lw=1)
            for method, mark in (("dense", "s"), ("streamed", "o")):
                own = [r for r in rows if r["method"] == method]
                ax.plot([r["U"] for r in own], [r[key] for r in own], mark, color="#0072b2", ms=5,
                        label=f"two cores, {method}")  # fmt: skip
            ax.plot(CARD[0], CARD[at], "^", color="#d55e00", ms=6, label="H200, rows of 1280 numbers")
            ax.set(xscale="log", yscale="log", xlabel="candidates", ylabel=unit)
            ax.grid(alpha=0.3)
        fig.legend(*fig.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        fig.savefig(into, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    figure(HERE.parents[2] / "docs" / "scaling.svg")
