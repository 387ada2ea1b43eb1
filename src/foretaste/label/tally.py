"""What a desk counts: which answer each item has, whose they are, and the learning curve. Each event is taken once.

All of it follows from the log, the classes and how reliable people are. An event changes what is counted of its item
and the copies of it, and an undo also the curve since the event that it takes back. Where the classes change, or how
reliable people are, everything is counted anew.
"""

import threading
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean as mean
from typing import Any

from foretaste.label.classes import ClassGuide
from foretaste.label.store import GIVEN, CopyGroups, LabelEvent, LabelStore
from foretaste.label.task import LabelTask
from foretaste.label.voices import SECOND, ItemVoices, wilson

PREQUENTIAL = 30  # answers in the running accuracy of predictions made before the answer
CURVE_POINTS = 150


class AnswerTally:
    """The answers of a desk, counted. Read it within ``now``, which brings it up to date.

    ``known``: the items of the desk. ``untaught``: those of them that the learner is never taught. ``share``: those
    that ``voices_each`` people are asked about.

    Attributes:
        in_force: the answer that counts for each item that is asked for (``CopyGroups.in_force``).
        skips: those of the known items that are skips.
        unheard: what is answered and wants more voices, in the order of the answers: (the answer, what all said).
    """

    def __init__(
        self,
        store: LabelStore,
        copies: CopyGroups,
        known: Container[str],
        untaught: Container[str],
        share: Container[str],
        voices_each: int,
    ) -> None:
        self.store, self.copies, self._known, self._untaught = store, copies, known, untaught
        self._share, self._voices_each = share, voices_each
        self._lock = threading.RLock()
        self._start(None, {})

    def _start(self, guide: ClassGuide | None, trust: dict[str, float]) -> None:
        self._guide, self._trust, self._seen = guide, trust, 0
        self.curve = AnswerCurve(self._known, self._untaught, self.store.task)
        self.in_force: dict[str, LabelEvent] = {}
        self.skips: dict[str, LabelEvent] = {}
        self.unheard: dict[str, tuple[LabelEvent, ItemVoices]] = {}
        self._counts = Counter[tuple[str, str]]()
        self._parts: dict[str, list[tuple[str, str]]] = {}  # item → what it adds to the counts

    @contextmanager
    def now(self) -> Iterator["AnswerTally"]:
        """All events so far are counted, and nobody else changes the counts meanwhile."""
        with self._lock:
            guide, trust = self.store.guide, self.store.trust()
            # A guide is made anew whenever the classes, the task or the votes change, or events are taken back.
            if self._guide is not guide or self._trust != trust:
                self._start(guide, trust)
            events = self.store.events(self._seen)
            self.curve.take(events, self.store)
            for item in dict.fromkeys(self.copies.first(event.item) for event in events):
                self._count(item)
            self._seen += len(events)
            yield self

    def count(self, what: str, name: str = "") -> int:
        """How many: "kind" and "class" of answers, "person", "disagree"."""
        return self._counts[what, name]

    def people(self, most: int) -> list[tuple[str, int]]:
        """Who answered how often, most first."""
        found = [(name, n) for (what, name), n in self._counts.items() if what == "person" and n]
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:most]

    def waiting(self, who: str, without: Container[str]) -> Iterator[LabelEvent]:
        """Answers on which a person is to speak too, those that wait longest first."""
        if self._counts["waits", ""] == self._counts["spoke", who]:
            return
        for event, heard in self.unheard.values():
            if who not in heard.voices and event.item not in without:
                yield event

    def count_waiting(self, who: str, without: Iterable[str]) -> int:
        """How many ``waiting`` yields; ``without`` are few."""
        found = self._counts["waits", ""] - self._counts["spoke", who]
        return found - sum(self.is_waiting(item, who) for item in without)

    def is_waiting(self, item: str, who: str) -> bool:
        """Whether a person is to speak on the answer of an item too."""
        event, heard = self.unheard.get(self.copies.first(item), (None, None))
        return event is not None and heard is not None and event.item == item and who not in heard.voices

    def _count(self, first: str) -> None:
        """Count an item and its copies anew. ``first`` is the one of them that is asked for."""
        for key in self._parts.pop(first, ()):
            self._counts[key] -= 1
        event = self.copies.answer(first, self.store.state_of)
        shared = self.store.shared(self.copies.members(first))
        for held, holds in ((self.in_force, event is not None), (self.skips, _is_skip(event) and first in self._known)):
            held.pop(first, None)
            if holds:
                held[first] = event  # type: ignore[assignment]
        waits, was = self._waits(first, event), self.unheard.get(first)
        same = waits is not None and was is not None and was[0].seq == waits[0].seq  # it keeps its place
        if was is not None and not same:
            del self.unheard[first]
        if waits is not None:
            last = next(reversed(self.unheard.values()), waits)[0].seq
            self.unheard[first] = waits
            if waits[0].seq < last and not same:  # after an undo
                self.unheard = dict(sorted(self.unheard.items(), key=lambda pair: pair[1][0].seq))
        part = [("person", who) for heard in shared.values() for who in heard.voices]
        part += [("disagree", "") for heard in shared.values() if heard.disagree]
        if waits is not None:
            part += [("waits", ""), *(("spoke", who) for who in waits[1].voices)]
        if event is not None and first in self._known:
            part.append(("kind", "label" if event.label is not None else event.kind))
            if event.label is not None:
                part += [("class", name) for name in self.store.task.names(event.label)]
            if event.who != GIVEN and event.item not in shared:
                part.append(("person", event.who))
        self._counts.update(part)
        self._parts[first] = part

    def _waits(self, first: str, event: LabelEvent | None) -> tuple[LabelEvent, ItemVoices] | None:
        """The answer of an item and what was said of it, if more people are to be asked."""
        if event is None or event.who == GIVEN or event.kind in ("skip", "ignore") or first not in self._share:
            return None
        heard = self.store.voices_of(event.item)
        spoken = sum(said.kind != "skip" for said in heard.voices.values())
        wanted = event.item in self._known and heard.decision is None and spoken < self._voices_each
        return (event, heard) if wanted else None


def _is_skip(event: LabelEvent | None) -> bool:
    return event is not None and event.kind == "skip"


class AnswerCurve:
    """Whether what was predicted before each answer was right, and how many items were labelled and taught by then.

    An undo goes back to the event that it takes back, and from there through the events since, without that one.
    """

    def __init__(self, known: Container[str], untaught: Container[str], task: LabelTask) -> None:
        self._known, self._untaught, self._task = known, untaught, task
        self._undone = set[int | None]()
        self._right, self._at = list[bool](), list[int]()  # of each prediction; items that were labelled then
        self._labelled, self._taught = set[str](), 0
        self._reached: dict[int, int] = {0: 0}  # n → items labelled when n of them were taught
        # What each event has changed: (its number, its item, +1, −1 or 0 labelled, ``_reached`` before, predictions).
        self._trail = list[tuple[int, str, int, int, bool]]()

    def take(self, events: Sequence[LabelEvent], store: LabelStore) -> None:
        """Go on with events that are new in the log of ``store``."""
        undone = {event.undoes for event in events if event.undoes is not None}
        self._undone |= undone
        if undone and events and (back := min(undone)) < events[0].seq:
            self._go_back(back)
            events = [*store.events(back - 1)[: events[0].seq - back], *events]
        for event in events:
            if event.undoes is None and event.seq not in self._undone and event.item in self._known:
                self._step(event)

    def _step(self, event: LabelEvent) -> None:
        if event.purpose == SECOND and event.label is None:
            return
        before = event.item in self._labelled
        change = int(event.label is not None) - before
        (self._labelled.discard if event.label is None else self._labelled.add)(event.item)
        if event.item not in self._untaught:
            self._taught += change
        judged = event.kind == "label" and event.purpose != "check" and event.guess is not None
        self._trail.append((event.seq, event.item, change, self._reached.get(self._taught, 0), judged))
        self._reached[self._taught] = len(self._labelled)
        if judged:
            self._right.append(self._task.near(event.guess or "", event.label or ""))
            self._at.append(len(self._labelled))

    def _go_back(self, seq: int) -> None:
        """As it was before an event."""
        while self._trail and self._trail[-1][0] >= seq:
            _, item, change, reached, judged = self._trail.pop()
            if judged:
                del self._right[-1], self._at[-1]
            self._reached[self._taught] = reached
            if change:
                (self._labelled.add if change < 0 else self._labelled.discard)(item)
                self._taught -= change * (item not in self._untaught)

    def describe(self, checked: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
        """For the page: accuracy on the items that measure, with its interval, and of the predictions before."""
        right = self._right
        shown = range(len(right) - 1, -1, -max(1, len(right) // CURVE_POINTS))
        running = [[self._at[k], mean(right[max(0, k + 1 - PREQUENTIAL) : k + 1]), k + 1] for k in shown][::-1]
        return {
            "labelled": len(self._labelled),
            "check": [[self._reached[n], k / m, *wilson(k, m)] for n, k, m in checked if m and n <= self._taught],
            "checked": checked[-1][2] if checked else 0,
            "running": running,
            "window": PREQUENTIAL,
        }
