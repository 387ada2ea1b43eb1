"""A project at a glance: accuracy, labels saved, time left, what an hour more would bring; who did what, and agreement.

Accuracy and advice are those that the page shows anyway. Pace is of the time that people spent at it: a gap of more
than two minutes between two answers of a person is a break.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from math import exp, log
from typing import TYPE_CHECKING, Any

from foretaste.label.voices import GIVEN, ItemVoices, measure_agreement, wilson

if TYPE_CHECKING:
    from foretaste.label.desk import LabelDesk
    from foretaste.label.store import LabelEvent

BREAK_SECONDS = 120.0
FEWEST_TIMED = 5  # answers without a break before them, below which no pace is told
FEWEST_MEASURED = 20  # items drawn at random, below which nothing is said of an hour more
STEEPEST = 1.5  # the exponent at which errors may fall with the labels


@dataclass(frozen=True)
class PersonWork:
    """What a person did. ``seconds`` without breaks, in which ``timed`` of the answers came."""

    who: str
    answers: int
    unsure: int
    seconds: float
    timed: int
    first: str
    last: str

    @property
    def per_hour(self) -> float | None:
        return 3600 * self.timed / self.seconds if self.timed >= FEWEST_TIMED and self.seconds else None


def work_of_people(events: "Sequence[LabelEvent]") -> list[PersonWork]:
    """Who did what, most first. Answers that were taken back do not count, nor do skips; the time of both does."""
    undone, found = {event.undoes for event in events}, dict[str, PersonWork]()
    for event in events:
        if event.who == GIVEN:
            continue
        was = found.get(event.who) or PersonWork(event.who, 0, 0, 0.0, 0, event.at, event.at)
        counts = event.undoes is None and event.seq not in undone and event.kind != "skip"
        gap = (datetime.fromisoformat(event.at) - datetime.fromisoformat(was.last)).total_seconds()
        at_it = 0 <= gap <= BREAK_SECONDS and was.answers > 0
        found[event.who] = PersonWork(
            event.who,
            was.answers + counts,
            was.unsure + (counts and event.kind == "unsure"),
            was.seconds + (gap if at_it else 0.0),
            was.timed + (counts and at_it),
            was.first,
            event.at,
        )
    return sorted(found.values(), key=lambda work: -work.answers)


def right_of_settled(shared: Iterable[ItemVoices]) -> dict[str, Counter[str]]:
    """Person → "right", how often they said what counts; "of", items that are decided or have a majority; "open"."""
    found = defaultdict[str, Counter[str]](Counter)
    for heard in shared:
        for who, label in heard.labels.items() if len(heard.labels) > 1 and heard.counts is not None else ():
            settled = heard.decision is not None or not heard.tied
            found[who].update(
                {"right": settled and label == heard.counts.label, "of": settled, "open": not settled}  # type: ignore[union-attr]
            )
    return found


def accuracy_after(checked: Sequence[Sequence[int]], more: int) -> tuple[float, float, float] | None:
    """(accuracy, low, high) after so many more labels, if errors go on falling as they did: e ∝ n^−b.

    ``checked``: (labels, right, of how many) as they were measured. b is by least squares of log e on log n, with half
    an error added, between 0 and ``STEEPEST``; the interval is that of today, carried on.
    """
    points = [(log(n), log((m - right + 0.5) / (m + 1))) for n, right, m in checked if n > 0 and m >= FEWEST_MEASURED]
    if len(points) < 3 or points[-1][0] - points[0][0] < log(1.5):
        return None
    (x0, y0), many = (sum(column) / len(points) for column in zip(*points)), len(points)
    spread = sum((x - x0) ** 2 for x, _ in points) / many
    slope = sum((x - x0) * (y - y0) for x, y in points) / many / spread
    n, right, m = checked[-1]
    left = exp(-min(max(-slope, 0.0), STEEPEST) * (log(n + more) - log(n)))  # share of the errors that stays
    low, high = wilson(right, m)
    return 1 - (1 - right / m) * left, 1 - (1 - low) * left, 1 - (1 - high) * left


def describe_project(desk: "LabelDesk") -> dict[str, Any]:
    """All that the overview shows beside the state of the page."""
    events, shared, view = desk.store.events(), desk.store.shared(), desk.worker.view
    work, right = work_of_people(events), right_of_settled(shared.values())
    seconds, timed = sum(w.seconds for w in work), sum(w.timed for w in work)
    per_hour = 3600 * timed / seconds if timed >= FEWEST_TIMED and seconds else None
    people, left = desk.people_now(), desk.answers_left()
    more = min(left, round(per_hour * people)) if per_hour else 0
    after = accuracy_after(view.checked, more) if more else None
    agreement = measure_agreement([heard.labels for heard in shared.values()])
    reliable = desk.store.reliability()
    measured = {i: label for i in desk.check_ids if (label := desk.label_of(i)) is not None}
    return {
        "saved": desk.worker.saved(measured),
        "pace": {
            "per_hour": per_hour,
            "people": people,
            "left": left,
            "hours": left / (per_hour * people) if per_hour else None,
        },
        "hour": None if after is None else {"answers": more, "accuracy": after[0], "low": after[1], "high": after[2]},
        "agreement": None if agreement is None else asdict(agreement),
        "shared": sum(len(heard.labels) > 1 for heard in shared.values()),
        "people": [
            asdict(w)
            | {"per_hour": w.per_hour}
            | {name: right[w.who][name] for name in ("right", "of", "open")}
            | {"reliable": reliable.get(w.who)}
            for w in work
        ],
    }
