"""What the two files of the log say together: each answer from the file in which its checksum is right.

Where only one copy counts, it is the truth. After a crash the journal may have one transaction more, which is kept. Two
copies that are both right and differ belong to two stores, and are refused.
"""

import json
import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretaste.errors import checksum, counted, is_utf8, printable
from foretaste.label.classes import ClassChange
from foretaste.label.log import (
    APPLICATION_ID,
    COLUMNS,
    JOURNAL_FILE,
    KINDS,
    SCHEMAS,
    STORE_FILE,
    STORE_VERSION,
    LabelEvent,
    LabelLog,
    Lease,
    LogContents,
    StoreError,
    explain_opening,
    is_damage,
    lock_store,
    row_of,
    setting_row,
    write_journal,
)
from foretaste.label.task import LabelTask

log = logging.getLogger("foretaste")


@dataclass(frozen=True)
class JournalText:
    """What a journal says."""

    entries: list[dict[str, Any]]  # of whole transactions, oldest first
    last: int = 0  # how many of them are of the last transaction
    damaged: int = 0  # lines in the middle
    torn: bool = False  # an unfinished or damaged end
    end: int = 0  # bytes without that end


def read_journal(path: Path) -> JournalText | None:
    """All whole transactions of a journal; None if there is no file."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    entries, lefts, damaged, end, whole, at = list[dict[str, Any]](), list[int](), 0, 0, 0, 0
    spoiled = 0  # damaged lines since the last whole transaction
    for line in raw.split(b"\n")[:-1]:
        at += len(line) + 1
        if (found := _entry(line)) is None:
            spoiled += 1
            continue
        left, entry = found
        entries.append(entry)
        lefts.append(left)
        if left == 0:
            whole, end, damaged, spoiled = len(entries), at, damaged + spoiled, 0
    last = 1 if whole else 0
    while 0 < last < whole and lefts[whole - 1 - last] == last:
        last += 1
    return JournalText(entries[:whole], last, damaged, torn=end < len(raw), end=end)


def _entry(line: bytes) -> tuple[int, dict[str, Any]] | None:
    """(left, entry) of a line; None if it is damaged."""
    try:
        said, _, body = line.decode("ascii").partition(" ")
        if checksum(body) != said:
            return None
        left, _, text = body.partition(" ")
        entry = json.loads(text)
        return (int(left), entry) if isinstance(entry, dict) else None
    except (ValueError, RecursionError):
        return None


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


@dataclass(frozen=True)
class SettledLog:
    """What both files say together."""

    events: list[LabelEvent]
    classes: list[str]
    class_changes: list[dict[str, Any]]
    from_journal: list[int]  # events that the database lacks
    from_database: list[int]  # events that the journal lacks
    in_flight: bool  # all that the database lacks is the journal's last transaction
    task: LabelTask | None = None


def settle_log(path: Path, database: DatabaseText, journal_path: Path, journal: JournalText) -> SettledLog:
    """Take each answer from the file in which it counts.

    Raises StoreError if an answer counts in neither, or the files are of two stores.
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
    changes = settle_changes(path, database, journal, two_stores)
    events = [both[seq] for seq in sorted(both)]
    tasks = [entry["task"] for entry in journal.entries if "task" in entry]
    if "task" in database.settings:
        tasks.append(json.loads(database.settings["task"]))
    try:
        task = LabelTask(**tasks[-1]) if tasks else LabelTask()
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path} is damaged: its task cannot be read ({error}); put a copy in its place") from None
    if strange := [event for event in events if event.label is not None and not task.may_be(event.label, classes)]:
        raise StoreError(
            f"{path} is damaged: answer {strange[0].seq} is {printable(repr(strange[0].label))}, which is none of the "
            f"classes {', '.join(classes)}; put a copy in its place"
        )
    from_journal = sorted(seq for seq, event in kept.items() if here.get(seq) != event)
    last = [event.seq for event, _ in read[len(read) - journal.last :] if event is not None]
    return SettledLog(
        events, classes, changes, from_journal, sorted(here.keys() - kept.keys()), in_flight=from_journal in ([], last),
        task=task if tasks else None,
    )  # fmt: skip


def settle_changes(
    path: Path, database: DatabaseText, journal: JournalText, two_stores: StoreError
) -> list[dict[str, Any]]:
    """The changes of classes, each from the file that has it. Raises if one is in neither, or they differ."""
    said = [entry["change"] for entry in journal.entries if "change" in entry]
    read: dict[int, ClassChange] = {}
    for change in map(ClassChange.from_json, [*said, *json.loads(database.settings.get("class_changes", "[]"))]):
        if change is not None and read.setdefault(change.seq, change) != change:
            raise two_stores
    if lost := max(read, default=0) - len(read):
        raise StoreError(
            f"{path} is damaged: {lost} of {max(read)} changes of classes cannot be read, there or in {JOURNAL_FILE}. "
            "Put a copy of one of the two files in its place"
        )
    return [read[seq].as_json() for seq in sorted(read)]


# For a reader, and for the one process that writes


@contextmanager
def _plain_errors(folder: Path) -> Iterator[None]:
    """Errors of SQLite and of the disk as sentences."""
    try:
        yield
    except sqlite3.Error as error:
        path = folder / STORE_FILE
        if is_damage(error):
            raise StoreError(f"{path} is damaged ({error}); move it away: {JOURNAL_FILE} has the same") from None
        raise explain_opening(error, path) from None
    except OSError as error:
        raise explain_opening(error, folder) from None


def _read_files(folder: Path, thorough: bool) -> tuple[DatabaseText, JournalText | None, SettledLog, LogContents]:
    path, journal_path = folder / STORE_FILE, folder / JOURNAL_FILE
    journal = read_journal(journal_path)  # first: who writes now is at most one transaction ahead in it
    database = read_database(path, thorough)
    settled = settle_log(path, database, journal_path, journal or JournalText([]))
    settings = dict(database.settings)
    if settled.classes:
        settings["classes"] = json.dumps(settled.classes)
    if settled.class_changes:
        settings["class_changes"] = json.dumps(settled.class_changes)
    if settled.task is not None:
        settings["task"] = json.dumps(settled.task.as_json())
    leases = {lease.item: lease for lease in database.leases}
    return database, journal, settled, LogContents(settled.events, settings, leases)


def read_log(folder: Path) -> LogContents:
    """What both files say, for a reader, which changes neither. Damage is reported."""
    with _plain_errors(folder):
        database, journal, settled, contents = _read_files(folder, thorough=False)
    named, mends = printable(str(folder / STORE_FILE)), "the next start of `foretaste label` mends it"
    if reason := _database_fault(database, settled):
        many = f"{len(settled.from_journal)} of {len(settled.events)} answers"
        log.warning("%s %s: %s are read from %s; %s", named, reason, many, JOURNAL_FILE, mends)
    if journal is not None and journal.damaged:
        log.warning("%s: %s has %s; %s", named, JOURNAL_FILE, counted(journal.damaged, "damaged line"), mends)
    return contents


def open_log(folder: Path) -> LabelLog:
    """Lock the folder, mend the file that lacks something, and open both for writing."""
    lock = lock_store(folder)
    try:
        with _plain_errors(folder):
            database, journal, settled, contents = _read_files(folder, thorough=True)
            # The journal first: then it can restore all.
            end = _mend_journal(folder, database, journal, settled, contents)
            lacking = _mend_database(folder, database, journal, settled)
            opened = LabelLog(folder, lock, contents, end, lacking)
            if contents.settings != database.settings and not _database_fault(database, settled):
                # The classes were on the way too.
                with opened.transaction(flush=True):
                    for name in ("classes", "class_changes"):
                        if contents.settings.get(name) != database.settings.get(name):
                            opened.put_setting(name, contents.settings[name])
            return opened
    except BaseException:
        lock.release()
        raise


def _mend_journal(
    folder: Path, database: DatabaseText, journal: JournalText | None, settled: SettledLog, contents: LogContents
) -> int:
    """Write the journal anew where it lacks something; returns how many bytes of it count."""
    said = [] if journal is None else [entry["change"] for entry in journal.entries if "change" in entry]
    whole = not settled.from_database and {c["seq"] for c in settled.class_changes} <= {c.get("seq") for c in said}
    if journal is not None and journal.entries and not journal.damaged and whole:
        return journal.end
    path, kept = folder / JOURNAL_FILE, ""
    if journal is not None and (journal.damaged or journal.torn):
        shutil.copyfile(path, aside := _damaged_name(path))
        kept = f". The damaged file is kept as {aside.name}"
    end = write_journal(path, contents)
    if settled.events and database.version == STORE_VERSION:  # one of version 1 had none
        reason = "was missing" if journal is None else "was damaged" if kept else "was too short"
        restored = f"{len(settled.from_database)} of {len(settled.events)} answers were restored from {STORE_FILE}"
        log.warning("%s: %s %s, and %s%s", printable(str(folder / STORE_FILE)), JOURNAL_FILE, reason, restored, kept)
    return end


def _mend_database(
    folder: Path, database: DatabaseText, journal: JournalText | None, settled: SettledLog
) -> list[LabelEvent]:
    """Move a damaged database aside; returns the events that the one to be opened lacks."""
    path, many = folder / STORE_FILE, len(settled.from_journal)
    named = printable(str(path))
    if not (reason := _database_fault(database, settled)):
        if many:
            words = "%s lacked %s; the last process ended while it was written. It was restored from %s"
            log.warning(words, named, counted(many, "answer"), JOURNAL_FILE)
        return [settled.events[seq - 1] for seq in settled.from_journal]
    aside = _damaged_name(path)
    for ending in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.rename(f"{path}{ending}", f"{aside}{ending}")
    ends = f". The damaged file is kept as {aside.name}" if database.there else ""
    if journal is not None and journal.torn:
        ends += f". The end of {JOURNAL_FILE} is damaged too: the last answer may be missing"
    restored = f"{many} of {len(settled.events)} answers were restored from {JOURNAL_FILE}"
    log.warning("%s %s: %s%s", named, reason, restored, ends)
    return settled.events


def _database_fault(database: DatabaseText, settled: SettledLog) -> str:
    """Why the database must be written anew, as the end of a sentence; empty if it need not be."""
    if database.fault:
        return database.fault
    if not database.there:
        return "is missing" if settled.events else ""
    if database.damaged:
        return f"has {counted(database.damaged, 'damaged row')}"
    return "" if settled.in_flight else f"has lost {counted(len(settled.from_journal), 'answer')}"


def _damaged_name(path: Path) -> Path:
    """A free name for a damaged file beside the others."""
    names = (path.with_name(f"{path.stem}.damaged-{k}{path.suffix}") for k in range(1, 10_000))
    return next(name for name in names if not os.path.lexists(name))
