"""Areas under the learning curves, and their paired differences: one number an arm."""

from matplotlib.axes import Axes

from foretaste.report._draw import QUIET, Chart, bare, rows, tall
from foretaste.report._palette import inks
from foretaste.report._summary import Estimate, Summary


def areas(s: Summary) -> list[Chart]:
    out = [Chart("Area under the curve", area, tall(len(s.arms)))]
    if s.against:
        out.append(Chart("Area under the curve, difference to the baseline", gap, tall(len(s.arms))))
    return out


def area(ax: Axes, s: Summary) -> None:
    _dots(ax, s, {name: s.area(name) for name in s.arms}, hollow=False)
    bare(ax, "Area under the curve, %", grid="x")


def gap(ax: Axes, s: Summary) -> None:
    _dots(ax, s, {a: s.area_lead(a, b) for a, b in s.against.items()}, hollow=True)
    ax.axvline(0, color=QUIET, linewidth=1, linestyle="--", zorder=1)
    bare(ax, "Paired difference to the baseline, points", grid="x")


def _dots(ax: Axes, s: Summary, values: dict[str, Estimate], hollow: bool) -> None:
    """A dot and its interval; hollow where the interval leaves open which way it is."""
    look = inks(s)
    for k, (name, e) in enumerate(values.items()):
        colour = look[name].light
        if e.half is not None:
            ax.hlines(k, e.mean - e.half, e.mean + e.half, color=colour, linewidth=1.8, zorder=2)
        empty = hollow and not e.decided
        ax.plot(
            e.mean,
            k,
            look[name].marker,
            color=colour,
            markersize=7,
            markerfacecolor="none" if empty else colour,
            zorder=3,
        )
    rows(ax, list(values))
