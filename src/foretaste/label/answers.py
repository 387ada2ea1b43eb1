"""The answers that ``foretaste label`` has collected, for those who read the same folder or file: query, open, run.

An answer of a person counts before the label in the data: the class folder, or the column. What people set aside or
were not sure of is no point at all.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretaste.errors import printable
from foretaste.label.start import name_points, store_folder
from foretaste.label.store import GIVEN, STORE_FILE, CopyGroups, LabelStore

if TYPE_CHECKING:
    from foretaste.data import Points


def find_answers(
    source: Any, store: str | os.PathLike[str] | bool | None = None
) -> "Callable[[Points], Points] | None":
    """What puts the answers into the points of a source; None if there are none.

    ``store`` is the folder of the labels; None is where ``foretaste label`` keeps those of the source. False: none.
    """
    if store is False or not isinstance(source, str | os.PathLike):
        return None
    if store is not None and store is not True:
        return partial(with_answers, folder=Path(store).expanduser())
    folder = store_folder(Path(source).expanduser())
    return partial(with_answers, folder=folder) if (folder / STORE_FILE).is_file() else None


def with_answers(points: "Points", folder: Path) -> "Points":
    """The same points with the answers in a folder as labels; a note says how many there are, and from where."""
    with LabelStore(folder, read_only=True) as kept:
        current, classes, groups = kept.current(), kept.classes, CopyGroups(kept.setting("twins", {}))
        names = name_points(kept, points).ids
    where = f"{printable(str(folder))} (foretaste label)"
    if points.regression:
        return replace(points, notes=(*points.notes, f"labels in {where} are classes: not read in regression"))
    answers, labels, aside, replaced, used = groups.in_force(current), list(points.labels), set[int](), 0, 0
    for i, (item, own) in enumerate(zip(names, points.labels)):
        event = answers.get(groups.first(item))
        if event is None or event.kind == "skip" or (event.who == GIVEN and own is not None):
            continue
        if event.label is None:
            aside.add(i)
            continue
        labels[i] = event.label
        used += 1
        replaced += own not in (None, event.label)
    elsewhere = sorted({item for item, event in current.items() if event.label is not None} - {*names})
    told = [f"{replaced} of them in the place of another in the data"] if replaced else []
    if aside:
        told.append(
            f"{_how_many(len(aside), 'item')} that people set aside or were not sure of {_are(len(aside))} left out"
        )
    if elsewhere:
        n, first = len(elsewhere), printable(elsewhere[0])
        one = f"1 label there is of {first}, which is not here"
        told.append(one if n == 1 else f"{n} labels there are of items that are not here, such as {first}")
    found = points.own_classes or (*classes, *(c for c in points.classes if c not in classes))
    named = replace(points, labels=labels, own_classes=(*found, *(c for c in classes if c not in found)))
    if not used and not told:
        return points
    note = f"{_how_many(used, 'label')} {_are(used)} from {where}" + (f": {'; '.join(told)}" if told else "")
    return replace(named.take([i for i in range(len(named)) if i not in aside]), notes=(*points.notes, note))


def _how_many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _are(n: int) -> str:
    return "is" if n == 1 else "are"
