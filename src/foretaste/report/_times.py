"""What a query costs beside a training."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from foretaste.report._draw import QUIET, TEXT, Chart, bare, rows, tall
from foretaste.report._palette import inks
from foretaste.report._summary import Summary
from foretaste.report._words import seconds

WHOLE = "total"  # no stage but their sum
LEAST = 1e-3  # seconds: what is below is drawn, and told, as that


@dataclass(frozen=True)
class Times:
    """Medians, in seconds: the first query of a process pays for imports. Memory is the most ever, in bytes."""

    train: float
    query: float | None  # None where nothing was asked
    stages: dict[str, float]
    memory: int

    @property
    def told(self) -> str:
        """The stages, the longest first."""
        parts = sorted(self.stages.items(), key=lambda pair: -pair[1])
        return ", ".join(f"{name} {seconds(t)}" for name, t in parts if t >= LEAST and name != WHOLE)


def spent(s: Summary, arm: str) -> Times:
    costs = [r["cost"] for r in s.of(arm)]
    asked = [c for c in costs if c["query"] is not None]
    names = dict.fromkeys(name for c in asked for name in c["stages"])
    return Times(
        _median([c["train"] for c in costs]),
        _median([c["query"] for c in asked if c["query"] is not None]) if asked else None,
        {name: _median([c["stages"].get(name, 0.0) for c in asked]) for name in names},
        max(c["peak_memory"] for c in costs),
    )


def times(s: Summary) -> list[Chart]:
    asked = any(spent(s, name).query is not None for name in s.arms)
    return [Chart("Seconds of a query", bars, tall(len(s.arms)))] if asked else []


def bars(ax: Axes, s: Summary) -> None:
    """On a log scale a bar has no natural foot: it starts at the axis, a little below the least of all."""
    look, cost = inks(s), {name: spent(s, name) for name in s.arms}
    queries = {name: t.query for name, t in cost.items() if t.query is not None}
    shown = [max(t, LEAST) for t in [*queries.values(), *(t.train for t in cost.values())]]
    low, high = min(shown) / 2, max(shown) * 3
    for k, name in enumerate(s.arms):
        if name in queries:
            t, train = max(queries[name], LEAST), cost[name].train
            ax.barh(k, t - low, left=low, height=0.6, color=look[name].light, zorder=2)
            ax.annotate(
                f"{seconds(queries[name])} s",
                (train if t <= train <= t * (high / low) ** 0.15 else t, k),  # beyond a line that it would cross
                (5, 0),
                textcoords="offset points",
                va="center",
                color=TEXT,
                fontsize=9,
            )
        ax.plot([max(cost[name].train, LEAST)] * 2, [k - 0.4, k + 0.4], color=QUIET, linewidth=2, zorder=3)
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    rows(ax, s.arms)
    bare(ax, "Seconds of a query (bar) and a training (line)", grid="x")
    ax.minorticks_off()


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
