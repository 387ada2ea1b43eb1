"""``AnswerTally``: what is counted event by event equals a walk through all answers and all events."""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from foretaste.label.desk import LabelDesk
from foretaste.label.grid import accept_grid
from foretaste.label.store import GIVEN, StoreConflict
from foretaste.label.tally import CURVE_POINTS, PREQUENTIAL
from foretaste.label.voices import SECOND, wilson
from label_cases import MemoryItems, close_desk, open_desk

SAME = ("labelled", "unsure", "ignored", "skipped", "left", "parked", "waiting", "disagree", "mine", "events", "curve")
PEOPLE = ("Ada", "Bob", "Cid")
IDS = [f"t{k:03d}" for k in range(130)]
TWINS = {f"t{k:03d}": f"t{k - 1:03d}" for k in range(1, 40, 3)}


def walk(desk: LabelDesk, who: str) -> dict[str, Any]:
    """What ``LabelDesk.state`` counts, by a walk through all answers."""
    everything, shared = desk.copies.in_force(desk.store.current()), desk.store.shared()
    here = {item: event for item, event in everything.items() if item in desk.number}
    kinds = Counter("label" if event.label is not None else event.kind for event in here.values())
    labels = [event.label for event in here.values() if event.label is not None]
    counts = Counter(name for label in labels for name in desk.store.task.names(label))
    people = Counter(e.who for e in here.values() if e.who != GIVEN and e.item not in shared)
    people.update(who for heard in shared.values() for who in heard.voices)
    done = kinds["label"] + kinds["unsure"] + kinds["ignore"]
    waiting = [e.item for e, heard in wanting(desk) if who not in heard.voices and e.item not in desk._fresh()]
    return {
        "labelled": kinds["label"],
        "unsure": kinds["unsure"],
        "ignored": kinds["ignore"],
        "skipped": kinds["skip"],
        "left": max(0, len(desk.open_ids) - done),
        "parked": sum(desk._is_parked(event) for event in here.values()),
        "waiting": len(waiting),
        "disagree": sum(heard.disagree for heard in shared.values()),
        "counts": {name: counts[name] for name in desk.store.classes},
        "people": sorted(({"who": name, "count": n} for name, n in people.items()), key=lambda p: p["who"]),
        "mine": people[who],
        "events": len(desk.store.events()),
        "curve": curve(desk),
        "answers": everything,
        "order": waiting,
    }


def wanting(desk: LabelDesk) -> list[Any]:
    """What was answered and is to be answered by more people, the oldest first."""
    found = []
    for first in {desk.copies.first(event.item) for event in desk.store.events()}:
        event = desk._answer_of(first)
        if event is None or event.who == GIVEN or event.kind in ("skip", "ignore") or first not in desk._share:
            continue
        heard = desk.store.voices_of(event.item)
        spoken = sum(said.kind != "skip" for said in heard.voices.values())
        if event.item in desk.number and heard.decision is None and spoken < desk.voices_each:
            found.append((event, heard))
    return sorted(found, key=lambda pair: pair[0].seq)


def curve(desk: LabelDesk) -> dict[str, Any]:
    right, at = list[bool](), list[int]()
    labelled, taught, reached = set[str](), 0, {0: 0}
    undone = {event.undoes for event in desk.store.events()}
    for event in desk.store.events():
        if event.undoes is not None or event.seq in undone or event.item not in desk.number:
            continue
        if event.purpose == SECOND and event.label is None:
            continue
        before = len(labelled)
        (labelled.discard if event.label is None else labelled.add)(event.item)
        if event.item not in desk._left_out:
            taught += len(labelled) - before
        reached[taught] = len(labelled)
        if event.kind == "label" and event.purpose != "check" and event.guess is not None:
            right.append(desk.store.task.near(event.guess, event.label or ""))
            at.append(len(labelled))
    shown = range(len(right) - 1, -1, -max(1, len(right) // CURVE_POINTS))
    checked = desk.worker.view.checked
    return {
        "labelled": len(labelled),
        "check": [[reached[n], k / m, *wilson(k, m)] for n, k, m in checked if m and n <= taught],
        "checked": checked[-1][2] if checked else 0,
        "running": [[at[k], fmean(right[max(0, k + 1 - PREQUENTIAL) : k + 1]), k + 1] for k in shown][::-1],
        "window": PREQUENTIAL,
    }


def counted(desk: LabelDesk, who: str) -> dict[str, Any]:
    state = desk.state(who)
    found = {name: state[name] for name in SAME}
    found["counts"] = {entry["name"]: entry["count"] for entry in state["classes"]}
    found["people"] = sorted(state["people"], key=lambda p: p["who"])
    assert [p["count"] for p in state["people"]] == sorted((p["count"] for p in state["people"]), reverse=True)
    return found | {"answers": desk.answers(), "order": desk._waiting(who)}


CHANGES: dict[int, Callable[[LabelDesk], object]] = {
    50: lambda desk: desk.change_class("add", who="Ada", name="g"),
    80: lambda desk: desk.change_class("rename", who="Bob", name="a", to="apple"),
    110: lambda desk: desk.change_class("merge", who="Ada", name="b", to="c"),
    130: lambda desk: desk.store.set_votes("reliability"),
    160: lambda desk: desk.change_class("split", who="Cid", name="b"),
    190: lambda desk: desk.store.set_votes("majority"),
}


def something(desk: LabelDesk, draw: random.Random) -> str:
    """One of the people does something; says what."""
    who, tab, chance = draw.choice(PEOPLE), f"tab-{draw.randrange(4)}", draw.random()
    classes = desk.store.classes
    if chance < 0.15:
        desk.undo(tab, who)
        return "undo"
    if chance < 0.25:
        items = draw.sample(desk.shuffled, draw.randint(1, 6))
        accept_grid(desk, tab, who, items, draw.choice(classes), f"wall{draw.getrandbits(64)}")
        return "wall"
    if chance < 0.35:
        desk.answer(tab, who, draw.choice(IDS), "relabel", draw.choice(classes))
        return "relabel"
    if chance < 0.36:
        desk.reopen(draw.choice(desk.shuffled), who)
        return "ask again"
    if chance < 0.38:
        desk.store.record(f"gone{draw.randrange(3)}", "label", draw.choice(classes), who=who)
        return "an item that is not here"
    items = desk.next(tab, who, again=chance < 0.45)
    kind = draw.choice(["label"] * 5 + ["skip", "skip", "unsure", "ignore"])
    desk.answer(tab, who, draw.choice(items), kind, draw.choice(classes) if kind == "label" else None)
    return kind


@pytest.mark.parametrize(("voices", "seed"), [(1, 0), (2, 1), (3, 2)])
def test_what_is_counted_event_by_event_is_what_a_walk_through_all_of_them_finds(
    tmp_path: Any, voices: int, seed: int
) -> None:
    data, draw = MemoryItems("text", IDS, IDS), random.Random(seed)
    several = {"voices_each": voices, "voices_share": 0.8}
    desk = open_desk(tmp_path, data, "abcdef", start=False, twins=TWINS, check_every=6, lease=0.5, **several)
    # A clock of its own: leases end at the same moment in each run. Only answers of the future may still be taken back.
    now = itertools.count(0 if voices == 3 else 10**12)
    desk.store._clock = lambda: next(now) / 100
    desk.worker.wait_for = lambda *rest: False  # type: ignore[method-assign]
    guesses = {item: (draw.choice("ab"), 0.5) for item in IDS[::2]}
    checked = tuple((n, min(n, 3), 5) for n in range(100))
    desk.worker.view = replace(desk.worker.view, guesses=guesses, checked=checked, ready=tuple(IDS[5:60:5]))
    done = Counter[str]()
    for step in range(200):
        if change := CHANGES.get(step):
            change(desk)
        try:
            done[something(desk, draw)] += 1
        except (StoreConflict, IndexError):  # taken; nothing left
            continue
        if change or draw.random() < 0.7:  # else several events come at once
            who = draw.choice(PEOPLE)
            assert counted(desk, who) == walk(desk, who)
    assert {"undo", "wall", "relabel", "ask again", "skip", "unsure", "ignore", "label"} <= {*done}
    assert done["undo"] > 10
    close_desk(desk)


def test_an_answer_costs_what_is_new(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = open_desk(tmp_path, MemoryItems("text", IDS, IDS), start=False, voices_each=2)
    accept_grid(desk, "tab-1", "Ada", IDS[:100], "cat", "wall-0001")
    desk.state("Ada")
    looked, plain = list[str](), desk.copies.answer
    monkeypatch.setattr(desk.copies, "answer", lambda item, state_of: looked.append(item) or plain(item, state_of))
    desk.state("Bob")
    assert looked == []  # a sign of life
    desk.undo("tab-1", "Ada")
    desk.store.record(IDS[7], "relabel", "dog", who="Bob")
    assert (looked.clear(), desk.state("Bob")["labelled"])[1] == 1
    assert sorted(looked) == IDS[:100]
    desk.store.record(IDS[120], "label", "dog", who="Bob")
    assert (looked.clear(), desk.state("Ada")["labelled"], looked)[1:] == (2, [IDS[120]])
    close_desk(desk)
