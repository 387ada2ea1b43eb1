"""``Points``: what every reader returns. Items, ids, labels where there are any, and the side of each point.

What has a label trains; the rest is the pool. ``Points.split`` makes the labelled ones a data set for a study.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.data.class_names import (
    NAMES_SHOWN,
    check_words,
    class_ids,
    class_labels,
    class_names,
    count_names,
    differing_labels,
    natural_key,
)
from foretaste.data.columns import (
    MISSING_CELLS,
    TableRows,
    choose_columns,
    column_kinds,
    describe_columns,
    encode_table,
    is_complete_numbers,
    join_tables,
    number_matrix,
)
from foretaste.data.dataset import LARGEST_DATASET, Images, stratified
from foretaste.data.items import (
    PictureItems,
    StoredBytes,
    checked_pictures,
    item_digest,
    join_pictures,
    pixels,
    take_items,
)
from foretaste.data.pictures import ImageSize, Layout, OpenPicture, PictureProgress, decode_pictures
from foretaste.data.tables import LABEL_COLUMNS, Cells, Table, note_validation
from foretaste.data.text import TEXT_ENCODERS, encode_text
from foretaste.errors import check_known, counted, printable

CONTENT_BYTES = 8  # of a digest in a name
NAME_WORDS, NAME_LETTERS = 5, 40  # of a text, in its name
ITEM_WORDS = {
    "pictures": ("picture", "pictures"), "text": ("text", "texts"), "table": ("row", "rows"),
    "features": ("point", "points"), "clips": ("clip", "clips"),
}  # fmt: skip
Encode = Callable[[Sequence[Any]], Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Points:
    """Points with ids and labels; ``x`` is computed when it is first asked for.

    Attributes:
        where: the file, folder or object, for messages.
        kind: "pictures", "clips", "text", "table" (a mixed one) or "features" (numbers as they are).
        items: the points as they came: pictures (read from disk one at a time), strings, rows, or a tensor.
        ids: a name for each point: file names, the user's own ids, or positions.
        labels: a word for each point, None where there is no label.
        own_ids: whether the ids are the user's, and not positions.
        own_classes: all classes in the source's own order, where it has one.
        regression: labels are numbers.
        columns: names of the columns of a table.
        notes: what a reader must know: what was left out, filled in or chosen.
        encode: makes ``x`` of ``items``; None where the items are ``x``.
        id_column: the column of a table that the ids are from.
        side: "pool" or "test" for each point, where the source says so; "val" beside a test side. Only points of the
            pool side are labelled or in the pool; those of the test side measure, in ``split``.

    Example:
        >>> import torch
        >>> from foretaste.data import Points
        >>> points = Points("t", "features", torch.zeros(3, 2), ["a", "b", "c"], ["cat", None, "dog"])
        >>> points
        Points(t: 3 features, 2 labelled, 1 in the pool)
        >>> points.labelled.tolist(), points.pool.tolist(), points.classes, points.y.tolist()
        ([0, 2], [1], ('cat', 'dog'), [0, -1, 1])
    """

    where: str
    kind: str
    items: Any
    ids: list[str]
    labels: list[str | None]
    own_ids: bool = False
    own_classes: tuple[str, ...] | None = None
    regression: bool = False
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    encode: Encode | None = None
    id_column: str | None = None
    side: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        n, U, held = len(self.labelled), len(self.pool), len(self.held_out)
        return (
            f"Points({self.where}: {len(self)} {self.kind}, {n} labelled, {U} in the pool"
            f"{f', {held} on the test side' if held else ''})"
        )

    @cached_property
    def x(self) -> Tensor:
        """(N, D) float32, or (N, channels, H, W) uint8: the items as numbers."""
        x = self.items if self.encode is None else self.encode(self.items)
        if not isinstance(x, Tensor) or len(x) != len(self):
            got = f"{tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ValueError(f"the encoder returned {got} for {len(self)} points; expected a tensor, one row for each")
        return x

    @property
    def labelled(self) -> np.ndarray:
        """Positions of the points that have a label, but for the test side."""
        known = [i for i, label in enumerate(self.labels) if label is not None]
        return np.setdiff1d(np.array(known, dtype=np.int64), self.held_out)

    @property
    def pool(self) -> np.ndarray:
        """Positions of the points without a label, but for the test side."""
        unknown = [i for i, label in enumerate(self.labels) if label is None]
        return np.setdiff1d(np.array(unknown, dtype=np.int64), self.held_out)

    @property
    def held_out(self) -> np.ndarray:
        """Positions of the points on the test side: they are neither trained on nor asked for."""
        return np.array([i for i, side in enumerate(self.side) if side != "pool"], dtype=np.int64)

    @property
    def known_labels(self) -> list[str]:
        """The labels of the points of ``labelled``."""
        return [str(self.labels[i]) for i in self.labelled]

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes: the source's own, or those of the labels. Empty in regression."""
        if self.regression:
            return ()
        return self.own_classes or class_names(_words(self.labels), self.where)

    @cached_property
    def y(self) -> Tensor:
        """(N,) int64 class ids, −1 without a label; in regression float32, NaN without a label."""
        at = torch.tensor([label is not None for label in self.labels], dtype=torch.bool)
        words = _words(self.labels)
        if self.regression:
            y = torch.full((len(self),), torch.nan)
            y[at] = label_numbers(words, self.where)
            return y
        y = torch.full((len(self),), -1)
        y[at] = torch.from_numpy(class_ids(words, self.classes, self.where))
        return y

    @cached_property
    def contradiction(self) -> str | None:
        """A note on items that are equal and have different labels, which no network can learn; None if none are."""
        if self.regression:
            return None
        digest_of = partial(item_digest, self.items)
        return differing_labels(self.ids, self.labels, _rough_sizes(self), digest_of, ITEM_WORDS[self.kind])

    def take(self, rows: Sequence[int] | np.ndarray) -> "Points":
        """Some of the points, in that order."""
        if len(rows) == len(self) and np.array_equal(rows, np.arange(len(self))):
            return self
        rows = [int(i) for i in rows]
        some = replace(
            self, items=take_items(self.items, rows), ids=[self.ids[i] for i in rows],
            labels=[self.labels[i] for i in rows], side=tuple(self.side[i] for i in rows) if self.side else (),
        )  # fmt: skip
        if "x" in self.__dict__:  # an encoder is fitted on all points: its rows stay as they are
            some.__dict__["x"] = self.x[torch.as_tensor(rows, dtype=torch.int64)]
        return some

    def without_test(self) -> "Points":
        """The points that are not on the test side; a note says how many are left out."""
        if not len(self.held_out):
            return self
        rest = self.take(np.setdiff1d(np.arange(len(self)), self.held_out))
        return replace(rest, side=(), notes=(*self.notes, note_test_side(len(self.held_out))))

    def split(self, test: float = 0.2, *, name: str | None = None) -> Images:
        """The labelled points as a data set for a study. ``side`` says which measure, else ``test`` of each class.

        Text and mixed tables are encoded, fitted on all points, labelled or not. The draw is always the same.
        """
        if self.kind != "pictures":
            self.x  # noqa: B018  fitted now, on all points
        (one, many), unlabelled = ITEM_WORDS[self.kind], self.labels.count(None)
        used = [side != "val" for side in self.side] or [True] * len(self)
        known = self.take([i for i, label in enumerate(self.labels) if label is not None and used[i]])
        labels = _words(known.labels)
        if not labels:
            have = f"has columns {', '.join(self.columns[:NAMES_SHOWN])} and" if self.columns else "has"
            raise ValueError(f"{self.where} {have} none for the label; expected one of {', '.join(LABEL_COLUMNS)}")
        found = tuple(sorted(set(labels), key=natural_key))
        if len(found) < 2:
            raise ValueError(
                f"{self.where}: all {len(labels)} {many} are of one class, {found[0]!r}; expected two classes or more"
            )
        classes = self.own_classes or found
        y_N = class_ids(labels, classes, self.where)
        pool, held = known._sides(one) if self.side else stratified(y_N, test)
        notes = list(self.notes)
        if self.kind in ("text", "table"):
            how = f"{self.kind}, encoded as {known.x.shape[1]} numbers, fitted on all {len(self)} points"
            notes.append(f"{Path(self.where).name}: {how}")
        elif self.columns:
            notes.append(f"{Path(self.where).name}: {known.x.shape[1]} features of {len(labels)} points")
        if unlabelled:
            notes.append(f"{counted(unlabelled, 'point has', 'points have')} no label: left out")
        if left := used.count(False):
            notes.append(note_validation(left, one, many))
        if (self.columns or not isinstance(self.items, Tensor)) and known.contradiction:
            notes.append(known.contradiction)
        notes += known._class_notes(y_N, classes, pool, held, one)
        read = None
        if self.kind in ("text", "table"):
            read = blake2b(b"".join(content_digests(self)), digest_size=16).hexdigest()
        files = tuple(known.ids) if self.kind == "pictures" and self.own_ids else None
        return Images(
            name or Path(self.where).stem, known.x, torch.from_numpy(y_N), pool, held, classes, files=files,
            notes=tuple(notes), read=read,
        )  # fmt: skip

    def _sides(self, one: str) -> tuple[np.ndarray, np.ndarray]:
        """Positions of pool and test."""
        is_test = np.array([side == "test" for side in self.side])
        if is_test.all() or not is_test.any():
            missing = "train" if is_test.all() else "test"
            raise ValueError(f"{self.where}: no {one} is on the {missing} side of its own split")
        return np.flatnonzero(~is_test), np.flatnonzero(is_test)

    def _class_notes(
        self, y_N: np.ndarray, classes: Sequence[str], pool: np.ndarray, held: np.ndarray, one: str
    ) -> list[str]:
        """Notes on classes that pool or test lack. In test alone: an error, unless the source names its classes."""
        notes = []
        in_pool, in_test = set(y_N[pool].tolist()), set(y_N[held].tolist())
        if only := [classes[c] for c in in_test - in_pool]:
            if self.own_classes is None:
                raise ValueError(
                    f"{self.where}: {count_names(only, 'class {} stands', 'classes {} stand')} only in test; no label "
                    "could teach it: move some of its points to train, or remove it"
                )
            notes.append(f"{count_names(only, 'class {} occurs', 'classes {} occur')} in test and never in the pool")
        if len(held) and (unmeasured := [classes[c] for c in in_pool - in_test]):
            notes.append(f"{count_names(unmeasured, 'class {} has', 'classes {} have')} no {one} in test")
        if unused := [name for c, name in enumerate(classes) if c not in in_pool | in_test]:
            notes.append(f"{count_names(unused, 'class {} has', 'classes {} have')} no {one}")
        return notes

    @property
    def sizes(self) -> Counter[tuple[int, int]]:
        """How many pictures have each (height, width)."""
        if isinstance(self.items, PictureItems):
            return Counter(self.items.sizes)
        return Counter({tuple(self.items.shape[-2:]): len(self)}) if self.kind == "pictures" else Counter()


@dataclass(frozen=True)
class ReadOptions:
    """How to read a source: the arguments of ``ft.open``, and the last three."""

    label: Any = None
    text: str | bool | None = None
    id: str | None = None
    classes: Sequence[str] | None = None
    regression: bool = False
    encoder: "str | Encode" = "auto"
    size: ImageSize = None
    channels: int | None = None
    layout: Layout | None = None
    skip_broken: bool = True
    progress: PictureProgress | None = None
    most: int = LARGEST_DATASET  # bytes in memory; more is refused
    ask: bool = True  # stop where a mostly empty column may be the label; False takes it as a feature
    for_study: bool = False  # every point needs a label, the test side is read too, and pictures are decoded at once

    def __post_init__(self) -> None:
        if isinstance(self.encoder, str):
            check_known("encoder", self.encoder, ("auto", *TEXT_ENCODERS))

    @property
    def wants_text(self) -> str | bool | None:
        """The column of text, or True where the encoder is one of texts."""
        return True if self.text is None and self.encoder in TEXT_ENCODERS else self.text


def note_test_side(n: int) -> str:
    """A note on points that are neither trained on nor asked for."""
    return (
        counted(n, "point of the test or validation split is", "points of the test or validation split are")
        + " left out"
    )


def picture_points(
    where: str, opened: OpenPicture, stored: StoredBytes, names: Sequence[str], labels: Sequence[str | None] | None,
    how: ReadOptions, side: Sequence[str] = (), path_of: Callable[[int], Path] | None = None,
) -> Points:  # fmt: skip
    """Pictures, read when asked for, or at once for a study; those that are broken are left out, with their labels."""
    shown, known = printable(where), [None] * len(names) if labels is None else list(labels)
    pixel_options: dict[str, Any] = {
        "size": how.size, "channels": how.channels, "most": how.most, "progress": how.progress, "where": shown,
    }  # fmt: skip
    items: PictureItems | Tensor
    encode: Encode | None
    if how.for_study:
        decoded = decode_pictures(opened, names, skip_broken=how.skip_broken, **pixel_options)
        items, kept, notes, encode = decoded.x, decoded.kept.tolist(), decoded.notes, None
        if gone := {str(label) for label in known} - {str(known[i]) for i in kept}:
            lost = count_names(gone, "class {} has", "classes {} have")
            notes += (f"{lost} no picture that can be read: left out",)
    else:
        items, kept, notes = checked_pictures(
            opened, stored, names, skip_broken=how.skip_broken, where=shown, progress=how.progress, path_of=path_of
        )
        encode = partial(pixels, **pixel_options)
    return Points(
        where, "pictures", items, [names[i] for i in kept], [known[i] for i in kept], True, notes=notes, encode=encode,
        side=tuple(side[i] for i in kept) if side else (),
    )  # fmt: skip


def array_points(
    where: str, x: np.ndarray, labels: list[str | None], notes: tuple[str, ...] = (), side: tuple[str, ...] = ()
) -> Points:
    """Pictures (N, channels, H, W) or features in memory, called by their positions."""
    made = torch.from_numpy(np.ascontiguousarray(x))
    ids = [str(i) for i in range(len(made))]
    return Points(where, "pictures" if made.dim() == 4 else "features", made, ids, labels, notes=notes, side=side)


def checked_points(points: Points) -> Points:
    """The same points, after a check of ids and labels; labels become class names (1.0 is class 1)."""
    p = points
    if not len(p):
        raise ValueError(f"{p.where} has no points; expected at least one")
    if twice := [name for name, n in Counter(p.ids).items() if n > 1]:
        names = count_names(twice, "id {} stands", "ids {} stand")
        raise ValueError(f"{p.where}: {names} more than once; expected each once")
    if missing := p.ids.count(""):
        raise ValueError(
            f"{p.where}: {counted(missing, 'point has', 'points have')} no id; fill it in, or leave the column out"
        )
    check_words(p.where, "id", "ids", p.ids)
    words = _words(p.labels)
    check_words(p.where, "label", "labels", set(words))
    if p.regression:
        label_numbers(words, p.where)  # now: a pool of nothing but "nan" would count as labelled
        return p
    labels = class_labels(p.labels, p.where)
    counts = Counter(_words(labels))
    missing_words = {w: n for w, n in counts.items() if w.lower() in MISSING_CELLS or (w == "-1" and len(counts) > 2)}
    notes = tuple(
        f"{counted(n, 'label is', 'labels are')} {word!r}, which is taken as a class; leave the cell empty if it means "
        "that there is no label"
        for word, n in missing_words.items()
        if word not in (p.own_classes or ())
    )
    return replace(p, labels=labels, notes=(*p.notes, *notes))


def _words(labels: Sequence[str | None]) -> list[str]:
    """The labels that are there."""
    return [label for label in labels if label is not None]


def points_of_table(table: Table, how: ReadOptions, labels: Sequence[str | None] | None = None) -> Points:
    """Text, a mixed table, or features; a row without an id is called by its position."""
    label = how.label if labels is None else None
    roles = choose_columns(
        table, id=how.id, label=label, text=how.wants_text, regression=how.regression, ask=how.ask and labels is None
    )
    if labels is None:
        labels = [None] * len(table) if roles.label is None else table.columns[roles.label]
    ids = row_ids(table, roles.id)
    points = Points(
        table.where, "text", [], ids, list(labels), roles.id is not None, notes=roles.notes, id_column=roles.id,
        side=roles.side,
    )  # fmt: skip
    if roles.text is not None:
        name = how.encoder if how.encoder in TEXT_ENCODERS else TEXT_ENCODERS[0]
        items = [cell or "" for cell in table.columns[roles.text]]
        notes = points.notes
        if empty := items.count(""):
            notes += (counted(empty, "text is empty", "texts are empty"),)
        return replace(points, items=items, encode=partial(encode_text, how=str(name)), notes=notes)
    if not roles.features:
        shown = describe_columns(table, list(table.columns))
        raise ValueError(f"{table.where} has columns {shown} and no features; expected more beside id and label")
    return points_of_rows(replace(points, items=TableRows(table.only(roles.features))))


def row_ids(table: Table, column: str | None) -> list[str]:
    """The cells of the column of ids; positions without one."""
    if column is None:
        return [str(i) for i in range(len(table))]
    ids = [cell or "" for cell in table.columns[column]]
    if bad := [table.lines[i] for i, name in enumerate(ids) if not name]:
        raise ValueError(f"{table.where}: {table.row} {bad[0]}: no {column}; fill it in, or leave the column out")
    return ids


def points_of_rows(points: Points) -> Points:
    """Points whose items are rows of a table: features where every cell is a number, else a mixed table."""
    table = points.items.table
    kinds, notes = column_kinds(table)  # raises on infinite numbers
    if is_complete_numbers(table):
        return replace(points, kind="features", items=number_matrix(table), encode=None, columns=tuple(table.columns))
    rows, names, notes = TableRows(table.only([*kinds]), table), tuple(kinds), (*points.notes, *notes)
    return replace(points, kind="table", items=rows, encode=encode_table, columns=names, notes=notes)


def content_names(points: Points) -> list[str]:
    """A name for each point that follows what it holds, so that rows may move and labels be filled in.

    Copies are counted, NAME and NAME-2. The name of a text begins with its first words.
    """
    starts = ["picture" if points.kind == "pictures" else "row"] * len(points)
    if points.kind == "text":
        words = (re.findall(r"\w+", text.lower())[:NAME_WORDS] for text in points.items)
        starts = ["-".join(first)[:NAME_LETTERS] or "text" for first in words]
    seen, names = Counter[bytes](), list[str]()
    for start, digest in zip(starts, content_digests(points)):
        seen[digest] += 1
        names.append(f"{start}-{digest.hex()}" + (f"-{seen[digest]}" if seen[digest] > 1 else ""))
    return names


def content_digests(points: Points) -> list[bytes]:
    """A digest of what each point holds; that of a row is the same in any order of the columns."""
    items = points.items
    if isinstance(items, TableRows):
        return [blake2b(row, digest_size=CONTENT_BYTES).digest() for row in items.contents()]
    if isinstance(items, Tensor) and points.columns:  # in the order that ``contents`` of a mixed table has
        items = items[:, [points.columns.index(name) for name in sorted(points.columns)]]
    return [item_digest(items, i, CONTENT_BYTES) for i in range(len(points))]


def join_sources(labelled: Points, pool: Points) -> Points:
    """One set of points from two: labels of the first stay, those of the second are hidden. Raises if kinds differ."""
    a, b = labelled, pool
    if a.kind != b.kind and not (a.columns and b.columns):
        raise ValueError(f"{a.where} holds {a.kind} and {b.where} holds {b.kind}; expected both alike")
    notes = (f"{p.where}: {note}" for p in (a, b) for note in p.notes)
    joined = replace(
        a, where=a.where if a.where == b.where else f"{a.where} and {b.where}", ids=[*a.ids, *b.ids],
        labels=[*a.labels, *[None] * len(b)], own_classes=a.own_classes or b.own_classes, side=(),
        notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip
    if a.columns or b.columns:
        table = join_tables(_rows_as_table(a), _rows_as_table(b), joined.where)
        return points_of_rows(replace(joined, items=TableRows(table), notes=()))
    if isinstance(a.items, PictureItems) and isinstance(b.items, PictureItems):
        return replace(joined, items=join_pictures(a.items, b.items))
    if isinstance(a.items, Tensor) and isinstance(b.items, Tensor):
        if a.items.shape[1:] != b.items.shape[1:] or a.items.dtype != b.items.dtype:
            shapes = [
                f"{p.where} are {tuple(p.items.shape[1:])} of {p.items.dtype}".replace("torch.", "") for p in (a, b)
            ]
            raise ValueError(f"points of {shapes[0]}, those of {shapes[1]}; expected both alike")
        return replace(joined, items=torch.cat([a.items, b.items]))
    if isinstance(a.items, list) and isinstance(b.items, list):
        return replace(joined, items=[*a.items, *b.items])
    raise ValueError(f"{a.where} and {b.where} hold {a.kind} of two sorts (files and arrays); expected both alike")


def _rows_as_table(points: Points) -> Table:
    if isinstance(points.items, TableRows):
        return points.items.table
    columns: dict[str, Cells] = {
        name: [repr(v) for v in values] for name, values in zip(points.columns, points.items.T.tolist())
    }
    return Table(points.where, columns, range(1, len(points) + 1), "point")


def without_repeats(pool: Points, labelled: Points) -> Points:
    """The pool less the points that are labelled already; a note says how many there were.

    Two points are the same if they are the same file, if the user gave them the same id, or if their contents are
    equal.
    """
    known_keys, known_sizes = set(_identities(labelled)) - {None}, set(_rough_sizes(labelled))
    known_values = {item_digest(labelled.items, i) for i in range(len(labelled))}
    keys, sizes = _identities(pool), _rough_sizes(pool)
    same_key = {j for j in range(len(pool)) if keys[j] in known_keys}
    same_values = {
        j for j in range(len(pool)) if sizes[j] in known_sizes and item_digest(pool.items, j) in known_values
    }
    drop = same_key | same_values
    if not drop:
        return pool
    points = "1 point is labelled already," if len(drop) == 1 else f"{len(drop)} points are labelled already, such as"
    note = f"{points} {pool.ids[min(drop)]}: left out of the pool"
    if differ := len(same_key - same_values):
        note += f" ({differ} of them by their id alone: their values differ)"
    if renamed := sum(keys[j] is not None for j in same_values - same_key):
        note += f" ({renamed} of them by their values alone: a labelled point with another id has the same)"
    return replace(pool.take([j for j in range(len(pool)) if j not in drop]), notes=(*pool.notes, note))


def _rough_sizes(points: Points) -> list[object]:
    """Items of different sizes are different: most pictures need not be read to be told apart."""
    items = points.items
    return list(zip(items.sizes, items.lengths)) if isinstance(items, PictureItems) else [0] * len(points)


def _identities(points: Points) -> list[str | None]:
    """What names each point beyond its file: the path of a picture, or the user's id. None for positions."""
    if not points.own_ids:
        return [None] * len(points)
    if points.kind not in ("pictures", "clips"):
        return list(points.ids)
    where = Path(points.where)
    root = where if where.is_dir() else where.parent
    return [str(path.resolve()) if (path := root / name).is_file() else name for name in points.ids]


def label_numbers(labels: Sequence[str], where: object) -> Tensor:
    """(N,) labels as numbers, for regression."""
    try:
        y = torch.tensor([float(label) for label in labels])
    except ValueError as error:
        raise ValueError(f"{where}: regression wants numbers as labels ({error})") from None
    if bad := int((~torch.isfinite(y)).sum()):
        words = counted(bad, "label is not a finite number", "labels are not finite numbers")
        raise ValueError(f"{where}: {words}; leave the cell empty where there is no label")
    return y
