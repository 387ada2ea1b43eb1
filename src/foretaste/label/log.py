"""The log of labels on disk: a database and a journal that say the same. What one of them lost, the other restores.

SQLite ends its write-ahead log at the first damaged frame without a word, and has no checksum of what it stores. So
each answer lies in both files, with a checksum in each, and is acknowledged when both are on the disk. A copy counts if
its checksum is right; where only one counts, it is the truth. The journal is written first: after a crash it may have
one transaction more, which is then kept. Two copies that are both right and differ are of two stores, and are refused.
"""

import json
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from foretaste.errors import checksum, is_utf8, printable
from foretaste.files import is_disk_full
from foretaste.label.journal import JournalText

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


COLUMNS = ", ".join(one.name for one in fields(LabelEvent))


# Into the files


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


def all_entries(events: Sequence[LabelEvent], classes: Sequence[str]) -> list[list[dict[str, Any]]]:
    """The transactions of a journal that is written anew."""
    named = [[{"classes": list(classes)}]] if classes else []
    return [[{"version": STORE_VERSION}], *named, *([event_entry(event)] for event in events)]


# Out of the files


@dataclass
class DatabaseText:
    """What a database says: the rows that count."""

    there: bool = False
    version: int = STORE_VERSION
    fault: str = ""  # why it cannot be used: the end of a sentence that begins with its name
    advice: str = ""
    events: dict[int, LabelEvent] = field(default_factory=dict)
    checked: set[int] = field(default_factory=set)  # those of them that have a checksum
    settings: dict[str, str] = field(default_factory=dict)  # as JSON
    leases: list[Lease] = field(default_factory=list)
    damaged: int = 0  # rows whose checksum is wrong


def read_database(path: Path, thorough: bool) -> DatabaseText:
    """All that can be read and counts. Writes nothing, and leaves SQLite's own files as they are.

    thorough: look at indices and free pages too, which takes a moment in a large file.
    """
    found = DatabaseText()
    if not path.exists():
        return found
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5)
        try:
            _read_tables(db, found)
            look = thorough and found.there and not found.fault
            if look and (said := db.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(said)
        finally:
            db.close()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise explain_opening(error, path) from None
        found.there = True
        found.fault = f"is damaged or no database of foretaste ({error})"
        found.advice = "move it away, or put a copy in its place. Files of the same name that end in -wal belong to it"
    return found


def _read_tables(db: sqlite3.Connection, found: DatabaseText) -> None:
    db.text_factory = lambda raw: raw.decode(errors="surrogateescape")  # one bad byte spoils one row
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("BEGIN")  # one moment of it, while another process writes
    tables = {str(row[0]) for row in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    if not tables:
        return  # the disk was full, or the process was killed, when the store was made
    found.there = True
    found.version = db.execute("PRAGMA user_version").fetchone()[0]
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        found.fault, found.advice = "is a database of another program", "move it away"
        return
    if found.version not in SCHEMAS:
        found.fault = f"has version {found.version}; this foretaste reads version {STORE_VERSION}"
        found.advice = "use the foretaste that wrote it, or export the labels there and import them here"
        return
    if strange := tables ^ {*SCHEMAS[found.version], "CREATE TABLE sqlite_sequence(name,seq)"}:
        found.fault = f"has tables that foretaste did not make: {sorted(strange)[0][:80]!r}"
        found.advice = "move it away, or put a copy in its place"
        return
    digest = "digest" if found.version > 1 else "NULL"
    for name, text, said in db.execute(f"SELECT name, value, {digest} FROM settings"):
        if _is_setting(name, text) and (found.version == 1 or said == setting_row(name, text)[-1]):
            found.settings[name] = text
        else:
            found.damaged += 1
    found.leases = [
        Lease(*row)
        for row in db.execute("SELECT item, tab, who, until FROM leases ORDER BY rowid")
        if all(isinstance(value, str) for value in row[:3]) and isinstance(row[3], float)
    ]
    for *values, said in db.execute(f"SELECT {COLUMNS}, {digest} FROM events ORDER BY seq"):
        event = _sound_event(dict(zip(COLUMNS.split(", "), values)))
        if event is not None and said in (None, row_of(event)[-1]):
            found.events[event.seq] = event
            found.checked |= {event.seq} if said is not None else set()
        else:
            found.damaged += 1


def _is_setting(name: object, text: object) -> bool:
    try:
        json.loads(text)  # type: ignore[arg-type]  # a TypeError, if it is no text
    except (ValueError, TypeError, RecursionError):
        return False
    return isinstance(name, str) and isinstance(text, str)


def _sound_event(said: Any) -> LabelEvent | None:
    """An event if every value is of its type; else None: a stranger may have written it."""
    try:
        event = LabelEvent(**said)
    except TypeError:
        return None
    texts = (event.at, event.who, event.tab, event.item, event.kind)
    perhaps = (event.label, event.before_kind, event.before_label, event.request, event.purpose, event.guess)
    earlier = (event.before_seq, event.undoes)
    right = (
        type(event.seq) is int
        and event.seq > 0
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(text, str | None) for text in perhaps)
        and is_utf8("".join(text for text in (*texts, *perhaps) if text))
        and all(n is None or (type(n) is int and 0 < n < event.seq) for n in earlier)
        and isinstance(event.confidence, float | None)
        and event.kind in KINDS
        and (event.undoes is not None) == (event.kind == "undo")
    )
    return event if right else None


# Both


@dataclass(frozen=True)
class SettledLog:
    """What both files say together."""

    events: list[LabelEvent]
    classes: list[str]
    from_journal: list[int]  # events that the database lacks
    from_database: list[int]  # events that the journal lacks
    in_flight: bool  # all that the database lacks is the journal's last transaction


def settle_log(path: Path, database: DatabaseText, journal_path: Path, journal: JournalText) -> SettledLog:
    """Take each answer from the file in which it counts.

    Raises:
        StoreError: the database cannot be used and there is no journal; an answer counts in neither; or the files are
            of two stores.
    """
    version = next((entry["version"] for entry in journal.entries if "version" in entry), None)
    if isinstance(version, int) and version > STORE_VERSION:
        raise StoreError(
            f"{journal_path} is of version {version}; this foretaste reads version {STORE_VERSION}. Use the foretaste "
            "that wrote it"
        )
    read = [(_sound_event(entry.get("event")), entry.get("classes")) for entry in journal.entries]
    kept = {event.seq: event for event, _ in read if event is not None}
    if database.fault and not any(event or names for event, names in read):
        raise StoreError(f"{path} {database.fault}; {database.advice}")
    two_stores = StoreError(
        f"{path} and {journal_path} are of two stores: both are in order, and they differ. Move one of them away; what "
        "it says can be exported in another folder and imported here"
    )
    here = database.events
    if any(kept[seq] != here[seq] for seq in database.checked & kept.keys()):
        raise two_stores
    both = here | kept
    if lost := max(both, default=0) - len(both):
        raise StoreError(
            f"{path} is damaged, and {'so is' if journal.entries else 'there is no'} {journal_path}: {lost} of "
            f"{max(both)} answers cannot be read. Put a copy of one of the two files in its place"
        )
    named = [*(names for _, names in read), json.loads(database.settings.get("classes", "[]"))]
    named = [names for names in named if isinstance(names, list) and all(isinstance(name, str) for name in names)]
    classes: list[str] = max(named, key=len, default=[])
    if any(names != classes[: len(names)] for names in named):
        raise two_stores
    events = [both[seq] for seq in sorted(both)]
    if strange := [event for event in events if event.label is not None and event.label not in classes]:
        raise StoreError(
            f"{path} is damaged: answer {strange[0].seq} is {printable(repr(strange[0].label))}, which is none of the "
            f"classes {', '.join(classes)}; put a copy in its place"
        )
    from_journal = sorted(seq for seq, event in kept.items() if here.get(seq) != event)
    last = [event.seq for event, _ in read[len(read) - journal.last :] if event is not None]
    return SettledLog(
        events, classes, from_journal, sorted(here.keys() - kept.keys()), in_flight=from_journal in ([], last)
    )


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
