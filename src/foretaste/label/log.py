"""The log of labels on disk: a database and a journal that say the same, each answer with a checksum in both.

SQLite ends its write-ahead log at the first damaged frame without a word, and has no checksum of what it stores. So
each answer is written to both files, and acknowledged when both are on the disk; recovery.py reads them and restores
what one of them has lost. The journal is written first. It only grows, one entry of JSON a line:

    CHECKSUM LEFT JSON

LEFT is how many lines of the same transaction follow: a transaction counts if its last line is there.
"""

import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from foretaste.errors import checksum, counted, printable
from foretaste.files import is_disk_full, whole_file

log = logging.getLogger("foretaste")

STORE_FILE, JOURNAL_FILE, LOCK_FILE = "labels.sqlite", "labels.journal", "labels.lock"
STORE_VERSION = 2  # 1 had neither checksums nor a journal
APPLICATION_ID = 0x466F7265  # "Fore": tells `file` and us whose database it is
KINDS = ("label", "relabel", "undo", "skip", "unsure", "ignore")
SCHEMA = (
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL, digest TEXT)",
    "CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, who TEXT NOT NULL, "
    "tab TEXT NOT NULL, item TEXT NOT NULL, kind TEXT NOT NULL, label TEXT, before_seq INTEGER, before_kind TEXT, "
    "before_label TEXT, undoes INTEGER, request TEXT UNIQUE, purpose TEXT, guess TEXT, confidence REAL, digest TEXT)",
    "CREATE TABLE leases (item TEXT PRIMARY KEY, tab TEXT NOT NULL, who TEXT NOT NULL, until REAL NOT NULL)",
    "CREATE TRIGGER events_are_kept BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END",
    "CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are never changed'); END",
)
ADDED = ", digest TEXT"  # to the tables of version 1
SCHEMAS = {1: [sql.replace(ADDED, "") for sql in SCHEMA], STORE_VERSION: list(SCHEMA)}
# SQLite's words for a file that may be in order, but cannot be read or written now.
ELSEWHERE = ("FULL", "IOERR", "CANTOPEN", "READONLY", "BUSY", "LOCKED", "PERM", "NOMEM", "PROTOCOL", "NOLFS")
LEAST_FREE = 2**20  # bytes; a disk with less is full


class StoreError(RuntimeError):
    """Nothing was kept, and why."""


class StoreFull(StoreError):
    """The disk has no room: the answer was not kept."""


class StoreConflict(StoreError):
    """Somebody else answered first, or holds the item."""


# What is kept


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


@dataclass
class LogContents:
    """All that a store knows. The files hold the same."""

    events: list[LabelEvent] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)  # as JSON
    leases: dict[str, Lease] = field(default_factory=dict)

    @property
    def classes(self) -> list[str]:
        """All names of classes that ever were."""
        return json.loads(self.settings.get("classes", "[]"))

    @property
    def class_changes(self) -> list[dict[str, Any]]:
        return json.loads(self.settings.get("class_changes", "[]"))


COLUMNS = ", ".join(one.name for one in fields(LabelEvent))


def row_of(event: LabelEvent) -> tuple[Any, ...]:
    """An event as a row of the database, its checksum last."""
    values = tuple(vars(event).values())  # dataclasses.astuple takes ten times as long
    return (*values, checksum(json.dumps(values)))


def setting_row(name: str, text: str) -> tuple[str, str, str]:
    """A setting as a row of the database."""
    return name, text, checksum(json.dumps([name, text]))


def event_entry(event: LabelEvent) -> dict[str, Any]:
    """An event as an entry of the journal."""
    return {"event": {name: value for name, value in vars(event).items() if value is not None}}


# The journal


class JournalFile:
    """A journal open for writing, of which ``end`` bytes count. What ``append`` has taken is on the disk."""

    def __init__(self, path: Path, end: int) -> None:
        self._file = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        self.end = end

    def append(self, entries: Sequence[dict[str, Any]]) -> None:
        """Write one transaction. After an error, ``cut``."""
        left = memoryview(journal_lines(entries))
        os.ftruncate(self._file, self.end)  # what an earlier failure left
        os.lseek(self._file, self.end, os.SEEK_SET)
        size = len(left)
        while left:
            left = left[os.write(self._file, left) :]
        os.fsync(self._file)
        self.end += size

    def cut(self, end: int) -> None:
        """Take away what came after so many bytes. If the disk refuses, the next ``append`` writes over it."""
        self.end = end
        os.ftruncate(self._file, end)
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


def write_journal(path: Path, contents: LogContents) -> int:
    """Write a journal anew, whole or not at all; returns its length in bytes."""
    entries: list[dict[str, Any]] = [{"version": STORE_VERSION}]
    entries += [{"classes": contents.classes}] if contents.classes else []
    entries += [{"change": change} for change in contents.class_changes]
    entries += [{"task": json.loads(contents.settings["task"])}] if "task" in contents.settings else []
    with whole_file(path) as part, part.open("wb") as file:
        for entry in (*entries, *map(event_entry, contents.events)):
            file.write(journal_lines([entry]))
        return file.tell()


def journal_lines(entries: Sequence[dict[str, Any]]) -> bytes:
    """The lines of one transaction."""
    bodies = [f"{left} {json.dumps(entry)}" for left, entry in zip(reversed(range(len(entries))), entries)]
    return "".join(f"{checksum(body)} {body}\n" for body in bodies).encode()


# Both files


class LabelLog:
    """Both files of a folder, open for writing by this process alone. ``contents`` is what they shall hold.

    recovery.py locks the folder, reads and mends the files, and then opens them here. The store changes ``contents``
    inside a ``transaction``. ``end`` bytes of the journal count; ``lacking`` are events that the database lacks.
    """

    def __init__(
        self, folder: Path, lock: FileLock, contents: LogContents, end: int, lacking: Iterable[LabelEvent]
    ) -> None:
        self.folder, self.path, self.journal_path = folder, folder / STORE_FILE, folder / JOURNAL_FILE
        self.contents, self._lock = contents, lock
        self._entries: list[dict[str, Any]] = []  # of the journal, that belong to the open transaction
        self._rebuilding = False
        self._open_files(end, lacking)

    def _open_files(self, end: int, lacking: Iterable[LabelEvent]) -> None:
        """Open both; the database is made if it is not there, and gets what it lacks."""
        self.journal = JournalFile(self.journal_path, end)
        uri = f"{self.path.absolute().as_uri()}?mode=rwc"
        self.db = db = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None, timeout=5)
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
        if made or version == 1 or (lacking := list(lacking)):
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {STORE_VERSION}")
            self._insert("settings", *(setting_row(name, text) for name, text in self.contents.settings.items()))
            self._insert("leases", *(tuple(vars(held).values()) for held in self.contents.leases.values()))
            self._insert("events", *map(row_of, lacking))
        db.execute("COMMIT")
        files = (self.path, Path(f"{self.path}-wal"), self.journal_path, self.folder / LOCK_FILE)
        self._files = {path: _file_identity(path) for path in files}
        self._parent = _file_identity(self.folder.absolute().parent)

    # Changes, inside a transaction

    def add_event(self, event: LabelEvent) -> None:
        row = row_of(event)
        self.db.execute(f"INSERT INTO events VALUES ({', '.join('?' * len(row))})", row)
        self._entries.append(event_entry(event))

    def put_setting(self, name: str, text: str) -> None:
        self._insert("settings", setting_row(name, text))
        if name == "classes":
            self._entries.append({"classes": json.loads(text)})
        elif name == "class_changes":
            self._entries.append({"change": json.loads(text)[-1]})
        elif name == "task":
            self._entries.append({"task": json.loads(text)})

    def put_lease(self, held: Lease) -> None:
        self._insert("leases", tuple(vars(held).values()))

    def drop_lease(self, item: str) -> None:
        self.db.execute("DELETE FROM leases WHERE item = ?", (item,))

    def _insert(self, table: str, *rows: tuple[Any, ...]) -> None:
        for row in rows:
            self.db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    @contextmanager
    def transaction(self, flush: bool) -> Iterator[None]:
        """All of the block is in both files when it ends, or nothing of it, and ``contents`` is as before.

        flush: have it on the disk too. Leases need not be: they may be lost in a power cut.
        """
        kept = self.contents
        before = len(kept.events), dict(kept.settings), dict(kept.leases)
        end: int | None = None  # of the journal
        try:
            self._check_files()
            end = self.journal.end
            self.db.execute(f"PRAGMA synchronous = {'FULL' if flush else 'NORMAL'}")
            self.db.execute("BEGIN IMMEDIATE")
            yield
            if self._entries:
                self.journal.append(self._entries)
            self.db.execute("COMMIT")
        except BaseException as error:
            if not self._is_committed(before[0]):
                if self._entries and end is not None:
                    with suppress(OSError):
                        self.journal.cut(end)
                del kept.events[before[0] :]
                kept.settings, kept.leases = before[1:]
            if isinstance(error, sqlite3.Error | OSError):
                raise explain_writing(error, self.path) from None
            raise
        finally:
            self._entries = []

    def _is_committed(self, events: int) -> bool:
        """Whether an error, such as a Ctrl-C, came after the commit. If not, the database is rolled back."""
        with suppress(sqlite3.Error):
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            else:
                return self.db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0] > events
        return False

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
        self.close()
        self._lock = lock_store(self.folder)
        self._rebuilding = True  # until all of it is done: what lies there now is our own
        end = write_journal(self.journal_path, self.contents)
        for ending in ("", "-wal", "-shm"):
            Path(f"{self.path}{ending}").unlink(missing_ok=True)
        self._open_files(end, self.contents.events)
        self._rebuilding = False
        many = counted(len(self.contents.events), "answer")
        words = "%s or a file beside it was deleted while it was open. The log was written again: %s"
        log.warning(words, printable(str(self.path)), many)

    def close(self) -> None:
        """Close the files and let another process write. Safe to call twice."""
        if (db := getattr(self, "db", None)) is not None:
            db.close()
        if (journal := getattr(self, "journal", None)) is not None:
            journal.close()
            del self.journal
        self._lock.release()


def lock_store(folder: Path) -> FileLock:
    """Make the folder, and become the one process that writes there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_FILE, timeout=0)
        lock.acquire()
    except Timeout:
        raise StoreError(f"another process is labelling in {folder}; use its page, or stop it first") from None
    except OSError as error:
        raise explain_opening(error, folder) from None
    return lock


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Which file has that name now; None if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


# What went wrong


def explain_writing(error: Exception, path: Path) -> StoreError:
    """An error of SQLite or of the disk while an answer was to be kept."""
    if _is_full(error, path):
        return StoreFull(f"the disk is full, so the answer was not kept in {path}; free some space and answer again")
    return StoreError(f"the answer was not kept: {path} could not be written ({error})")


def explain_opening(error: Exception, path: Path) -> StoreError:
    """An error of SQLite or of the disk while the files are read, made or mended."""
    if _is_full(error, path):
        return StoreFull(f"the disk is full, so {path} cannot be opened; free some space and start again")
    why = getattr(error, "strerror", None) or error
    return StoreError(f"{path} cannot be read or written ({why}); mend that, or name another folder for the labels")


def _is_full(error: Exception, path: Path) -> bool:
    if isinstance(error, OSError):
        return is_disk_full(error)
    name = getattr(error, "sqlite_errorname", "")
    if "IOERR" in name and path.parent.is_dir():  # SQLite's word for a full disk, where it makes its -shm
        return shutil.disk_usage(path.parent).free < LEAST_FREE
    return name == "SQLITE_FULL"


def is_damage(error: Exception) -> bool:
    """Whether an error of SQLite is about what the file holds, and not about the disk or who else uses it."""
    return not getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_").startswith(ELSEWHERE)
