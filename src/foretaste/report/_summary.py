"""Numbers out of records: means over seeds, their 95 % intervals, and differences paired by seed."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from foretaste.study.records import Record

BASELINE = "random"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, and half the width of the 95 % interval of that mean; None with a single seed."""

    mean: float
    half: float | None
    n: int

    @property
    def decided(self) -> bool:
        """The interval leaves zero out."""
        return self.half is not None and abs(self.mean) > self.half


def interval(values: Sequence[float]) -> Estimate:
    """mean ± t₀.₉₇₅(n−1) · s / √n, Student's t over seeds."""
    n = len(values)
    if n == 0:
        raise ValueError("no values to average; expected one for each seed")
    half = None
    if n > 1:
        half = float(stdtrit(n - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(n))
    return Estimate(float(np.mean(values)), half, n)


@dataclass(frozen=True)
class Summary:
    """Records by strategy, seed and cycle. Accuracies are in per cent."""

    strategies: tuple[str, ...]  # in the order met
    seeds: tuple[int, ...]
    counts: tuple[int, ...]  # labelled points at each cycle
    records: dict[tuple[str, int, int], Record]

    @property
    def baseline(self) -> str | None:
        return BASELINE if BASELINE in self.strategies else None

    def accuracy(self, strategy: str, cycle: int) -> Estimate:
        return interval([self._percent(strategy, s, cycle) for s in self.seeds])

    def difference(self, strategy: str, other: str, cycle: int) -> Estimate:
        """In points, seed by seed: both had the same start and the same initial weights."""
        return interval([self._percent(strategy, s, cycle) - self._percent(other, s, cycle) for s in self.seeds])

    def average(self, strategy: str) -> Estimate:
        """Over the cycles after the first query; before it all strategies are the same network."""
        return interval([self._average(strategy, s) for s in self.seeds])

    def lead(self, strategy: str, other: str) -> Estimate:
        """The paired difference of averages over cycles."""
        return interval([self._average(strategy, s) - self._average(other, s) for s in self.seeds])

    def seconds(self, strategy: str) -> tuple[float, float | None]:
        """Median seconds of one training and of one query: the first of a process pays for imports."""
        own = [r for (name, _, _), r in self.records.items() if name == strategy]
        asked = [r["query_seconds"] for r in own if r["query_seconds"] is not None]
        return float(np.median([r["train_seconds"] for r in own])), float(np.median(asked)) if asked else None

    def ranked(self) -> list[str]:
        """Best average first."""
        return sorted(self.strategies, key=lambda name: -self.average(name).mean)

    def residual(self) -> float:
        """The worst labelled residual: how far any training was from interpolation."""
        return max(r["residual"] for r in self.records.values())

    def _percent(self, strategy: str, seed: int, cycle: int) -> float:
        return 100 * self.records[strategy, seed, cycle]["accuracy"]

    def _average(self, strategy: str, seed: int) -> float:
        cycles = range(1, len(self.counts)) if len(self.counts) > 1 else range(1)
        return float(np.mean([self._percent(strategy, seed, c) for c in cycles]))


def summarize(records: Iterable[Record]) -> Summary:
    """Every strategy needs every seed and cycle, or means over seeds would compare different things."""
    by = {(r["strategy"], r["seed"], r["cycle"]): r for r in records}
    if not by:
        raise ValueError("there are no records to report; run a study first")
    strategies = tuple(dict.fromkeys(name for name, _, _ in by))
    seeds, cycles = (tuple(sorted(set(column))) for column in ([s for _, s, _ in by], [c for _, _, c in by]))
    missing = [key for name in strategies for s in seeds for c in cycles if (key := (name, s, c)) not in by]
    if missing:
        name, s, c = missing[0]
        raise ValueError(
            f"{len(missing)} records are missing, the first of strategy {name!r}, seed {s}, cycle {c}; "
            "each strategy needs the same seeds and cycles"
        )
    sizes = {c: {by[name, s, c]["labelled"] for name in strategies for s in seeds} for c in cycles}
    if uneven := [c for c in cycles if len(sizes[c]) > 1]:
        raise ValueError(f"cycle {uneven[0]} has {sorted(sizes[uneven[0]])} labels; each strategy needs as many")
    return Summary(strategies, seeds, tuple(sizes[c].pop() for c in cycles), by)
