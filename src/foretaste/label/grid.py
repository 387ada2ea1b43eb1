"""A wall of items of one predicted class, or of those like one item: press the wrong ones, accept the rest.

Each accepted item is an answer of its own in the log. They are kept together, or none of them, and an undo takes all of
them back.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretaste.errors import check_known

if TYPE_CHECKING:
    from foretaste.label.desk import LabelDesk
    from foretaste.label.store import LabelEvent

GRID_ITEMS = 24
MOST_TILES = 1000  # on a wall that has grown; page/grid.js has the same
MOST_ALIKE = 200
GRID_PATIENCE = 0.15  # seconds that a wall waits for the learner
GRID_REQUEST = "grid:"  # requests of a wall begin so, and end with the number of the item


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
) -> "list[LabelEvent]":
    """One answer for each item, kept together. Raises, and keeps none, if somebody has answered or holds one.

    ``others``: items of the wall that are of another class, and which.
    """
    given = dict.fromkeys(items, label) | dict(others or {})
    if not given:
        raise ValueError("a wall without an item; expected at least one")
    if strange := [item for item in given if item not in desk.number]:
        raise KeyError(f"unknown item {strange[0]!r:.80}")
    with desk.store.together():
        events = [
            desk.store.record(
                item, "label", name, who=who, tab=tab, request=f"{GRID_REQUEST}{request}/{k}", purpose="teach"
            )
            for k, (item, name) in enumerate(given.items())
        ]
    numbers = [desk.tell(item) for item in given]
    if numbers:
        desk.worker.wait_for(numbers[-1], GRID_PATIENCE)
    return events


def undo_together(desk: "LabelDesk", tab: str, who: str, request: str | None) -> "list[LabelEvent]":
    """Take back the last answer of a person in a tab; with it all others of its wall."""
    store = desk.store
    if request is not None and (there := store.answered(request)) is not None and there.kind == "undo":
        return [there]
    last = store.last_answer(who, tab)
    name = (last.request if last else None) or ""
    wall = name.rsplit("/", 1)[0] if name.startswith(GRID_REQUEST) else None
    events: list[LabelEvent] = []
    with store.together():
        events.append(store.undo(who=who, tab=tab, request=request))
        while wall and (last := store.last_answer(who, tab)) and (last.request or "").startswith(f"{wall}/"):
            events.append(store.undo(who=who, tab=tab))
    if wall:
        store.release(tab, [event.item for event in events])
    return events
