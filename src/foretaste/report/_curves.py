"""Learning curves: accuracy, and each arm's difference to its baseline."""

from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from foretaste.report._draw import QUIET, Chart, bare, figure, short, spread
from foretaste.report._palette import inks
from foretaste.report._summary import Estimate, Summary, summarize
from foretaste.study import Record

CROWD = 8  # curves; more are drawn more quietly
BELOW = 240  # points of room for numbers below a chart


def curves(records: Iterable[Record] | Summary) -> Figure:
    """Mean accuracy against labels, and the mean paired difference to the baseline if there is one; bars are 95 %."""
    s = records if isinstance(records, Summary) else summarize(records)
    return figure(s, learning(s))


def learning(s: Summary) -> list[Chart]:
    """The curves that these records give."""
    height = max(4.2, 1.4 + 0.25 * len(s.arms))
    out = [Chart("Accuracy", accuracy, height)]
    if s.against:
        out.append(Chart(f"Difference to {s.baseline or 'the baseline of each'}", difference, height))
    return out


def accuracy(ax: Axes, s: Summary) -> None:
    lines = {name: [s.accuracy(name, c) for c in range(len(s.counts))] for name in s.arms}
    _draw(ax, s, lines)
    bare(ax, "Test accuracy, %")


def difference(ax: Axes, s: Summary) -> None:
    lines = {a: [s.difference(a, b, c) for c in range(len(s.counts))] for a, b in s.against.items()}
    _draw(ax, s, lines)
    ax.axhline(0, color=QUIET, linewidth=1, linestyle="--", zorder=1)
    bare(
        ax, f"Difference to {short([s.baseline])[0] if s.baseline else 'the baseline of each'}, points, paired by seed"
    )


def _draw(ax: Axes, s: Summary, lines: dict[str, list[Estimate]]) -> None:
    look = inks(s)
    x = np.array(s.counts, dtype=float)
    step = min(0.07, 0.6 / len(lines)) * float(np.diff(x).min()) if len(x) > 1 else 0.0
    faint = 0.55 if len(lines) <= CROWD else 0.3
    first = 1 if s.shared_start else 0  # a start that all share has no bar: its scatter would set the range
    for k, (name, line) in enumerate(lines.items()):
        ink, y = look[name], np.array([e.mean for e in line])
        at = x + step * (k - (len(lines) - 1) / 2)  # side by side, so that intervals do not hide one another
        for x_c, e in list(zip(at, line))[first:]:
            if e.half is not None:
                ax.vlines(x_c, e.mean - e.half, e.mean + e.half, color=ink.light, alpha=faint, linewidth=1.3, zorder=2)
        ax.plot(x, y, color=ink.light, marker=ink.marker, linestyle=ink.line, markersize=4.5, linewidth=1.8, zorder=3)
    _name(ax, x[-1], {name: line[-1].mean for name, line in lines.items()}, s)
    ax.set_xlabel("labels", color=QUIET)
    room = min(8, int(BELOW / (6.4 * len(str(s.counts[-1])) + 12)))
    ax.set_xticks(x[np.unique(np.linspace(0, len(x) - 1, min(len(x), max(room, 2))).round().astype(int))])


def _name(ax: Axes, x: float, ends: dict[str, float], s: Summary) -> None:
    """Each name beside the end of its curve, moved apart where they would overlap."""
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    brief = dict(zip(s.arms, short(s.arms)))
    names = sorted(ends, key=lambda name: ends[name])
    gap = min(0.065, 1 / len(names)) * (high - low)
    places = spread([ends[name] for name in names], gap, low, high)
    look = inks(s)
    for name, y in zip(names, places):
        colour = look[name].light
        ax.annotate(
            brief[name],
            xy=(x, ends[name]),
            xytext=(x + 0.05 * (right - left), y),
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.7,
                "shrinkA": 1,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
            color=colour,
            fontsize=11 if len(names) <= CROWD else 10,
            va="center",
            parse_math=False,
        )
