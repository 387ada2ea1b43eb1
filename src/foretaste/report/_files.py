"""Figures and numbers as files, for papers and slides."""

import csv
from pathlib import Path

from foretaste.report._areas import areas
from foretaste.report._curves import learning
from foretaste.report._draw import figure, save
from foretaste.report._summary import Summary
from foretaste.report._times import times
from foretaste.report._wins import matrix


def figures(s: Summary, out: Path, suffix: str = "") -> None:
    """curves (also as PNG), difference, auc, times and wins as SVG and PDF; those that these records do not give are
    removed, so that none of an earlier report stays behind."""
    drawn = learning(s)
    wanted = {
        "curves": drawn,
        "difference": drawn[1:],
        "auc": areas(s) if len(s.counts) > 1 else [],
        "times": times(s),
        "wins": matrix(s),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, charts in wanted.items():
        endings = ("svg", "pdf", "png") if name == "curves" else ("svg", "pdf")
        if charts:
            save(figure(s, charts), out / f"{name}{suffix}", endings)
        else:
            for ending in endings:
                (out / f"{name}{suffix}.{ending}").unlink(missing_ok=True)


def numbers(s: Summary, path: Path) -> None:
    """The curves as CSV: means in per cent, half the width of their 95 % intervals (empty with one seed), and seeds."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["arm", "cycle", "labels", "mean", "half", "n"])
        for name in s.arms:
            for cycle, labels in enumerate(s.counts):
                e = s.accuracy(name, cycle)
                rows.writerow([name, cycle, labels, f"{e.mean:.6g}", "" if e.half is None else f"{e.half:.6g}", e.n])
