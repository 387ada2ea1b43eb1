"""What came out of a study, in words. No sentence says more than the paired intervals do."""

from collections.abc import Mapping, Sequence

from foretaste.errors import counted, format_seconds, join_words
from foretaste.report.summary import LEAST_SEEDS, NO_WIDTH, WHOLE_QUERY, Interval, QueryCost, Summary

FEW_BASELINES = 2  # baselines that get a sentence each
NAMED_ARMS = 6  # arms named in one sentence
HEADLINE_ARMS = 3  # arms named in one clause of the headline
SHORTEST_STAGE = 1e-3  # seconds; shorter stages of a query are not listed

WINS_EXPLAINED = (
    "An entry is the share of cycles after the first query in which the arm of its row was ahead of the arm of its "
    "column, by the 95 % interval of the difference paired by seed; a column's sum says how often that arm was beaten: "
    "the lower the better. Intervals are not corrected for their number."
)


def format_interval(e: Interval, sign: bool = False) -> str:
    """91.3 ± 1.2, or 91.3 where there is no interval that says something."""
    mean = f"{e.mean:+.1f}".replace("-", "−") if sign else f"{e.mean:.1f}"
    return mean if e.shown_half is None else f"{mean} ± {e.shown_half:.1f}"


def format_cell(e: Interval, sign: bool = False) -> str:
    """The same in a table: 91.3 ± – where several seeds give no such interval."""
    return format_interval(e, sign) + (" ± –" if e.half is not None and e.shown_half is None else "")


def _join_names(parts: Sequence[str]) -> str:
    """a, b and c; or a; b; c where a name has a comma itself."""
    return "; ".join(parts) if len(parts) > 1 and any("," in part for part in parts) else join_words(parts)


def headline(s: Summary) -> str:
    """The one sentence at the top: which differences the paired 95 % intervals decide. It has no full stop.

    An arm "came out best" only if it is ahead of every other arm by the interval of their paired difference. Otherwise
    each arm is compared with its baseline, or with the highest arm where there is no baseline.

    >>> from foretaste import report, study
    >>> report.headline(report.summarize(study.load("runs/fig2a")))
    'gain came out best, 10.0 ± 0.9 points above margin'
    """
    best, *rest = s.ranked()
    if not rest:
        e = s.accuracy(best, len(s.counts) - 1)
        return f"{best} reached {format_interval(e)} % with {counted(s.counts[-1], 'label')}"
    if len(s.counts) == 1:
        return "Nothing has been measured after a query yet"
    if len(s.seeds) < LEAST_SEEDS:
        too_few = "gives no interval" if len(s.seeds) == 1 else "are too few for an interval"
        return f"Nothing is decided: {_count_seeds(s)} {too_few}"
    if all(s.lead(best, other).decided for other in rest):
        return f"{best} came out best, {format_interval(s.lead(best, rest[0]))} points above {rest[0]}"
    if s.baseline is not None:
        return _against_baseline(s, s.baseline)
    return _against_own_baselines(s) if s.bases else _against_highest(s, best, rest)


def _against_baseline(s: Summary, base: str) -> str:
    """gain is above random by 3.1 ± 1.2 points; margin cannot be told from random"""
    leads = {name: s.lead(name, base) for name in s.ranked() if name in s.against}
    above, below, even = _by_sign(leads)
    if not above and not below:
        who = next(iter(leads)) if len(leads) == 1 else "No strategy"
        return f"{who} {'cannot' if len(leads) == 1 else 'can'} be told from {base}"
    parts = [_ahead(leads, names, word, base) for names, word in ((above, "above"), (below, "below")) if names]
    if even:
        parts.append(f"{_first_few(even)} cannot be told from {base}")
    return "; ".join(parts)


def _ahead(leads: Mapping[str, Interval], names: Sequence[str], word: str, base: str) -> str:
    """gain is above random by 3.1 ± 1.2 points; several arms have their distances in brackets."""
    if len(names) == 1:
        e = leads[names[0]]
        return f"{names[0]} is {word} {base} by {format_interval(Interval(abs(e.mean), e.half, e.n))} points"
    each = [f"{name} ({format_interval(leads[name], sign=True)})" for name in names]
    return f"{_first_few(each)} are {word} {base}"


def _against_own_baselines(s: Summary) -> str:
    """Counts, for the names are in the sentence below."""
    above, below, even = _by_sign({a: s.lead(a, b) for a, b in s.against.items()})
    counts = ((above, "above it"), (below, "below it"), (even, "undecided"))
    if not above and not below:
        return "No strategy can be told from its own baseline"
    parts = [f"{len(names)} {'is' if len(names) == 1 else 'are'} {word}" for names, word in counts if names]
    return f"Of {len(s.against)} arms with a baseline of their own, {_join_names(parts)}"


def _against_highest(s: Summary, best: str, rest: Sequence[str]) -> str:
    """Without a baseline, the highest arm against each other one."""
    behind = [name for name in rest if s.lead(best, name).decided]
    even = [name for name in rest if name not in behind]
    if not behind:
        return f"{best} has the highest mean, but cannot be told from {_first_few(even)}"
    return f"{best} is above {_first_few(behind)}, and cannot be told from {_first_few(even)}"


def _by_sign(leads: Mapping[str, Interval]) -> tuple[list[str], list[str], list[str]]:
    """Arms that are above, below, and those whose interval leaves it open."""
    above = [name for name, e in leads.items() if e.decided and e.mean > 0]
    below = [name for name, e in leads.items() if e.decided and e.mean < 0]
    return above, below, [name for name, e in leads.items() if not e.decided]


def _first_few(names: Sequence[str], most: int = HEADLINE_ARMS) -> str:
    """All names, or the first and how many others."""
    rest = len(names) - most + 1
    return _join_names(list(names) if rest <= 1 else [*names[: most - 1], f"{rest} others"])


def details(s: Summary) -> str:
    """The average of the highest arm, and its distance to the others.

    >>> from foretaste import report, study
    >>> report.details(report.summarize(study.load("runs/fig2a")))[:60]
    'gain got 90.5 ± 0.3 % of the test points right, averaged ove'
    """
    best, *rest = s.ranked()
    first = f"{best} got {format_interval(s.average(best))} % of the test points right, averaged over {_span(s)}."
    return f"{first} {_distances(s, best, rest)}" if rest else first


def _distances(s: Summary, best: str, rest: list[str]) -> str:
    leads = {name: s.lead(best, name) for name in rest}
    if len(s.seeds) < LEAST_SEEDS:
        each = [f"{leads[name].mean:.1f} points above {name}" for name in rest]
        return f"It is {_first_few(each, NAMED_ARMS)}; with {_count_seeds(s)} that may be chance."
    even = [name for name in rest if not leads[name].decided]
    behind = [name for name in rest if leads[name].decided]
    text = []
    if even:
        parts = [f"{name} ({format_interval(leads[name], sign=True)} points)" for name in even]
        text.append(f"On these seeds it cannot be told apart from {_first_few(parts, NAMED_ARMS)}.")
    if same := [name for name in even if (half := leads[name].half) is not None and half <= NO_WIDTH]:
        text.append(
            f"The difference to {_first_few(same, NAMED_ARMS)} is the same in every seed: "
            "its interval has no width, so it decides nothing."
        )
    if behind:
        above = [f"{format_interval(leads[name])} points above {name}" for name in behind]
        text.append(f"It is {_first_few(above, NAMED_ARMS)}.")
    return " ".join(text)


def _span(s: Summary) -> str:
    if len(s.counts) == 1:
        return f"{_count_seeds(s)} at {counted(s.counts[0], 'label')}"
    cycles = len(s.counts) - 1
    span = f"{counted(cycles, 'cycle')} ({s.counts[1]} to {s.counts[-1]} labels)"
    return f"{span} and {_count_seeds(s)}"


def _count_seeds(s: Summary) -> str:
    return {1: "one seed", 2: "two seeds"}.get(len(s.seeds), f"{len(s.seeds)} seeds")


def own_baselines(s: Summary) -> str | None:
    """Which arms beat their own baseline; None unless there are several baselines and enough seeds."""
    if len(s.bases) < 2 or len(s.seeds) < LEAST_SEEDS:
        return None
    leads = {a: s.lead(a, b) for a, b in s.against.items()}
    above, below, even = _by_sign(leads)
    text = "No arm is clearly above its own baseline."
    if above:
        parts = [f"{a} by {format_interval(leads[a])} points" for a in above]
        text = f"Above the own baseline: {_first_few(parts, NAMED_ARMS)}."
    if below:
        parts = [f"{a} ({format_interval(leads[a], sign=True)})" for a in below]
        text += f" Below it: {_first_few(parts, NAMED_ARMS)}."
    if even:
        text += f" Undecided: {_first_few(even, NAMED_ARMS)}."
    return text


def savings(s: Summary) -> str | None:
    """How many labels each arm needs for what its baseline reaches at the end; None if there are no or many baselines.

    >>> from foretaste import report, study
    >>> report.savings(report.summarize(study.load("runs/fig2a")))[:96]
    'What random reached with 40 labels, 70.5 ± 1.2 %, was reached by gain with 30 (30 in every seed)'
    """
    if not 1 <= len(s.bases) <= FEW_BASELINES or len(s.counts) < 2:
        return None
    return " ".join(_saved_labels(s, base) for base in s.bases)


def _saved_labels(s: Summary, base: str) -> str:
    goal, others = s.accuracy(base, len(s.counts) - 1), [a for a, b in s.against.items() if b == base]
    reached = []
    for name in sorted(others, key=s.ranked().index):
        first = next((n for c, n in enumerate(s.counts[:-1]) if s.accuracy(name, c).mean >= goal.mean), None)
        reached += [f"{name} with {first}{_labels_by_seed(s, name, base)}"] if first is not None else []
    if not reached:
        return f"No arm compared with {base} reached with fewer labels what {base} reached with {s.counts[-1]}."
    if len(reached) > NAMED_ARMS:
        reached = [*reached[: NAMED_ARMS - 1], f"{len(reached) - NAMED_ARMS + 1} others with fewer than {s.counts[-1]}"]
    what = f"What {base} reached with {s.counts[-1]} labels, {format_interval(goal)} %,"
    return f"{what} was reached by {'; '.join(reached)}."


def _labels_by_seed(s: Summary, name: str, base: str) -> str:
    """How far single seeds are from the means: labels until an arm has what its baseline has at the end."""
    if len(s.seeds) == 1:
        return ""
    last, needed = len(s.counts) - 1, []
    for seed in s.seeds:
        reached = (n for c, n in enumerate(s.counts) if s.percent(name, seed, c) >= s.percent(base, seed, last))
        needed.append(next(reached, s.counts[-1] + 1))
    least, most = min(needed), max(needed)
    if least == most <= s.counts[-1]:
        return f" ({least} in every seed)"
    return f" (by seed: {least} to {f'more than {s.counts[-1]}' if most > s.counts[-1] else most})"


def caveat(s: Summary) -> str:
    """What the ± of tables and sentences is, and what it is not."""
    if len(s.seeds) == 1:
        return "One seed gives no interval: these differences may be chance. Run more seeds."
    if len(s.seeds) < LEAST_SEEDS:
        return f"Two seeds decide nothing, even where they agree, and give no interval: run {LEAST_SEEDS} or more."
    return (
        f"± is the 95 % interval of the mean over {len(s.seeds)} seeds (Student’s t), of differences paired by seed; "
        "it is not corrected for the number of comparisons."
    )


def learned_labels(s: Summary) -> tuple[bool, str]:
    """Whether every network learned its labels, as look-ahead assumes, and which did not."""
    failed, again, more = s.unlearned(), "", ""
    if times := _trainings_with(s, "retries"):
        again = f" Trainings that diverged and were repeated at a lower learning rate: {times}."
    if not failed:
        return True, f"Every network learned its labels: their mean squared error is at most {s.residual():.1e}.{again}"
    parts = _join_names([f"{name} in {n} of {counted(len(s.of(name)), 'training')}" for name, n in failed.items()])
    if times := _trainings_with(s, "diverged"):
        more = f" Trainings that diverged: {times}. What is shown for them is a network with new weights."
    return False, (
        f"Not every network learned its labels: {parts} did not; the largest labelled mean squared error is "
        f"{s.residual():.1e}. Look-ahead scores assume interpolation; train longer.{more}{again}"
    )


def _trainings_with(s: Summary, key: str) -> str:
    """3 of gain and 1 of random"""
    found = [f"{n} of {name}" for name in s.arms if (n := sum(bool(r.get(key)) for r in s.of(name)))]
    return _join_names(found) if found else ""


def list_stages(cost: QueryCost) -> str:
    """The stages of a query, the longest first."""
    stages = sorted(cost.stages.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {format_seconds(t)}" for name, t in stages if t >= SHORTEST_STAGE and name != WHOLE_QUERY)
