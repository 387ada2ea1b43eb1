"""Numbers out of records: what all arms have in common, means over seeds, 95 % intervals, paired differences."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from foretaste.errors import counted
from foretaste.study import Record

RANDOM = "random"  # an arm of this name is the baseline of those that name none
LEAST_SEEDS = 3  # fewer seeds decide nothing
WHOLE_SCALE = 100  # points
NO_WIDTH = 1e-9  # points; an interval this narrow is rounding
WHOLE_QUERY = "total"  # a stage of this name is the sum of the others

RecordKey = tuple[str, int, int]  # arm, seed, cycle


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and half the width of its 95 % interval (None with one seed)."""

    mean: float
    half: float | None
    n: int

    @property
    def shown_half(self) -> float | None:
        """Half the width as pages show it; None with fewer than three seeds, or if it is wider than the scale.

        Student's t for two seeds is 12.7: they give ± 136.7 where they differ by 21.5 points.
        """
        said = self.half is not None and self.n >= LEAST_SEEDS and self.half <= WHOLE_SCALE
        return self.half if said else None

    @property
    def doubt(self) -> str | None:
        """Why the sign of the mean is open, in a few words; None if it is decided.

        Two seeds that happen to agree have an interval of zero width. That is chance, not certainty.
        """
        if self.half is None or self.n < LEAST_SEEDS:
            return "one seed" if self.n == 1 else f"{self.n} seeds only"
        if self.half <= NO_WIDTH:
            return "no spread over seeds"
        return "zero is included" if abs(self.mean) <= self.half else None

    @property
    def decided(self) -> bool:
        """True if the interval leaves zero out, over at least three seeds that differ."""
        return self.doubt is None


def interval(values: Sequence[float]) -> Interval:
    """The mean of one value a seed, with its 95 % interval: mean ± t₀.₉₇₅(n−1) · s / √n, Student's t.

    >>> from foretaste import report
    >>> lead = report.interval([2.0, 3.0, 4.0])
    >>> f"{lead.mean:.1f} ± {lead.half:.1f}", lead.decided
    ('3.0 ± 2.5', True)
    """
    n = len(values)
    if n == 0:
        raise ValueError("no values to average; expected one for each seed")
    half = None
    if n > 1:
        half = float(stdtrit(n - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(float(np.mean(values)), half, n)


@dataclass(frozen=True)
class Summary:
    """The records that all arms have, by arm, seed and cycle. Accuracies are in per cent."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    counts: tuple[int, ...]  # labelled points at each cycle
    records: Mapping[RecordKey, Record]
    against: Mapping[str, str]  # the baseline of each arm that has one
    missing: tuple[str, ...] = ()  # sentences on records that are absent or left out

    @property
    def bases(self) -> tuple[str, ...]:
        """The arms that serve as baselines."""
        return tuple(name for name in self.arms if name in self.against.values())

    @property
    def baseline(self) -> str | None:
        """The baseline, if there is exactly one."""
        return self.bases[0] if len(self.bases) == 1 else None

    @property
    def shared_start(self) -> bool:
        """True if all arms have the same accuracy before the first query."""
        return all(
            self.percent(name, seed, 0) == self.percent(self.arms[0], seed, 0)
            for name in self.arms
            for seed in self.seeds
        )

    def percent(self, arm: str, seed: int, cycle: int) -> float:
        return 100 * self.records[arm, seed, cycle]["accuracy"]

    def accuracy(self, arm: str, cycle: int) -> Interval:
        return interval([self.percent(arm, s, cycle) for s in self.seeds])

    def difference(self, arm: str, other: str, cycle: int) -> Interval:
        """In points, paired by seed: both arms have the same first labels and the same initial weights."""
        return interval([self.percent(arm, s, cycle) - self.percent(other, s, cycle) for s in self.seeds])

    def average(self, arm: str) -> Interval:
        """Mean accuracy over the cycles after the first query; before it all strategies are equal."""
        return interval([self._average(arm, s) for s in self.seeds])

    def lead(self, arm: str, other: str) -> Interval:
        """The difference of two averages, paired by seed."""
        return interval([self._average(arm, s) - self._average(other, s) for s in self.seeds])

    def area(self, arm: str) -> Interval:
        """Area under the accuracy curve by trapezoids, divided by the span of labels: a mean accuracy."""
        return interval([self._area(arm, s) for s in self.seeds])

    def area_lead(self, arm: str, other: str) -> Interval:
        """The difference of two areas, paired by seed."""
        return interval([self._area(arm, s) - self._area(other, s) for s in self.seeds])

    def ranked(self) -> list[str]:
        """Arms by their average, the highest first."""
        return sorted(self.arms, key=lambda name: -self.average(name).mean)

    def of(self, arm: str) -> list[Record]:
        return [r for (name, _, _), r in self.records.items() if name == arm]

    def residual(self) -> float:
        """The largest residual on labelled points, over all trainings."""
        return max(r["residual"] for r in self.records.values())

    def unlearned(self) -> dict[str, int]:
        """For each arm that failed to learn its labels: in how many trainings."""
        failed = {name: sum(not r["interpolates"] for r in self.of(name)) for name in self.arms}
        return {name: n for name, n in failed.items() if n}

    def _average(self, arm: str, seed: int) -> float:
        cycles = range(1, len(self.counts)) if len(self.counts) > 1 else range(1)
        return float(np.mean([self.percent(arm, seed, c) for c in cycles]))

    def _area(self, arm: str, seed: int) -> float:
        y = np.array([self.percent(arm, seed, c) for c in range(len(self.counts))])
        width = np.diff(self.counts)
        return float(((y[1:] + y[:-1]) / 2 * width).sum() / width.sum()) if len(y) > 1 else float(y[0])


class ArmPlan(NamedTuple):
    """What an arm has when it is finished."""

    seeds: tuple[int, ...]
    cycles: int  # counts the cycle before the first query


def summarize(records: Iterable[Record], plan: Mapping[str, ArmPlan] | None = None) -> Summary:
    """Keep the records that all arms have in common, and say in words what is absent.

    A mean over seeds that only some arms have would compare different things.

    Args:
        records: One record for each arm, seed and cycle, as ``foretaste.study.run`` returns them.
        plan: For each arm, in the order to show them, its seeds and number of cycles. None takes both from
            the records.

    Returns:
        The common records, with intervals and paired differences as methods.

    Raises:
        ValueError: There are no records, a number is not finite, or arms have different numbers of labels.

    Example:
        >>> from foretaste import report
        >>> common = {"labelled_ids": [1, 2], "residual": 1e-4}
        >>> records = [
        ...     common | {"arm": arm, "seed": s, "cycle": c, "labelled": 20 + 10 * c, "accuracy": 0.6 + up * c}
        ...     for arm, up in (("gain", 0.12), ("random", 0.1))
        ...     for s in range(3)
        ...     for c in range(3)
        ... ]
        >>> summary = report.summarize(records)
        >>> summary.arms, summary.counts, round(summary.lead("gain", "random").mean, 6)
        (('gain', 'random'), (20, 30, 40), 3.0)
    """
    by = {}
    for r in records:
        if "arm" not in r:
            raise ValueError(
                f"a record has no 'arm', only {', '.join(r)}; expected records of a study (foretaste.study.run)"
            )
        by[r["arm"], r["seed"], r["cycle"]] = r
        if not (math.isfinite(r["accuracy"]) and math.isfinite(r["residual"])):
            where = f"{r['arm']!r}, seed {r['seed']}, cycle {r['cycle']}"
            raise ValueError(f"accuracy {r['accuracy']} and residual {r['residual']} of {where} must be finite numbers")
    if not by:
        raise ValueError("there are no records to report; run a study first")
    labelled = {c: r["labelled"] for (_, _, c), r in by.items()}
    arms, seeds, cycles, missing = common_block(by, plan, labelled)
    kept = {(name, s, c): by[name, s, c] for name in arms for s in seeds for c in range(cycles)}
    sizes = [{kept[name, s, c]["labelled"] for name in arms for s in seeds} for c in range(cycles)]
    if uneven := [c for c in range(cycles) if len(sizes[c]) > 1]:
        raise ValueError(f"cycle {uneven[0]} has {sorted(sizes[uneven[0]])} labels; expected one number for all arms")
    wanted = {name: kept[name, seeds[0], 0].get("against") or _random_arm(arms) for name in arms}
    against = {name: other for name, other in wanted.items() if other in arms and other != name}
    lost = [
        f"{name} is to be compared with {other}, which is not here."
        for name, other in wanted.items()
        if other is not None and other not in arms
    ]
    return Summary(
        arms, seeds, tuple(n for (n,) in sizes), kept, against, (*missing, *lost, *_unpaired_seeds(kept, seeds))
    )


def _random_arm(arms: tuple[str, ...]) -> str | None:
    return next((name for name in arms if name.casefold() == RANDOM), None)


def _unpaired_seeds(kept: Mapping[RecordKey, Record], seeds: tuple[int, ...]) -> list[str]:
    """Pairing by seed assumes that a seed gives every arm the same first labels; name the seed where it does not."""
    first = {s: {tuple(sorted(r["labelled_ids"])) for (_, t, c), r in kept.items() if (t, c) == (s, 0)} for s in seeds}
    off = [s for s in seeds if len(first[s]) > 1]
    if not off:
        return []
    return [f"Arms of seed {off[0]} did not start from the same labels: pairing by seed removes less of the chance."]


def common_block(
    have: Collection[RecordKey], plan: Mapping[str, ArmPlan] | None, labelled: Mapping[int, int]
) -> tuple[tuple[str, ...], tuple[int, ...], int, tuple[str, ...]]:
    """The largest block of seeds × cycles that every arm has: arms, seeds, cycles; and in words what is outside of it.

    If arms share no seed, the arms that lack the most frequent seed are left out, and named.
    """
    every = ArmPlan(tuple(sorted({s for _, s, _ in have})), 1 + max(c for _, _, c in have))
    met = dict.fromkeys(name for name, _, _ in have)
    plan = dict(plan or {}) | {name: every for name in met if name not in (plan or {})}
    keys = set(have)
    done = {(name, s): _cycles_without_gap(keys, name, s) for name, s, _ in have}
    sentences = _unfinished_arms(plan, done, labelled)
    arms = [name for name in plan if any(n for (other, _), n in done.items() if other == name)]
    if not arms:
        raise ValueError("no arm has its cycle 0, the one before the first query; expected records from there on")
    if (block := _largest_block(arms, done)) is None:
        own = {s: [name for name in arms if done.get((name, s), 0)] for _, s in done}
        kept = own[max(sorted(own), key=lambda s: len(own[s]))]
        sentences += [f"{name} is left out: it shares no seed with the others." for name in arms if name not in kept]
        arms = kept
        block = _largest_block(arms, done)
        assert block is not None  # all kept arms have that seed
    seeds, cycles = block
    left_out = len(keys) - len(arms) * len(seeds) * cycles
    if sentences or left_out:
        span = f"{list_seeds(seeds)} up to {counted(labelled[cycles - 1], 'label')}"
        rest = f"; {counted(left_out, 'further record is', 'further records are')} left out." if left_out else "."
        sentences.append(f"Shown is what all arms have, {span}{rest}")
    return tuple(arms), tuple(seeds), cycles, tuple(sentences)


def _cycles_without_gap(keys: set[RecordKey], name: str, seed: int) -> int:
    """How many cycles there are, from 0 to the first that is absent."""
    n = 0
    while (name, seed, n) in keys:
        n += 1
    return n


def _largest_block(arms: list[str], done: Mapping[tuple[str, int], int]) -> tuple[list[int], int] | None:
    """The seeds and the number of cycles that all arms have, with the largest seeds × queries; None if none."""
    seeds = sorted({s for _, s in done})
    found = []
    for cycles in range(1, 1 + max(done.values())):
        kept = [s for s in seeds if all(done.get((name, s), 0) >= cycles for name in arms)]
        if kept:
            found.append((len(kept) * (cycles - 1), len(kept), cycles, kept))
    if not found:
        return None
    _, _, cycles, kept = max(found)
    return kept, cycles


def _unfinished_arms(
    plan: Mapping[str, ArmPlan], done: Mapping[tuple[str, int], int], labelled: Mapping[int, int]
) -> list[str]:
    """Which seeds of which arms are absent or unfinished; one sentence for all arms in the same state."""
    states: dict[tuple[tuple[int, tuple[int, ...]], ...], list[str]] = {}
    for name, (seeds, cycles) in plan.items():
        behind = sorted((n, s) for s in seeds if (n := done.get((name, s), 0)) < cycles)
        state = tuple((n, tuple(s for _, s in group)) for n, group in groupby(behind, key=lambda pair: pair[0]))
        if state:
            states.setdefault(state, []).append(name)
    out = []
    for state, names in states.items():
        if len(state) == 1 and state[0][0] == 0 and all(state[0][1] == plan[name].seeds for name in names):
            progress = "nothing yet"
        else:
            progress = ", ".join(
                f"{list_seeds(seeds)} {'unfinished at ' + counted(labelled[n - 1], 'label') if n else 'not begun'}"
                for n, seeds in state
            )
        who = "every arm" if len(names) == len(plan) > 1 else "; ".join(names)  # names may have commas
        out.append(f"{who}: {progress}.")
    return out


def list_seeds(seeds: Collection[int]) -> str:
    """seeds 0, 1, 2"""
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def wins(s: Summary) -> np.ndarray:
    """(arms, arms) who beats whom, how often.

    An entry is the share of cycles after the first query in which the row's arm is ahead of the column's, by the 95 %
    interval of their paired difference.
    """
    n, cycles = len(s.arms), range(1, len(s.counts))
    out = np.zeros((n, n))
    for i, row in enumerate(s.arms):
        for j, column in enumerate(s.arms):
            leads = [s.difference(row, column, c) for c in cycles if i != j]
            if leads:
                out[i, j] = np.mean([e.decided and e.mean > 0 for e in leads])
    return out


def without_spread(s: Summary) -> int:
    """In how many cycles two arms have the same difference in every seed; such a comparison decides nothing."""
    pairs = [(a, b) for i, a in enumerate(s.arms) for b in s.arms[:i]]
    found = [s.difference(a, b, c).half for a, b in pairs for c in range(1, len(s.counts))]
    return sum(half is not None and half <= NO_WIDTH for half in found)


@dataclass(frozen=True)
class QueryCost:
    """Medians in seconds, since the first query of a process pays for imports. Memory is the maximum, in bytes."""

    train: float
    query: float | None  # None if the arm never queried
    stages: dict[str, float]
    memory: int


def query_cost(s: Summary, arm: str) -> QueryCost:
    """What one query and one training of an arm cost."""
    costs = [r["cost"] for r in s.of(arm)]
    queried = [c for c in costs if c["query"] is not None]
    names = dict.fromkeys(name for c in queried for name in c["stages"])
    return QueryCost(
        float(np.median([c["train"] for c in costs])),
        float(np.median([c["query"] for c in queried if c["query"] is not None])) if queried else None,
        {name: float(np.median([c["stages"].get(name, 0.0) for c in queried])) for name in names},
        max(c["peak_memory"] for c in costs),
    )
