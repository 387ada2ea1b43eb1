"""The final table and figure of docs/field.md from its records: python results/findings/field/field_table.py [OUT]

With OUT, the folder that run.sh wrote, the halves of the seeds are first put together as records/CELL-LOSS.json.
Differences are to ``cover``, paired by seed, of the mean accuracy over the cycles after the first, with the 95 %
interval of the mean. "saved" is the share of random labels that are not needed to be where random labels end; its
interval is that of 500 draws of the seeds.
"""

import json
import math
import re
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).parents[1] / "pool"))
import table as pool_table
from table import cell_name, curve, interval, labels_needed, shown

HERE = Path(__file__).parent

RIVALS = {
    "random": "random", "margin": "margin", "badge": "BADGE", "typiclust": "TypiClust", "uherding": "herding",
    "dropquery": "DropQuery", "dcom": "DCoM", "alfamix": "ALFA-Mix", "falcun": "Falcun",
    "clustermargin": "Cluster-Margin", "bait": "BAIT", "parbals": "ParBaLS", "gain": "`gain`",
}  # fmt: skip
VIEWS = (("net", "cover"), ("pool", "cover~"))  # what predicts, and who asks for it


def put_together(out: Path) -> None:
    """Write records/CELL-LOSS.json where both halves of the seeds are there."""
    for file in sorted((out / "130").glob("*.json")):
        other = out / "135" / file.name
        if not other.exists():
            continue
        a, b = (json.loads(f.read_text()) for f in (file, other))
        whole = {key: a[key] for key in ("cell", "loss", "arms", "labels")} | {"seeds": a["seeds"] + b["seeds"]}
        for key in ("net", "pool"):
            whole[key] = np.concatenate([a[key], b[key]], 1).tolist()
        (HERE / "records").mkdir(exist_ok=True)
        (HERE / "records" / file.name).write_text(json.dumps(whole) + "\n")


def read() -> list[dict]:
    """The committed records: few labels first."""
    return pool_table.read(HERE)


def difference(record: dict, what: str, arm: str, base: str) -> np.ndarray:
    """(seeds,): mean accuracy over the cycles after the first, less that of ``base``."""
    return (curve(record, what, arm) - curve(record, what, base))[:, 1:].mean(1)


def p_value(values_S: np.ndarray) -> float:
    """Of a paired t test; 1 where all are the same."""
    n, spread = len(values_S), values_S.std(ddof=1)
    return 2 * student.sf(abs(values_S.mean()) * math.sqrt(n) / spread, n - 1) if spread > 0 else 1.0


def saved(record: dict, what: str, arm: str) -> tuple[float, float, float]:
    """The share of random labels saved, and its interval; 0 where the goal is not reached."""
    sizes, of_random, own = record["labels"], curve(record, "net", "random"), curve(record, what, arm)

    def share(at_S: np.ndarray) -> float:
        needed = labels_needed(sizes, own[at_S].mean(0), of_random[at_S].mean(0)[-1])
        return 0.0 if math.isnan(needed) else 1 - needed / sizes[-1]

    n, draw = len(own), np.random.default_rng(0)
    low, high = np.quantile([share(draw.integers(n, size=n)) for _ in range(500)], [0.025, 0.975])
    return share(np.arange(n)), low, high


def saved_text(found: tuple[float, float, float]) -> str:
    share, low, high = (round(100 * x) for x in found)
    return f"{share} % ({low} to {high})"


def cells_table(records: list[dict], what: str, base: str) -> str:
    """Each cell a row: the accuracy of ``base`` and the others' differences to it."""
    heads = " | ".join(RIVALS.values())
    lines = [f"| data, labels; loss | `cover` | {heads} | labels saved |", "|---" * (len(RIVALS) + 3) + "|"]
    for r in records:
        own = curve(r, what, base)[:, 1:].mean()
        cells = [shown(interval(difference(r, what, a, base))) if a in r["arms"] else "–" for a in RIVALS]
        row = f"| {cell_name(r)}; {r['loss']} | {own:.1f} | {' | '.join(cells)} | {saved_text(saved(r, what, base))} |"
        lines.append(re.sub(r"-(?=\d)", "−", row))
    return "\n".join(lines)


def verdict(records: list[dict]) -> str:
    """Each rival a row: mean differences, and how often ``cover`` is ahead and behind; alone and with the pool."""
    lines = [
        "| | few labels | many | `cover` ahead, behind | with the pool: few | many | ahead, behind |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm, name in RIVALS.items():
        row = [name]
        for what, base in VIEWS:
            found = [(r, difference(r, what, arm, base)) for r in records if arm in r["arms"]]
            for end in ("-few", "-many"):
                means = [d.mean() for r, d in found if r["cell"].endswith(end)]
                row.append(f"{np.mean(means):+.1f}" if means else "–")
            ends = [interval(d) for _, d in found]
            row.append(f"{sum(-d > w for d, w in ends)}, {sum(d > w for d, w in ends)} of {len(ends)}")
        lines.append(re.sub(r"-(?=\d)", "−", f"| {' | '.join(row)} |"))
    return "\n".join(lines)


def rule(records: list[dict], what: str, base: str) -> str:
    """Where another one is significantly ahead, and where with few labels margin, BADGE or random are not behind."""
    tests = [(r, a, difference(r, what, a, base)) for r in records for a in RIVALS if a in r["arms"]]
    order = sorted(tests, key=lambda t: p_value(t[2]))
    kept = []  # by Holm's correction
    for k, test in enumerate(order):
        if p_value(test[2]) > 0.05 / (len(order) - k):
            break
        kept.append(test)
    ahead = sum(d.mean() < 0 for *_, d in kept)
    lines = [
        f"{len(tests)} comparisons; by Holm's correction `cover` is ahead in {ahead}, behind in {len(kept) - ahead}.",
        "",
    ]
    for r, a, d in tests:
        mean, within = interval(d)
        if mean > within:
            lines.append(f"- {cell_name(r)}; {r['loss']}: {RIVALS[a]} is ahead, {shown((mean, within))}")
        elif a in ("margin", "badge", "random") and r["cell"].endswith("-few") and -mean <= within:
            lines.append(f"- {cell_name(r)}; {r['loss']}: {RIVALS[a]} is level, {shown((mean, within))}")
    return re.sub(r"-(?=\d)", "−", "\n".join(lines))


def figure(records: list[dict], into: Path) -> None:
    """Differences to cover, a dot for each cell."""
    with mpl.rc_context({"svg.hashsalt": "field", "svg.fonttype": "none", "font.size": 8}):
        fig = Figure(figsize=(9.5, 3.4), layout="constrained")
        fig.patch.set_facecolor("white")
        for ax, (what, base) in zip(fig.subplots(1, 2, sharey=True), VIEWS):
            for k, arm in enumerate(RIVALS):
                for end, colour, up in (("-few", "#0072b2", 0.12), ("-many", "#d55e00", -0.12)):
                    x = [difference(r, what, arm, base).mean() for r in records
                         if arm in r["arms"] and r["cell"].endswith(end)]  # fmt: skip
                    ax.plot(x, [-k + up] * len(x), "o", ms=3, color=colour, alpha=0.6, lw=0,
                            label={"-few": "few labels", "-many": "many labels"}[end] if k == 0 else None)  # fmt: skip
                    if x:
                        ax.plot([np.mean(x)], [-k + up], "|", ms=9, mew=2, color=colour)
            ax.axvline(0, color="black", lw=0.8)
            ax.set_yticks([-k for k in range(len(RIVALS))], [n.strip("`") for n in RIVALS.values()])
            ax.grid(axis="x", alpha=0.3)
            ax.set_xlabel("accuracy less that of cover, points")
            ax.set_title({"net": "the network predicts", "pool": "with the pool"}[what], fontsize=9)
        fig.legend(*fig.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        fig.savefig(into, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        put_together(Path(sys.argv[1]))
    records = read()
    parts = [verdict(records)]
    for what, base in VIEWS:
        parts += [f"## {what}", rule(records, what, base), cells_table(records, what, base)]
    print("\n\n".join(parts))
    figure(records, HERE.parents[2] / "docs" / "field.svg")
