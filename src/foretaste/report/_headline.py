"""What came out, in words, from the numbers alone."""

from itertools import takewhile

from foretaste.report._summary import Estimate, Summary


def number(e: Estimate, sign: bool = False) -> str:
    """91.3 ± 1.2, or 91.3 where one seed gives no interval."""
    mean = f"{e.mean:+.1f}".replace("-", "−") if sign else f"{e.mean:.1f}"
    return mean if e.half is None else f"{mean} ± {e.half:.1f}"


def headline(s: Summary) -> str:
    """Who came out best, together with those next to it that cannot be told apart from it."""
    best, *rest = s.ranked()
    even = list(takewhile(lambda name: not s.lead(best, name).decided, rest))
    if not rest:
        return f"{best} reached {s.accuracy(best, len(s.counts) - 1).mean:.1f} % with {s.counts[-1]} labels"
    if len(s.seeds) == 1:
        return f"{best} came out best, on a single seed"
    if len(even) == len(rest):
        return f"{best} came out highest, but no strategy is clearly ahead"
    if even:
        return f"{_and([best, *even])} came out best"
    return f"{best} came out best, {s.lead(best, rest[0]).mean:.1f} points above {rest[0]}"


def details(s: Summary) -> str:
    """The average of the best strategy, and how far the others are from it."""
    best, *rest = s.ranked()
    first = f"{best} got {number(s.average(best))} % of the test points right, averaged over {_span(s)}."
    return f"{first} {_against(s, best, rest)}" if rest else first


def savings(s: Summary) -> str | None:
    """How many labels each needs for what the baseline reaches at the end."""
    if s.baseline is None or len(s.counts) < 2:
        return None
    goal = s.accuracy(s.baseline, len(s.counts) - 1).mean
    reached = []
    for name in s.ranked():
        if name == s.baseline:
            continue
        for cycle, n in enumerate(s.counts[:-1]):
            if s.accuracy(name, cycle).mean >= goal:
                reached.append((name, n))
                break
    if not reached:
        return f"No other strategy reached with fewer labels what {s.baseline} reached with {s.counts[-1]}."
    parts = "; ".join(f"{name} with {n}" for name, n in reached)
    return f"What {s.baseline} reached with {s.counts[-1]} labels, {goal:.1f} %, was reached by {parts}."


def caveat(s: Summary) -> str:
    """What the intervals are, and are not."""
    if len(s.seeds) == 1:
        return "One seed gives no interval: these differences may be chance. Run more seeds."
    return (
        f"± is the 95 % interval of the mean over {len(s.seeds)} seeds (Student’s t), of differences paired by seed; "
        "it is not corrected for the number of comparisons."
    )


def _span(s: Summary) -> str:
    if len(s.counts) == 1:
        return f"{_seeds(s)} at {s.counts[0]} labels"
    cycles = len(s.counts) - 1
    span = f"{cycles} {'cycle' if cycles == 1 else 'cycles'} ({s.counts[1]} to {s.counts[-1]} labels)"
    return f"{span} and {_seeds(s)}"


def _seeds(s: Summary) -> str:
    return "one seed" if len(s.seeds) == 1 else f"{len(s.seeds)} seeds"


def _against(s: Summary, best: str, rest: list[str]) -> str:
    leads = {name: s.lead(best, name) for name in rest}
    if len(s.seeds) == 1:
        parts = _and([f"{leads[name].mean:.1f} points above {name}" for name in rest])
        return f"It is {parts}; with one seed that may be chance."
    even = [name for name in rest if not leads[name].decided]
    behind = [name for name in rest if leads[name].decided]
    text = []
    if even:
        parts = _and([f"{name} ({number(leads[name], sign=True)} points)" for name in even])
        text.append(f"On these seeds it cannot be told apart from {parts}.")
    if behind:
        parts = _and([f"{number(leads[name])} points above {name}" for name in behind])
        text.append(f"It is {parts}.")
    return " ".join(text)


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
