"""What came out, in words, from the numbers alone."""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from foretaste.report._summary import Estimate, Summary
from foretaste.report._words import number, together

FEW = 2  # baselines that are told of one by one
NAMED = 6  # arms in a sentence
TOGETHER = 3  # arms in the headline


def headline(s: Summary) -> str:
    """Who came out best, together with those next to it that cannot be told apart from it."""
    best, *rest = s.ranked()
    even = list(takewhile(lambda name: not s.lead(best, name).decided, rest))
    if not rest:
        return f"{best} reached {s.accuracy(best, len(s.counts) - 1).mean:.1f} % with {s.counts[-1]} labels"
    if len(s.counts) == 1:
        return "Nothing has been asked yet"
    if len(s.seeds) == 1:
        return f"{best} came out highest, on a single seed"
    if len(even) == len(rest):
        return f"{best} came out highest, but nothing is clearly ahead"
    if even:
        names = [best, *even] if len(even) < TOGETHER else [best, f"{len(even)} more that cannot be told apart"]
        return f"{together(names)} came out best"
    return f"{best} came out best, {s.lead(best, rest[0]).mean:.1f} points above {rest[0]}"


def details(s: Summary) -> str:
    """The average of the best arm, and how far the others are from it."""
    best, *rest = s.ranked()
    first = f"{best} got {number(s.average(best))} % of the test points right, averaged over {_span(s)}."
    return f"{first} {_against(s, best, rest)}" if rest else first


def gains(s: Summary) -> str | None:
    """Where arms have baselines of their own: who beats the own one."""
    if len(s.bases) < 2 or len(s.seeds) == 1:
        return None
    leads = {a: s.lead(a, b) for a, b in s.against.items()}
    above = [f"{a} by {number(e)} points" for a, e in leads.items() if e.decided and e.mean > 0]
    below = [f"{a} ({number(e, sign=True)})" for a, e in leads.items() if e.decided and e.mean < 0]
    text = f"Above the own baseline: {_some(above)}." if above else "No arm is clearly above its own baseline."
    if below:
        text += f" Below it: {_some(below)}."
    if rest := [a for a, e in leads.items() if not e.decided]:
        text += f" Undecided: {_some(rest)}."
    return text


def savings(s: Summary) -> str | None:
    """How many labels each needs for what its baseline reaches at the end."""
    if not 1 <= len(s.bases) <= FEW or len(s.counts) < 2:
        return None
    return " ".join(_saved(s, base) for base in s.bases)


def caveat(s: Summary) -> str:
    """What the intervals are, and are not."""
    if len(s.seeds) == 1:
        return "One seed gives no interval: these differences may be chance. Run more seeds."
    return (
        f"± is the 95 % interval of the mean over {len(s.seeds)} seeds (Student’s t), of differences paired by seed; "
        "it is not corrected for the number of comparisons."
    )


def learned(s: Summary) -> tuple[bool, str]:
    """Whether every network learned its labels, as look-ahead supposes, and which did not."""
    failed = s.unlearned()
    if not failed:
        return True, f"Every network learned its labels: their mean squared error is at most {s.residual():.1e}."
    parts = together([f"{name} in {n} of {len(s.of(name))} trainings" for name, n in failed.items()])
    blown = {name: n for name in s.arms if (n := sum(r.get("diverged", False) for r in s.of(name)))}
    more = ""
    if blown:
        times = together([f"{n} of {name}" for name, n in blown.items()])
        more = f" Of these trainings {times} blew up: what is shown for them is a network at new weights."
    return False, (
        f"Not every network learned its labels: {parts} did not; the largest labelled mean squared error is "
        f"{s.residual():.1e}. Look-ahead scores assume interpolation; train longer.{more}"
    )


def _saved(s: Summary, base: str) -> str:
    goal, others = s.accuracy(base, len(s.counts) - 1).mean, [a for a, b in s.against.items() if b == base]
    reached = []
    for name in sorted(others, key=s.ranked().index):
        first = next((n for c, n in enumerate(s.counts[:-1]) if s.accuracy(name, c).mean >= goal), None)
        reached += [f"{name} with {first}"] if first is not None else []
    if not reached:
        return f"No arm compared with {base} reached with fewer labels what {base} reached with {s.counts[-1]}."
    if len(reached) > NAMED:
        reached = [*reached[: NAMED - 1], f"{len(reached) - NAMED + 1} others with fewer than {s.counts[-1]}"]
    return f"What {base} reached with {s.counts[-1]} labels, {goal:.1f} %, was reached by {'; '.join(reached)}."


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
        near, far = (rest, []) if len(rest) <= NAMED else (rest[: NAMED - 1], rest[NAMED - 1 :])
        said = [f"{leads[name].mean:.1f} points above {name}" for name in near]
        return f"It is {together([*said, *_far(leads, far)])}; with one seed that may be chance."
    even = [name for name in rest if not leads[name].decided]
    behind = [name for name in rest if leads[name].decided]
    text = []
    if even:
        parts = together([f"{name} ({number(leads[name], sign=True)} points)" for name in even])
        text.append(f"On these seeds it cannot be told apart from {parts}.")
    if behind:
        near, far = (behind, []) if len(behind) <= NAMED else (behind[: NAMED - 1], behind[NAMED - 1 :])
        above = [f"{number(leads[name])} points above {name}" for name in near]
        text.append(f"It is {together([*above, *_far(leads, far)])}.")
    return " ".join(text)


def _some(parts: list[str]) -> str:
    rest = len(parts) - NAMED + 1
    return together(parts if rest <= 1 else [*parts[: NAMED - 1], f"{rest} others"])


def _far(leads: Mapping[str, Estimate], names: Sequence[str]) -> list[str]:
    """The many others in a few words."""
    if not names:
        return []
    least, most = (f(leads[name].mean for name in names) for f in (min, max))
    return [f"{least:.1f} to {most:.1f} points above {len(names)} others"]
