"""What all charts share: their ground, names of any length on it, and files that are the same bytes every time."""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from foretaste.report._palette import PAPER
from foretaste.report._summary import Summary

TEXT, QUIET, LINE = (PAPER[name][0] for name in ("text", "quiet", "line"))
LONGEST = 26  # characters of a name beside a curve
# Nothing in a file may depend on when it was written.
UNDATED: dict[str, Any] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


@dataclass(frozen=True)
class Chart:
    """One pair of axes, and how much room it wants in inches."""

    title: str  # in words, for those who cannot see it
    draw: Callable[[Axes, Summary], None]
    height: float = 4.2
    width: float = 5.3


def figure(s: Summary, charts: Sequence[Chart]) -> Figure:
    """Charts side by side."""
    size = (1.15 * sum(c.width for c in charts), 1.1 * max(c.height for c in charts))
    out = Figure(figsize=size, layout="constrained")
    for ax, chart in zip(np.atleast_1d(out.subplots(1, len(charts))), charts):
        chart.draw(ax, s)
    return out


def svg(s: Summary, chart: Chart, name: str) -> str:
    """A chart as SVG text, its words as text; ``name`` keeps the ids of several on one page apart."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        fig = Figure(figsize=(chart.width, chart.height), layout="constrained")
        chart.draw(fig.subplots(), s)
        out = io.StringIO()
        fig.savefig(out, format="svg", transparent=True, metadata=UNDATED["svg"])
    return out.getvalue()


def save(fig: Figure, out: Path, endings: Iterable[str]) -> None:
    """``out`` with each ending; words as paths, so that they look the same everywhere."""
    for ending in endings:
        with mpl.rc_context({"svg.hashsalt": out.name, "svg.fonttype": "path", "pdf.fonttype": 42}):
            fig.savefig(out.with_name(f"{out.name}.{ending}"), dpi=160, metadata=UNDATED[ending])


def bare(ax: Axes, title: str, grid: str = "y") -> None:
    """A title on the left, thin lines, no frame."""
    ax.set_title(title, loc="left", color=TEXT, fontsize=12, parse_math=False)
    ax.tick_params(colors=QUIET, length=0, which="both")
    ax.grid(axis=grid, color=LINE, linewidth=0.8, zorder=0)  # type: ignore[arg-type]
    ax.set_axisbelow(True)
    for side in ax.spines.values():
        side.set_visible(False)


def rows(ax: Axes, names: Sequence[str]) -> None:
    """A row for each name, from the top."""
    ax.set_yticks(range(len(names)), short(names), parse_math=False)
    ax.set_ylim(len(names) - 0.5, -0.5)
    for label in ax.get_yticklabels():
        label.set_color(TEXT)


def tall(n: int) -> float:
    """Inches for so many rows."""
    return 1.1 + 0.33 * n


def short(names: Sequence[str]) -> list[str]:
    """Long names without their middle, numbered where that makes them the same."""
    cut = [n if len(n) <= LONGEST else f"{n[: LONGEST // 2]}…{n[-(LONGEST // 2 - 1) :]}" for n in names]
    return [f"{c} ({k})" if cut.count(c) > 1 else c for k, c in enumerate(cut, start=1)]


def spread(places: Sequence[float], gap: float, low: float = -np.inf, high: float = np.inf) -> list[float]:
    """The nearest places within [low, high], in least squares, that rise by at least ``gap`` each; ``places`` rises."""
    # With z_k = place_k − k·gap the constraint is that z rises: pool neighbours that do not (isotonic regression).
    pools: list[list[float]] = []
    for k, place in enumerate(places):
        pools.append([place - k * gap])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    z = [float(np.mean(pool)) for pool in pools for _ in pool]
    # Bounds of an isotonic regression are those of its solution, cut off.
    return [min(max(z_k, low), high - (len(z) - 1) * gap) + k * gap for k, z_k in enumerate(z)]
