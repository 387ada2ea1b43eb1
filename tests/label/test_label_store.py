"""The log of labels: what is acknowledged is kept, what is kept never changes, and nobody gets what another holds."""

import errno
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from foretaste.label import LabelStore, StoreConflict, StoreError, StoreFull
from foretaste.label.log import APPLICATION_ID, SCHEMAS
from fuzz import logs


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = 1_700_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def store(tmp_path):
    with LabelStore(tmp_path / "store", clock=Clock(), lease_seconds=60) as store:
        store.set_classes(["cat", "dog"])
        yield store


def reopened(store):
    store.close()
    return LabelStore(store.folder)


def test_an_event_says_who_when_what_and_what_before(store):
    first = store.record("a", "label", "cat", who="Ada", purpose="teach", guess="dog", confidence=0.7)
    second = store.record("a", "label", "dog", who="Ada")
    assert (first.seq, first.at, first.kind, first.before_label) == (1, "2023-11-14T22:13:20.000Z", "label", None)
    assert (second.kind, second.before_seq, second.before_kind, second.before_label) == ("relabel", 1, "label", "cat")
    with reopened(store) as again:
        assert again.events() == [first, second]
        assert again.labels() == {"a": "dog"}
        assert again.classes == ("cat", "dog")


def test_kinds_without_a_label(store):
    for item, kind in (("a", "skip"), ("b", "unsure"), ("c", "ignore")):
        assert store.record(item, kind, who="Ada").label is None
    assert store.labels() == {}
    assert {k: e.kind for k, e in store.current().items()} == {"a": "skip", "b": "unsure", "c": "ignore"}
    with pytest.raises(ValueError, match="a skip has no label"):
        store.record("a", "skip", "cat", who="Ada")


def test_undo_goes_back_step_by_step_and_stays_in_the_log(store):
    store.record("a", "label", "cat", who="Ada")
    store.record("b", "skip", who="Ada")
    store.record("a", "label", "dog", who="Ada")
    assert (store.undo(who="Ada").label, store.labels()) == ("cat", {"a": "cat"})
    assert (store.undo(who="Ada").item, store.state_of("b")) == ("b", None)
    assert (store.undo(who="Ada").label, store.current()) == (None, {})
    with pytest.raises(StoreConflict, match="nothing to undo"):
        store.undo(who="Ada")
    assert [e.kind for e in store.events()] == ["label", "skip", "relabel", "undo", "undo", "undo"]
    store.record("a", "label", "dog", who="Ada")
    with reopened(store) as again:
        assert again.labels() == {"a": "dog"}
        assert again.undo(who="Ada").before_label == "dog"
        assert again.current() == {}


def test_undo_leaves_what_others_did(store):
    store.record("a", "label", "cat", who="Ada")
    with pytest.raises(StoreConflict, match="nothing to undo"):
        store.undo(who="Bob")
    store.record("a", "relabel", "dog", who="Bob")
    with pytest.raises(StoreConflict, match="somebody else"):
        store.undo(who="Ada")
    assert store.labels() == {"a": "dog"}


def test_the_same_request_and_the_same_answer_are_kept_once(store):
    first = store.record("a", "label", "cat", who="Ada", request="r1")
    assert store.record("a", "label", "cat", who="Ada", request="r1") == first
    assert store.record("a", "label", "cat", who="Ada", request="r2") == first
    taken_back = store.undo(who="Ada", request="r3")
    assert store.undo(who="Ada", request="r3") == taken_back
    assert len(store.events()) == 2
    with reopened(store) as again:
        assert again.record("a", "label", "cat", who="Ada", request="r1") == first


def test_a_request_that_was_a_skip_is_no_other_answer_without_a_label(store):
    store.record("a", "skip", who="Ada", request="r1")
    with pytest.raises(ValueError, match="'r1' was a skip of a before; nothing was kept"):
        store.record("a", "ignore", who="Ada", request="r1")
    assert store.state_of("a").kind == "skip"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("a", "label", "cta"), r"unknown class 'cta'; did you mean 'cat'\?"),
        (("a", "label", None), "unknown class"),
        (("a", "lable", "cat"), r"unknown kind 'lable'; did you mean 'label'\?"),
        (("a", "undo", None), "unknown kind 'undo'"),
        (("", "label", "cat"), "item is ''"),
        (("a" * 5000, "label", "cat"), "item is 'aaa"),
        (("caf\udce9", "label", "cat"), "UTF-8"),
    ],
)
def test_bad_answers_are_refused_and_leave_nothing(store, words, error):
    with pytest.raises(ValueError, match=error):
        store.record(*words, who="Ada")
    assert store.events() == []


def test_classes_grow_and_never_change(store):
    store.set_classes(["cat", "dog", "cow"])
    for bad in (["dog", "cat"], ["cat"], ["cat", "dog", "hen"], [], ["cat", "dog", "cow", "cow"]):
        with pytest.raises(ValueError, match="classes are"):
            store.set_classes(bad)
    assert store.classes == ("cat", "dog", "cow")


# Leases


def test_two_tabs_never_hold_one_item_and_an_abandoned_one_returns(store):
    assert store.lease(["a", "b"], tab="1", who="Ada") == ["a", "b"]
    assert store.lease(["b", "c"], tab="2", who="Bob") == ["c"]
    with pytest.raises(StoreConflict, match="Ada has a on the screen"):
        store.record("a", "label", "cat", who="Bob", tab="2")
    store._clock.now += 50
    store.lease(["a"], tab="1", who="Ada")  # a sign of life
    store._clock.now += 50
    assert (store.held(), store.held("1")) == (["a"], ["a"])
    assert store.lease(["b"], tab="2", who="Bob") == ["b"]
    with pytest.raises(StoreConflict, match="Bob has b"):
        store.record("b", "label", "cat", who="Ada", tab="1")
    assert store.release("1") == ["a"]
    assert store.held("1") == []


def test_a_clock_that_is_set_back_keeps_no_item_for_days(store):
    """Leases are in the file, so not even a restart gave the items back."""
    store.lease(["a", "b"], tab="1", who="Ada")
    store._clock.now -= 86_400
    with reopened(store) as again:
        again._clock, again.lease_seconds = store._clock, store.lease_seconds
        assert again.held("1") == ["a", "b"]
        again._clock.now += 50
        again.lease(["a"], tab="1", who="Ada")  # a sign of life
        again._clock.now += 50
        assert again.held() == ["a"]
        assert again.lease(["b"], tab="2", who="Bob") == ["b"]


def test_an_answer_ends_a_lease_and_leases_survive_a_restart(store):
    store.lease(["a", "b"], tab="1", who="Ada")
    store.lease(["c"], tab="2", who="Bob")
    store.record("a", "label", "cat", who="Ada", tab="1")
    with reopened(store) as again:
        again._clock = store._clock
        assert (again.held("1"), again.held("2")) == (["b"], ["c"])


@pytest.mark.parametrize("change", ["until = 'soon'", "tab = x'00'"])
def test_a_damaged_lease_is_dropped(store, change):
    store.lease(["a", "b"], tab="1", who="Ada")
    store.close()
    with sqlite3.connect(store.path) as db:
        db.execute(f"UPDATE leases SET {change} WHERE item = 'a'")
    db.close()
    with reopened(store) as again:
        again._clock = store._clock
        assert again.held() == ["b"]


def test_an_answer_after_another_person_is_a_conflict_unless_it_says_relabel(store):
    store.record("a", "label", "cat", who="Ada")
    with pytest.raises(StoreConflict, match="Ada has answered a already: 'cat'"):
        store.record("a", "label", "dog", who="Bob")
    assert store.record("a", "relabel", "dog", who="Bob").before_label == "cat"
    store.record("b", "skip", who="Ada")
    assert store.record("b", "label", "dog", who="Bob").kind == "label"  # a skip asks for somebody else


def test_many_threads_get_each_item_once(store):
    items, taken = [str(k) for k in range(200)], []

    def annotate(tab):
        for item in items:
            if store.lease([item], tab=tab, who=tab):
                taken.append(item)

    threads = [threading.Thread(target=annotate, args=(f"t{k}",)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(items)


# The file


def test_one_process_writes_and_others_read(store):
    store.record("a", "label", "cat", who="Ada")
    with pytest.raises(StoreError, match="another process is labelling"):
        LabelStore(store.folder)
    with LabelStore(store.folder, read_only=True) as reader:
        assert reader.labels() == {"a": "cat"}
        with pytest.raises(StoreError, match="reading only"):
            reader.record("b", "label", "cat", who="Bob")


def test_reading_needs_a_file(tmp_path):
    with pytest.raises(StoreError, match="foretaste label"):
        LabelStore(tmp_path, read_only=True)


def test_rows_can_neither_be_changed_nor_deleted(store):
    store.record("a", "label", "cat", who="Ada")
    for statement in ("UPDATE events SET label = 'dog'", "DELETE FROM events"):
        with pytest.raises(sqlite3.IntegrityError, match="never"):
            store._log.db.execute(statement)


def test_every_answer_is_flushed_to_the_disk(store, monkeypatch):
    flushed, fsync = list[int](), os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (flushed.append(os.fstat(handle).st_ino), fsync(handle)))
    for k in range(3):
        store.record(f"item{k}", "label", "cat", who="Ada")
    assert flushed == [(store.folder / "labels.journal").stat().st_ino] * 3  # SQLite flushes its own file itself
    assert store._log.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._log.db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_a_full_disk_acknowledges_nothing_and_loses_nothing(store):
    store.lease(["x", "a"], tab="1", who="Ada")
    store.record("a", "label", "cat", who="Ada", tab="1")
    store._log.db.execute(f"PRAGMA max_page_count = {store._log.db.execute('PRAGMA page_count').fetchone()[0]}")

    def fill():
        for k in range(10_000):
            store.record(f"{k:0200d}", "label", "cat", who="Ada", tab="1")

    with pytest.raises(StoreFull, match="the disk is full, so the answer was not kept"):
        fill()
    kept = store._log.db.execute("SELECT count(*) FROM events").fetchone()[0]
    assert len(store.events()) == kept
    held = store.held()
    assert held == ["x"]
    store._log.db.execute("PRAGMA max_page_count = 1000000")
    assert store.record("after", "label", "dog", who="Ada").seq == kept + 1  # room again: it goes on
    with reopened(store) as again:
        again._clock = store._clock
        assert len(again.events()) == kept + 1
        assert again.held() == held


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        ("DROP TRIGGER events_stay", "tables that foretaste did not make"),
        ("CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM leases; END", "tables that foretaste did not make"),
        ("PRAGMA user_version = 7", "has version 7; this foretaste reads version 2"),
        ("PRAGMA application_id = 7", "another program"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(store, damage, error):
    store.close()
    journal = store.folder / "labels.journal"
    there = journal.read_bytes()
    journal.unlink()
    db = sqlite3.connect(store.path)
    db.execute(damage)
    db.commit()
    db.close()
    with pytest.raises(StoreError, match=error):
        LabelStore(store.folder)
    journal.write_bytes(there)  # with it, what is not ours is put aside
    with LabelStore(store.folder) as again:  # and the lock was given back
        assert again.classes == ("cat", "dog")
    assert (store.folder / "labels.damaged-1.sqlite").exists()


def test_damage_is_named(store):
    store.record("a", "label", "cat", who="Ada")
    store.close()
    store.path.write_bytes(b"no database" * 1000)
    (store.folder / "labels.journal").unlink()
    with pytest.raises(StoreError, match=r"labels\.sqlite is damaged or no database of foretaste"):
        LabelStore(store.folder)


def test_bytes_in_the_schema_that_are_not_utf8_are_damage(store):
    store.record("a", "label", "cat", who="Ada")
    store.close()
    raw = store.path.read_bytes()
    assert raw.count(b"CREATE T") > 1
    (store.folder / "labels.journal").unlink()
    store.path.write_bytes(raw.replace(b"CREATE T", b"CREATE \xd4"))
    for read_only in (True, False):
        with pytest.raises(StoreError, match=r"labels\.sqlite is damaged or no database of foretaste"):
            LabelStore(store.folder, read_only=read_only)


def test_a_link_in_a_strangers_folder_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a link"):
        LabelStore(tmp_path / "link")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "labels.sqlite").symlink_to(tmp_path / "elsewhere" / "file")
    with pytest.raises(StoreError, match="is a link"):
        LabelStore(tmp_path / "store")
    assert not list((tmp_path / "elsewhere").iterdir())


# Two files that say the same


@pytest.fixture
def crashed(tmp_path):
    """A folder as a crash leaves it after ten answers, and these."""
    with LabelStore(tmp_path / "live") as store:
        store.set_classes(["cat", "dog"])
        for k in range(10):
            store.record(f"item{k}", "label", ("cat", "dog")[k % 2], who="Ada", confidence=k / 10)
        return shutil.copytree(tmp_path / "live", tmp_path / "crashed"), store.events()


def test_damage_to_one_file_of_the_log_loses_and_doubles_nothing():
    """``make fuzz`` does the same some hundred times."""
    tally = logs.run(60, seed=0, answers=30)
    assert tally.counts == {"right": 60}, tally.examples


def test_a_flipped_bit_in_the_log_is_told_once(crashed, caplog):
    folder, events = crashed
    wal = folder / "labels.sqlite-wal"
    raw = bytearray(wal.read_bytes())
    raw[len(raw) // 2] ^= 1
    wal.write_bytes(raw)
    with LabelStore(folder, read_only=True) as reader:  # `foretaste status`, and an export
        assert reader.events() == events
    assert "answers are read from labels.journal; the next start of `foretaste label` mends it" in caplog.text
    caplog.clear()
    with LabelStore(folder) as store:
        assert store.events() == events
        assert store.record("after", "label", "cat", who="Ada").seq == 11
    [told] = caplog.messages
    assert "labels.sqlite has lost" in told
    assert "of 10 answers were restored from labels.journal" in told
    assert "The damaged file is kept as labels.damaged-1.sqlite" in told
    assert (folder / "labels.damaged-1.sqlite-wal").read_bytes() == bytes(raw)
    caplog.clear()
    with LabelStore(folder) as again:
        assert [event.item for event in again.events()] == [*(event.item for event in events), "after"]
    assert not caplog.messages


def drop_tail(path):
    """The last answer is torn, as by a power cut."""
    path.write_bytes(path.read_bytes()[:-20])


def drop_lines(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-3]))


def change_classes(path):
    path.write_bytes(path.read_bytes().replace(b'["cat"', b'["cot"'))


def change_line(path):
    path.write_bytes(path.read_bytes().replace(b"item3", b"item4"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (Path.unlink, "labels.journal was missing, and 10 of 10 answers were restored from labels.sqlite"),
        (drop_tail, "labels.journal was damaged, and 1 of 10 answers were restored from labels.sqlite"),
        (drop_lines, "labels.journal was too short, and 3 of 10 answers were restored from labels.sqlite"),
        (change_line, "labels.journal was damaged, and 1 of 10 answers were restored from labels.sqlite"),
        (change_classes, "labels.journal was damaged, and 0 of 10 answers were restored from labels.sqlite"),
    ],
)
def test_the_journal_is_mended_from_the_database(crashed, caplog, change, told):
    folder, events = crashed
    change(folder / "labels.journal")
    with LabelStore(folder) as store:
        assert store.events() == events
    assert told in caplog.text
    assert (folder / "labels.damaged-1.journal").exists() == ("was damaged" in told)
    (folder / "labels.sqlite").unlink()
    with LabelStore(folder) as store:
        assert (store.events(), store.classes) == (events, ("cat", "dog"))
    assert "labels.sqlite is missing: 10 of 10 answers were restored from labels.journal" in caplog.text


@pytest.mark.parametrize(
    ("was", "now", "at"),
    [
        (b'["cat", "dog"]', b'["cot", "dog"]', 1),
        (b"Bob", b"Rob", 1),
        (b"request-7", b"request-8", 1),
        (b"request-7", b"request-8", 2),  # in the index, which no reading of the rows sees
    ],
)
def test_a_value_that_changed_in_the_database_is_told_and_restored(store, was, now, at, caplog):
    """SQLite has no checksum of what it stores."""
    for k in range(10):
        store.record(f"item{k}", "label", "cat", who="Bob" if k == 4 else "Ada", request=f"request-{k}")
    events = store.events()
    store.close()
    parts = store.path.read_bytes().split(was)
    assert len(parts) == 3 if b"request" in was else 2
    store.path.write_bytes(was.join(parts[:at]) + now + was.join(parts[at:]))
    with LabelStore(store.folder) as again:
        assert (again.events(), again.classes) == (events, ("cat", "dog"))
    [told] = caplog.messages
    assert "The damaged file is kept as labels.damaged-1.sqlite" in told


def test_an_answer_that_only_the_journal_has_is_kept(crashed, caplog):
    """A process that was killed between the two files: it may have one transaction more, whole or torn."""
    folder, events = crashed
    earlier = shutil.copytree(folder, folder.parent / "earlier")
    with LabelStore(folder) as store, store.together():
        store.record("more", "label", "cat", who="Ada")
        store.record("and more", "label", "dog", who="Ada")
    shutil.copy(folder / "labels.journal", earlier)
    torn = shutil.copytree(earlier, folder.parent / "torn")
    drop_tail(torn / "labels.journal")
    with LabelStore(torn) as store:
        assert store.events() == events  # both or none
    assert not caplog.messages
    with LabelStore(earlier) as store:
        assert [event.item for event in store.events()[10:]] == ["more", "and more"]
    assert "labels.sqlite lacked 2 answers; the last process ended while it was written" in caplog.text
    assert not list(earlier.glob("*damaged*"))


def test_an_old_store_opens_and_gets_a_journal(crashed, tmp_path, caplog):
    """Version 1 had no checksums and no journal."""
    events = crashed[1]
    folder = tmp_path / "old"
    folder.mkdir()
    db = sqlite3.connect(folder / "labels.sqlite")
    for statement in (*SCHEMAS[1], f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA user_version = 1"):
        db.execute(statement)
    db.execute("INSERT INTO settings VALUES ('classes', '[\"cat\", \"dog\"]')")
    db.executemany(f"INSERT INTO events VALUES ({', '.join('?' * 15)})", [tuple(vars(e).values()) for e in events])
    db.commit()
    db.close()
    for read_only in (True, False, False):
        with LabelStore(folder, read_only=read_only) as store:
            assert (store.events(), store.classes) == (events, ("cat", "dog"))
    raw = (folder / "labels.sqlite").read_bytes()  # the rows of then have no checksum; the journal has
    (folder / "labels.sqlite").write_bytes(raw.replace(b"item3", b"item4"))
    with LabelStore(folder) as store:
        assert store.events() == events
    assert "labels.sqlite has lost 1 answer" in caplog.text
    (folder / "labels.journal").write_bytes(b"")
    with LabelStore(folder) as store:
        assert store.record("more", "label", "cat", who="Ada").seq == 11
    (folder / "labels.sqlite").unlink()
    caplog.clear()
    with LabelStore(folder) as store:
        assert store.events()[:10] == events
    assert "11 of 11 answers were restored from labels.journal" in caplog.text


def test_files_of_two_stores_are_not_mixed(crashed, tmp_path):
    folder, _ = crashed
    with LabelStore(tmp_path / "other") as other:
        other.set_classes(["cat", "dog"])
        other.record("else", "label", "dog", who="Bob")
    shutil.copy(other.folder / "labels.sqlite", folder)
    (folder / "labels.sqlite-wal").unlink()
    for read_only in (True, False):
        with pytest.raises(StoreError, match=r"labels\.journal are of two stores"):
            LabelStore(folder, read_only=read_only)


def test_an_answer_that_both_files_lost_is_told_and_nothing_is_changed(crashed):
    folder, _ = crashed
    change_line(folder / "labels.journal")
    (folder / "labels.sqlite").write_bytes(b"no database" * 1000)
    (folder / "labels.sqlite-wal").unlink()
    before = {path.name: path.read_bytes() for path in folder.glob("labels.*") if path.name != "labels.lock"}
    with pytest.raises(StoreError, match=r"is damaged, and so is .*labels\.journal: 1 of 10 answers cannot be read"):
        LabelStore(folder)
    assert {path.name: path.read_bytes() for path in folder.glob("labels.*") if path.name != "labels.lock"} == before


# Writing that fails


def failing(what):
    def fail(*args):
        raise what

    return fail


def test_a_write_that_fails_changes_nothing_in_memory_either(store, monkeypatch):
    """Leases, classes and answers are as before; so they are after a restart."""
    store.lease(["a", "b"], tab="1", who="Ada")
    store.record("b", "label", "cat", who="Ada", tab="1")
    monkeypatch.setattr(store._log.journal, "append", failing(OSError(errno.ENOSPC, "No space left on device")))
    for write in (
        lambda: store.record("a", "label", "cat", who="Ada", tab="1"),
        lambda: store.undo(who="Ada", tab="1"),
        lambda: store.set_classes(["cat", "dog", "cow"]),
    ):
        with pytest.raises(StoreFull, match="the disk is full, so the answer was not kept"):
            write()
        assert (store.held("1"), store.labels(), store.classes) == (["a"], {"b": "cat"}, ("cat", "dog"))
    monkeypatch.undo()

    def broken_off():
        with store.together():
            store.record("c", "label", "cat", who="Ada")
            store.lease(["d"], tab="1", who="Ada")
            store.release("1", ["a"])
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        broken_off()
    assert (store.held("1"), store.labels()) == (["a"], {"b": "cat"})
    assert store.record("a", "label", "dog", who="Ada", tab="1").seq == 2
    with reopened(store) as again:
        assert (again.labels(), again.classes) == ({"a": "dog", "b": "cat"}, ("cat", "dog"))


def test_a_transaction_that_is_refused_takes_nothing_from_the_journal(store, caplog):
    """A wall with an item that somebody has answered: what was acknowledged before stays in both files."""
    store.record("a", "label", "cat", who="Ada")
    store.record("b", "label", "cat", who="Ada")

    def accept(*items):
        with store.together():
            for item in items:
                store.record(item, "label", "dog", who="Bob")

    for _ in range(2):
        with pytest.raises(StoreConflict, match="Ada has answered b"):
            accept("c", "b")
    store.record("d", "label", "cat", who="Ada")
    wanted = store.events()
    with reopened(store) as again:
        assert again.events() == wanted
    assert not caplog.messages
    (store.folder / "labels.sqlite").unlink()
    with LabelStore(store.folder) as again:
        assert [event.item for event in again.events()] == ["a", "b", "d"]


class Commits:
    """A database in which something happens before or after a commit."""

    def __init__(self, db, before=None, after=None):
        self.db, self.before, self.after = db, before, after

    def __getattr__(self, name):
        return getattr(self.db, name)

    def execute(self, sql, *values):
        if sql == "COMMIT" and self.before:
            raise self.before
        done = self.db.execute(sql, *values)
        if sql == "COMMIT" and self.after:
            raise self.after
        return done


def test_what_the_database_refuses_leaves_the_journal_too(store, caplog):
    store.record("a", "label", "cat", who="Ada")
    store._log.db = Commits(store._log.db, before=sqlite3.OperationalError("disk I/O error"))
    with pytest.raises(StoreError, match="the answer was not kept"):
        store.record("b", "label", "cat", who="Ada")
    store._log.db.before = None
    with reopened(store) as again:
        assert again.labels() == {"a": "cat"}
    assert not caplog.messages


def test_what_could_not_be_cut_from_the_journal_is_written_over(store, monkeypatch, caplog):
    store._log.db = Commits(store._log.db, before=sqlite3.OperationalError("disk I/O error"))
    results = iter([os.ftruncate, failing(OSError(errno.EIO, "Input/output error"))])
    monkeypatch.setattr(os, "ftruncate", lambda *args: next(results)(*args))
    with pytest.raises(StoreError, match="the answer was not kept"):
        store.record("a name that is long, so that more than the next answer is left of it", "label", "cat", who="Ada")
    monkeypatch.undo()
    assert b"long" in (store.folder / "labels.journal").read_bytes()
    store._log.db.before = None
    store.record("a", "label", "dog", who="Ada")
    assert b"long" not in (store.folder / "labels.journal").read_bytes()
    store.record("b", "label", "dog", who="Ada")
    with reopened(store) as again:
        assert again.labels() == {"a": "dog", "b": "dog"}
    assert not caplog.messages


def test_an_interrupt_while_it_is_committed_leaves_the_store_in_order(store, caplog):
    store._log.db = Commits(store._log.db, after=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.record("a", "label", "cat", who="Ada")
    store._log.db.after = None
    store.record("b", "label", "dog", who="Ada")
    assert store.labels() == {"a": "cat", "b": "dog"}
    with reopened(store) as again:
        assert again.labels() == {"a": "cat", "b": "dog"}
    assert not caplog.messages


def test_a_new_store_on_a_full_disk_is_told_as_such(tmp_path, monkeypatch):
    """It was "damaged, move it away"."""
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorname = "SQLITE_FULL"
    connect = sqlite3.connect

    class FullDisk(sqlite3.Connection):
        def execute(self, sql, *values):
            if "journal_mode" in sql:
                raise full
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=FullDisk))
    with pytest.raises(StoreFull, match=r"the disk is full, so .*labels\.sqlite cannot be opened; free some space"):
        LabelStore(tmp_path)
    monkeypatch.undo()
    with LabelStore(tmp_path) as store:  # there is room again
        store.set_classes(["cat", "dog"])


def test_a_new_store_whose_journal_finds_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", failing(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(StoreFull, match="the disk is full"):
        LabelStore(tmp_path)
    monkeypatch.undo()
    LabelStore(tmp_path).close()


# Files that go away while the store is open


@pytest.mark.parametrize("gone", ["", "labels.sqlite", "labels.sqlite-wal", "labels.journal", "labels.lock"])
def test_what_is_deleted_while_the_store_is_open_is_written_again(store, gone, caplog):
    """Answers were acknowledged, and went into files without a name."""
    store.record("a", "label", "cat", who="Ada")
    store.lease(["c"], tab="1", who="Ada")
    if gone:
        (store.folder / gone).unlink()
    else:
        shutil.rmtree(store.folder)
    event = store.record("b", "label", "dog", who="Ada")
    assert "was deleted while it was open. The log was written again: 1 answer" in caplog.text
    left = shutil.copytree(store.folder, store.folder.parent / "crashed")
    with pytest.raises(StoreError, match="another process is labelling"):
        LabelStore(store.folder)
    caplog.clear()
    with LabelStore(left, clock=store._clock) as again:
        assert (again.events()[-1], again.labels()) == (event, {"a": "cat", "b": "dog"})
        assert (again.classes, again.held()) == (("cat", "dog"), ["c"])
    assert not caplog.messages


def test_nothing_is_acknowledged_where_it_cannot_be_written_again(tmp_path, monkeypatch):
    with LabelStore(tmp_path / "photos" / "store") as store:
        store.set_classes(["cat", "dog"])
        store.record("a", "label", "cat", who="Ada")
        (tmp_path / "photos").rename(tmp_path / "elsewhere")  # a disk that is unplugged is gone in this way too
        with pytest.raises(StoreError, match=r"the answer was not kept: .*store is gone"):
            store.record("b", "label", "cat", who="Ada")
        assert not (tmp_path / "photos").exists()
        (tmp_path / "elsewhere").rename(tmp_path / "photos")
        store.record("b", "label", "cat", who="Ada")
        shutil.rmtree(store.folder)
        monkeypatch.setattr(os, "replace", failing(OSError(errno.ENOSPC, "No space left on device")))
        for _ in range(2):
            with pytest.raises(StoreFull):
                store.record("c", "label", "cat", who="Ada")
        monkeypatch.undo()
        assert store.record("c", "label", "dog", who="Ada").seq == 3
    with LabelStore(store.folder) as again:
        assert again.labels() == {"a": "cat", "b": "cat", "c": "dog"}


def test_a_closed_store_stays_closed(store):
    store.close()
    with pytest.raises(StoreError, match="is closed; nothing was kept"):
        store.set_setting("kind", "text")
    LabelStore(store.folder).close()


def test_files_that_another_process_has_put_there_are_left_alone(store):
    store.record("a", "label", "cat", who="Ada")
    shutil.rmtree(store.folder)
    with LabelStore(store.folder) as other:
        other.set_classes(["x", "y"])
        with pytest.raises(StoreError, match="other files have come in the place"):
            store.record("b", "label", "cat", who="Ada")
        assert other.record("b", "label", "x", who="Bob").seq == 1


# Killed in the middle of anything

ANNOTATOR = """
import sys
from foretaste.label import LabelStore
store = LabelStore(sys.argv[1])
store.set_classes(["cat", "dog"])
start = len(store.events())
for k in range(start, start + 100_000):
    event = store.record(f"item{k}", "label", "cat", who="Ada", tab="1")
    store.lease([f"item{k + 1}"], tab="1", who="Ada")
    print(event.seq, event.item, flush=True)  # the acknowledgement
    if k % 7 == 6:
        event = store.undo(who="Ada")
        print(event.seq, event.item, flush=True)
"""


def kill_at_random(folder: Path, rng: random.Random) -> list[str]:
    """Start an annotator, kill it with -9 at a random moment, and return what it acknowledged."""
    with subprocess.Popen([sys.executable, "-c", ANNOTATOR, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(rng.random() * 0.05)
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read()
    lines = (first + rest).splitlines(keepends=True)
    return [line.strip() for line in lines if line.endswith("\n")]


def test_what_was_acknowledged_survives_kill_9(tmp_path):
    rng, acknowledged = random.Random(0), list[str]()
    for _ in range(6):
        acknowledged += kill_at_random(tmp_path, rng)
        with LabelStore(tmp_path) as store:
            log = {f"{e.seq} {e.item}" for e in store.events()}
            assert set(acknowledged) <= log
            assert len(log) - len(set(acknowledged)) <= 2 * 6  # at most what was on its way when the process died
    assert len(acknowledged) >= 6
