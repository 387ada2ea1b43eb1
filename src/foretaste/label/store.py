"""Labels on disk: an append-only log. What was acknowledged survives a killed process, a power cut and a damaged file.

Every answer of a person is one event, which log.py writes to two files before it is acknowledged. Events are never
changed: to take an answer back is another event. What an item's label is now follows from the log alone.

A lease keeps an item for one browser tab. It ends with an answer, or after a time without a sign of life. Leases are in
the file too: after a restart nobody gets what another still has on the screen.
"""

import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foretaste.errors import check_known, is_utf8, printable
from foretaste.label.classes import ClassChange, ClassGuide, replay_changes
from foretaste.label.log import JOURNAL_FILE, KINDS, LabelLog, Lease
from foretaste.label.log import STORE_FILE as STORE_FILE
from foretaste.label.log import LabelEvent as LabelEvent
from foretaste.label.log import StoreConflict as StoreConflict
from foretaste.label.log import StoreError as StoreError
from foretaste.label.log import StoreFull as StoreFull
from foretaste.label.recovery import open_log, read_log
from foretaste.label.task import LabelTask, check_bars
from foretaste.label.voices import (
    FEWEST_SHARED,
    SECOND,
    VOTES,
    ItemVoices,
    hear_voices,
    in_doubt_steps,
    measure_reliability,
    step_reliability,
    weigh_voices,
)
from foretaste.label.voices import GIVEN as GIVEN

LONGEST_NAME_KEPT = 4096  # characters of an id, a class, a person
LEASE_SECONDS = 120.0


class LabelStore:
    """The log of labels of one folder, and who holds which item. One process writes; any number read.

    Args:
        folder: Where ``labels.sqlite`` and ``labels.journal`` lie or will lie. Made if it is missing.
        lease_seconds: How long an item is kept for a tab that gives no sign of life.
        read_only: Read a log that another process may be writing. Nothing can be recorded.
        clock: The time in seconds, for tests.

    Raises:
        StoreError: another process writes to this folder, both files are damaged, or a file is not ours. Where one
            file is damaged, it is mended from the other, and a warning says so.

    Example:
        >>> import tempfile
        >>> from foretaste.label import LabelStore
        >>> store = LabelStore(tempfile.mkdtemp())
        >>> store.set_classes(["cat", "dog"])
        >>> store.record("a.jpg", "label", "cat", who="Ada").seq
        1
        >>> store.record("a.jpg", "label", "dog", who="Ada").before_label
        'cat'
        >>> store.undo(who="Ada").label, store.labels()
        ('cat', {'a.jpg': 'cat'})
        >>> store.close()
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        lease_seconds: float = LEASE_SECONDS,
        read_only: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder, self.path = Path(folder), Path(folder) / STORE_FILE
        self.lease_seconds, self.read_only, self._clock = lease_seconds, read_only, clock
        self._mutex = threading.RLock()
        # Caches of the log: what was said of each item and not taken back, the event of it that counts, the voices
        # where there is more than one, and the events with a name of a request.
        self._said: dict[str, list[LabelEvent]] = {}
        self._now: dict[str, LabelEvent] = {}
        self._voices: dict[str, ItemVoices] = {}
        self._requests: dict[str, LabelEvent] = {}
        # With votes by reliability: person → (the chance to be right, of how many items), the same in steps, and
        # whether voices have changed since.
        self._measured: dict[str, tuple[float, int]] = {}
        self._trust: dict[str, float] = {}
        self._by_reliability = self._unweighed = False
        self._guide, self._task = ClassGuide(), LabelTask()
        self._closed = self._inside = False  # inside a transaction
        self._log: LabelLog | None = None
        journal = self.folder / JOURNAL_FILE
        _check_place(self.folder, self.path, journal)
        if not read_only:
            self._log = open_log(self.folder)
            self._kept = self._log.contents
        elif self.path.is_file() or journal.is_file():
            self._kept = read_log(self.folder)
        else:
            raise StoreError(f"{self.folder} has no {STORE_FILE}; start with `foretaste label`")
        self._index()

    # Settings

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their keys."""
        return self._guide.names

    @property
    def known_classes(self) -> tuple[str, ...]:
        """All names that ever were those of a class. Labels may be of any; ``guide`` says what each counts as now."""
        return tuple(self._kept.classes)

    @property
    def guide(self) -> ClassGuide:
        """The classes, what older names count as, and what is said about each."""
        return self._guide

    def class_changes(self) -> list[ClassChange]:
        """All changes of classes, oldest first."""
        with self._mutex:
            return [change for c in self._kept.class_changes if (change := ClassChange.from_json(c)) is not None]

    def change_class(self, kind: str, *, who: str, request: str | None = None, **about: Any) -> ClassChange:
        """Change the classes (``ClassChange``). When this returns, the disk has it. Labels keep what was said.

        Raises ValueError if it cannot be: an unknown class, a name that is taken or was that of another class.
        """
        with self._mutex:
            said = self.class_changes()
            if request is not None and (there := [c for c in said if c.request == request]):
                return there[0]
            change = ClassChange(len(said) + 1, timestamp(self._clock()), who, kind, request=request, **about)
            for what, text in (("person", who), *((("class", change.to or change.name),) if change.name else ())):
                _check_name(what, text)
            if self._task.kind == "several":
                check_bars([change.name, change.to])
            guide, known = self._guide.after(change), list(self._kept.classes)
            with self.together():
                if new := [name for name in guide.names if name not in known]:
                    self.set_setting("classes", known + new)
                self.set_setting("class_changes", [c.as_json() for c in (*said, change)])
            self._index()
            return change

    def set_classes(self, classes: Iterable[str]) -> None:
        """Name the classes. Later calls may add some at the end; those that are there stay."""
        new = tuple(classes)
        for name in new:
            _check_name("class", name)
        if self._task.kind == "several":
            check_bars(new)
        if len(set(new)) < len(new) or not new:
            raise ValueError(
                f"classes are {', '.join(map(repr, new)) or 'none'}; expected different names, at least one"
            )
        if self._kept.class_changes:  # they were changed on the page: old names are known, and others are new classes
            for name in new:
                if name not in self.known_classes:
                    self.change_class("add", who=GIVEN, name=name)
            return
        if new[: len(self.classes)] != self.classes:
            raise ValueError(
                f"classes are {', '.join(new)}; the labels here were given for {', '.join(self.classes)}. "
                "Name those first, in that order; more may follow"
            )
        self.set_setting("classes", list(new))
        self._index()

    @property
    def task(self) -> LabelTask:
        """What is asked of an item."""
        return self._task

    def set_task(self, task: LabelTask) -> None:
        """Say what is asked of an item, before the first answer; the scale of numbers may change later."""
        if task != self._task or self.setting("task") is None:
            if task.kind != self._task.kind and self._kept.events:
                raise ValueError(f"the labels here are for the task {self._task.kind}; name a new folder with --store")
            self.set_setting("task", task.as_json())
            self._index()

    @property
    def votes(self) -> str:
        """By what the label of several voices counts: "majority" or "reliability"."""
        return str(self.setting("votes", VOTES[0]))

    def set_votes(self, votes: str) -> None:
        """Say by what the label of several voices counts. It follows from the log, so it may change at any time."""
        check_known("votes", votes, VOTES)
        if votes == "reliability" and not self._task.one:
            raise ValueError(f"votes by reliability are for one class an item; the task here is {self._task.kind}")
        if votes != self.votes:
            self.set_setting("votes", votes)
            self._index()

    def reliability(self) -> dict[str, tuple[float, int]]:
        """Person → (the chance that what they say is right, of how many items); empty where a majority counts."""
        with self._mutex:
            self._weigh()
            return dict(self._measured)

    def trust(self) -> dict[str, float]:
        """Person → the chance that what they say is right, in the steps that labels are weighed by."""
        with self._mutex:
            self._weigh()
            return dict(self._trust)

    def doubt_of(self, item: str) -> float:
        """The chance that the label of an item is wrong, by who said it; 0 where a majority counts.

        What one person said alone is as doubtful as that person is, once measured on ``FEWEST_SHARED`` items.
        """
        with self._mutex:
            self._weigh()
            if item in self._voices:
                return self._voices[item].doubt
            event = self._now.get(item)
            if event is None or self._measured.get(event.who, (0.0, 0))[1] < FEWEST_SHARED:
                return 0.0
            return in_doubt_steps(1 - self._trust[event.who])

    def setting(self, name: str, otherwise: Any = None) -> Any:
        """A setting that was kept, or ``otherwise``."""
        with self._mutex:
            return json.loads(self._kept.settings[name]) if name in self._kept.settings else otherwise

    def set_setting(self, name: str, value: Any) -> None:
        """Keep a setting: anything that JSON holds."""
        with self._writing() as log:
            self._kept.settings[name] = json.dumps(value)
            log.put_setting(name, self._kept.settings[name])

    # Reading

    def events(self, since: int = 0) -> list[LabelEvent]:
        """The log after event ``since``, oldest first."""
        with self._mutex:
            return self._kept.events[since:]

    @property
    def event_count(self) -> int:
        """How many events the log has."""
        with self._mutex:
            return len(self._kept.events)

    def newest(self) -> Iterator[LabelEvent]:
        """The log, newest first; read as far as it is wanted."""
        for k in range(self.event_count - 1, -1, -1):
            yield self._kept.events[k]

    def current(self) -> dict[str, LabelEvent]:
        """The event in force of each item that has one."""
        with self._mutex:
            self._weigh()
            return dict(self._now)

    def state_of(self, item: str) -> LabelEvent | None:
        """The event in force of one item; None if nobody has answered, or all answers were taken back."""
        with self._mutex:
            self._weigh()
            return self._now.get(item)

    def voices_of(self, item: str) -> ItemVoices:
        """What each person said of one item."""
        with self._mutex:
            self._weigh()
            return self._voices.get(item) or hear_voices(self._said.get(item, ()))

    def shared(self, among: Iterable[str] | None = None) -> dict[str, ItemVoices]:
        """The items (among some) that more than one person was asked about, and what each said."""
        with self._mutex:
            self._weigh()
            return {i: self._voices[i] for i in (self._voices if among is None else among) if i in self._voices}

    def labels(self) -> dict[str, str]:
        """Item → label, for all items that have one now."""
        with self._mutex:
            self._weigh()
            return {item: event.label for item, event in self._now.items() if event.label is not None}

    # Writing

    def record(
        self,
        item: str,
        kind: str,
        label: str | None = None,
        *,
        who: str,
        tab: str = "",
        request: str | None = None,
        purpose: str | None = None,
        guess: str | None = None,
        confidence: float | None = None,
    ) -> LabelEvent:
        """Write an answer to the log. When this returns, the disk has it.

        Args:
            item: The id of the item.
            kind: "label", "relabel", "skip", "unsure" or "ignore". A second label of the same item is a relabel.
            label: The class, for the first two.
            who: The person.
            tab: The browser tab, which may hold a lease.
            request: A name of this request. The same answer under the same name gives the event that is there already.
            purpose: "teach", "check", or "second" for what one more person says of an item that others have answered:
                what they said stays, and most voices count.
            guess: The class that the model gave before.
            confidence: The probability of that class.

        Returns:
            The event, new or already there.

        Raises:
            StoreConflict: another tab holds the item, or another person has answered and ``kind`` is no "relabel".
            StoreFull: the disk is full. Nothing was written.
            ValueError: an unknown kind or class, or the name of a request that had another answer.
        """
        check_known("kind", kind, [k for k in KINDS if k != "undo"])
        for what, text in (("item", item), ("person", who), ("tab", tab), ("request", request or "")):
            _check_name(what, text, least=what in ("item", "person"))
        if kind in ("label", "relabel"):
            label = self._task.check(label, self.classes, self.known_classes)
        elif label is not None:
            raise ValueError(f"a {kind} has no label; got {label!r}")
        with self._mutex:
            if (there := self._repeated(request, item, kind, label)) is not None:
                return there
            self._weigh()
            before, now_label = self._now.get(item), None if label is None else self._task.counts_as(label, self._guide)
            self._check_free(item, kind, label, who, tab, None if purpose == SECOND else before)
            # The same answer again changes nothing; but one more skip puts the item behind others.
            same = before if purpose != SECOND and item not in self._voices else self._own_word(item, who, purpose)
            if same is not None and same.label == now_label and (label is not None or same.kind == kind != "skip"):
                return same
            if kind == "label" and before is not None and before.label is not None and purpose != SECOND:
                kind = "relabel"
            if confidence is not None:
                confidence = None if math.isnan(confidence) else float(confidence)  # what a REAL of SQLite gives back
            said = {"request": request, "purpose": purpose, "guess": guess, "confidence": confidence}
            return self._append(item, kind, label, who, tab, before, said)

    def undo(self, *, who: str, tab: str | None = None, request: str | None = None) -> LabelEvent:
        """Take back the last answer of a person (in a tab) that was not taken back yet; ``label`` is what is so again.

        Raises StoreConflict if there is nothing to undo, or somebody has answered after it.
        """
        with self._mutex:
            if (there := self._repeated(request, None, "undo", None)) is not None:
                return there
            last = self.last_answer(who, tab)
            if last is None:
                raise StoreConflict("there is nothing to undo")
            held, said, heard = self._lease_of(last.item), self._said[last.item], self.voices_of(last.item)
            words = [heard.decision] if heard.decision is not None else [*heard.voices.values()]
            if last.seq not in (said[-1].seq, *(event.seq for event in words)) or (
                held and tab is not None and held.tab != tab
            ):
                raise StoreConflict(f"{last.item} was answered or taken by somebody else since; it stays")
            return self._take_back(last, who, last.tab, request)

    def reopen(self, item: str, *, who: str) -> list[LabelEvent]:
        """Take back all that anybody said of an item: it is open, as if it had never been asked. The log keeps all."""
        events = list[LabelEvent]()
        with self.together():
            while said := self._said.get(item):
                events.append(self._take_back(self._kept.events[said[-1].seq - 1], who))
        return events

    def last_answer(self, who: str, tab: str | None = None) -> LabelEvent | None:
        """The last answer of a person (in a tab) that was not taken back: what ``undo`` takes back next."""
        with self._mutex:
            undone = set[int]()
            for event in reversed(self._kept.events):  # an undo comes after what it takes back
                if event.undoes is not None:
                    undone.add(event.undoes)
                elif event.who == who and tab in (None, event.tab) and event.seq not in undone:
                    return event
            return None

    def answered(self, request: str) -> LabelEvent | None:
        """The event of a request that came before."""
        with self._mutex:
            return self._requests.get(request)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Everything recorded in the block is kept together, or nothing of it."""
        with self._writing():
            yield

    # Leases

    def lease(self, items: Iterable[str], *, tab: str, who: str) -> list[str]:
        """Hold items for a tab, or hold them longer; those that other tabs hold are left out."""
        with self._mutex:
            mine = [item for item in items if (held := self._lease_of(item)) is None or held.tab == tab]
            if mine:
                with self._writing(flush=False) as log:
                    self._hold(log, mine, tab, who)
            return mine

    def release(self, tab: str, items: Iterable[str] | None = None) -> list[str]:
        """Give back what a tab holds, all of it unless items are named."""
        with self._mutex:
            wanted = None if items is None else set(items)
            gone = [k for k, v in self._kept.leases.items() if v.tab == tab and (wanted is None or k in wanted)]
            if gone:
                with self._writing(flush=False) as log:
                    for item in gone:
                        self._let_go(log, item)
            return gone

    def held(self, tab: str | None = None) -> list[str]:
        """Items that are leased now, by anybody or by one tab, oldest lease first."""
        with self._mutex:
            leases = list(self._kept.leases.items())
            return [k for k, v in leases if tab in (None, v.tab) and self._lease_of(k) is not None]

    def close(self) -> None:
        """Close the file and let another process write. Safe to call twice."""
        with self._mutex:
            self._closed = True
            if self._log is not None:
                self._log.close()

    def __enter__(self) -> "LabelStore":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Inside

    def _take_back(self, last: LabelEvent, who: str, tab: str = "", request: str | None = None) -> LabelEvent:
        """Undo an event; the item is held for the tab, if one is named."""
        was = self._weighed(hear_voices(e for e in self._said[last.item] if e.seq != last.seq)).counts
        label = None if was is None else self._kept.events[was.seq - 1].label
        return self._append(last.item, "undo", label, who, tab, last, {"request": request, "undoes": last.seq})

    def _repeated(self, request: str | None, item: str | None, kind: str, label: str | None) -> LabelEvent | None:
        """The event of a request that came before. Raises if that was about something else: one would be lost."""
        there = None if request is None else self._requests.get(request)
        if there is None:
            return None
        same = (there.item, there.label) == (item, label) and there.kind in (kind, "relabel")
        if same or there.kind == kind == "undo":
            return there
        raise ValueError(
            f"request {request!r:.80} was a {there.kind} of {printable(there.item)} before; nothing was kept. "
            "Give each answer a name of its own"
        )

    def _own_word(self, item: str, who: str, purpose: str | None) -> LabelEvent | None:
        """What a person has said before of an item with several voices, if the same again is nothing new."""
        heard = self.voices_of(item)
        own = heard.voices.get(who)
        return own if purpose == SECOND else heard.decision or (own if self._said[item][-1].who == who else None)

    def _index(self) -> None:
        """Make the caches of the log anew."""
        self._task = LabelTask(**self.setting("task", {}))
        self._guide = replay_changes(self._kept.classes, self.class_changes())
        self._by_reliability = self.votes == "reliability" and len(self.classes) > 1
        for cache in (self._said, self._now, self._voices, self._requests, self._measured, self._trust):
            cache.clear()
        for event in self._kept.events:
            self._take_effect(event)

    def _take_effect(self, event: LabelEvent) -> None:
        if event.request is not None:
            self._requests[event.request] = event
        item, said = event.item, self._said.setdefault(event.item, [])
        if event.undoes is None:
            said.append(self._as_counted(event))
        else:
            said[:] = [other for other in said if other.seq != event.undoes]
        had, several = self._voices.pop(item, None) is not None, any(other.purpose == SECOND for other in said)
        self._unweighed |= (had or several) and self._by_reliability
        if not said:
            self._now.pop(item, None)
        elif not several:
            self._now[item] = said[-1]
        else:
            self._voices[item] = heard = self._weighed(hear_voices(said))
            assert heard.counts is not None
            self._now[item] = heard.counts

    def _weighed(self, heard: ItemVoices) -> ItemVoices:
        """What was said, weighed by how reliable people were found to be, if it is to be."""
        return weigh_voices(heard, self._trust, len(self.classes)) if self._by_reliability else heard

    def _weigh(self) -> None:
        """Measure people anew where voices have changed, and weigh all voices by what was found."""
        if not self._unweighed:
            return
        C = len(self.classes)
        self._measured = measure_reliability(self._voices.values(), C)
        trust = {who: step_reliability(a, C) for who, (a, _) in self._measured.items()}
        self._unweighed, changed, self._trust = False, trust != self._trust, trust
        for item, heard in list(self._voices.items()) if changed else ():
            self._voices[item] = heard = self._weighed(hear_voices(self._said[item]))
            assert heard.counts is not None
            self._now[item] = heard.counts

    def _as_counted(self, event: LabelEvent) -> LabelEvent:
        """The event with the class that its label counts as now."""
        if event.label is None or not self._guide.older:
            return event
        now = self._task.counts_as(event.label, self._guide)
        return event if now == event.label else replace(event, label=now)

    def _append(
        self,
        item: str,
        kind: str,
        label: str | None,
        who: str,
        tab: str,
        before: LabelEvent | None,
        said: Mapping[str, Any],
    ) -> LabelEvent:
        was = {} if before is None else {f"before_{name}": getattr(before, name) for name in ("seq", "kind", "label")}
        seq, at = len(self._kept.events) + 1, timestamp(self._clock())
        event = LabelEvent(seq, at, who, tab, item, kind, label, **was, **said)
        with self._writing() as log:
            log.add_event(event)
            if event.undoes is None:
                self._let_go(log, item)
            elif tab:
                self._hold(log, [item], tab, who)
            self._kept.events.append(event)
            self._take_effect(event)
        return event

    def _check_free(
        self, item: str, kind: str, label: str | None, who: str, tab: str, before: LabelEvent | None
    ) -> None:
        held = self._lease_of(item)
        if held is not None and held.tab != tab and kind != "relabel":
            raise StoreConflict(f"{printable(held.who)} has {printable(item)} on the screen now")
        if before is not None and before.who != who and kind != "relabel" and before.kind != "skip" and not held:
            said = repr(before.label) if before.label is not None else before.kind
            raise StoreConflict(f"{printable(before.who)} has answered {printable(item)} already: {said}")

    def _lease_of(self, item: str) -> Lease | None:
        held, now = self._kept.leases.get(item), self._clock()
        if held is not None and held.until > now + self.lease_seconds:  # the clock was set back: it would last for days
            held = self._kept.leases[item] = replace(held, until=now + self.lease_seconds)
        return held if held is not None and held.until > now else None

    def _hold(self, log: LabelLog, items: Iterable[str], tab: str, who: str) -> None:
        until, leases = self._clock() + self.lease_seconds, self._kept.leases
        for item in items:
            if (old := leases.get(item)) is not None and old.tab != tab:
                del leases[item]  # to the end of the order
            leases[item] = Lease(item, tab, who, until)
            log.put_lease(leases[item])

    def _let_go(self, log: LabelLog, item: str) -> None:
        if self._kept.leases.pop(item, None) is not None:
            log.drop_lease(item)

    @contextmanager
    def _writing(self, flush: bool = True) -> Iterator[LabelLog]:
        """A transaction of the log (``LabelLog.transaction``), or part of one that is open already."""
        if self._log is None:
            raise StoreError(f"{self.path} was opened for reading only")
        with self._mutex:
            if self._inside:
                yield self._log
                return
            if self._closed:
                raise StoreError(f"{self.path} is closed; nothing was kept")
            self._inside, before = True, len(self._kept.events)
            try:
                with self._log.transaction(flush):
                    yield self._log
            except BaseException:
                if len(self._kept.events) == before:  # taken back
                    self._index()
                raise
            finally:
                self._inside = False


def _check_place(folder: Path, *paths: Path) -> None:
    """Raise if the folder or a file is a link or no regular file: a stranger's folder could lead elsewhere."""
    for place, wanted in ((folder, stat.S_ISDIR), *((path, stat.S_ISREG) for path in paths)):
        if place.is_symlink():
            raise StoreError(
                f"{place} is a link; expected a folder of its own: remove the link, or name another folder"
            )
        if place.exists() and not wanted(place.stat().st_mode):
            raise StoreError(f"{place} is not a {'folder' if place is folder else 'regular file'}; move it away")


def _check_name(what: str, text: object, least: bool = True) -> None:
    if not isinstance(text, str) or (least and not text.strip()) or len(text) > LONGEST_NAME_KEPT or not is_utf8(text):
        raise ValueError(
            f"{what} is {text!r:.60}; expected text in UTF-8 of {int(least)} to {LONGEST_NAME_KEPT} characters"
        )


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Copies: the same picture or text under several names. One is asked for; what is said of any counts for all.


class CopyGroups:
    """Which items are the same, and the answer that counts for each group of them.

    The first of a group is only the one that is asked for: it may change when files are added, and labels stay where
    they were given.
    """

    def __init__(self, first_of: Mapping[str, str]) -> None:
        self.first_of = dict(first_of)
        self._members: dict[str, list[str]] = {}
        for copy, first in first_of.items():
            self._members.setdefault(first, [first]).append(copy)

    def first(self, item: str) -> str:
        """The one of its group that is asked for: the item itself if it has no copies."""
        return self.first_of.get(item, item)

    def members(self, item: str) -> Sequence[str]:
        """The item and its copies."""
        first = self.first(item)
        return self._members.get(first, [first])

    def in_force(self, current: Mapping[str, LabelEvent]) -> dict[str, LabelEvent]:
        """First of each group → the answer that counts for the group, of the event in force of each item.

        A label counts before "not sure" or "set aside", those before a skip; people before the data; then the last.
        """
        found: dict[str, LabelEvent] = {}
        for item, event in current.items():
            first = self.first(item)
            if first not in found or _weight(event) > _weight(found[first]):
                found[first] = event
        return found

    def answer(self, item: str, state_of: Callable[[str], LabelEvent | None]) -> LabelEvent | None:
        """The answer that counts for one item; ``state_of`` has the event in force of each."""
        said = {name: event for name in self.members(item) if (event := state_of(name)) is not None}
        return self.in_force(said).get(self.first(item))

    def contradictions(self, current: Mapping[str, LabelEvent]) -> list[str]:
        """A sentence for each group whose copies have different labels."""
        told = []
        for first, copies in self._members.items():
            said = [event for item in copies if (event := current.get(item)) is not None and event.label is not None]
            if len({event.label for event in said}) > 1:
                named = [f"{event.item} ({event.label}, {_by(event)})" for event in said]
                counts = self.in_force({event.item: event for event in said})[first].label
                words = f"{', '.join(named[:-1])} and {named[-1]} are copies: {counts} counts; relabel one of them"
                told.append(printable(words))
        return told


def _weight(event: LabelEvent) -> tuple[bool, bool, bool, int]:
    return event.label is not None, event.kind != "skip", event.who != GIVEN, event.seq


def _by(event: LabelEvent) -> str:
    return "in the data" if event.who == GIVEN else f"by {event.who}"
