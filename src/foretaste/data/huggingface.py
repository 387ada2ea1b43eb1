"""Hugging Face datasets, saved to disk or in memory: their pictures, columns of numbers, or plain columns."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretaste.data.class_names import cell_text, count_names
from foretaste.data.columns import choose_columns
from foretaste.data.pictures import open_picture
from foretaste.data.points import Points, ReadOptions, picture_points, points_of_table, row_ids
from foretaste.data.tables import ID_COLUMNS, LABEL_COLUMNS, SIDES, Cells, Table, stays_inside
from foretaste.errors import check_regular, counted, printable

SAVED_DATASET_FILES = ("dataset_dict.json", "dataset_info.json", "state.json")
NUMBER_TYPES = ("float", "double", "int", "uint", "bool")


def is_saved_dataset(path: Path) -> bool:
    """Whether ``path`` is a folder that ``save_to_disk`` wrote."""
    return path.is_dir() and any((path / file).is_file() for file in SAVED_DATASET_FILES)


def read_hugging_face(
    source: Any, where: str, how: ReadOptions, *, image: str | None = None, pool: str | None = None,
    test: float | str = 0.2,
) -> Points:  # fmt: skip
    """A dataset, given as its folder or as the object: pictures, numbers and lists of them, or rows as in a CSV.

    Of several splits, train is read; a study also reads test, or validation. A label may be missing (null, or −1 for a
    ClassLabel), but for a study.
    """
    loaded = _load_saved(source) if isinstance(source, Path) else source
    splits, notes = _choose_splits(where, loaded, pool, test, how.for_study)
    part = _joined([rows for _, rows in splits])
    features = part.features
    kinds = {name: _kind_of(kind) for name, kind in features.items()}
    if isinstance(how.label, str):
        label: str | None = _choose_column("label", how.label, features, [])
    else:
        label = _choose_own_label(where, features) if how.label is None else None
    plain = [name for name in features if name != label and kinds[name] == "Value"]
    columns = {name: [cell_text(v) for v in _cells(part, name)] for name in plain}
    if label is not None:
        columns[label] = _label_words(part, label)
    if how.for_study:
        _check_all_labelled(where, splits, label, columns)
    how = replace(how, label=label or how.label)
    called = None if label is None else getattr(features[label], "names", None)
    classes = None if called is None else tuple(map(str, called))
    table = Table(where, columns, range(len(part)), "row", notes)
    names = [f"{name}[{i}]" for name, rows in splits for i in range(len(rows))]
    sides = tuple(("pool", "test")[k] for k, (_, rows) in enumerate(splits) for _ in range(len(rows)))
    side = sides if len(splits) == 2 else ()
    pictured = [name for name in features if kinds[name] == "Image"]
    listed = [name for name in features if kinds[name] != "Value" and _holds_numbers(features[name])]
    numbers = listed or all(_holds_numbers(features[name]) for name in plain if name.lower() not in ID_COLUMNS)
    if not pictured and image is None and not numbers:
        if others := [name for name in features if name not in columns]:
            left_out = f"{count_names(others, 'column {} is', 'columns {} are')} no words or numbers: left out"
            table = replace(table, notes=(*notes, left_out))
        points = replace(points_of_table(table, how), own_classes=classes)
        return replace(points, side=side, ids=names, own_ids=False) if side else points
    shows = bool(pictured) or image is not None
    roles = choose_columns(
        table, id=how.id, label=how.label, text=False, regression=how.regression, ask=how.ask and not shows
    )
    labels: Cells = [None] * len(table) if roles.label is None else columns[roles.label]
    ids = names if side else row_ids(table, roles.id)
    if shows:
        stored = _stored_pictures(
            part, _choose_column("image", image, features, pictured), local=not isinstance(source, Path)
        )
        points = picture_points(where, lambda i: open_picture(stored(i)), stored, names, labels, how, side)
        own = dict(zip(names, ids))
        points = replace(points, ids=[own[name] for name in points.ids], notes=(*notes, *points.notes))
    else:
        x, wide, left = _number_columns(where, part, {*columns} - {*roles.features})
        points = Points(where, "features", x, ids, labels, columns=wide, side=side, notes=(*roles.notes, *left))
    return replace(points, own_ids=roles.id is not None and not side, id_column=roles.id, own_classes=classes)


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


def _choose_splits(
    where: str, loaded: Any, pool: str | None, test: float | str, for_study: bool
) -> tuple[list[tuple[str, Any]], tuple[str, ...]]:
    """The splits to read, by name: that of the pool, then that of test where a study has one; and a note on others."""
    if not isinstance(loaded, dict):
        if pool is not None or isinstance(test, str):
            raise ValueError(f"{where} is one dataset without splits; expected no pool= and a share for test=")
        return [("row", loaded)], ()
    have = ", ".join(loaded)
    for name in (pool, test):
        if isinstance(name, str) and name not in loaded:
            raise ValueError(f"{where} has no split {name!r}; it has {have}")
    side_of = {name: SIDES.get(name.lower()) for name in loaded}
    learn = pool or next((name for name in loaded if side_of[name] == "pool"), None)
    if learn is None and len(loaded) > 1:
        one = Path(where) / next(iter(loaded)) if Path(where).is_dir() else next(iter(loaded))
        raise ValueError(f"{where} has the splits {have}, none called train; give one of them, such as {one}")
    learn, measure = learn or have, None
    if isinstance(test, str):
        measure = test
    elif for_study and pool is None:
        measure = next((name for side in ("test", "val") for name in loaded if side_of[name] == side), None)
    if measure == learn:
        raise ValueError(f"pool and test are both {learn!r}; expected two splits of {have}")
    read = [learn] if measure is None else [learn, measure]
    left = [name for name in loaded if name not in read]
    note = f"split {' and '.join(read)} {'is' if len(read) == 1 else 'are'} read; left out: {', '.join(left)}"
    return [(name, loaded[name]) for name in read], (note,) if left else ()


def _joined(splits: Sequence[Any]) -> Any:
    """One dataset of the rows of one split or two, with the columns that both have."""
    first, *others = splits
    if not others:
        return first
    import datasets

    both = [name for name in first.features if name in others[0].features]
    kinds = datasets.Features({name: first.features[name] for name in both})
    return datasets.concatenate_datasets([rows.select_columns(both).cast(kinds) for rows in splits])


def _check_all_labelled(
    where: str, splits: Sequence[tuple[str, Any]], label: str | None, columns: dict[str, Cells]
) -> None:
    """Raise unless every row has a label."""
    if label is None:
        raise ValueError(
            f"{where}: no column is the label; its columns are {', '.join(columns) or 'none'}. Give label="
        )
    labels = iter(columns[label])
    for name, rows in splits:
        if missing := [*islice(labels, len(rows))].count(None):
            raise ValueError(
                f"{where}: {missing} of {len(rows)} rows of {name!r} have no label in {label!r}; leave them out of the "
                "dataset, or give pool= alone to measure on a share of it"
            )


def _choose_own_label(path: str, features: Any) -> str | None:
    """The column of labels; of several, the one with a usual name; None without any."""
    found = [name for name in features if _kind_of(features[name]) == "ClassLabel"]
    found = found or [n for n in features if _kind_of(features[n]) == "Value" and n.lower() in LABEL_COLUMNS]
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
    blocks = {name: _number_column(path, part, name) for name in found}
    widths = {name: x_nd.shape[1] for name, x_nd in blocks.items()}
    names = tuple(name if D == 1 else f"{name}[{d}]" for name, D in widths.items() for d in range(D))
    note = (f"{count_names(others, 'column {} has', 'columns {} have')} no numbers: left out",) if others else ()
    return torch.from_numpy(np.concatenate([*blocks.values()], axis=1)), names, note


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
