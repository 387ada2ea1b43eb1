"""The desk: whom to ask about what, and what became of it. The server speaks to this and to nothing below.

Items are of three sorts. Most teach. Every ``check_every``-th is drawn at random and measures: its label is kept from
the learner, so that accuracy on these items is that on the pool. The rest are set aside: copies of another item,
pictures that cannot be read, and what people ignored.

An item may be asked of several people. What the first of them said is taught at once; none of them sees what others
said, nor what the model thinks of it since.
"""

import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretaste.errors import did_you_mean, real_number, whole_number
from foretaste.label.classes import ClassChange
from foretaste.label.grid import undo_together
from foretaste.label.review import LabelReview
from foretaste.label.store import GIVEN, CopyGroups, LabelEvent, LabelStore, timestamp
from foretaste.label.tally import AnswerTally
from foretaste.label.voices import SECOND
from foretaste.label.worker import LearnerWorker

CHECK_EVERY = 6
CHECK_MOST = 60
CHECK_LEAST_POOL = 60  # a smaller pool has no item to spare
PATIENCE = 0.15  # seconds that an answer waits for the learner, so that the next item knows of it
ACTIVE_SECONDS = 60.0
RECENT_SHOWN, PEOPLE_SHOWN = 24, 20
FRESH_SECONDS, FRESH_ANSWERS = 30.0, 3  # what a person may still take back is not passed on to the next


FILE_KINDS = ("pictures", "clips")


@dataclass(frozen=True)
class DeskItems:
    """What the desk shows: pictures, clips, texts, or rows as (column, value)."""

    kind: str  # "pictures", "clips", "text", "table"
    ids: Sequence[str]
    items: Sequence[Any]
    root: Path | None = None  # the folder of the files


class LabelDesk:
    """Everything between the page and the store, whose classes must be set.

    ``twins``: item → the item that it is a copy of, and that is asked for in its place. ``check_every``: one item in so
    many measures; 0 for none. ``voices_each``: how many people are asked about an item, of ``voices_share`` of them.
    """

    def __init__(
        self,
        data: DeskItems,
        store: LabelStore,
        worker: LearnerWorker,
        *,
        title: str = "",
        twins: Mapping[str, str] | None = None,
        check_every: int = CHECK_EVERY,
        voices_each: int = 1,
        voices_share: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.data, self.store, self.worker, self.title = data, store, worker, title
        self.notes: list[str] = []
        self.rows: Mapping[str, int] = {}  # item → its row, where items are named by what they hold
        self.twins = dict(twins or {})
        self.copies = CopyGroups(self.twins)
        self.away: set[str] = set()  # items that the learner need not rank: nobody can be asked for them
        self.check_every = whole_number("check_every", check_every)
        self.voices_each = whole_number("voices_each", voices_each)
        self.voices_share = real_number("voices_share", voices_share, 0)
        self.number = {item: k for k, item in enumerate(data.ids)}
        self.open_ids = [item for item in data.ids if item not in self.twins]
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[str, float]] = {}  # tab → who, when
        several = self.open_ids if self.voices_each > 1 else ()
        self._share = {i for i in several if zlib.crc32(i.encode()) < self.voices_share * 2**32}
        self._trust = store.trust()
        self._asked = self._seconds = 0  # new items, and those that others had answered, that went to a screen
        self._again = store.event_count  # what was skipped twice before this event is asked again
        shuffled = list(self.open_ids)
        random.Random(seed).shuffle(shuffled)
        spare = min(CHECK_MOST, len(shuffled) // 10) if check_every and len(shuffled) >= CHECK_LEAST_POOL else 0
        first = self.copies.first
        kept = [first(e.item) for e in store.events() if e.purpose == "check"]  # also after the folder has grown
        taught = {first(e.item) for e in store.events() if e.purpose == "teach"}
        fresh = [i for i in shuffled if i not in taught]
        kept = [i for i in dict.fromkeys(kept) if i in self.number]
        # A dict, for its order and for quick looks.
        self.check_ids = dict.fromkeys(list(dict.fromkeys([*kept, *fresh]))[: max(spare, len(kept))])
        self.shuffled = [item for item in shuffled if item not in self.check_ids]
        self._left_out = {*self.check_ids, *self.twins}  # never taught
        self.tally = AnswerTally(store, self.copies, self.number, self._left_out, self._share, self.voices_each)
        self.review = LabelReview(self)
        worker.connect(self)

    # What the learner should know

    def wanted(self, item: str) -> str | None:
        """What the learner should know of an item: a class, "" if it is set aside, None if it is open."""
        if item in self._left_out:
            return ""
        event = self._answer_of(item)
        if event is None or event.kind == "skip":
            return "" if item in self.away else None
        return event.label if event.label is not None else ""

    def measures(self, item: str) -> bool:
        """Whether an item was drawn at random, so that its label measures accuracy."""
        return self.copies.first(item) in self.check_ids

    def doubt(self, item: str) -> float:
        """The chance that the label of an item is wrong, by who gave it; 0 where a majority counts."""
        event = self._answer_of(item)
        return 0.0 if event is None or event.label is None else self.store.doubt_of(event.item)

    def skipped(self) -> set[str]:
        """What people have skipped."""
        return {item for item, event in self.store.current().items() if event.kind == "skip"}

    # What the page asks

    def next(self, tab: str, who: str, count: int = 2, again: bool = False) -> list[str]:
        """Items for a tab: those it holds, and new ones up to ``count``. Each is held for this tab alone.

        A skipped item comes after all others. One that is skipped again is parked: it comes back when ``again`` asks
        for all that is parked, or in the next session.
        """
        with self._lock:
            if again:
                self._again = self.store.event_count
            self._see(tab, who)
            fresh = self._fresh()
            with self.tally.now() as tally:
                mine = {i for i in self.store.held(tab) if i not in fresh and tally.is_waiting(i, who)}
            held = [i for i in self.store.held(tab) if i in self.number and (i in mine or self._is_open(i))][:count]
            picked = self._pick(count - len(held), {*held}, who)
            got = self.store.lease([*held, *picked], tab=tab, who=who)
        self.worker.serve(got, len(self._active()))
        return got

    def answer(
        self,
        tab: str,
        who: str,
        item: str,
        kind: str,
        label: str | None = None,
        request: str | None = None,
        patience: float | None = None,
    ) -> LabelEvent:
        """Keep an answer, and tell the learner. Returns when the disk has it and the learner has had a moment.

        ``patience``: seconds of that moment. None: shared among the tabs that are active, for all wait for one learner.
        """
        self._check_item(item)
        with self._lock:
            self._see(tab, who)
        guess = self.worker.view.guesses.get(item)
        purpose = "check" if self.measures(item) else "teach"
        if kind != "relabel" and self._is_second(item, who):
            purpose, guess = SECOND, None
        said = {"guess": guess[0], "confidence": guess[1]} if guess and kind == "label" else {}
        event = self.store.record(item, kind, label, who=who, tab=tab, request=request, purpose=purpose, **said)  # type: ignore[arg-type]
        patience = PATIENCE / max(1, len(self._active())) if patience is None else patience
        self.worker.wait_for(self.tell(item), patience)
        return event

    def _check_item(self, item: str) -> None:
        if item not in self.number:
            raise KeyError(f"unknown item {item!r:.80}{did_you_mean(item, self.data.ids[:5000], None)}")

    def tell(self, item: str) -> int:
        """Tell the learner of an answer, and of all others if people count for more or less since."""
        if (trust := self.store.trust()) != self._trust:
            self._trust = trust
            for other in self.answers():
                self.worker.tell(other)
        return self.worker.tell(self.copies.first(item))

    def undo(self, tab: str, who: str, request: str | None = None, patience: float = PATIENCE) -> list[LabelEvent]:
        """Take back the last answer of a person in this tab, or else of this person; of a grid, all of its wall."""
        events = undo_together(self, tab, who, request)
        number = [self.tell(event.item) for event in events][-1]
        self.worker.wait_for(number, patience)
        return events

    def reopen(self, item: str, who: str) -> None:
        """Ask an item again, of anybody: all that was said of it and of its copies is taken back."""
        self._check_item(item)
        with self.store.together():
            for copy in self.copies.members(item):
                self.store.reopen(copy, who=who)
        self.tell(item)

    def change_class(self, kind: str, *, who: str, **about: Any) -> ClassChange:
        """Change the classes (``LabelStore.change_class``), and tell the learner."""
        change = self.store.change_class(kind, who=who, **about)
        if kind in ("add", "rename", "merge", "split"):
            self.worker.tell_classes()
        return change

    def alive(self, tab: str, who: str) -> list[str]:
        """A sign of life: the tab keeps what it holds. Returns what that is."""
        with self._lock:
            self._see(tab, who)
            return self.store.lease(self.store.held(tab), tab=tab, who=who)

    def leave(self, tab: str, items: Sequence[str] | None = None) -> None:
        """A tab closes, or gives some items back: others may have them at once."""
        gone = self.store.release(tab, items)
        with self._lock:
            if items is None:
                self._seen.pop(tab, None)
        for item in gone:
            self.tell(item)

    def show(self, item: str, who: str | None = None) -> dict[str, Any]:
        """What the page shows beside an item: nothing that others said of it, if ``who`` is asked about it too.

        Nothing that the model says of an item that measures: whoever has seen it agrees with it too often.
        """
        view, event = self.worker.view, self._answer_of(item)
        if who is not None and self._is_second(item, who):
            return {"likely": [], "guess": None, "reason": None, "answer": None, "second": True}
        if who is not None and self.voices_each > 1:
            event = self.store.voices_of(item).voices.get(who, event)
        hint = not self.measures(item)
        return {
            "likely": [{"name": name, "p": p} for name, p in view.likely.get(item, ()) if hint],
            "guess": view.guesses.get(item, (None, None))[0] if hint else None,
            "reason": view.reasons.get(item) if hint else None,
            "answer": None if event is None else {"kind": event.kind, "label": event.label, "who": event.who},
        }

    # How far it is

    def state(self, who: str = "") -> dict[str, Any]:
        """Progress, balance, curves, advice: all that the page shows and that is not about one item."""
        model = self.worker.describe()  # it may wait for the learner, and nobody else should
        with self.tally.now() as tally:
            return self._counted(tally, who) | {"model": model}

    def _counted(self, tally: AnswerTally, who: str) -> dict[str, Any]:
        view, total, guide = self.worker.view, len(self.open_ids), self.store.guide
        labelled, unsure, ignored = (tally.count("kind", kind) for kind in ("label", "unsure", "ignore"))
        return {
            "title": self.title,
            "kind": self.data.kind,
            "task": self.store.task.as_json(),
            "total": total,
            "labelled": labelled,
            "unsure": unsure,
            "ignored": ignored,
            "skipped": len(tally.skips),
            "left": max(0, total - labelled - unsure - ignored),
            "parked": sum(map(self._is_parked, tally.skips.values())),
            "waiting": tally.count_waiting(who, self._fresh()) if who else 0,
            "voices": self.voices_each,
            "disagree": tally.count("disagree"),
            "copies": len(self.twins),
            "classes": [
                {
                    "name": name,
                    "count": tally.count("class", name),
                    "keys": keys,
                    "own_key": guide.keys.get(name, ""),
                    "colour": guide.colours.get(name, ""),
                    "guidance": guide.guidance.get(name, ""),
                }
                for name, keys in zip(guide.names, class_keys(guide.names, guide.keys))
            ],
            "guidelines": guide.guidelines,
            "people": [{"who": name, "count": n} for name, n in tally.people(PEOPLE_SHOWN)],
            "mine": tally.count("person", who),
            "events": self.store.event_count,
            "active": len(self._active()),
            "curve": tally.curve.describe(view.checked),
            "changed": view.changed,
            "advice": dict(view.advice),
        }

    def with_words(self, items: Iterable[str], words: str) -> list[str]:
        """The items that have all words in their name, their text or their cells, in upper or lower case."""
        wanted, named = words.casefold().split(), self.data.kind in FILE_KINDS

        def said(item: str) -> str:
            held = self.data.items[self.number[item]]
            cells = held.values() if hasattr(held, "values") else held if isinstance(held, list | tuple) else [held]
            return " ".join([item, *map(str, cells)]).casefold()

        return [i for i in items if not wanted or all(map((i.casefold() if named else said(i)).__contains__, wanted))]

    def contradictions(self) -> list[str]:
        """A sentence for each group of copies that have different labels."""
        return self.copies.contradictions(self.store.current())

    def recent(self, who: str = "", count: int = RECENT_SHOWN) -> list[dict[str, Any]]:
        """The last items that were answered, newest first, each once; with several voices, the answers of ``who``."""
        seen, alone = dict[str, LabelEvent](), self.voices_each < 2
        for event in self.store.newest():
            if event.item not in self.number or not (alone or event.who == who):
                continue
            now = self.store.state_of(event.item) if alone else self.store.voices_of(event.item).voices.get(who)
            if now is not None:
                seen.setdefault(event.item, now)
            if len(seen) >= count:
                break
        return [
            {"number": self.number[item], "item": item, "kind": e.kind, "label": e.label, "who": e.who, "at": e.at}
            for item, e in seen.items()
        ]

    # Inside

    def answers(self) -> dict[str, LabelEvent]:
        """The answer that counts for each item that is asked for."""
        with self.tally.now() as tally:
            return dict(tally.in_force)

    def _answer_of(self, item: str) -> LabelEvent | None:
        return self.copies.answer(item, self.store.state_of)

    def label_of(self, item: str) -> str | None:
        """The label that counts for an item; None if it has none."""
        event = self._answer_of(item)
        return None if event is None else event.label

    def _see(self, tab: str, who: str) -> None:
        """A sign of life of a tab, with the lock held. Tabs without one for a while are forgotten."""
        now = time.monotonic()
        self._seen.pop(tab, None)  # to the end: the oldest sign stands first
        self._seen[tab] = (who, now)
        while now - next(iter(self._seen.values()))[1] >= ACTIVE_SECONDS:
            del self._seen[next(iter(self._seen))]

    def _active(self) -> list[str]:
        now = time.monotonic()
        return [tab for tab, (_, at) in list(self._seen.items()) if now - at < ACTIVE_SECONDS]

    def _is_open(self, item: str) -> bool:
        event = self._answer_of(item)
        return event is None or (event.kind == "skip" and not self._is_parked(event))

    def _is_parked(self, event: LabelEvent) -> bool:
        """Whether an item was skipped twice in a row, the second time after parked items were last asked for."""
        return event.kind == event.before_kind == "skip" and event.seq > self._again

    def in_share(self, item: str) -> bool:
        """Whether several people are asked about an item: drawn by its name, so that it stays so."""
        return self.copies.first(item) in self._share

    def _is_second(self, item: str, who: str) -> bool:
        """Whether a person may say something about an item that others have answered."""
        event = self._answer_of(item)
        if event is None or event.kind == "skip" or event.who == GIVEN or not self.in_share(item):
            return False
        return who not in self.store.voices_of(item).voices

    def _waiting(self, who: str) -> list[str]:
        """Items that others have answered and this person is to answer too, those that wait longest first."""
        fresh = self._fresh()
        with self.tally.now() as tally:
            return [event.item for event in tally.waiting(who, fresh)]

    def answers_left(self) -> int:
        """How many answers are still wanted, of all people together."""
        with self.tally.now() as tally:
            unasked = [i for i in self.open_ids if i not in tally.in_force or i in tally.skips]
            heard_so_far = [len(heard.voices) for _, heard in tally.unheard.values()]
        left = sum(self.voices_each if i in self._share else 1 for i in unasked)
        return left + sum(max(0, self.voices_each - n) for n in heard_so_far)

    def people_now(self) -> int:
        """How many people are at it, one at least."""
        tabs = {*self._active()}
        return max(1, len({who for tab, (who, _) in list(self._seen.items()) if tab in tabs}))

    def _fresh(self) -> set[str]:
        """The last answers of each person, which they may still take back; none where one voice is enough."""
        found, of = set[str](), Counter[str]()
        if self.voices_each < 2:
            return found
        since = timestamp(time.time() - FRESH_SECONDS)
        for event in self.store.newest():
            if event.at < since:
                break
            of[event.who] += 1
            if of[event.who] <= FRESH_ANSWERS:
                found.add(event.item)
        return found

    def _pick(self, count: int, taken: set[str], who: str) -> list[str]:
        """The next items, best first: one that measures when it is due, the learner's, any, and skipped ones last.

        Of what several people are asked about, so many are second answers that both keep step.
        """
        taken, picked = {self.copies.first(i) for i in (*taken, *self.store.held())}, list[str]()
        fresh = self._fresh()

        def free(items: Iterable[str]) -> str | None:
            return next((i for i in items if self.copies.first(i) not in taken), None)

        with self.tally.now() as tally:
            for _ in range(count):
                item = None
                second = free(event.item for event in tally.waiting(who, fresh))
                if second is not None and self._seconds < self.voices_share * (self.voices_each - 1) * self._asked:
                    item = second
                    self._seconds += 1
                else:
                    item = self._next_new(tally, free) or second
                    self._asked += item is not None
                if item is None:
                    break
                taken.add(self.copies.first(item))
                picked.append(item)
        return picked

    def _next_new(self, tally: AnswerTally, free: Callable[[Iterable[str]], str | None]) -> str | None:
        """The first that is ``free`` and that nobody has answered; else the first that was skipped."""

        def unanswered(items: Iterable[str]) -> str | None:
            return free(i for i in items if i not in tally.in_force)

        due = self.check_every > 0 and self._asked % self.check_every == self.check_every - 1
        item = unanswered(self.check_ids) if due else None
        for items in (self.worker.view.ready, self.shuffled, self.check_ids):
            item = item or unanswered(items)
        return item or free(i for _, i in sorted((e.seq, i) for i, e in tally.skips.items() if self._is_open(i)))


def class_keys(classes: Sequence[str], own: Mapping[str, str] | None = None) -> list[list[str]]:
    """The keys of each class: itself if all are single characters; else 1 to 9 and 0, and a letter of its name.

    A class of ``own`` has that key alone, and no other class has it.

    With more classes than letters, those that have a digit get no letter. 36 classes have a key each.

    >>> class_keys(["cat", "dog", "cow"])
    [['1', 'c'], ['2', 'd'], ['3', 'o']]
    >>> class_keys(["0", "1"])
    [['0'], ['1']]
    """
    if own:
        taken_keys = set(own.values())
        plain = class_keys([name for name in classes if name not in own])
        rest = iter([[key for key in keys if key not in taken_keys] for keys in plain])
        return [[own[name]] if name in own else next(rest) for name in classes]
    names = [name.lower() for name in classes]
    if all(len(name) == 1 and name.isalnum() for name in names) and len(set(names)) == len(names):
        return [[name] for name in names]
    letters = list("abcdefghijklmnopqrstuvwxyz")
    taken = set[str]()
    keys = [[digit] for digit in "1234567890"[: len(names)]] + [[] for _ in names[10:]]
    for k in range(10 if len(names) > len(letters) else 0, len(names)):
        free = [c for c in (*names[k], *letters) if c in letters and c not in taken]
        taken |= set(free[:1])
        keys[k] += free[:1]
    return keys
