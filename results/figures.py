"""Each figure of the paper from its own arms of the records here: curves as SVG, means as CSV, a table on the screen.

    python results/figures.py          # all of them
    python results/figures.py fig3a

Arms that several figures share were run once (results/PROGRAM.md). A figure is a choice of records: an arm keeps the
name and the settings it was run with. "NTK", "gain" and "Random" without a width are of widen 10.
"""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl

from foretaste.report import curves, summarize
from foretaste.study import load

HERE = Path(__file__).parent
RATES = [f"LL4AL {how}, {rate}" for how in ("mean", "sum") for rate in ("0.3", "0.1", "0.03", "0.01", "0.003", "0.001")]
RIVALS = ["cover", "Margin", "BADGE", "Entropy", "NTK", "Random"]
TODAY = ["cover", "herding", *RIVALS[1:]]
WIDTHS = [f"{arm}, widen {k}" for k in (4, 2, 1) for arm in ("NTK", "gain", "Random")]

# name: folders of records, and the arms that are shown. A run (an arm, a seed) that a later folder has again is taken
# from there.
FIGURES = {
    "mnist-wrn1": (
        ["mnist", "mnist-today"],
        ["cover", "gain", "Margin", "herding", "NTK, released code", "BADGE", "Entropy", "NTK", "LL4AL", "Random"],
    ),
    "fig3a": (["mnist"], ["gain", "Sequential NTK", "NTK", "Random"]),
    "fig3b": (["mnist"], ["NTK", "gain", "Random", *WIDTHS]),
    "l2-ce": (["mnist"], ["NTK", "Random", "NTK, CE", "Random, CE"]),
    "fig1b": (
        ["mnist14"],
        ["NN, gain", "NN, NTK", "NN, infinite NTK", "NN, one step", "NN, Random", "GP, infinite NTK", "GP, Random"],
    ),
    "fig1a": (["mnist14", "mnist14-naive"], ["NN, NTK", "NN, NTK, no block", "Naive", "NN, Random"]),
    "fig2a": (["fig2a", "fig2a-today", "fig2a-more"], TODAY),
    "fig2b": (["fig2b", "fig2b-today", "fig2b-more"], TODAY),
    "fig2c": (["fig2c"], RIVALS),  # LL4AL, at 2 %, would flatten the others; it is in the figure ll4al
    "svhn-wrn2": (["svhn-wrn2", "svhn-wrn2-today"], TODAY),
    "svhn-wrn2-long": (["svhn-wrn2-long"], [arm for arm in TODAY if arm != "Entropy"]),
    "svhn-resnet18": (["svhn-resnet18", "svhn-resnet18-today"], TODAY),
    "svhn-resnet18-long": (["svhn-resnet18-long"], ["cover", "Margin", "NTK", "Random"]),
    "cifar10-resnet18": (["cifar10-resnet18", "cifar10-resnet18-today"], TODAY),
    "ll4al": (["ll4al", "fig2c"], [*RATES, "Random"]),
    "mnist-cold": (["mnist-cold"], ["gain", "NTK", "Random"]),
    "digits-claims": (["digits-claims"], None),
}
# What a record does not say: arms run in a study without their Random; and the Randoms are baselines themselves.
AGAINST = {
    **dict.fromkeys([*RATES, "cover", "herding"], "Random"),
    "Naive": "NN, Random",
    **dict.fromkeys(["Random, CE", *(f"Random, widen {k}" for k in (4, 2, 1))]),
}


def records_of(name: str) -> list:
    folders, arms = FIGURES[name]
    runs: dict[tuple[str, int], list] = {}
    for folder in folders:
        own = [dict(r) for r in load(HERE / folder)]
        runs |= {run: [r for r in own if (r["arm"], r["seed"]) == run] for run in {(r["arm"], r["seed"]) for r in own}}
    found = [r for records in runs.values() for r in records]
    if arms is None:
        arms = [a["name"] for a in json.loads((HERE / folders[0] / "study.json").read_text())["study"]["arms"]]
    first = {arm: k for k, arm in enumerate(arms)}
    return sorted((r for r in found if r["arm"] in first), key=lambda r: (first[r["arm"]], r["seed"], r["cycle"]))


def make(name: str, into: Path = HERE) -> None:
    s = summarize(records_of(name))
    pairs = {arm: AGAINST.get(arm, s.against.get(arm)) for arm in s.arms}
    s = replace(s, against={arm: base for arm, base in pairs.items() if base})
    out = into / name
    out.mkdir(exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        curves(s).savefig(out / "curves.svg", metadata={"Date": None, "Creator": None})
    with (out / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["arm", "labels", "mean", "half", "against", "difference", "half", "seeds"])
        for arm in s.arms:
            base = s.against.get(arm)
            for cycle, labels in enumerate([*s.counts, "after the first query"]):
                whole = cycle == len(s.counts)
                e = s.average(arm) if whole else s.accuracy(arm, cycle)
                d = None if base is None else s.lead(arm, base) if whole else s.difference(arm, base, cycle)
                gap = ["", "", ""] if d is None else [base, f"{d.mean:.3f}", number(d.half)]
                rows.writerow([arm, labels, f"{e.mean:.3f}", number(e.half), *gap, e.n])
    print(f"\n{name}: seeds {', '.join(map(str, s.seeds))}; {s.counts[0]} to {s.counts[-1]} labels", *s.missing)
    for arm in s.arms:
        e, base = s.average(arm), s.against.get(arm)
        d = "" if base is None else f"{s.lead(arm, base).mean:+.1f} ± {number(s.lead(arm, base).half, 1)} to {base}"
        print(f"  {arm:22} {e.mean:.1f} ± {number(e.half, 1)}  {d}")


def number(half: float | None, digits: int = 3) -> str:
    return "" if half is None else f"{half:.{digits}f}"


if __name__ == "__main__":
    for each in sys.argv[1:] or [name for name, (folders, _) in FIGURES.items() if (HERE / folders[0]).is_dir()]:
        make(each)
