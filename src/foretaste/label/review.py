"""What is labelled, to be looked at again: filters, the most doubtful first, and how many mistakes are expected.

Doubts are those of ``Learner.mistakes``, of the labels as they were at the last look. They are computed in the thread
that asks: the learner goes on answering meanwhile. A list is cut into pages: whoever goes on reading one reads the list
that it began with, whatever was answered since.
"""

import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from foretaste.errors import check_known
from foretaste.label.store import LabelEvent
from foretaste.label.voices import ItemVoices

if TYPE_CHECKING:
    from foretaste.label.desk import LabelDesk

WITHOUT_LABEL = {"unsure": "unsure", "skipped": "skip", "aside": "ignore"}  # filter → the kind of answer
REVIEW_ONLY = ("", "disagrees", "people", *WITHOUT_LABEL, "measured")
REVIEW_FIRST = 50  # of these the page says how many are expected to be wrong
REVIEW_PAGE = 100  # rows sent at once
LISTS_KEPT = 8  # for those who go on reading


@dataclass(frozen=True)
class ReviewFilter:
    """Which answers to list; what is empty does not count.

    label: a class. who: a person. since, until: moments, as 2025-03-31T22:00:00.000Z, the second not included. only:
    "disagrees" (other labels say another class), "people" (they named different classes, and nobody has decided),
    "unsure" (people were not sure), "skipped", "aside" (set aside) or "measured" (drawn at random to measure
    accuracy). find: words in the item's name, text or cells.
    """

    label: str = ""
    who: str = ""
    since: str = ""
    until: str = ""
    only: str = ""
    find: str = ""

    def __post_init__(self) -> None:
        check_known("only", self.only, REVIEW_ONLY)

    def takes(
        self,
        event: LabelEvent,
        measured: bool,
        doubt: dict[str, Any] | None,
        heard: ItemVoices | None,
        names: Sequence[str],
    ) -> bool:
        """Whether an answer is listed. ``heard``: what all said, where several did. ``names``: the classes of it."""
        kind = WITHOUT_LABEL.get(self.only)
        return (
            (event.label is not None if kind is None else event.kind == kind)
            and (not self.label or self.label in names)
            and (self.who in ("", event.who) or (heard is not None and self.who in heard.voices))
            and (self.only != "people" or (heard is not None and heard.disagree))
            and (not self.since or event.at >= self.since)
            and (not self.until or event.at < self.until)
            and (self.only != "measured" or measured)
            and (self.only != "disagrees" or (doubt is not None and doubt["likely"] != event.label))
        )


class ReviewRow(NamedTuple):
    """An answer that is listed. ``wrong``: how doubtful its label is, -1 where nothing is known."""

    wrong: float
    seq: int
    item: str
    event: LabelEvent
    doubt: dict[str, Any] | None
    heard: ItemVoices | None


class ReviewList(NamedTuple):
    """A list as it was made. ``made_of``: what was there, for which filter and whom; ``people``: who said something."""

    made_of: tuple[Any, ReviewFilter, str | None]
    rows: list[ReviewRow]
    people: list[str]


class LabelReview:
    """Lists of the answers of a desk. Doubts are kept until an answer changes them, and the last few lists."""

    def __init__(self, desk: "LabelDesk") -> None:
        self.desk = desk
        self._lock = threading.Lock()
        self._known: tuple[Any, dict[str, dict[str, Any]]] = (None, {})
        self._lists: dict[str, ReviewList] = {}  # name → list, the one that was read last at the end

    def doubts(self) -> tuple[Any, dict[str, dict[str, Any]]]:
        """What was there at the look, and item → its row of ``Learner.mistakes``; none while there is no model."""
        desk = self.desk
        with self._lock:  # one look at a time: it takes all of a core
            now = (desk.store.event_count, desk.worker.view.absorbed, desk.store.classes)
            if self._known[0] != now:
                measured = {i: label for i in desk.check_ids if (label := desk.label_of(i)) is not None}
                self._known = now, {str(row["id"]): row for row in desk.worker.mistakes(measured)}
            return self._known

    def rows(self, wanted: ReviewFilter, start: int = 0, person: str | None = None, name: str = "") -> dict[str, Any]:
        """A page of a list: the most doubtful first, then those without a doubt, the newest first.

        Args:
            wanted: Which answers.
            start: The first row. 0 makes the list anew, if anything has changed; any other goes on in a list.
            person: Who is not the owner, and sees only what they said themselves.
            name: Of the list to go on in, as an earlier page says it; "" is the last one of this filter and person.

        Raises:
            KeyError: that list is no longer kept.
        """
        name, made = self._find_list(wanted, person, name) if start else self._make_list(wanted, person)
        shared = self.desk.store.shared()
        first = [row.wrong for row in made.rows[:REVIEW_FIRST] if row.wrong >= 0]
        return {
            "list": name,
            "total": len(made.rows),
            "first": len(first),
            "expected": sum(first),
            "people": made.people,
            "items": [self._describe(row, person, shared) for row in made.rows[start : start + REVIEW_PAGE]],
        }

    def _describe(self, row: ReviewRow, person: str | None, shared: Mapping[str, ItemVoices]) -> dict[str, Any]:
        """A row as the page shows it, with the answer as it is now: since the list was made it may have changed."""
        desk, item, doubt = self.desk, row.item, row.doubt
        event, heard = self._answer_now(item, person) or row.event, None
        if person is None:
            heard = shared.get(event.item)
        if doubt is not None and doubt["label"] != event.label:
            doubt = None  # relabelled since
        return {
            "number": desk.number[event.item if heard else item],
            "item": event.item if heard else item,  # a decision stands where the voices are
            "kind": event.kind,
            "label": event.label,
            "who": event.who,
            "at": event.at,
            "measured": item in desk.check_ids,
            "voices": [[who, said.label or said.kind] for who, said in heard.voices.items()] if heard else [],
            "decided": bool(heard and heard.decision),
            "sure": 1 - heard.doubt if heard and desk.store.votes == "reliability" else None,
            "doubt": None if doubt is None else {k: doubt[k] for k in ("wrong", "likely", "probability")},
        }

    def _answer_now(self, item: str, person: str | None) -> LabelEvent | None:
        """The answer that counts for an item, or what a person said of it."""
        store = self.desk.store
        event = self.desk.copies.answer(item, store.state_of)
        return event if event is None or person is None else store.voices_of(event.item).voices.get(person)

    def _make_list(self, wanted: ReviewFilter, person: str | None) -> tuple[str, ReviewList]:
        """The list as it is now, and its name. The one that was made last, if nothing has changed."""
        now, doubts = self.doubts()
        made_of = (now, wanted, person)
        with self._lock:
            name = next((name for name, made in self._lists.items() if made.made_of == made_of), "")
        made = self._lists.get(name) or ReviewList(made_of, *self._list(doubts, wanted, person))
        return self._keep_list(name or secrets.token_hex(8), made)

    def _find_list(self, wanted: ReviewFilter, person: str | None, name: str) -> tuple[str, ReviewList]:
        """A list that was made before, and its name."""
        with self._lock:
            same = {k: made for k, made in self._lists.items() if made.made_of[1:] == (wanted, person)}
        if not name and not same:
            return self._make_list(wanted, person)
        name = name or [*same][-1]
        if name not in same:
            raise KeyError("this list is no longer kept; press Look again")
        return self._keep_list(name, same[name])

    def _keep_list(self, name: str, made: ReviewList) -> tuple[str, ReviewList]:
        with self._lock:
            self._lists.pop(name, None)
            self._lists[name] = made
            while len(self._lists) > LISTS_KEPT:
                del self._lists[next(iter(self._lists))]
        return name, made

    def _list(
        self, doubts: dict[str, dict[str, Any]], wanted: ReviewFilter, person: str | None
    ) -> tuple[list[ReviewRow], list[str]]:
        """All rows, in order, and the people who said something."""
        desk, shared = self.desk, self.desk.store.shared()
        answers = desk.answers()
        if person is not None:
            own = {i: desk.store.voices_of(e.item).voices.get(person) for i, e in answers.items()}
            answers, shared = {i: event for i, event in own.items() if event is not None}, {}
        found, there = list[ReviewRow](), {i for i in answers if i in desk.number}
        if wanted.find:
            there = {*desk.with_words(there, wanted.find)}
        for item, event in answers.items():
            doubt, heard = doubts.get(item), shared.get(event.item)
            if doubt is not None and doubt["label"] != event.label:
                doubt = None  # relabelled since
            names = desk.store.task.names(event.label) if wanted.label and event.label is not None else ()
            if item in there and wanted.takes(event, item in desk.check_ids, doubt, heard, names):
                found.append(ReviewRow(-1.0 if doubt is None else doubt["wrong"], event.seq, item, event, doubt, heard))
        found.sort(key=lambda row: row[:2], reverse=True)
        people = {e.who for e in answers.values()} | {w for heard in shared.values() for w in heard.voices}
        return found, sorted(people)
