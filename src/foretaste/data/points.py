"""Points of a user's own files, some labelled and some not: what querying a pool starts from.

The usual input is one folder or table in which some labels are filled in. Labelled points train; the others are the
pool. What counts as no label:

- a CSV: an empty cell, or no column for labels
- a folder: a picture outside the class folders, in a folder called unlabelled or unsorted, or absent from its CSV
- an .npz: NaN among float labels, "" among strings, or no ``y``
- a Hugging Face dataset: null, or −1 for a ClassLabel
"""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foretaste.data.catalogue import LARGEST_DATASET
from foretaste.data.folders import decode_files, find_label_table, list_folder, note_other_files, without_validation
from foretaste.data.huggingface import is_saved_dataset, read_saved_points
from foretaste.data.labels import array_labels, check_words, class_labels, count_names
from foretaste.data.npz import Layout, array_names, lay_out_points, read_arrays
from foretaste.data.pictures import ImageSize, PictureProgress, open_picture, oriented_size
from foretaste.data.tables import file_columns, is_csv, read_feature_table, read_file_table

POINT_ARRAYS, POINT_LABEL_ARRAYS = ("x", "images", "features"), ("y", "labels", "label")
NO_CLASS_FOLDERS = ("unlabelled", "unlabeled", "unsorted")


@dataclass(frozen=True, eq=False)
class Points:
    """Points of a file or folder, with ids and labels as words.

    Example:
        >>> import torch
        >>> from foretaste.data import Points
        >>> points = Points("t.csv", torch.zeros(3, 2), ["a", "b", "c"], ["cat", None, "dog"])
        >>> points.labelled.ids, points.unlabelled.ids
        (['a', 'c'], ['b'])
    """

    where: str  # the file or folder, for messages
    x: Tensor  # (N, channels, H, W) uint8 or float32 in [0, 1] for pictures; (N, D) float32 for features
    ids: list[str]
    labels: list[str | None]  # None where there is no label
    features: tuple[str, ...] | None = None  # names of a table's columns
    own_ids: bool = False  # whether ids are the user's own, and not positions
    classes: tuple[str, ...] | None = None  # all classes in the file's own order, where it has one
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labelled(self) -> "Points":
        """The points that have a label."""
        return self.take([i for i, label in enumerate(self.labels) if label is not None])

    @property
    def unlabelled(self) -> "Points":
        """The points without a label: the pool."""
        return self.take([i for i, label in enumerate(self.labels) if label is None])

    @property
    def known_labels(self) -> list[str]:
        """The labels that are there, in the order of their points."""
        return [label for label in self.labels if label is not None]

    def take(self, rows: Sequence[int]) -> "Points":
        """Some of the points, in that order."""
        if list(rows) == list(range(len(self))):
            return self
        x = self.x[torch.as_tensor(rows, dtype=torch.int64)]
        return replace(self, x=x, ids=[self.ids[i] for i in rows], labels=[self.labels[i] for i in rows])


def read_points(
    path: str | os.PathLike[str],
    *,
    regression: bool = False,
    size: ImageSize = None,
    channels: int | None = None,
    skip_broken: bool = False,
    layout: Layout | None = None,
    most: int = LARGEST_DATASET,
    progress: PictureProgress | None = None,
) -> Points:
    """Read points, labelled or not, from a user's own file or folder.

    Args:
        path: an .npz (x, and perhaps y, ids, classes), a CSV of features, a CSV of files, a folder of pictures, or a
            Hugging Face dataset saved to disk.
        regression: labels are numbers and stay as written. Otherwise they are classes: 1.0 is class 1, and numbers
            that are not whole are an error.
        size: pixels a side, or (height, width), for files of pictures.
        channels: 1 or 3, for files of pictures.
        skip_broken: leave out pictures that cannot be read; ``notes`` names them.
        layout: "NHWC" or "NCHW", for an .npz whose shape does not decide.
        most: bytes in memory; more is refused before it is read.
        progress: called as ``progress(done, of how many)``.

    Returns:
        All points in the order of the file; ``labelled`` and ``unlabelled`` are the two parts.

    Raises:
        FileNotFoundError: the path, or a file that a CSV names, is missing.
        ValueError: the file cannot be read, has no points, repeats an id, or has labels that are no classes.

    Example:
        >>> import tempfile, pathlib
        >>> from foretaste.data import read_points
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "flowers.csv"
        >>> _ = file.write_text("id,label,width\\na,rose,1\\nb,,2\\nc,tulip,3\\n")
        >>> points = read_points(file)
        >>> points.labelled.labels, points.unlabelled.ids
        (['rose', 'tulip'], ['b'])
    """
    path = Path(path).expanduser()
    of_pictures = _PictureOptions(size, channels, skip_broken, most, progress)
    if is_saved_dataset(path):
        got = _points_of_dataset(path, of_pictures)
    elif path.is_dir():
        got = _points_of_folder(path, of_pictures)
    elif not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected an .npz, a CSV, or a folder of pictures")
    elif path.suffix.lower() == ".npz":
        got = _points_of_npz(path, layout, most)
    elif is_csv(path):
        has_files = file_columns(path, labelled=False) is not None
        got = _points_of_files(path.parent, path, of_pictures) if has_files else _points_of_table(path)
    else:
        raise ValueError(f"{path}: unknown ending {path.suffix!r}; expected .npz, .csv, .tsv, or a folder of pictures")
    if not len(got):
        raise ValueError(f"{path} has no points; expected at least one")
    if twice := [name for name, n in Counter(got.ids).items() if n > 1]:
        names = count_names(twice, "id {} stands", "ids {} stand")
        raise ValueError(f"{path}: {names} more than once; expected each once")
    check_words(path, "id", "ids", got.ids)
    check_words(path, "label", "labels", got.known_labels)
    return got if regression else replace(got, labels=class_labels(got.labels, path))


def picture_sizes(path: str | os.PathLike[str]) -> Counter[tuple[int, int]]:
    """How many pictures of a folder, or of a CSV of files, have each (height, width).

    Only headers are read. Empty for any other file. Pictures that cannot be opened are not counted: ``read_points``
    names them.
    """
    path, sizes = Path(path).expanduser(), Counter[tuple[int, int]]()
    if path.is_dir() and not is_saved_dataset(path):
        root, files = path, list(list_folder(path).pictures)
    elif path.is_file() and is_csv(path) and file_columns(path, labelled=False) is not None:
        root, files = path.parent, [row.file for row in read_file_table(path, skip_broken=True, gaps=True)[0]]
    else:
        return sizes
    for file in files:
        with suppress(Exception), open_picture(root / file) as image:  # a decoder may raise anything on a broken file
            sizes[oriented_size(image)] += 1
    return sizes


@dataclass(frozen=True)
class _PictureOptions:
    size: ImageSize
    channels: int | None
    skip_broken: bool
    most: int
    progress: PictureProgress | None


def _points_of_npz(path: Path, layout: Layout | None, most: int) -> Points:
    there = array_names(path)
    x, y = (next((name for name in names if name in there), None) for names in (POINT_ARRAYS, POINT_LABEL_ARRAYS))
    if x is None:
        raise ValueError(f"{path} has {', '.join(there) or 'nothing'}; expected x, and y and ids where there are any")
    names = [name for name in (x, y, "ids", "classes") if name in there]
    got = dict(zip(names, read_arrays(path, names, most)))
    ((points, how),) = lay_out_points([got[x]], [f"{path}: {x}"], layout)
    for name in (y, "ids"):
        if name in got and got[name].shape == (len(points), 1):
            got[name] = got[name][:, 0]
    faults = [
        f"{name} is {got[name].dtype} {got[name].shape}; expected one for each of {len(points)} points"
        for name in (y, "ids")
        if name in got and got[name].shape != (len(points),)
    ]
    if y is not None and got[y].dtype.kind == "b":
        faults.append(f"{y} is of truth values; expected integers, strings, or numbers for regression")
    if faults:
        raise ValueError(f"{path}: {'; '.join(faults)}")
    ids = [str(word) for word in array_labels(got["ids"])] if "ids" in got else [str(i) for i in range(len(points))]
    called = tuple(map(str, array_labels(got["classes"].ravel()))) if "classes" in got else None
    labels: list[str | None] = [None] * len(points) if y is None else array_labels(got[y])
    if y is not None and called is not None and got[y].dtype.kind in "iuf":
        labels = _named_classes(path, labels, called)
    tensor = torch.from_numpy(np.ascontiguousarray(points))
    others = [name for name in there if name not in names]
    left = (f"{count_names(others, 'array {} is', 'arrays {} are')} not read",) if others else ()
    return Points(str(path), tensor, ids, labels, None, "ids" in got, called, (how, *left))


def _named_classes(path: Path, labels: list[str | None], classes: tuple[str, ...]) -> list[str | None]:
    """Class ids, counted from 0, as the names of their classes."""
    numbers = [None if label is None else int(label) for label in class_labels(labels, path)]
    if bad := sum(c is not None and not 0 <= c < len(classes) for c in numbers):
        raise ValueError(f"{path}: {bad} labels are not among its {len(classes)} classes, counted from 0")
    return [None if c is None else classes[c] for c in numbers]


def _points_of_table(path: Path) -> Points:
    """A CSV of numbers; a point without an id is called by its position."""
    got = read_feature_table(path, gaps=True)
    ids = [str(n) for n in range(len(got.x))] if got.ids is None else got.ids
    labels: list[str | None] = [None] * len(got.x) if got.labels is None else got.labels
    return Points(str(path), torch.from_numpy(got.x), ids, labels, got.names, got.ids is not None)


def _points_of_folder(root: Path, of_pictures: _PictureOptions) -> Points:
    """Pictures in class folders, with a CSV of labels, or without labels."""
    _, table = find_label_table(root, needed=False)
    if table is not None:
        return _points_of_files(root, table, of_pictures, others=list_folder(root).pictures)
    here = list_folder(root)
    if not here.pictures:
        raise ValueError(f"{root} has no pictures; expected some, or folders of them")
    notes = filter(None, [note_other_files(here.others)])
    labels = [_folder_label(file) for file in here.pictures]
    return _decoded_points(root, str(root), here.pictures, labels, of_pictures, tuple(notes))


def _folder_label(file: str) -> str | None:
    """The first folder of a picture's path; None outside class folders."""
    first, slash, _ = file.partition("/")
    return first if slash and first.lower() not in NO_CLASS_FOLDERS else None


def _points_of_files(root: Path, table: Path, of_pictures: _PictureOptions, others: Sequence[str] = ()) -> Points:
    """The pictures that a CSV names, then ``others`` without labels."""
    rows, notes = read_file_table(table, skip_broken=of_pictures.skip_broken, gaps=True)
    in_table = {row.file for row in rows}
    more = [file for file in others if file not in in_table]
    rows, left = without_validation(rows)
    files = [row.file for row in rows]
    labels = [row.label for row in rows] + [None] * len(more)
    about = [f"labels are from {table.name}", *notes, *left]
    if more:
        about.append(f"{len(more)} pictures of the folder do not stand in {table.name}: they have no label")
    where = str(root) if others else str(table)
    return _decoded_points(root, where, [*files, *more], labels, of_pictures, tuple(about))


def _decoded_points(
    root: Path,
    where: str,
    files: Sequence[str],
    labels: Sequence[str | None],
    how: _PictureOptions,
    notes: tuple[str, ...],
) -> Points:
    """Pictures are called by their path within the folder."""
    got = decode_files(root, files, how.size, how.channels, how.skip_broken, how.progress, how.most)
    kept = [int(i) for i in got.kept]
    kept_labels = [labels[i] for i in kept]
    return Points(where, got.x, [files[i] for i in kept], kept_labels, None, True, None, (*notes, *got.notes))


def _points_of_dataset(path: Path, how: _PictureOptions) -> Points:
    """A Hugging Face dataset saved to disk; a row without an id is called by its position."""
    got = read_saved_points(
        path,
        size=how.size,
        channels=how.channels,
        skip_broken=how.skip_broken,
        most=how.most,
        progress=how.progress,
    )
    ids = [str(i) for i in got.kept] if got.ids is None else got.ids
    labels: list[str | None] = [None] * len(ids) if got.labels is None else got.labels
    return Points(str(path), got.x, ids, labels, got.columns, got.ids is not None, got.classes, got.notes)
