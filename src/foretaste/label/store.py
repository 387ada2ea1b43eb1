"""Labels on disk: an append-only log in SQLite. What was acknowledged survives a killed process and a power cut.

Every answer of a person is one row of ``events``, written and flushed to the disk before it is acknowledged. Rows are
never changed: to take an answer back is another row. What an item's label is now follows from the log alone.

A lease keeps an item for one browser tab. It ends with an answer, or after a time without a sign of life. Leases are in
the file too: after a restart nobody gets what another still has on the screen.
"""

import json
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from foretaste.errors import check_known, is_utf8, printable

STORE_FILE = "labels.sqlite"
STORE_VERSION = 1
APPLICATION_ID = 0x466F7265  # "Fore": tells `file` and us whose database it is
KINDS = ("label", "relabel", "undo", "skip", "unsure", "ignore")
LONGEST_NAME_KEPT = 4096  # characters of an id, a class, a person
LEASE_SECONDS = 120.0
SCHEMA = (
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, who TEXT NOT NULL, "
    "tab TEXT NOT NULL, item TEXT NOT NULL, kind TEXT NOT NULL, label TEXT, before_seq INTEGER, before_kind TEXT, "
    "before_label TEXT, undoes INTEGER, request TEXT UNIQUE, purpose TEXT, guess TEXT, confidence REAL)",
    "CREATE TABLE leases (item TEXT PRIMARY KEY, tab TEXT NOT NULL, who TEXT NOT NULL, until REAL NOT NULL)",
    "CREATE TRIGGER events_are_kept BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END",
    "CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are never changed'); END",
)
COLUMNS = (
    "seq, at, who, tab, item, kind, label, before_seq, before_kind, before_label, undoes, request, purpose, guess, "
    "confidence"
)


class StoreError(RuntimeError):
    """Nothing was kept, and why."""


class StoreFull(StoreError):
    """The disk has no room: the answer was not kept."""


class StoreConflict(StoreError):
    """Somebody else answered first, or holds the item."""


@dataclass(frozen=True)
class LabelEvent:
    """One row of the log: who said what about which item, when, and what was so before."""

    seq: int
    at: str  # ISO 8601, UTC
    who: str
    tab: str
    item: str
    kind: str
    label: str | None = None
    before_seq: int | None = None  # the event that was in force before
    before_kind: str | None = None
    before_label: str | None = None
    undoes: int | None = None
    request: str | None = None  # the caller's own name of the request: a repeated one is kept once
    purpose: str | None = None  # "teach", or "check" for items that measure
    guess: str | None = None  # what the model said before the answer
    confidence: float | None = None


@dataclass(frozen=True)
class Lease:
    """An item that a tab holds until a time (seconds since 1970)."""

    item: str
    tab: str
    who: str
    until: float


class LabelStore:
    """The log of labels of one folder, and who holds which item. One process writes; any number read.

    Args:
        folder: Where ``labels.sqlite`` lies or will lie. Made if it is missing.
        lease_seconds: How long an item is kept for a tab that gives no sign of life.
        read_only: Read a log that another process may be writing. Nothing can be recorded.
        clock: The time in seconds, for tests.

    Raises:
        StoreError: another process writes to this folder, or the file is damaged or not ours.

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
        self._lock: FileLock | None = None
        self._events: list[LabelEvent] = []
        self._now: dict[str, LabelEvent] = {}  # the event in force of each item
        self._leases: dict[str, Lease] = {}
        self._requests: dict[str, LabelEvent] = {}
        self._classes: tuple[str, ...] = ()
        _check_place(self.folder, self.path)
        if read_only:
            if not self.path.is_file():
                raise StoreError(f"{self.folder} has no {STORE_FILE}; start with `foretaste label`")
        else:
            self._become_the_writer()
        try:
            self._db = self._open()
            self._read_all()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            self._give_up()
            raise StoreError(
                f"{self.path} is damaged or no database of foretaste ({error}); move it away, or put a copy in its "
                "place. Files of the same name that end in -wal belong to it"
            ) from None
        except BaseException:
            self._give_up()
            raise

    # Settings

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their keys."""
        return self._classes

    def set_classes(self, classes: Iterable[str]) -> None:
        """Name the classes. Later calls may add some at the end; those that are there stay."""
        new = tuple(classes)
        for name in new:
            _check_name("class", name)
        if len(set(new)) < len(new) or not new:
            raise ValueError(
                f"classes are {', '.join(map(repr, new)) or 'none'}; expected different names, at least one"
            )
        if new[: len(self._classes)] != self._classes:
            raise ValueError(
                f"classes are {', '.join(new)}; the labels here were given for {', '.join(self._classes)}. "
                "Name those first, in that order; more may follow"
            )
        self.set_setting("classes", list(new))
        self._classes = new

    def setting(self, name: str, otherwise: Any = None) -> Any:
        """A setting that was kept, or ``otherwise``."""
        with self._mutex:
            row = self._db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else otherwise

    def set_setting(self, name: str, value: Any) -> None:
        """Keep a setting: anything that JSON holds."""
        with self._writing():
            self._db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, json.dumps(value)))

    # Reading

    def events(self, since: int = 0) -> list[LabelEvent]:
        """The log after event ``since``, oldest first."""
        with self._mutex:
            return self._events[since:]

    def current(self) -> dict[str, LabelEvent]:
        """The event in force of each item that has one."""
        with self._mutex:
            return dict(self._now)

    def state_of(self, item: str) -> LabelEvent | None:
        """The event in force of one item; None if nobody has answered, or all answers were taken back."""
        with self._mutex:
            return self._now.get(item)

    def labels(self) -> dict[str, str]:
        """Item → label, for all items that have one now."""
        with self._mutex:
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
            purpose: "teach" or "check".
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
            check_known("class", label, self._classes)
        elif label is not None:
            raise ValueError(f"a {kind} has no label; got {label!r}")
        with self._mutex:
            if (there := self._repeated(request, item, kind, label)) is not None:
                return there
            before = self._now.get(item)
            self._check_free(item, kind, label, who, tab, before)
            # The same answer again changes nothing; but one more skip puts the item behind others.
            if before is not None and before.label == label and (label is not None or before.kind == kind != "skip"):
                return before
            if kind == "label" and before is not None and before.label is not None:
                kind = "relabel"
            extra = (request, purpose, guess, confidence)
            return self._append(item, kind, label, who, tab, before, None, extra)

    def undo(self, *, who: str, tab: str | None = None, request: str | None = None) -> LabelEvent:
        """Take back the last answer of a person (in a tab) that has not been taken back yet.

        Returns:
            The new event; its ``label`` is what the item is again.

        Raises:
            StoreConflict: there is nothing to undo, or somebody has answered after it.
        """
        with self._mutex:
            if (there := self._repeated(request, None, "undo", None)) is not None:
                return there
            undone = {event.undoes for event in self._events if event.undoes is not None}
            mine = (e for e in reversed(self._events) if e.who == who and tab in (None, e.tab) and e.undoes is None)
            last = next((e for e in mine if e.seq not in undone), None)
            if last is None:
                raise StoreConflict("there is nothing to undo")
            held = self._lease_of(last.item)
            if self._now[last.item].seq != last.seq or (held and tab is not None and held.tab != tab):
                raise StoreConflict(f"{last.item} was answered or taken by somebody else since; it stays")
            was = self._event(last.before_seq)
            label = was.label if was else None
            return self._append(last.item, "undo", label, who, last.tab, last, last.seq, (request, None, None, None))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Everything recorded in the block is kept together, or nothing of it."""
        with self._mutex:
            try:
                with self._writing():
                    yield
            except BaseException:
                self._events, self._now, self._leases, self._requests = [], {}, {}, {}
                self._read_all()  # memory had run ahead of the file
                raise

    # Leases

    def lease(self, items: Iterable[str], *, tab: str, who: str) -> list[str]:
        """Hold items for a tab, or hold them longer; those that other tabs hold are left out."""
        with self._mutex:
            mine = [item for item in items if self._is_free(item, tab)]
            if mine:
                with self._writing():
                    self._keep(mine, tab, who)
            return mine

    def release(self, tab: str, items: Iterable[str] | None = None) -> list[str]:
        """Give back what a tab holds, all of it unless items are named."""
        with self._mutex:
            wanted = None if items is None else set(items)
            gone = [k for k, v in self._leases.items() if v.tab == tab and (wanted is None or k in wanted)]
            if gone:
                with self._writing():
                    self._drop(gone)
            return gone

    def held(self, tab: str | None = None) -> list[str]:
        """Items that are leased now, by anybody or by one tab, oldest lease first."""
        with self._mutex:
            return [k for k, v in list(self._leases.items()) if tab in (None, v.tab) and self._lease_of(k) is not None]

    def close(self) -> None:
        """Close the file and let another process write. Safe to call twice."""
        with self._mutex:
            self._give_up()

    def __enter__(self) -> "LabelStore":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Inside

    def _become_the_writer(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.folder / "labels.lock", timeout=0)
            self._lock.acquire()
        except Timeout:
            raise StoreError(f"another process is labelling in {self.folder}; use its page, or stop it first") from None
        except OSError as error:
            raise StoreError(
                f"{self.folder} cannot be written ({error.strerror or error}); name another folder for the labels"
            ) from None

    def _open(self) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode={'ro' if self.read_only else 'rwc'}"
        db = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None, timeout=5)
        self._db = db  # so that _give_up closes it
        db.execute("PRAGMA trusted_schema = OFF")
        if not self.read_only:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                with self._writing():
                    for statement in SCHEMA:
                        db.execute(statement)
                    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    db.execute(f"PRAGMA user_version = {STORE_VERSION}")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreError(f"{self.path} is a database of another program; move it away")
        if version != STORE_VERSION:
            raise StoreError(
                f"{self.path} has version {version}; this foretaste reads version {STORE_VERSION}. Use the foretaste "
                "that wrote it, or export the labels there and import them here"
            )
        found = {row[0] for row in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        if strange := found.symmetric_difference({*SCHEMA, "CREATE TABLE sqlite_sequence(name,seq)"}):
            raise StoreError(f"{self.path} has tables that foretaste did not make: {sorted(strange)[0][:80]!r}")
        return db

    def _read_all(self) -> None:
        self._classes = tuple(self.setting("classes", []))
        for row in self._db.execute(f"SELECT {COLUMNS} FROM events ORDER BY seq"):
            self._take_in(LabelEvent(*row))
        for row in self._db.execute("SELECT item, tab, who, until FROM leases ORDER BY rowid"):
            self._leases[row[0]] = Lease(*row)

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

    def _event(self, seq: int | None) -> LabelEvent | None:
        return None if seq is None else self._events[seq - 1]

    def _take_in(self, event: LabelEvent) -> None:
        """Let an event of the log take effect in memory."""
        if event.seq != len(self._events) + 1:
            raise sqlite3.DatabaseError(f"event {len(self._events) + 1} is missing")
        self._events.append(event)
        if event.request is not None:
            self._requests[event.request] = event
        if event.undoes is None:
            self._now[event.item] = event
        elif (was := self._event(self._events[event.undoes - 1].before_seq)) is not None:
            self._now[event.item] = was
        else:
            self._now.pop(event.item, None)

    def _append(
        self,
        item: str,
        kind: str,
        label: str | None,
        who: str,
        tab: str,
        before: LabelEvent | None,
        undoes: int | None,
        extra: tuple[str | None, str | None, str | None, float | None],
    ) -> LabelEvent:
        request, purpose, guess, confidence = extra
        event = LabelEvent(
            seq=len(self._events) + 1,
            at=_timestamp(self._clock()),
            who=who,
            tab=tab,
            item=item,
            kind=kind,
            label=label,
            before_seq=before.seq if before else None,
            before_kind=before.kind if before else None,
            before_label=before.label if before else None,
            undoes=undoes,
            request=request,
            purpose=purpose,
            guess=guess,
            confidence=confidence,
        )
        leases = dict(self._leases)
        try:
            with self._writing():
                values = [getattr(event, name.strip()) for name in COLUMNS.split(",")]
                self._db.execute(f"INSERT INTO events ({COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)
                if undoes is None:
                    self._drop([item])
                elif tab:
                    self._keep([item], tab, who)
        except BaseException:
            self._leases = leases
            raise
        self._take_in(event)
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
        held, now = self._leases.get(item), self._clock()
        if held is not None and held.until > now + self.lease_seconds:  # the clock was set back: it would last for days
            held = self._leases[item] = replace(held, until=now + self.lease_seconds)
        return held if held is not None and held.until > now else None

    def _is_free(self, item: str, tab: str) -> bool:
        held = self._lease_of(item)
        return held is None or held.tab == tab

    def _keep(self, items: Iterable[str], tab: str, who: str) -> None:
        until = self._clock() + self.lease_seconds
        for item in items:
            if (old := self._leases.get(item)) is not None and old.tab != tab:
                del self._leases[item]  # to the end of the order
            self._leases[item] = Lease(item, tab, who, until)
            self._db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", (item, tab, who, until))

    def _drop(self, items: Iterable[str]) -> None:
        for item in items:
            if self._leases.pop(item, None) is not None:
                self._db.execute("DELETE FROM leases WHERE item = ?", (item,))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction: all of it is on the disk when the block ends, or nothing of it."""
        if self.read_only:
            raise StoreError(f"{self.path} was opened for reading only")
        with self._mutex:
            if self._db.in_transaction:  # part of a larger one
                yield
                return
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            except BaseException as error:
                with suppress(sqlite3.Error):
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise _explain_sqlite(error, self.path) from None
                raise

    def _give_up(self) -> None:
        if (db := getattr(self, "_db", None)) is not None:
            db.close()
        if self._lock is not None:
            self._lock.release()


def _explain_sqlite(error: sqlite3.Error, path: Path) -> StoreError:
    full = getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" or "disk is full" in str(error)
    if full:
        return StoreFull(f"the disk is full, so the answer was not kept in {path}; free some space and answer again")
    return StoreError(f"the answer was not kept: {path} could not be written ({error})")


def _check_place(folder: Path, path: Path) -> None:
    """Raise if the folder or the file is a link or no regular file: a stranger's folder could lead elsewhere."""
    for place, wanted in ((folder, stat.S_ISDIR), (path, stat.S_ISREG)):
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


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
