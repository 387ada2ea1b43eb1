"""What is labelled, to be looked at again: filters, the most doubtful first, and how many mistakes are expected.

Doubts are those of ``Learner.mistakes``, of the labels as they were at the last look. They are computed in the thread
that asks: the learner goes on answering meanwhile.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from foretaste.errors import check_known
from foretaste.label.store import LabelEvent
from foretaste.label.voices import ItemVoices

if TYPE_CHECKING:
    from foretaste.label.desk import LabelDesk

REVIEW_ONLY = ("", "disagrees", "people", "unsure", "measured")
REVIEW_FIRST = 50  # of these the page says how many are expected to be wrong
REVIEW_PAGE = 100  # rows sent at once


@dataclass(frozen=True)
class ReviewFilter:
    """Which answers to list; what is empty does not count.

    label: a class. who: a person. since, until: days, as 2025-03-31, both included. only: "disagrees" (other labels say
    another class), "people" (they named different classes, and nobody has decided), "unsure" (people were not sure) or
    "measured" (drawn at random to measure accuracy). find: words in the item's name, text or cells.
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
        day = event.at[:10]
        return (
            (event.kind == "unsure" if self.only == "unsure" else event.label is not None)
            and (not self.label or self.label in names)
            and (self.who in ("", event.who) or (heard is not None and self.who in heard.voices))
            and (self.only != "people" or (heard is not None and heard.disagree))
            and (not self.since or day >= self.since)
            and (not self.until or day <= self.until)
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


class LabelReview:
    """The list of answers of a desk. Doubts, and the last list, are kept until an answer changes them."""

    def __init__(self, desk: "LabelDesk") -> None:
        self.desk = desk
        self._lock = threading.Lock()
        self._known: tuple[Any, dict[str, dict[str, Any]]] = (None, {})
        self._listed: tuple[Any, tuple[list[ReviewRow], list[str]]] = (None, ([], []))

    def doubts(self) -> dict[str, dict[str, Any]]:
        """Item → its row of ``Learner.mistakes``; empty while there is no model."""
        desk = self.desk
        with self._lock:  # one look at a time: it takes all of a core
            now = (len(desk.store.events()), desk.worker.view.absorbed, desk.store.classes)
            if self._known[0] != now:
                measured = {i: label for i in desk.check_ids if (label := desk.label_of(i)) is not None}
                self._known = now, {str(row["id"]): row for row in desk.worker.mistakes(measured)}
            return self._known[1]

    def rows(self, wanted: ReviewFilter, start: int = 0, person: str | None = None) -> dict[str, Any]:
        """A page of the list: the most doubtful first, then those without a doubt, the newest first.

        For a ``person`` who is not the owner only what they said themselves.
        """
        doubts = self.doubts()
        known = (self._known[0], wanted, person)
        if self._listed[0] != known:  # else a further page of the list that was made last
            self._listed = known, self._list(doubts, wanted, person)
        found, people = self._listed[1]
        desk = self.desk
        first = [row.wrong for row in found[:REVIEW_FIRST] if row.wrong >= 0]
        return {
            "total": len(found),
            "first": len(first),
            "expected": sum(first),
            "people": people,
            "items": [
                {
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
                for _, _, item, event, doubt, heard in found[start : start + REVIEW_PAGE]
            ],
        }

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
