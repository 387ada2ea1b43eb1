"""Numbers out of records: means over seeds, their 95 % intervals, and differences paired by seed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from foretaste.report._common import Plan, common
from foretaste.study import Record

RANDOM = "random"


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
    """Records by arm, seed and cycle: those that all arms have. Accuracies are in per cent."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    counts: tuple[int, ...]  # labelled points at each cycle
    records: Mapping[tuple[str, int, int], Record]
    against: Mapping[str, str]  # the baseline of each arm that has one
    missing: tuple[str, ...] = ()  # what is not shown or not there, in words

    @property
    def bases(self) -> tuple[str, ...]:
        """The arms that differences are taken to."""
        return tuple(name for name in self.arms if name in self.against.values())

    @property
    def baseline(self) -> str | None:
        """The only one, where there is one."""
        return self.bases[0] if len(self.bases) == 1 else None

    @property
    def shared_start(self) -> bool:
        """Before the first query all arms were the same network."""
        return all(
            self.percent(name, seed, 0) == self.percent(self.arms[0], seed, 0)
            for name in self.arms
            for seed in self.seeds
        )

    def percent(self, arm: str, seed: int, cycle: int) -> float:
        return 100 * self.records[arm, seed, cycle]["accuracy"]

    def accuracy(self, arm: str, cycle: int) -> Estimate:
        return interval([self.percent(arm, s, cycle) for s in self.seeds])

    def difference(self, arm: str, other: str, cycle: int) -> Estimate:
        """In points, seed by seed: both had the same start and the same initial weights."""
        return interval([self.percent(arm, s, cycle) - self.percent(other, s, cycle) for s in self.seeds])

    def average(self, arm: str) -> Estimate:
        """Over the cycles after the first query; before it strategies of one network are the same."""
        return interval([self._average(arm, s) for s in self.seeds])

    def lead(self, arm: str, other: str) -> Estimate:
        """The paired difference of averages over cycles."""
        return interval([self._average(arm, s) - self._average(other, s) for s in self.seeds])

    def area(self, arm: str) -> Estimate:
        """Under the curve of accuracy against labels, by trapezoids, over the span of labels: a mean accuracy."""
        return interval([self._area(arm, s) for s in self.seeds])

    def area_lead(self, arm: str, other: str) -> Estimate:
        """The paired difference of areas."""
        return interval([self._area(arm, s) - self._area(other, s) for s in self.seeds])

    def ranked(self) -> list[str]:
        """Best average first."""
        return sorted(self.arms, key=lambda name: -self.average(name).mean)

    def of(self, arm: str) -> list[Record]:
        return [r for (name, _, _), r in self.records.items() if name == arm]

    def residual(self) -> float:
        """The worst labelled residual: how far any training was from interpolation."""
        return max(r["residual"] for r in self.records.values())

    def unlearned(self) -> dict[str, int]:
        """In how many trainings each arm did not learn its labels, where that happened."""
        failed = {name: sum(not r["interpolates"] for r in self.of(name)) for name in self.arms}
        return {name: n for name, n in failed.items() if n}

    def _average(self, arm: str, seed: int) -> float:
        cycles = range(1, len(self.counts)) if len(self.counts) > 1 else range(1)
        return float(np.mean([self.percent(arm, seed, c) for c in cycles]))

    def _area(self, arm: str, seed: int) -> float:
        y = np.array([self.percent(arm, seed, c) for c in range(len(self.counts))])
        width = np.diff(self.counts)
        return float(((y[1:] + y[:-1]) / 2 * width).sum() / width.sum()) if len(y) > 1 else float(y[0])


def summarize(records: Iterable[Record], plan: Mapping[str, Plan] | None = None) -> Summary:
    """What all arms have in common, and in words what they have not.

    ``plan`` says which arms are to be there, in which order, with which seeds and how many cycles; None goes by the
    records themselves. Means over seeds that only some arms have would compare different things.
    """
    by = {}
    for r in records:
        if "arm" not in r:
            raise ValueError(f"a record has no 'arm', only {', '.join(r)}; it is none of a study, or of an old one")
        by[r["arm"], r["seed"], r["cycle"]] = r
        if not (math.isfinite(r["accuracy"]) and math.isfinite(r["residual"])):
            where = f"{r['arm']!r}, seed {r['seed']}, cycle {r['cycle']}"
            raise ValueError(f"accuracy {r['accuracy']} and residual {r['residual']} of {where} must be finite numbers")
    if not by:
        raise ValueError("there are no records to report; run a study first")
    labelled = {c: r["labelled"] for (_, _, c), r in by.items()}
    arms, seeds, cycles, missing = common(by, plan, labelled)
    kept = {(name, s, c): by[name, s, c] for name in arms for s in seeds for c in range(cycles)}
    sizes = [{kept[name, s, c]["labelled"] for name in arms for s in seeds} for c in range(cycles)]
    if uneven := [c for c in range(cycles) if len(sizes[c]) > 1]:
        raise ValueError(f"cycle {uneven[0]} has {sorted(sizes[uneven[0]])} labels; each arm needs as many")
    wanted = {name: kept[name, seeds[0], 0].get("against") or _random(arms) for name in arms}
    against = {name: other for name, other in wanted.items() if other in arms and other != name}
    lost = [f"{name} is to be compared with {other}, which is not here." for name, other in wanted.items()
            if other is not None and other not in arms]  # fmt: skip
    return Summary(arms, seeds, tuple(n for (n,) in sizes), kept, against, (*missing, *lost, *_unpaired(kept, seeds)))


def _random(arms: tuple[str, ...]) -> str | None:
    return next((name for name in arms if name.casefold() == RANDOM), None)


def _unpaired(kept: Mapping[tuple[str, int, int], Record], seeds: tuple[int, ...]) -> list[str]:
    """Pairing by seed supposes that the seed gave every arm the same first labels."""
    first = {s: {tuple(sorted(r["labelled_ids"])) for (_, t, c), r in kept.items() if (t, c) == (s, 0)} for s in seeds}
    off = [s for s in seeds if len(first[s]) > 1]
    if not off:
        return []
    return [f"Arms of seed {off[0]} did not start from the same labels: pairing by seed removes less of the chance."]
