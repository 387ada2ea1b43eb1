"""A wall of items of one predicted class, or of those like one item: press the wrong ones, accept the rest.

Each accepted item is an answer of its own in the log. They are kept together, but for those that somebody else answered
or holds meanwhile; if the disk refuses, none is kept. An undo takes back what was kept.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from foretaste.errors import check_known
from foretaste.label.store import StoreConflict

if TYPE_CHECKING:
    from foretaste.label.desk import LabelDesk
    from foretaste.label.store import LabelEvent

GRID_ITEMS = 24
MOST_TILES = 1000  # on a wall that has grown; page/grid.js has the same
MOST_ALIKE = 200
GRID_PATIENCE = 0.15  # seconds that a wall waits for the learner
GRID_REQUEST = "grid:"  # requests of a wall begin so, and end with the number of the item


class AcceptedWall(NamedTuple):
    """What was kept of a wall; and what others took meanwhile: item → "answered", or "held" on another screen."""

    events: "list[LabelEvent]"
    taken: dict[str, str]


def grid_items(
    desk: "LabelDesk",
    label: str = "",
    like: str = "",
    count: int = GRID_ITEMS,
    without: Iterable[int] = (),
    find: str = "",
) -> dict[str, Any]:
    """Open items that the model says are of one class, the surest first; or those most like an item; or with words.

    Words are looked for without a model too: so the first labels can be chosen by hand.

    ``without`` are numbers of items that were called wrong on such a wall before. Items that are on a screen, measure
    accuracy or are copies are left out. "follow": how many other predictions change if an item is what the model says.
    "looked": (done, of how many) while the network goes through a large pool; what it has not come to is of no class.
    """
    if not desk.store.task.one:
        raise ValueError(
            f"a wall is for one class an item, and the task is {desk.store.task.kind}; answer item by item"
        )
    found = desk.worker.probabilities()
    if found is None and not find:
        return {"items": [], "left": 0, "ready": False, "looked": None}
    held, current = {*desk.store.held()}, desk.answers()
    away = {*without}
    free = [i for i in desk.shuffled if i not in current and i not in held and desk.number[i] not in away]
    classes, sure_f, said_f = list[str](), np.full(len(free), np.nan), np.zeros(len(free), int)
    if found is not None and free:
        classes, p_fC = found[0], found[1][[desk.number[i] for i in free]]
        sure_f, said_f = p_fC.max(1), p_fC.argmax(1)
    known_f = ~np.isnan(sure_f)  # the network has yet to look at the others
    if find or like:
        place = {i: k for k, i in enumerate(free)}
        order = desk.with_words(free, find) if find else desk.worker.alike(like, MOST_ALIKE)
        at = [place[i] for i in order if i in place]
    else:
        check_known("class", label, desk.store.classes)
        of_it = (known_f & (said_f == (classes.index(label) if label in classes else -1))).nonzero()[0]
        at = of_it[np.argsort(-sure_f[of_it], kind="stable")].tolist()
    first = [free[k] for k in at[:count]]
    best = [(classes[said_f[k]], float(sure_f[k])) if known_f[k] else ("", 0.0) for k in at[:count]]
    shown = [
        {"item": i, "number": desk.number[i], "likely": name, "p": p, "follow": follow}
        for i, (name, p), follow in zip(first, best, desk.worker.follow(first))
    ]
    return {
        "items": shown,
        "left": len(at),
        "ready": found is not None,
        "looked": None if found is None else desk.worker.describe()["looked"],
    }


def accept_grid(
    desk: "LabelDesk",
    tab: str,
    who: str,
    items: Sequence[str],
    label: str,
    request: str,
    others: Mapping[str, str] | None = None,
) -> AcceptedWall:
    """One answer for each item, kept together. What others have answered or hold is left out.

    ``others``: items of the wall that are of another class, and which. Raises, and keeps none, if an item or a class is
    unknown, or if the disk refuses.
    """
    given = dict.fromkeys(items, label) | dict(others or {})
    if not given:
        raise ValueError("a wall without an item; expected at least one")
    if strange := [item for item in given if item not in desk.number]:
        raise KeyError(f"unknown item {strange[0]!r:.80}")
    store, events, taken = desk.store, list["LabelEvent"](), dict[str, str]()
    with store.together():
        elsewhere = {*store.held()} - {*store.held(tab)}
        for k, (item, name) in enumerate(given.items()):
            try:
                events.append(
                    store.record(
                        item, "label", name, who=who, tab=tab, request=f"{GRID_REQUEST}{request}/{k}", purpose="teach"
                    )
                )
            except StoreConflict:
                taken[item] = "held" if item in elsewhere else "answered"
    numbers = [desk.tell(event.item) for event in events]
    if numbers:
        desk.worker.wait_for(numbers[-1], GRID_PATIENCE)
    return AcceptedWall(events, taken)


def undo_together(desk: "LabelDesk", tab: str, who: str, request: str | None) -> "list[LabelEvent]":
    """Take back the last answer of a person in a tab; with it all others of its wall. Sent again: the same events."""
    store, events = desk.store, list["LabelEvent"]()

    def name_next() -> str | None:
        return f"{request}/{len(events)}" if request and events else request

    while (named := name_next()) and (there := store.answered(named)) is not None and there.kind == "undo":
        events.append(there)
    if events:
        return events
    last = store.last_answer(who, tab)
    name = (last.request if last else None) or ""
    wall = name.rsplit("/", 1)[0] if name.startswith(GRID_REQUEST) else None
    with store.together():
        events.append(store.undo(who=who, tab=tab, request=request))
        while wall and (last := store.last_answer(who, tab)) and (last.request or "").startswith(f"{wall}/"):
            events.append(store.undo(who=who, tab=tab, request=name_next()))
    if wall:
        store.release(tab, [event.item for event in events])
    return events


def undone_wall(desk: "LabelDesk", undone: "Sequence[LabelEvent]") -> dict[str, int] | None:
    """Class → how many of its answers an undo has taken back; None if that was no wall."""
    store = desk.store
    was = [store.events(event.undoes - 1)[0] for event in undone[:1] if event.undoes is not None]
    if not was or not (was[0].request or "").startswith(GRID_REQUEST):
        return None
    labels = [store.task.counts_as(event.before_label, store.guide) for event in undone if event.before_label]
    return dict(Counter(labels).most_common())
