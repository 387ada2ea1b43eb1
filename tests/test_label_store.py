"""The log of labels: what is acknowledged is kept, what is kept never changes, and nobody gets what another holds."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from foretaste.label import LabelStore, StoreConflict, StoreError, StoreFull


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
            store._db.execute(statement)


def test_every_answer_is_flushed_to_the_disk(store):
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_a_full_disk_acknowledges_nothing_and_loses_nothing(store):
    store.lease(["x", "a"], tab="1", who="Ada")
    store.record("a", "label", "cat", who="Ada", tab="1")
    store._db.execute(f"PRAGMA max_page_count = {store._db.execute('PRAGMA page_count').fetchone()[0]}")

    def fill():
        for k in range(10_000):
            store.record(f"{k:0200d}", "label", "cat", who="Ada", tab="1")

    with pytest.raises(StoreFull, match="the disk is full, so the answer was not kept"):
        fill()
    kept = store._db.execute("SELECT count(*) FROM events").fetchone()[0]
    assert len(store.events()) == kept
    held = store.held()
    assert held == ["x"]
    store._db.execute("PRAGMA max_page_count = 1000000")
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
        ("PRAGMA user_version = 7", "has version 7; this foretaste reads version 1"),
        ("PRAGMA application_id = 7", "another program"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(store, damage, error):
    store.close()
    db = sqlite3.connect(store.path)
    db.execute(damage)
    db.commit()
    db.close()
    with pytest.raises(StoreError, match=error):
        LabelStore(store.folder)
    LabelStore(store.folder.parent / "other").close()  # the lock was given back


def test_damage_is_named(store):
    store.record("a", "label", "cat", who="Ada")
    store.close()
    store.path.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match=r"labels\.sqlite is damaged or no database of foretaste"):
        LabelStore(store.folder)


def test_bytes_in_the_schema_that_are_not_utf8_are_damage(store):
    store.record("a", "label", "cat", who="Ada")
    store.close()
    raw = store.path.read_bytes()
    assert raw.count(b"CREATE T") > 1
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
