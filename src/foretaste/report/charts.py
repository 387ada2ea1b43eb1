"""The charts of a study: learning curves, areas under them, the cost of a query, who beats whom."""

import csv
import io
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretaste.errors import csv_cell, format_seconds
from foretaste.files import write_whole
from foretaste.report.drawing import (
    COLOURS,
    QUIET,
    TEXT,
    Chart,
    arm_inks,
    make_figure,
    name_rows,
    plain_axes,
    rows_height,
    save_figure,
    shorten_names,
    spread_apart,
)
from foretaste.report.summary import LEAST_SEEDS, Interval, Summary, query_cost, summarize, wins
from foretaste.study import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY_CURVES = 8  # more curves than this are drawn fainter
TICKS_WIDTH = 240  # points, for the numbers below a chart
PERCENT = (0, 100)  # what an accuracy can be; an interval of Student's t may go beyond
LEADER = {"arrowstyle": "-", "linewidth": 0.7, "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)}  # to a curve's name
SHORTEST_BAR = 1e-3  # seconds; what is shorter is drawn as this long


def curves(records: Iterable[Record] | Summary) -> "Figure":
    """Draw the learning curves: mean accuracy against labels, and the mean paired difference to the baseline.

    Args:
        records: The records of a study, or a summary of them.

    Returns:
        A matplotlib figure with one or two axes (one if there is no baseline). Bars are 95 % intervals.

    Example:
        >>> from foretaste import report, study
        >>> figure = report.curves(study.load("runs/fig2a"))
        >>> len(figure.axes)
        2
    """
    s = records if isinstance(records, Summary) else summarize(records)
    return make_figure(learning_charts(s))


def learning_charts(s: Summary) -> list[Chart]:
    """Accuracy, and the difference to the baseline if there is one."""
    height = max(4.2, 1.4 + 0.25 * len(s.arms))
    out = [Chart("Accuracy", partial(_draw_accuracy, s=s), height)]
    if s.against:
        title = f"Difference to {s.baseline or 'the baseline of each'}"
        out.append(Chart(title, partial(_draw_difference, s=s), height))
    return out


def area_charts(s: Summary) -> list[Chart]:
    """Areas under the curves, and their paired differences; none before the first query."""
    if len(s.counts) == 1:
        return []
    height = rows_height(len(s.arms))
    out = [Chart("Area under the curve", partial(_draw_areas, s=s), height, rows=True)]
    if s.against:
        title = "Area under the curve, difference to the baseline"
        out.append(Chart(title, partial(_draw_area_leads, s=s), height, rows=True))
    return out


def cost_charts(s: Summary) -> list[Chart]:
    """Seconds of a query and of a training; none if nothing was queried."""
    queried = any(query_cost(s, name).query is not None for name in s.arms)
    height = rows_height(len(s.arms))
    return [Chart("Seconds of a query", partial(_draw_costs, s=s), height, rows=True)] if queried else []


def win_charts(s: Summary) -> list[Chart]:
    """Who beats whom; none with too few seeds to decide anything."""
    side = rows_height(len(s.arms))
    return [Chart("Who beats whom", partial(_draw_wins, s=s), 0.9 + side, 2.2 + side)] if wins_decidable(s) else []


def wins_decidable(s: Summary) -> bool:
    """True if there are two arms, a query, and enough seeds for an interval to decide something."""
    return len(s.arms) > 1 and len(s.seeds) >= LEAST_SEEDS and len(s.counts) > 1


def save_figures(s: Summary, out: Path, suffix: str = "") -> None:
    """Write curves (also as PNG), difference, auc, times and wins as SVG and PDF.

    Files of an earlier report that these records do not give are removed.
    """
    learning = learning_charts(s)
    save_figure(learning, out / f"curves{suffix}", ("svg", "pdf", "png"))
    save_figure(learning[1:], out / f"difference{suffix}")
    save_figure(area_charts(s), out / f"auc{suffix}")
    save_figure(cost_charts(s), out / f"times{suffix}")
    save_figure(win_charts(s), out / f"wins{suffix}")


def save_numbers(s: Summary, path: Path) -> None:
    """Write the curves as CSV: means in per cent, half the width of their 95 % intervals (empty with one seed), n."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["arm", "cycle", "labels", "mean", "half", "n"])
    for name in s.arms:
        for cycle, labels in enumerate(s.counts):
            e = s.accuracy(name, cycle)
            half = "" if e.half is None else f"{e.half:.6g}"
            rows.writerow([csv_cell(name), cycle, labels, f"{e.mean:.6g}", half, e.n])
    write_whole(path, text.getvalue())


def _draw_accuracy(ax: "Axes", s: Summary) -> None:
    lines = {name: [s.accuracy(name, c) for c in range(len(s.counts))] for name in s.arms}
    _draw_lines(ax, s, lines, PERCENT)
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, PERCENT[0]), min(high, PERCENT[1]))
    _name_lines(ax, s, lines)
    plain_axes(ax, "Test accuracy, %")


def _draw_difference(ax: "Axes", s: Summary) -> None:
    lines = {a: [s.difference(a, b, c) for c in range(len(s.counts))] for a, b in s.against.items()}
    _draw_lines(ax, s, lines)
    _name_lines(ax, s, lines)
    ax.axhline(0, color=QUIET, linewidth=1, linestyle="--", zorder=1)
    base = shorten_names([s.baseline])[0] if s.baseline else "the baseline of each"
    plain_axes(ax, f"Difference to {base}, points, paired by seed")


def bars_are_cut(s: Summary) -> bool:
    """Whether the interval of an accuracy that is drawn goes beyond 0 or 100 %."""
    drawn = [s.accuracy(name, c) for name in s.arms for c in range(_first_bar(s), len(s.counts))]
    return any(bar_ends(e) != bar_ends(e, PERCENT) for e in (*drawn, *map(s.area, s.arms)))


def bar_ends(e: Interval, within: tuple[float, float] = (-np.inf, np.inf)) -> tuple[float, float] | None:
    """The two ends of an error bar, none of them beyond ``within``; None if there is no interval to draw."""
    half = e.shown_half
    return None if half is None else (max(e.mean - half, within[0]), min(e.mean + half, within[1]))


def _first_bar(s: Summary) -> int:
    """The cycle of the first error bar: the spread of a start that all share would set the range."""
    return 1 if s.shared_start else 0


def _draw_lines(
    ax: "Axes", s: Summary, lines: dict[str, list[Interval]], within: tuple[float, float] = (-np.inf, np.inf)
) -> None:
    inks = arm_inks(s)
    x = np.array(s.counts, dtype=float)
    step = min(0.07, 0.6 / len(lines)) * float(np.diff(x).min()) if len(x) > 1 else 0.0
    faint = 0.55 if len(lines) <= MANY_CURVES else 0.3
    for k, (name, line) in enumerate(lines.items()):
        ink, y = inks[name], np.array([e.mean for e in line])
        at = x + step * (k - (len(lines) - 1) / 2)  # side by side, so that bars do not hide one another
        for x_c, e in list(zip(at, line))[_first_bar(s) :]:
            if (ends := bar_ends(e, within)) is not None:
                ax.vlines(x_c, *ends, color=ink.colour, alpha=faint, linewidth=1.3, zorder=2)
                for y_c, head in _arrowheads(e, within, "v^"):
                    ax.plot(x_c, y_c, head, color=ink.colour, alpha=faint, markersize=4, zorder=2, clip_on=False)
        ax.plot(
            x, y, color=ink.colour, marker=ink.marker, linestyle=ink.linestyle, markersize=4.5, linewidth=1.8, zorder=3,
            clip_on=False,
        )  # fmt: skip
    ax.set_xlabel("labels", color=QUIET)
    room = min(8, int(TICKS_WIDTH / (6.4 * len(str(s.counts[-1])) + 12)))
    ax.set_xticks(x[np.unique(np.linspace(0, len(x) - 1, min(len(x), max(room, 2))).round().astype(int))])


def _arrowheads(e: Interval, within: tuple[float, float], heads: str) -> list[tuple[float, str]]:
    """Where an error bar is cut, and the arrowhead there."""
    whole, cut = bar_ends(e), bar_ends(e, within)
    return [] if whole is None or cut is None else [(b, head) for a, b, head in zip(whole, cut, heads) if a != b]


def _name_lines(ax: "Axes", s: Summary, lines: dict[str, list[Interval]]) -> None:
    """Each name beside the end of its curve, moved apart where two would overlap."""
    x, ends = s.counts[-1], {name: line[-1].mean for name, line in lines.items()}
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    brief = dict(zip(s.arms, shorten_names(s.arms)))
    names = sorted(ends, key=lambda name: ends[name])
    gap = min(0.065, 1 / len(names)) * (high - low)
    places = spread_apart([ends[name] for name in names], gap, low, high)
    inks = arm_inks(s)
    for name, y in zip(names, places):
        colour = inks[name].colour
        ax.annotate(
            brief[name], xy=(x, ends[name]), xytext=(x + 0.05 * (right - left), y), color=colour, va="center",
            arrowprops=LEADER | {"color": colour}, fontsize=11 if len(names) <= MANY_CURVES else 10,
            annotation_clip=False, parse_math=False,
        )  # fmt: skip


def _draw_areas(ax: "Axes", s: Summary) -> None:
    _draw_dots(ax, s, {name: s.area(name) for name in s.arms}, hollow=False, within=PERCENT)
    low, high = ax.get_xlim()
    ax.set_xlim(max(low, PERCENT[0]), min(high, PERCENT[1]))
    plain_axes(ax, "Area under the curve, %", grid="x")


def _draw_area_leads(ax: "Axes", s: Summary) -> None:
    _draw_dots(ax, s, {a: s.area_lead(a, b) for a, b in s.against.items()}, hollow=True)
    ax.axvline(0, color=QUIET, linewidth=1, linestyle="--", zorder=1)
    plain_axes(ax, "Paired difference to the baseline, points", grid="x")


def _draw_dots(
    ax: "Axes", s: Summary, values: dict[str, Interval], hollow: bool, within: tuple[float, float] = (-np.inf, np.inf),
) -> None:  # fmt: skip
    """A dot and its interval. With ``hollow``, dots whose sign is not decided are left empty."""
    inks = arm_inks(s)
    for k, (name, e) in enumerate(values.items()):
        colour = inks[name].colour
        if (ends := bar_ends(e, within)) is not None:
            ax.hlines(k, *ends, color=colour, linewidth=1.8, zorder=2)
            for x, head in _arrowheads(e, within, "<>"):
                ax.plot(x, k, head, color=colour, markersize=5, zorder=2, clip_on=False)
        face = "none" if hollow and not e.decided else colour
        ax.plot(e.mean, k, inks[name].marker, color=colour, markersize=7, markerfacecolor=face, zorder=3, clip_on=False)
    name_rows(ax, list(values))


def _draw_costs(ax: "Axes", s: Summary) -> None:
    """Bars on a log scale have no natural foot: they start at the axis, somewhat below the shortest of all."""
    inks, cost = arm_inks(s), {name: query_cost(s, name) for name in s.arms}
    queries = {name: t.query for name, t in cost.items() if t.query is not None}
    shown = [max(t, SHORTEST_BAR) for t in [*queries.values(), *(t.train for t in cost.values())]]
    low, high = min(shown) / 2, max(shown) * 3
    for k, name in enumerate(s.arms):
        if name in queries:
            t, train = max(queries[name], SHORTEST_BAR), cost[name].train
            ax.barh(k, t - low, left=low, height=0.6, color=inks[name].colour, zorder=2)
            at = train if t <= train <= t * (high / low) ** 0.15 else t  # beyond a line that it would cross
            said = format_seconds(queries[name])
            ax.annotate(said, (at, k), (5, 0), textcoords="offset points", va="center", color=TEXT, fontsize=9)
        ax.plot([max(cost[name].train, SHORTEST_BAR)] * 2, [k - 0.4, k + 0.4], color=QUIET, linewidth=2, zorder=3)
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    name_rows(ax, s.arms)
    plain_axes(ax, "Seconds: query (bar), training (line)", grid="x")
    ax.minorticks_off()


def _draw_wins(ax: "Axes", s: Summary) -> None:
    from matplotlib.patches import Rectangle

    share, names = wins(s), shorten_names(s.arms)
    blue = COLOURS["blue"][0]
    for (i, j), value in np.ndenumerate(share):
        if i != j:
            ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=blue, alpha=0.75 * value, linewidth=0))
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=TEXT, fontsize=9)
    for j, total in enumerate(share.sum(0)):
        ax.text(j, len(names), f"{total:.2f}", ha="center", va="center", color=TEXT, fontsize=9, fontweight="bold")
    name_rows(ax, [*s.arms, "sum"])
    ax.set_xticks(range(len(names)), names, rotation=35, ha="left", parse_math=False)
    ax.xaxis.tick_top()
    ax.set_xlim(-0.5, len(names) - 0.5)
    plain_axes(ax, "")
    ax.grid(visible=False)
    ax.set_xlabel("share of cycles in which the row is ahead of the column", color=QUIET)
