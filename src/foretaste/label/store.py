"""Labels on disk: an append-only log. What was acknowledged survives a killed process, a power cut and a damaged file.

Every answer of a person is one event, written to a database and to a journal (``foretaste.label.log``) and flushed to
the disk before it is acknowledged. Events are never changed: to take an answer back is another event. What an item's
label is now follows from the log alone.

A lease keeps an item for one browser tab. It ends with an answer, or after a time without a sign of life. Leases are in
the file too: after a restart nobody gets what another still has on the screen.
"""

import json
import logging
import math
import os
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from foretaste.errors import check_known, is_utf8, printable
from foretaste.label.journal import JournalFile, JournalText, read_journal, write_journal
from foretaste.label.log import (
    ADDED,
    APPLICATION_ID,
    KINDS,
    SCHEMA,
    STORE_VERSION,
    DatabaseText,
    Lease,
    SettledLog,
    all_entries,
    event_entry,
    explain_opening,
    explain_writing,
    is_damage,
    read_database,
    row_of,
    setting_row,
    settle_log,
)
from foretaste.label.log import LabelEvent as LabelEvent
from foretaste.label.log import StoreConflict as StoreConflict
from foretaste.label.log import StoreError as StoreError
from foretaste.label.log import StoreFull as StoreFull

log = logging.getLogger("foretaste")

STORE_FILE, JOURNAL_FILE, LOCK_FILE = "labels.sqlite", "labels.journal", "labels.lock"
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
        self._lock: FileLock | None = None
        self._events: list[LabelEvent] = []
        self._now: dict[str, LabelEvent] = {}  # the event in force of each item
        self._leases: dict[str, Lease] = {}
        self._requests: dict[str, LabelEvent] = {}
        self._settings: dict[str, str] = {}  # as JSON
        self._classes: tuple[str, ...] = ()
        self._pending: list[dict[str, Any]] = []  # entries of the journal that belong to the open transaction
        self._journal_path = self.folder / JOURNAL_FILE
        self._closed = self._inside = self._rebuilding = False  # inside a transaction
        _check_place(self.folder, self.path, self._journal_path)
        if not read_only:
            self._become_the_writer()
        elif not self.path.is_file() and not self._journal_path.is_file():
            raise StoreError(f"{self.folder} has no {STORE_FILE}; start with `foretaste label`")
        try:
            self._read_files()
        except BaseException:
            self._close_files()
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
            return json.loads(self._settings[name]) if name in self._settings else otherwise

    def set_setting(self, name: str, value: Any) -> None:
        """Keep a setting: anything that JSON holds."""
        with self._writing():
            self._settings[name] = json.dumps(value)
            self._insert("settings", setting_row(name, self._settings[name]))
            if name == "classes":
                self._pending.append({"classes": value})

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
            if confidence is not None:
                confidence = None if math.isnan(confidence) else float(confidence)  # what a REAL of SQLite gives back
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
        with self._writing():
            yield

    # Leases

    def lease(self, items: Iterable[str], *, tab: str, who: str) -> list[str]:
        """Hold items for a tab, or hold them longer; those that other tabs hold are left out."""
        with self._mutex:
            mine = [item for item in items if self._is_free(item, tab)]
            if mine:
                with self._writing(flush=False):
                    self._keep(mine, tab, who)
            return mine

    def release(self, tab: str, items: Iterable[str] | None = None) -> list[str]:
        """Give back what a tab holds, all of it unless items are named."""
        with self._mutex:
            wanted = None if items is None else set(items)
            gone = [k for k, v in self._leases.items() if v.tab == tab and (wanted is None or k in wanted)]
            if gone:
                with self._writing(flush=False):
                    self._drop(gone)
            return gone

    def held(self, tab: str | None = None) -> list[str]:
        """Items that are leased now, by anybody or by one tab, oldest lease first."""
        with self._mutex:
            return [k for k, v in list(self._leases.items()) if tab in (None, v.tab) and self._lease_of(k) is not None]

    def close(self) -> None:
        """Close the file and let another process write. Safe to call twice."""
        with self._mutex:
            self._closed = True
            self._close_files()

    def __enter__(self) -> "LabelStore":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Inside

    def _become_the_writer(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.folder / LOCK_FILE, timeout=0)
            self._lock.acquire()
        except Timeout:
            raise StoreError(f"another process is labelling in {self.folder}; use its page, or stop it first") from None
        except OSError as error:
            raise explain_opening(error, self.folder) from None

    def _read_files(self) -> None:
        """Read both files, and mend the one that lacks something."""
        try:
            journal = read_journal(self._journal_path)  # first: who writes now is at most one transaction ahead in it
            database = read_database(self.path, thorough=not self.read_only)
            settled = settle_log(self.path, database, self._journal_path, journal or JournalText([]))
            self._settings = dict(database.settings)
            if settled.classes:
                self._settings["classes"] = json.dumps(settled.classes)
            self._classes = tuple(settled.classes)
            self._leases = {lease.item: lease for lease in database.leases}
            for event in settled.events:
                self._take_in(event)
            if self.read_only:
                self._tell_damage(database, journal, settled)
            else:
                self._mend(database, journal, settled)
        except sqlite3.Error as error:
            if is_damage(error):
                raise StoreError(
                    f"{self.path} is damaged ({error}); move it away: {JOURNAL_FILE} has the same"
                ) from None
            raise explain_opening(error, self.path) from None
        except OSError as error:
            raise explain_opening(error, self.folder) from None

    def _tell_damage(self, database: DatabaseText, journal: JournalText | None, settled: SettledLog) -> None:
        """For a reader, which changes no file."""
        mends = "the next start of `foretaste label` mends it"
        if reason := _database_fault(database, settled):
            many = f"{len(settled.from_journal)} of {len(settled.events)} answers"
            log.warning("%s %s: %s are read from %s; %s", self._named, reason, many, JOURNAL_FILE, mends)
        if journal is not None and journal.damaged:
            many = _counted(journal.damaged, "damaged line")
            log.warning("%s: %s has %s; %s", self._named, JOURNAL_FILE, many, mends)

    def _mend(self, database: DatabaseText, journal: JournalText | None, settled: SettledLog) -> None:
        """Open both files for writing, each with all that the two say. The journal first: then it can restore all."""
        many, end = len(settled.events), journal.end if journal else 0
        if journal is None or not journal.entries or journal.damaged or settled.from_database:
            kept = ""
            if journal is not None and (journal.damaged or journal.torn):
                shutil.copyfile(self._journal_path, aside := self._damaged_name(JOURNAL_FILE))
                kept = f". The damaged file is kept as {aside.name}"
            end = write_journal(self._journal_path, all_entries(settled.events, settled.classes))
            if many and database.version == STORE_VERSION:  # one of version 1 had none
                reason = "was missing" if journal is None else "was damaged" if kept else "was too short"
                restored = f"{len(settled.from_database)} of {many} answers were restored from {STORE_FILE}"
                log.warning("%s: %s %s, and %s%s", self._named, JOURNAL_FILE, reason, restored, kept)
        self._journal = JournalFile(self._journal_path, end)
        if reason := _database_fault(database, settled):
            aside = self._damaged_name(STORE_FILE)
            for ending in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    os.rename(f"{self.path}{ending}", f"{aside}{ending}")
            log.warning(
                "%s %s: %d of %d answers were restored from %s%s%s",
                self._named,
                reason,
                len(settled.from_journal),
                many,
                JOURNAL_FILE,
                f". The damaged file is kept as {aside.name}" if database.there else "",
                f". The end of {JOURNAL_FILE} is damaged too: the last answer may be missing"
                if journal is not None and journal.torn
                else "",
            )
            self._open_database(settled.events)
        else:
            if settled.from_journal:
                log.warning(
                    "%s lacked %s; the last process ended while it was written. It was restored from %s",
                    self._named,
                    _counted(len(settled.from_journal), "answer"),
                    JOURNAL_FILE,
                )
            self._open_database([settled.events[seq - 1] for seq in settled.from_journal])
            if self._settings != database.settings:  # the classes were on the way too
                self.set_setting("classes", settled.classes)

    @property
    def _named(self) -> str:
        return printable(str(self.path))

    def _damaged_name(self, name: str) -> Path:
        """A free name for a damaged file beside the others."""
        stem, ending = name.split(".")
        names = (self.folder / f"{stem}.damaged-{k}.{ending}" for k in range(1, 10_000))
        return next(path for path in names if not os.path.lexists(path))

    def _open_database(self, lacking: list[LabelEvent]) -> None:
        """Open the database for writing, made if it is not there; add events, and what else it lacks."""
        uri = f"{self.path.absolute().as_uri()}?mode=rwc"
        self._db = db = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None, timeout=5)
        for pragma in ("trusted_schema = OFF", "journal_mode = WAL", "synchronous = FULL"):  # FULL: flushed
            db.execute(f"PRAGMA {pragma}")
        db.execute("BEGIN IMMEDIATE")
        made = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        for statement in SCHEMA if made else ():
            db.execute(statement)
        if not made and version == 1:
            for table in ("settings", "events"):
                db.execute(f"ALTER TABLE {table} ADD COLUMN {ADDED.lstrip(', ')}")
        if made or version == 1 or lacking:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {STORE_VERSION}")
            self._insert("settings", *(setting_row(name, text) for name, text in self._settings.items()))
            self._insert("leases", *((held.item, held.tab, held.who, held.until) for held in self._leases.values()))
            self._insert("events", *map(row_of, lacking))
        db.execute("COMMIT")
        files = (self.path, Path(f"{self.path}-wal"), self._journal_path, self.folder / LOCK_FILE)
        self._files = {path: _file_identity(path) for path in files}
        self._parent = _file_identity(self.folder.absolute().parent)

    def _insert(self, table: str, *rows: tuple[Any, ...]) -> None:
        for row in rows:
            self._db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def _check_files(self) -> None:
        """Write all of it again if the files were deleted while they were open: SQLite would go on into nothing."""
        now = {path: _file_identity(path) for path in self._files}
        if now == self._files and not self._rebuilding:
            return
        if not self._rebuilding and any(found not in (None, self._files[path]) for path, found in now.items()):
            raise StoreError(
                f"the answer was not kept: other files have come in the place of those in {self.folder}. Stop, and "
                "start again"
            )
        if _file_identity(self.folder.absolute().parent) != self._parent:
            raise StoreError(f"the answer was not kept: {self.folder} is gone. Put it back, or stop and start again")
        self._close_files()
        self._become_the_writer()
        self._rebuilding = True  # until all of it is done: what lies there now is our own
        end = write_journal(self._journal_path, all_entries(self._events, self._classes))
        self._journal = JournalFile(self._journal_path, end)
        for ending in ("", "-wal", "-shm"):
            Path(f"{self.path}{ending}").unlink(missing_ok=True)
        self._open_database(self._events)
        self._rebuilding = False
        log.warning(
            "%s or a file beside it was deleted while it was open. The log was written again: %s",
            self._named,
            _counted(len(self._events), "answer"),
        )

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
        with self._writing():
            self._db.execute(f"INSERT INTO events VALUES ({', '.join('?' * len(row := row_of(event)))})", row)
            self._pending.append(event_entry(event))
            if undoes is None:
                self._drop([item])
            elif tab:
                self._keep([item], tab, who)
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
            self._insert("leases", (item, tab, who, until))

    def _drop(self, items: Iterable[str]) -> None:
        for item in items:
            if self._leases.pop(item, None) is not None:
                self._db.execute("DELETE FROM leases WHERE item = ?", (item,))

    @contextmanager
    def _writing(self, flush: bool = True) -> Iterator[None]:
        """A transaction: all of it is in both files when the block ends, or nothing of it, and memory is as before.

        flush: have it on the disk too. Leases need not be: they may be lost in a power cut.
        """
        if self.read_only:
            raise StoreError(f"{self.path} was opened for reading only")
        with self._mutex:
            if self._inside:  # part of a larger one
                yield
                return
            if self._closed:
                raise StoreError(f"{self.path} is closed; nothing was kept")
            before = len(self._events), dict(self._leases), dict(self._settings)
            self._inside = True
            try:
                self._check_files()
                self._db.execute(f"PRAGMA synchronous = {'FULL' if flush else 'NORMAL'}")
                self._db.execute("BEGIN IMMEDIATE")
                yield
                if self._pending:
                    self._journal.append(self._pending)
                self._db.execute("COMMIT")
            except BaseException as error:
                self._take_back(*before)
                if isinstance(error, sqlite3.Error | OSError):
                    raise explain_writing(error, self.path) from None
                raise
            finally:
                self._inside, self._pending = False, []

    def _take_back(self, events: int, leases: dict[str, Lease], settings: dict[str, str]) -> None:
        """After a transaction that failed: files and memory as they were before it."""
        with suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            elif self._db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0] > events:
                return  # Ctrl-C while it was committed: it is kept
        if self._pending:
            with suppress(OSError):
                self._journal.cut()
        self._leases, self._settings = leases, settings
        self._classes = tuple(self.setting("classes", []))
        if len(self._events) > events:
            kept, self._events, self._now, self._requests = self._events[:events], [], {}, {}
            for event in kept:
                self._take_in(event)

    def _close_files(self) -> None:
        if (db := getattr(self, "_db", None)) is not None:
            db.close()
        if (journal := getattr(self, "_journal", None)) is not None:
            journal.close()
            del self._journal
        if self._lock is not None:
            self._lock.release()


def _database_fault(database: DatabaseText, settled: SettledLog) -> str:
    """Why the database must be written anew, as the end of a sentence; empty if it need not be."""
    if database.fault:
        return database.fault
    if not database.there:
        return "is missing" if settled.events else ""
    if database.damaged:
        return f"has {_counted(database.damaged, 'damaged row')}"
    return "" if settled.in_flight else f"has lost {_counted(len(settled.from_journal), 'answer')}"


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Which file has that name now; None if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


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


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
