"""From a folder or a file to a desk: items, classes, store, and a learner that is built in the background."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretaste.errors import check_known, counted, printable
from foretaste.label.desk import CHECK_EVERY, FILE_KINDS, DeskItems, LabelDesk
from foretaste.label.store import GIVEN, LEASE_SECONDS, STORE_FILE, CopyGroups, LabelStore
from foretaste.label.task import LabelTask, read_task
from foretaste.label.worker import STOP_GOAL, BuildProgress, BuiltLearner, LearnerWorker, ModelView

if TYPE_CHECKING:
    from foretaste.data import Points

STORE_FOLDER = ".foretaste"
GRAPH_CHOICES = ("auto", "off")
PIXELS_A_SIDE = 32  # a side, where there is no backbone


class NamedRows(Sequence[Any]):
    """Rows of a tensor, each a dict by column."""

    def __init__(self, rows: Any, columns: Sequence[str]) -> None:
        self.rows = rows
        self.columns = list(columns) or [f"x{k}" for k in range(rows.shape[1])]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        return {name: f"{value:g}" for name, value in zip(self.columns, self.rows[i].tolist())}


def store_folder(source: Path) -> Path:
    """Where the labels of a source are kept: in a folder, or beside a file."""
    return source / STORE_FOLDER if source.is_dir() else source.with_name(f"{source.name}{STORE_FOLDER}")


def open_desk(
    source: str | Path,
    *,
    classes: Sequence[str] | None = None,
    store: str | Path | None = None,
    text: str | bool | None = None,
    id: str | None = None,
    label: str | bool | None = None,
    backbone: str = "auto",
    check_every: int = CHECK_EVERY,
    goal: float = STOP_GOAL,
    trains_itself: bool = True,
    lease_seconds: float = LEASE_SECONDS,
    seed: int = 0,
    fit_options: Mapping[str, Any] | None = None,
    graph: str | None = None,
    copies: int | None = None,
    copies_share: float | None = None,
    votes: str | None = None,
    task: str | None = None,
    scale: str | None = None,
    start: bool = True,
) -> LabelDesk:
    """Open a folder of pictures or clips, or a table for labelling, where it was left.

    Args:
        source: A folder of pictures or of clips, or a table (CSV or Parquet: of texts, of rows, or that names files).
        classes: Names of the classes. None takes those of the last time, or those in the data.
        store: The folder of the labels. None is ``.foretaste`` in the folder, or ``NAME.foretaste`` beside the file.
        text: The column of text; False reads a table. None is what it was the last time, for the next two also.
        id: The column of ids.
        label: The column of labels that are there already; False if there is none.
        backbone: "auto", "none" (pixels, or TF-IDF for text), or the name of a pretrained network.
            Clips need one of your own.
        check_every: One item in so many is drawn at random and measures accuracy; 0 for none.
        goal: The share of open items that may be wrong when one stops.
        trains_itself: Whether the network is trained anew when the learner advises it.
        lease_seconds: How long an item is kept for a tab without a sign of life.
        seed: Of random orders and of the learner.
        fit_options: Options of ``ft.fit`` for the learner's trainings; for example {"steps": 500}.
        graph: "auto" (the pool has a say where that helps) or "off". None is what it was the last time, else "auto".
        copies: How many people are asked about one item. None is what it was the last time, else 1.
        copies_share: The share of the items, drawn at random, of which so many are. None: as the last time, else all.
        votes: Whether the label of several people is that of most ("majority"), or the likeliest by how reliable each
            of them is ("reliability"). None: as the last time, else by majority.
        task: "one" class an item, "several" classes (each a yes-or-no question), or a "number". None: as the last time,
            else "one".
        scale: Of numbers, LOW:HIGH or LOW:HIGH:STEP. None: as the last time, else 0:10:1.
        start: Whether to start the learner's thread.

    Returns:
        The desk. ``close_desk`` ends it.

    Raises:
        ValueError: the source cannot be read or has nothing to label, or the classes are missing.
        StoreError: another process labels there, or the file of labels is damaged.

    Example:
        >>> import pathlib
        >>> from foretaste.label import close_desk, open_desk
        >>> _ = pathlib.Path("few.csv").write_text("text\\n" + "\\n".join(f"this is text number {k}" for k in range(9)))
        >>> desk = open_desk("few.csv", classes=["good", "bad"], backbone="none", start=False)
        >>> [item] = desk.next(tab="left", who="Ada", count=1)
        >>> desk.answer("left", "Ada", item, "label", "good", patience=0).label
        'good'
        >>> close_desk(desk)
    """
    from foretaste.connect import encode_with
    from foretaste.data import read_points

    if graph is not None:
        check_known("graph", graph, GRAPH_CHOICES)
    source = Path(source).expanduser()
    folder = Path(store) if store is not None else store_folder(source)
    given = {name: value for name, value in (("text", text), ("id", id), ("label", label)) if value is not None}
    columns, before = kept_settings(folder)
    columns |= given
    asked = read_task(task, scale, before)
    points = read_points(source, **columns, skip_broken=True, regression=asked.kind == "number")
    if (n := len(points) - len(points.held_out)) < 2:
        raise ValueError(f"{source} has {counted(n, 'item')}; expected at least two")
    if points.kind == "clips":
        encode_with(points, backbone)  # what is wrong with the backbone is told now, and not in the background
    kept = LabelStore(folder, lease_seconds=lease_seconds)
    was = kept.task
    try:
        points = name_points(kept, points, "id" in columns)
        rows = {item: k for k, item in enumerate(points.ids)}
        points = points.without_test()
        kept.set_task(asked)
        _settle_classes(kept, classes, points, source)
        _take_given(kept, points)
        names, graph = list(kept.classes), graph or kept.setting("graph", "auto")
        copies = kept.setting("copies", 1) if copies is None else copies
        copies_share = kept.setting("copies_share", 1.0) if copies_share is None else copies_share
        if copies > 1 and asked.kind == "number":
            raise ValueError(
                "several people on one item are for classes: two numbers have no majority; leave copies out"
            )
        if votes is not None:
            kept.set_votes(votes)
        worker = LearnerWorker(
            partial(build_learner, points, names, folder, backbone, seed, fit_options, graph, asked),
            names,
            checked=kept.setting("checked", []),
            record=kept.setting("record", []),
            keep=lambda view: _keep_measures(kept, view),
            goal=goal,
            trains_itself=trains_itself,
        )
        root = source if source.is_dir() else source.parent
        desk = LabelDesk(
            desk_items(points, root),
            kept,
            worker,
            title=source.resolve().name,
            twins=find_twins(points),
            check_every=check_every,
            voices_each=copies,
            voices_share=copies_share,
            seed=seed,
        )
        desk.notes = list(points.notes)
        if kept.setting("ids") == "content":
            desk.rows = rows
        for name, value in (
            ("kind", desk.data.kind), ("total", len(desk.open_ids)), ("twins", desk.twins), ("columns", columns),
            ("graph", graph), ("copies", copies), ("copies_share", copies_share),
        ):  # fmt: skip
            if kept.setting(name) != value:
                kept.set_setting(name, value)
    except BaseException:
        with suppress(OSError, ValueError):
            kept.set_task(was)  # a start that failed leaves no task behind
        kept.close()
        raise
    if start:
        worker.start()
    return desk


def kept_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The columns that were named the last time, as ``read_points`` takes them, and the task; None if there is none."""
    if not (folder / STORE_FILE).is_file():
        return {}, None
    with LabelStore(folder, read_only=True) as kept:
        return dict(kept.setting("columns", {})), kept.task.as_json()


def name_points(store: LabelStore, points: "Points", named: bool = False) -> "Points":
    """The points under the names that the labels are kept by: the user's ids or, without any, what the points hold.

    Positions would not do: rows move between two runs, and each label would stand on another row. ``named``: the user
    named the column of ids. Raises if labels were given by other names: nobody knows then which row is which.
    """
    from foretaste.data import ID_COLUMNS, content_names

    answered, where = set(store.current()), points.where
    how = store.setting("ids")
    found = points.id_column is not None and points.id_column.lower() not in ID_COLUMNS and not named
    by_position = not points.own_ids or (found and all(item.isdecimal() for item in answered))
    if how is None and answered and by_position:
        raise ValueError(
            f"{store.path} names rows by their position, as an earlier version did, and rows may have moved since. If "
            f"{where} has its rows in the same order as then, give it a column id of 0, 1, 2, ... (an array ids in an "
            ".npz): the labels stay. If not, write them with --export labels.csv, and name a new folder with --store"
        )
    if how == "own" and not points.own_ids:
        raise ValueError(
            f"the labels in {store.folder} are kept under ids, and {where} has none now; put their column back, or "
            "name it with --id"
        )
    how = how or ("own" if points.own_ids else "content")
    if store.setting("ids") != how and not store.read_only:
        store.set_setting("ids", how)
    if how == "content":
        points = replace(points, ids=content_names(points))
    if points.kind in FILE_KINDS or not (lost := answered - {*points.ids}):
        return points
    if lost == answered:
        raise ValueError(
            f"none of the {len(lost)} items with an answer is in {where}: other rows, other columns, or cells that "
            f"changed. Put the file back as it was; or name a new folder with --store: the labels in {store.folder} "
            "stay there"
        )
    are = counted(len(lost), "item with an answer is", "items with an answer are")
    note = f"{are} not in {Path(where).name} now, removed or changed; what was said is kept in {STORE_FILE}"
    return replace(points, notes=(*points.notes, note))


def close_desk(desk: LabelDesk) -> None:
    """Stop the learner's thread and close the store.

    Args:
        desk: Of ``open_desk``.

    Example:
        ``open_desk`` has one.
    """
    try:
        desk.worker.close()
        _keep_measures(desk.store, desk.worker.view)
    finally:
        desk.store.close()


def _keep_measures(store: LabelStore, view: ModelView) -> None:
    """What ``foretaste status`` shows of the model."""
    for name, value in (("checked", view.checked), ("advice", view.advice), ("record", view.record)):
        if value:
            store.set_setting(name, value)


def _settle_classes(store: LabelStore, classes: Sequence[str] | None, points: "Points", source: Path) -> None:
    """The classes that the user names, or those of the last time, or those in the data."""
    if store.task.kind == "number":
        if classes:
            raise ValueError("the task is a number, which has no classes; leave them out")
        return
    found = list(points.classes) if any(label is not None for label in points.labels) else []
    if store.task.kind == "several":
        found = sorted({name for label in found for name in store.task.names(label)})
    names = list(classes or store.classes or found)
    if missing := [name for name in found if name not in (*names, *store.known_classes)]:
        if classes:
            raise ValueError(
                f"{source} has labels of {', '.join(missing[:10])}, which {'is' if len(missing) == 1 else 'are'} not "
                f"among the classes {', '.join(names[:10])}; name all of them"
            )
        names += missing
    if len(names) < 2:
        raise ValueError(
            f"there {'is 1 class' if names else 'are no classes'}; name at least two, such as classes=cat,dog"
        )
    if tuple(names) != store.classes:
        store.set_classes(names)


def _take_given(store: LabelStore, points: "Points") -> None:
    """Labels that are in the data count as answers, also where they change; what people say here counts more."""
    touched, current = {event.item for event in store.events()}, store.current()
    with store.together():
        for item, label in zip(points.ids, points.labels):
            if label is not None and (item not in touched or (item in current and current[item].who == GIVEN)):
                store.record(item, "label", label, who=GIVEN, purpose="teach")


def desk_items(points: "Points", root: Path) -> DeskItems:
    """The items as the desk shows them."""
    if points.kind in (*FILE_KINDS, "text", "table"):
        return DeskItems(points.kind, points.ids, points.items, root if points.kind in FILE_KINDS else None)
    return DeskItems("table", points.ids, NamedRows(points.items, points.columns))


def find_twins(points: "Points") -> dict[str, str]:
    """Item → the first item that is the same file or the same text. Only files of equal length are read."""
    items, first, twins = points.items, dict[Any, str](), dict[str, str]()
    if points.kind == "text":
        keys: list[Any] = list(items)
    elif points.kind in FILE_KINDS and hasattr(items, "digest_of"):
        count = Counter(items.lengths)
        keys = [items.digest_of(i) if count[n] > 1 else ("only", i) for i, n in enumerate(items.lengths)]
    else:
        return {}
    for item, key in zip(points.ids, keys):
        if first.setdefault(key, item) != item:
            twins[item] = first[key]
    return twins


def build_learner(
    points: "Points",
    classes: list[str],
    folder: Path,
    backbone: str,
    seed: int,
    fit_options: Mapping[str, Any] | None,
    graph: str,
    task: LabelTask,
    progress: BuildProgress,
) -> BuiltLearner:
    """Compute the features and make the learner; it may take minutes."""
    from foretaste.label.learner import Learner

    x, words = encode_points(points, folder, backbone, progress)
    return BuiltLearner(
        Learner(
            pool=x, ids=list(points.ids), classes=classes or None, background=True, seed=seed, fit_options=fit_options,
            graph=None if graph == "off" else graph, regression=task.kind == "number",
            multi_label=task.kind == "several",
        ),
        words,
    )  # fmt: skip


def encode_points(points: "Points", folder: Path, backbone: str, progress: BuildProgress) -> tuple[Any, str]:
    """(N, D) features, and what they are in words: of a pretrained backbone, or the items' own numbers."""
    from foretaste.connect import default_backbone, encode_with
    from foretaste.network import find_backbone

    if points.kind not in (*FILE_KINDS, "text"):
        return points.x, "the columns, as numbers"
    name, note = backbone if backbone not in ("auto", "none", "tfidf") else None, ""
    if backbone == "auto":
        name = default_backbone(points.kind)
        note = "" if name else f"; foretaste[{'text' if points.kind == 'text' else 'pretrained'}] has a better one"
    if name is not None:
        found = find_backbone(name, kind=points.kind)
        x = encode_with(points, found, progress=progress).x  # kept where `query` and `ft.open` look for them
        shutil.rmtree(folder / "features", ignore_errors=True)  # of an earlier version
        return x, f"features of {found.name}" + (", pretrained" if points.kind != "clips" else "")
    if points.kind == "text":
        return points.x, f"TF-IDF of the words{note}"
    from foretaste.data import pixels

    x = pixels(points.items, size=PIXELS_A_SIDE, progress=progress)
    return x, f"a small network on {PIXELS_A_SIDE}×{PIXELS_A_SIDE} pixels{note}"


# The answers, for those who read the same folder or file: query, open, run. An answer of a person counts before the
# label in the data. What people set aside or were not sure of is no point at all.


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
        current, classes, task = kept.current(), kept.classes, kept.task
        groups = CopyGroups(kept.setting("twins", {}))
        names = name_points(kept, points).ids
    where = f"{printable(str(folder))} (foretaste label)"
    numbers = task.kind == "number"
    if points.regression != numbers or task.kind == "several":
        kind = {"one": "classes", "several": "sets of classes", "number": "numbers"}[task.kind]
        there = "in regression" if points.regression else "here; export them"
        return replace(points, notes=(*points.notes, f"labels in {where} are {kind}: not read {there}"))
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
            f"{counted(len(aside), 'item')} that people set aside or were not sure of {_are(len(aside))} left out"
        )
    if elsewhere:
        n, first = len(elsewhere), printable(elsewhere[0])
        one = f"1 label there is of {first}, which is not here"
        told.append(one if n == 1 else f"{n} labels there are of items that are not here, such as {first}")
    found = points.own_classes or (*classes, *(c for c in points.classes if c not in classes))
    named = replace(points, labels=labels, own_classes=(*found, *(c for c in classes if c not in found)))
    if not used and not told:
        return points
    note = f"{counted(used, 'label')} {_are(used)} from {where}" + (f": {'; '.join(told)}" if told else "")
    return replace(named.take([i for i in range(len(named)) if i not in aside]), notes=(*points.notes, note))


def _are(n: int) -> str:
    return "is" if n == 1 else "are"
