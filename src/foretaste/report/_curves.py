"""Learning curves: accuracy, and the difference to random."""

import io
from collections.abc import Callable, Iterable, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from foretaste.report._palette import PAPER, inks
from foretaste.report._summary import Estimate, Summary, summarize
from foretaste.study.records import Record

TEXT, QUIET, LINE = (PAPER[name][0] for name in ("text", "quiet", "line"))
Panel = Callable[[Axes, Summary], None]


def curves(records: Iterable[Record]) -> Figure:
    """Mean accuracy against labels, and the mean paired difference to random where random was run; bands are 95 %."""
    s = summarize(records)
    drawn = panels(s)
    figure = Figure(figsize=(6.4 * len(drawn), 4.6), layout="constrained")
    for ax, panel in zip(np.atleast_1d(figure.subplots(1, len(drawn))), drawn.values()):
        panel(ax, s)
    return figure


def panels(s: Summary) -> dict[str, Panel]:
    """What can be drawn from these records, by title."""
    drawn: dict[str, Panel] = {"Accuracy": accuracy}
    if s.baseline is not None and len(s.strategies) > 1:
        drawn[f"Difference to {s.baseline}"] = difference
    return drawn


def svg(s: Summary, panel: Panel, name: str) -> str:
    """One panel as SVG text; ``name`` keeps the ids of several on one page apart."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure = Figure(figsize=(5.3, 4.2), layout="constrained")
        panel(figure.subplots(), s)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return out.getvalue()


def accuracy(ax: Axes, s: Summary) -> None:
    lines = {name: [s.accuracy(name, c) for c in range(len(s.counts))] for name in s.strategies}
    _draw(ax, s, lines)
    ax.set_title("Test accuracy, %", loc="left", color=TEXT, fontsize=12)


def difference(ax: Axes, s: Summary) -> None:
    assert s.baseline is not None
    others = [name for name in s.strategies if name != s.baseline]
    lines = {name: [s.difference(name, s.baseline, c) for c in range(len(s.counts))] for name in others}
    _draw(ax, s, lines)
    ax.axhline(0, color=QUIET, linewidth=1, linestyle="--", zorder=1)
    ax.set_title(f"Difference to {s.baseline}, points, paired by seed", loc="left", color=TEXT, fontsize=12)


def _draw(ax: Axes, s: Summary, lines: dict[str, list[Estimate]]) -> None:
    look = inks(s.strategies)
    x = np.array(s.counts, dtype=float)
    step = 0.07 * float(np.diff(x).min()) if len(x) > 1 else 0.0
    for k, (name, line) in enumerate(lines.items()):
        ink, y = look[name], np.array([e.mean for e in line])
        at = x + step * (k - (len(lines) - 1) / 2)  # side by side, so that intervals do not hide one another
        for x_c, e in list(zip(at, line))[1:]:  # not at the start, which all share: its scatter would set the range
            if e.half is not None:
                ax.vlines(x_c, e.mean - e.half, e.mean + e.half, color=ink.light, alpha=0.55, linewidth=1.3, zorder=2)
        ax.plot(x, y, color=ink.light, marker=ink.marker, linestyle=ink.dashes, markersize=4.5, linewidth=1.8, zorder=3)
    _name(ax, x[-1], {name: line[-1].mean for name, line in lines.items()}, s)
    ax.set_xlabel("labels", color=QUIET)
    ax.set_xticks(x)
    ax.tick_params(colors=QUIET, length=0)
    ax.grid(axis="y", color=LINE, linewidth=0.8, zorder=0)
    ax.set_axisbelow(True)
    for side in ax.spines.values():
        side.set_visible(False)


def _name(ax: Axes, x: float, ends: dict[str, float], s: Summary) -> None:
    """Each name beside the end of its curve, moved apart where they would overlap."""
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    names = sorted(ends, key=lambda name: ends[name])
    places = spread([ends[name] for name in names], 0.065 * (high - low))
    look = inks(s.strategies)
    for name, y in zip(names, places):
        colour = look[name].light
        ax.annotate(
            name,
            xy=(x, ends[name]),
            xytext=(x + 0.05 * (right - left), y),
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 4},
            color=colour,
            fontsize=11,
            va="center",
            parse_math=False,
        )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """The nearest places, in least squares, that rise by at least ``gap`` each; ``places`` rises."""
    # With z_k = place_k − k·gap the constraint is that z rises: pool neighbours that do not (isotonic regression).
    pools: list[list[float]] = []
    for k, place in enumerate(places):
        pools.append([place - k * gap])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    z = [float(np.mean(pool)) for pool in pools for _ in pool]
    return [z_k + k * gap for k, z_k in enumerate(z)]
