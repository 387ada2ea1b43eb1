"""Who beats whom, how often."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from foretaste.report._draw import QUIET, TEXT, Chart, bare, rows, short, tall
from foretaste.report._palette import COLOURS
from foretaste.report._summary import Summary

EXPLAINED = (
    "An entry is the share of cycles after the first query in which the arm of its row was ahead of the arm of its "
    "column, by the 95 % interval of the difference paired by seed; a column's sum says how often that arm was beaten: "
    "the lower the better. Intervals are not corrected for their number."
)


def wins(s: Summary) -> np.ndarray:
    """(arms, arms): the share of cycles > 0 whose paired difference row − column is above zero by its 95 % interval."""
    n, cycles = len(s.arms), range(1, len(s.counts))
    out = np.zeros((n, n))
    for i, row in enumerate(s.arms):
        for j, column in enumerate(s.arms):
            leads = [s.difference(row, column, c) for c in cycles if i != j]
            if leads:
                out[i, j] = np.mean([e.decided and e.mean > 0 for e in leads])
    return out


def comparable(s: Summary) -> bool:
    """One seed has no interval, and one arm nobody to beat."""
    return len(s.arms) > 1 and len(s.seeds) > 1 and len(s.counts) > 1


def matrix(s: Summary) -> list[Chart]:
    side = tall(len(s.arms))
    return [Chart("Who beats whom", squares, 0.9 + side, 2.2 + side)] if comparable(s) else []


def squares(ax: Axes, s: Summary) -> None:
    share, names = wins(s), short(s.arms)
    blue = COLOURS["blue"][0]
    for (i, j), value in np.ndenumerate(share):
        if i != j:
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=blue, alpha=0.75 * value, linewidth=0))
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=TEXT, fontsize=9)
    for j, total in enumerate(share.sum(0)):
        ax.text(j, len(names), f"{total:.2f}", ha="center", va="center", color=TEXT, fontsize=9, fontweight="bold")
    rows(ax, [*s.arms, "sum"])
    ax.set_xticks(range(len(names)), names, rotation=35, ha="left", parse_math=False)
    ax.xaxis.tick_top()
    ax.set_xlim(-0.5, len(names) - 0.5)
    bare(ax, "")
    ax.grid(visible=False)
    ax.set_xlabel("share of cycles in which the row is ahead of the column", color=QUIET)
