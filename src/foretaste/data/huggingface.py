"""Hugging Face datasets saved to disk: pictures, read as those of a folder are, or columns of numbers."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from foretaste.data.catalogue import LARGEST_DATASET
from foretaste.data.class_names import class_labels, count_names
from foretaste.data.dataset import Images
from foretaste.data.folders import images_of_pictures
from foretaste.data.pictures import (
    ImageSize,
    OpenPicture,
    PictureProgress,
    decode_pictures,
    open_picture,
)
from foretaste.data.tables import ID_COLUMNS, LABEL_COLUMNS, SIDES, Table, cell_text, stays_inside
from foretaste.errors import check_regular, counted, printable

SAVED_DATASET_FILES = ("dataset_dict.json", "dataset_info.json", "state.json")
NUMBER_TYPES = ("float", "double", "int", "uint", "bool")


@dataclass(frozen=True, eq=False)
class DatasetParts:
    """What a dataset holds: plain columns as in a CSV; and pictures, or the numbers of some columns."""

    table: Table  # labels are words
    label: str | None
    classes: tuple[str, ...] | None  # of a ClassLabel
    pictures: tuple[OpenPicture, Callable[[int], bytes]] | None = None
    # Of plain columns by name, and of all lists: (N, D) float32, the names of its columns, and notes.
    numbers: Callable[[Sequence[str]], tuple[Tensor, tuple[str, ...], tuple[str, ...]]] | None = None


def is_saved_dataset(path: Path) -> bool:
    """Whether ``path`` is a folder that ``save_to_disk`` wrote."""
    return path.is_dir() and any((path / file).is_file() for file in SAVED_DATASET_FILES)


def hugging_face(
    path: str | PathLike[str],
    *,
    image: str | None = None,
    label: str | None = None,
    pool: str | None = None,
    test: float | str = 0.2,
    size: ImageSize = None,
    channels: int | None = None,
    skip_broken: bool = False,
    most: int = LARGEST_DATASET,
    progress: PictureProgress | None = None,
) -> Images:
    """Read a dataset of labelled pictures that ``save_to_disk`` wrote. Needs the package datasets.

    Args:
        path: the folder; one dataset, or several splits.
        image: the column of pictures; None is the only one there is.
        label: the column of labels; None is the only ClassLabel there is.
        pool: the split to query from; None is train, or the only one.
        test: the split to measure on, or the share of each class to measure on. A share is used if there is no split
            test (or validation), or if only ``pool`` is given.
        size: pixels a side, or (height, width), as in ``folder``.
        channels: 1 or 3, as in ``folder``.
        skip_broken: leave out rows whose picture cannot be read; ``notes`` names them.
        most: bytes in memory; more is refused before a pixel is read.
        progress: called as ``progress(done, of how many)``.

    Returns:
        The data set.

    Raises:
        ImportError: the package datasets is not installed.
        FileNotFoundError: the path is not a folder.
        ValueError: columns or splits cannot be found, labels are missing, or pictures cannot be read.
    """
    parts = _choose_splits(Path(path), pool, test)
    features = next(iter(parts.values()))[1].features
    image = _choose_column("image", image, features, _picture_columns(features))
    label = _choose_column("label", label, features, _label_columns(features))
    opened, labels, sides, names = list[OpenPicture](), list[str](), list[str | None](), list[str]()
    owner = list[tuple[int, int]]()  # which part, which row of it
    for k, (name, (side, part)) in enumerate(parts.items()):
        labels += _all_label_words(path, part, name, label)
        sides += [side] * len(part)
        names += [f"{name}[{i}]" for i in range(len(part))]
        opened.append(_picture_opener(part, image))
        owner += [(k, i) for i in range(len(part))]

    def open_row(i: int) -> Image.Image:
        part, row = owner[i]
        return opened[part](row)

    decoded = decode_pictures(
        open_row, names, size=size, channels=channels, most=most, skip_broken=skip_broken, progress=progress, where=path
    )
    classes = getattr(features[label], "names", None)
    if classes is not None:
        classes = list(map(str, classes))
    else:
        labels = [str(word) for word in class_labels(labels, path)]
    kept = [int(i) for i in decoded.kept]
    share = test if isinstance(test, float | int) else 0.0
    data = images_of_pictures(
        Path(path).resolve().name, decoded, [labels[i] for i in kept], [sides[i] for i in kept], share, classes
    )
    if unused := set(data.classes) - {labels[i] for i in kept}:
        note = f"{count_names(unused, 'class {} has', 'classes {} have')} no picture"
        return replace(data, notes=(*data.notes, note))
    return data


def dataset_parts(source: Any, where: str, *, label: str | bool | None = None) -> DatasetParts:
    """What a dataset holds, given as its folder or as the object: pictures, lists of numbers, or plain columns.

    Of several splits, train is read. A label may be missing: null, or −1 for a ClassLabel.
    """
    part, notes = _training_split(where, _load_saved(source) if isinstance(source, Path) else source)
    features = part.features
    of_label: str | None = None
    if isinstance(label, str):
        of_label = _choose_column("label", label, features, [])
    elif label is None:
        of_label = _choose_own_label(where, features)
    plain = [name for name in features if name != of_label and _kind_of(features[name]) == "Value"]
    columns = {name: [cell_text(v) for v in _cells(part, name)] for name in plain}
    if of_label is not None:
        columns[of_label] = _label_words(part, of_label)
    classes = None if of_label is None else getattr(features[of_label], "names", None)
    named = None if classes is None else tuple(map(str, classes))
    table = Table(where, columns, range(len(part)), "row", notes)
    if image := _picture_columns(features):
        name = _choose_column("image", None, features, image)
        stored = _stored_pictures(part, name, local=not isinstance(source, Path))
        return DatasetParts(table, of_label, named, pictures=(lambda i: open_picture(stored(i)), stored))
    listed = [name for name in features if _kind_of(features[name]) != "Value" and _holds_numbers(features[name])]
    ids = [name for name in plain if name.lower() in ID_COLUMNS]
    if listed or all(_holds_numbers(features[name]) for name in plain if name not in ids):
        return DatasetParts(
            table, of_label, named, numbers=lambda names: _number_columns(where, part, {*columns} - {*names})
        )
    if others := [name for name in features if name not in columns]:
        shown = count_names(others, "column {} is", "columns {} are")
        table = replace(table, notes=(*notes, f"{shown} no words or numbers: left out"))
    return DatasetParts(table, of_label, named)


def _load_saved(path: Path) -> Any:
    try:
        import datasets
    except ImportError:
        raise ImportError("reading a Hugging Face dataset needs the package datasets: pip install datasets") from None
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is not a folder; expected what a dataset's save_to_disk wrote")
    _check_own_files(path)
    try:
        loaded = datasets.load_from_disk(str(path))
        for part in loaded.values() if isinstance(loaded, dict) else [loaded]:
            part.data.table.validate(full=True)  # Arrow trusts the offsets in a file, and would read beyond its end
    except Exception as error:  # json, arrow and the package itself each raise their own
        raise ValueError(f"{path} cannot be read as a dataset saved to disk: {' '.join(str(error).split())}") from None
    if isinstance(loaded, dict) and not loaded:
        raise ValueError(f"{path} is a dataset without splits, and so without rows; save it again")
    return loaded


def _check_own_files(path: Path) -> None:
    """Raise unless all that the dataset is read from are regular files of this folder.

    state.json names the files of the rows, and the package would follow it anywhere.
    """
    top = path.resolve()
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            entry = Path(folder, name)
            if entry.is_symlink() and not stays_inside(top, entry):
                raise ValueError(f"{printable(str(entry))} is a link out of the dataset's folder; copy what is meant")
        for name in files:
            check_regular(Path(folder, name))
    for state in path.rglob("state.json"):
        if not state.is_file():
            continue
        try:
            named = [str(row["filename"]) for row in json.loads(state.read_bytes())["_data_files"]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{state} cannot be read as the state of a dataset ({error!r}); save it again") from None
        if outside := [name for name in named if not stays_inside(top, state.parent / name)]:
            raise ValueError(f"{state} names {printable(outside[0])}, outside of the dataset's folder; save it again")


def _choose_splits(path: Path, pool: str | None, test: float | str) -> dict[str, tuple[str | None, Any]]:
    """The splits to read, each with its side; the side is None if a share is to be drawn."""
    loaded = _load_saved(path)
    if not isinstance(loaded, dict):
        if pool is not None or isinstance(test, str):
            raise ValueError(f"{path} is one dataset without splits; expected no pool= and a share for test=")
        return {"row": (None, loaded)}
    have = ", ".join(loaded)
    for name in (pool, test):
        if isinstance(name, str) and name not in loaded:
            raise ValueError(f"{path} has no split {name!r}; it has {have}")
    side_of = {name: SIDES.get(name.lower()) for name in loaded}
    learn = pool or next((name for name in loaded if side_of[name] == "pool"), None)
    if learn is None:
        if len(loaded) > 1:
            raise ValueError(f"{path} has the splits {have}, none called train; rename one, or give pool= (and test=)")
        learn = have
    if isinstance(test, str):
        measure: str | None = test
    elif pool is not None:
        measure = None
    else:
        measure = next((name for side in ("test", "val") for name in loaded if side_of[name] == side), None)
    if measure == learn:
        raise ValueError(f"pool and test are both {learn!r}; expected two splits of {have}")
    if measure is None:
        return {learn: (None, loaded[learn])}
    return {learn: ("pool", loaded[learn]), measure: ("test", loaded[measure])}


def _training_split(where: str, loaded: Any) -> tuple[Any, tuple[str, ...]]:
    """The only dataset, or the split called train; and a note on the splits left out."""
    if not isinstance(loaded, dict):
        return loaded, ()
    chosen = next((name for name in loaded if SIDES.get(name.lower()) == "pool"), None)
    if chosen is None and len(loaded) == 1:
        chosen = next(iter(loaded))
    if chosen is None:
        raise ValueError(
            f"{where} has the splits {', '.join(loaded)}, none called train; give one of them, such as "
            f"{Path(where) / next(iter(loaded)) if Path(where).is_dir() else next(iter(loaded))}"
        )
    others = [name for name in loaded if name != chosen]
    return loaded[chosen], (f"split {chosen} is read; left out: {', '.join(others)}",) if others else ()


def _picture_columns(features: Any) -> list[str]:
    return [name for name, kind in features.items() if _kind_of(kind) == "Image"]


def _label_columns(features: Any) -> list[str]:
    found = [name for name, kind in features.items() if _kind_of(kind) == "ClassLabel"]
    plain = [name for name, kind in features.items() if _kind_of(kind) == "Value" and name.lower() in LABEL_COLUMNS]
    return found or plain


def _choose_own_label(path: str, features: Any) -> str | None:
    """The column of labels; of several, the one with a usual name; None without any."""
    found = _label_columns(features)
    usual = [name for spelling in LABEL_COLUMNS for name in found if name.lower() == spelling]
    if len(found) > 1 and not usual:
        raise ValueError(f"{path}: {', '.join(found)} may all be the label; rename one to label, or remove the others")
    return usual[0] if usual else next(iter(found), None)


def _choose_column(what: str, given: str | None, features: Any, found: Sequence[str]) -> str:
    have = ", ".join(f"{name} ({_kind_of(kind)})" for name, kind in features.items())
    if given is not None:
        fits = ("Image",) if what == "image" else ("ClassLabel", "Value")
        if given not in features or _kind_of(features[given]) not in fits:
            raise ValueError(f"{what}={given!r} is no column of kind {' or '.join(fits)}; the columns are {have}")
        return given
    if len(found) != 1:
        count = f"{len(found)} columns may be the {what}" if found else f"no column is the {what}"
        raise ValueError(
            f"{count}; give {what}= one of the columns: {have} (hugging_face in Python), or keep one such column"
        )
    return found[0]


def _kind_of(feature: Any) -> str:
    return type(feature).__name__


def _cells(part: Any, column: str) -> list[Any]:
    return part.select_columns([column]).with_format("arrow")[:].column(0).to_pylist()


def _label_words(part: Any, label: str) -> list[str | None]:
    """Labels in words. Missing are null, NaN, an empty string, and for a ClassLabel any number without a name."""
    raw, words = _cells(part, label), getattr(part.features[label], "names", None)
    if words is not None:
        return [None if v is None or not 0 <= v < len(words) else str(words[v]) for v in raw]
    return [None if v is None or v != v or v == "" else str(v) for v in raw]


def _all_label_words(path: str | PathLike[str], part: Any, name: str, label: str) -> list[str]:
    """Labels in words; a missing one is an error."""
    words = _label_words(part, label)
    if missing := words.count(None):
        raise ValueError(
            f"{path}: {missing} of {len(words)} rows of {name!r} have no label in {label!r}; leave them out of the "
            "dataset, or give pool= alone to measure on a share of it"
        )
    return [word for word in words if word is not None]


def _stored_pictures(part: Any, image: str, local: bool = False) -> Callable[[int], bytes]:
    """The bytes of the picture of a row, so that our threads decode it within our limits.

    A dataset in memory (``local``) may hold paths: the user's own process made them. One on disk may not.
    """
    import datasets

    raw = part.select_columns([image]).with_format(None).cast_column(image, datasets.Image(decode=False))

    def stored(i: int) -> bytes:
        cell = raw[i][image]
        if cell is None or not (cell.get("bytes") or cell.get("path")):
            raise ValueError("no picture in this row")
        if cell.get("bytes"):
            return bytes(cell["bytes"])
        if not local:
            raise ValueError(f"only the path {cell['path']} is stored; save the dataset with its pictures in it")
        check_regular(Path(cell["path"]))
        return Path(cell["path"]).read_bytes()

    return stored


def _picture_opener(part: Any, image: str) -> OpenPicture:
    stored = _stored_pictures(part, image)
    return lambda i: open_picture(stored(i))


def _number_columns(path: str, part: Any, skip: set[str | None]) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Columns of numbers, and of lists of as many numbers each, side by side; their names, and notes."""
    if not len(part):
        raise ValueError(f"{path} has no rows; expected a dataset with points in it")
    found = [name for name, kind in part.features.items() if name not in skip and _holds_numbers(kind)]
    others = [name for name in part.features if name not in skip and name not in found]
    if not found:
        raise ValueError(
            f"{path} has no pictures and no numbers; its columns are {', '.join(part.features)}. Compute features "
            "first, and save them as a column of lists of numbers"
        )
    blocks, names = [], list[str]()
    for name in found:
        x_nd = _number_column(path, part, name)
        blocks.append(x_nd)
        names += [name] if x_nd.shape[1] == 1 else [f"{name}[{d}]" for d in range(x_nd.shape[1])]
    note = (f"{count_names(others, 'column {} has', 'columns {} have')} no numbers: left out",) if others else ()
    return torch.from_numpy(np.concatenate(blocks, axis=1)), tuple(names), note


def _number_column(path: str, part: Any, name: str) -> np.ndarray:
    """(N, d) float32: a column of numbers, or of lists of d numbers. Stays in Arrow, for lists may be long and many."""
    import pyarrow.compute as pc

    column = part.select_columns([name]).with_format("arrow")[:].column(0)
    if _kind_of(part.features[name]) != "Value":
        if len(pc.list_value_length(column).unique()) != 1:  # a missing list has no length
            raise ValueError(f"{path}: rows of {name!r} differ in length or have none; expected as many numbers each")
        column = pc.list_flatten(column)
    x_nd = pc.cast(column, "float32", safe=False).to_numpy().reshape(len(part), -1)
    if bad := int((~np.isfinite(x_nd)).any(1).sum()):
        raise ValueError(
            f"{path}: {counted(bad, 'row')} of {name!r} without finite numbers; mend or remove what is wrong"
        )
    return x_nd


def _holds_numbers(kind: Any) -> bool:
    """Numbers, or lists of numbers (Sequence, List, LargeList)."""
    inner = getattr(kind, "feature", kind)
    return _kind_of(inner) == "Value" and str(inner.dtype).startswith(NUMBER_TYPES)
