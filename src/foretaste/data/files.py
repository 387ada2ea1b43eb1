"""Points from files: a folder of pictures, a CSV of files, an .npz; and what a reader is told about a source."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from foretaste.data.catalogue import LARGEST_DATASET
from foretaste.data.class_names import array_labels, class_labels, count_names
from foretaste.data.folders import check_names, find_label_table, list_folder, note_other_files, without_validation
from foretaste.data.items import checked_pictures, pixels
from foretaste.data.npz import Layout, array_names, lay_out_points, read_arrays
from foretaste.data.pictures import ImageSize, PictureProgress, open_picture
from foretaste.data.points import Encode, Points
from foretaste.data.tables import cell_text, file_inside, read_file_table
from foretaste.data.text import TEXT_ENCODERS
from foretaste.errors import counted, did_you_mean, printable

POINT_ARRAYS, POINT_LABEL_ARRAYS = ("x", "images", "features"), ("y", "labels", "label")
NO_CLASS_FOLDERS = ("unlabelled", "unlabeled", "unsorted")


@dataclass(frozen=True)
class ReadOptions:
    """What the user said about a source."""

    label: Any = None
    text: str | bool | None = None
    id: str | None = None
    classes: tuple[str, ...] | None = None
    regression: bool = False
    encoder: "str | Encode" = "auto"
    size: ImageSize = None
    channels: int | None = None
    layout: Layout | None = None
    skip_broken: bool = True
    most: int = LARGEST_DATASET
    progress: PictureProgress | None = None
    ask: bool = True

    @property
    def wants_text(self) -> str | bool | None:
        """The column of text, or True where the encoder is one of texts."""
        return True if self.text is None and self.encoder in TEXT_ENCODERS else self.text


def folder_points(root: Path, how: ReadOptions) -> Points:
    """Pictures in class folders, with a CSV of labels, or without labels."""
    _, table = find_label_table(root, needed=False)
    if table is not None:
        return listed_points(root, table, how, others=list_folder(root).pictures)
    here = list_folder(root)
    if not here.pictures:
        raise ValueError(
            f"{root} has no pictures; expected some, or folders of them. A CSV or an .npz is given by its own path"
        )
    notes = filter(None, [note_other_files(here.others)])
    labels = [_folder_label(file) for file in here.pictures]
    return _file_pictures(root, str(root), here.pictures, labels, how, tuple(notes))


def _folder_label(file: str) -> str | None:
    """The first folder of a picture's path; None outside class folders."""
    first, slash, _ = file.partition("/")
    return first if slash and first.lower() not in NO_CLASS_FOLDERS else None


def listed_points(root: Path, table: Path, how: ReadOptions, others: Sequence[str] = ()) -> Points:
    """The pictures that a CSV names, then ``others`` without labels."""
    rows, notes = read_file_table(table, skip_broken=how.skip_broken, gaps=True)
    in_table = {row.file for row in rows}
    more = [file for file in others if file not in in_table]
    rows, left = without_validation(rows)
    files = [row.file for row in rows]
    labels = [row.label for row in rows] + [None] * len(more)
    about = [f"labels are from {table.name}", *notes, *left]
    if more:
        stand = counted(len(more), "picture of the folder does not stand", "pictures of the folder do not stand")
        about.append(f"{stand} in {table.name}: no label")
    where = str(root) if others else str(table)
    return _file_pictures(root, where, [*files, *more], labels, how, tuple(about))


def _file_pictures(
    root: Path,
    where: str,
    files: Sequence[str],
    labels: Sequence[str | None],
    how: ReadOptions,
    notes: tuple[str, ...],
) -> Points:
    """Pictures are called by their path within the folder."""
    check_names(root, files)
    top = root.resolve()
    points = picture_points(
        where,
        lambda i: open_picture(file_inside(top, files[i])),
        lambda i: file_inside(top, files[i]).read_bytes(),
        files,
        labels,
        how,
    )
    return replace(points, notes=(*notes, *points.notes))


def picture_points(
    where: str,
    opened: Callable[[int], Image.Image],
    stored: Callable[[int], bytes],
    names: Sequence[str],
    labels: Sequence[str | None] | None,
    how: ReadOptions,
) -> Points:
    """Pictures that are read when asked for; those that are broken are left out, with their labels."""
    items, kept, notes = checked_pictures(
        opened, stored, names, skip_broken=how.skip_broken, where=printable(where), progress=how.progress
    )
    known = [None] * len(names) if labels is None else labels
    encode = partial(
        pixels, size=how.size, channels=how.channels, most=how.most, progress=how.progress, where=printable(where)
    )
    ids = [names[i] for i in kept]
    return Points(where, "pictures", items, ids, [known[i] for i in kept], True, notes=notes, encode=encode)


def npz_points(path: Path, how: ReadOptions) -> Points:
    there = array_names(path)
    x, y = (next((name for name in names if name in there), None) for names in (POINT_ARRAYS, POINT_LABEL_ARRAYS))
    if x is None:
        raise ValueError(f"{path} has {', '.join(there) or 'nothing'}; expected x, and y and ids where there are any")
    if isinstance(how.label, str):
        if how.label not in there:
            meant = did_you_mean(how.label, there, "Its arrays")
            raise ValueError(f"{path} has no array {how.label!r} for the label{meant}")
        y = how.label
    names = [name for name in (x, y, "ids", "classes") if name in there]
    got = dict(zip(names, read_arrays(path, names, how.most)))
    ((laid, note),) = lay_out_points([got[x]], [f"{path}: {x}"], how.layout)
    for name in (y, "ids"):
        if name in got and got[name].shape == (len(laid), 1):
            got[name] = got[name][:, 0]
    faults = [
        f"{name} is {got[name].dtype} {got[name].shape}; expected one for each of {len(laid)} points"
        for name in (y, "ids")
        if name in got and got[name].shape != (len(laid),)
    ]
    if y is not None and got[y].dtype.kind == "b":
        faults.append(f"{y} is of truth values; expected integers, strings, or numbers for regression")
    if faults:
        raise ValueError(f"{path}: {'; '.join(faults)}")
    ids = [str(word) for word in array_labels(got["ids"])] if "ids" in got else [str(i) for i in range(len(laid))]
    called = tuple(map(str, array_labels(got["classes"].ravel()))) if "classes" in got else None
    labels: list[str | None] = [None] * len(laid) if y is None else label_words(got[y], how.regression, path)
    if y is not None and called is not None and got[y].dtype.kind in "iuf":
        labels = named_classes(path, labels, called)
    others = [name for name in there if name not in names]
    left = (f"{count_names(others, 'array {} is', 'arrays {} are')} not read",) if others else ()
    points = tensor_points(str(path), laid, ids, labels, (note, *left))
    return replace(points, own_ids="ids" in got, own_classes=called)


def tensor_points(
    where: str, laid: np.ndarray, ids: list[str], labels: list[str | None], notes: tuple[str, ...]
) -> Points:
    x = torch.from_numpy(np.ascontiguousarray(laid))
    return Points(where, "pictures" if x.dim() == 4 else "features", x, ids, labels, notes=notes)


def named_classes(where: object, labels: list[str | None], classes: tuple[str, ...]) -> list[str | None]:
    """Class ids, counted from 0, as the names of their classes."""
    numbers = [None if label is None else int(label) for label in class_labels(labels, where)]
    if bad := sum(c is not None and not 0 <= c < len(classes) for c in numbers):
        raise ValueError(
            f"{where}: {counted(bad, 'label is', 'labels are')} not among its {len(classes)} classes, counted from 0"
        )
    return [None if c is None else classes[c] for c in numbers]


def label_words(raw: Any, regression: bool, where: object) -> list[str | None]:
    """Labels of an array or a list as words. −1 among whole numbers is no label, as in scikit-learn.

    −1 beside 1 alone is refused: it may be a class, and half of the points would silently be the pool. Every label −1
    is no label at all.
    """
    y = np.asarray(raw)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind == "b":
        what = "truth values" if y.dtype.kind == "b" else f"an array of shape {y.shape}"
        raise ValueError(
            f"{where} are {what}; expected integers, strings, or numbers for regression, one for each point"
        )
    if y.dtype == object:
        words = [cell_text(v) for v in y.tolist()]
    else:
        words = array_labels(y)
    if regression:
        return words
    numbers = {word for word in class_labels(words, where) if word is not None}
    if "-1" not in numbers or not all(word.lstrip("-").isdecimal() for word in numbers):
        return words
    if numbers == {"-1"} and None not in words:
        return [None] * len(words)  # nothing is labelled yet
    if numbers <= {"-1", "1"}:
        those = "−1 and 1" if "1" in numbers else "−1"
        raise ValueError(
            f"{where} are {those} alone; −1 is no label here, as in scikit-learn. Write the classes as 0 and 1 (or as "
            "words), and None or NaN for no label"
        )
    return [None if word is None or float(word) == -1 else word for word in words]
