"""Points from any source: a folder, a CSV, an .npz, a Hugging Face dataset, a torch dataset, arrays, a data frame.

What counts as no label:

- a CSV, a data frame or rows: an empty cell (None, NaN), or no column for labels
- a folder: a picture outside the class folders, in a folder called unlabelled or unsorted, or absent from its CSV
- arrays, an .npz, a torch dataset: None, NaN, "", or −1 among whole numbers; or no labels at all
- a Hugging Face dataset: null, or −1 for a ClassLabel
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from foretaste.data.class_names import array_labels, cell_text, count_names, label_words, named_classes
from foretaste.data.dataset import LARGEST_DATASET, Images
from foretaste.data.folders import read_folder
from foretaste.data.huggingface import is_saved_dataset, read_hugging_face
from foretaste.data.npz import lay_out_points, read_npz
from foretaste.data.pictures import PICTURE_ENDINGS, ImageSize, PictureProgress, open_picture, picture_bytes
from foretaste.data.points import Points, ReadOptions, array_points, checked_points, picture_points, points_of_table
from foretaste.data.tables import TABLE_ENDINGS, Table, file_columns, is_table, read_table
from foretaste.data.text import TEXT_ENCODERS
from foretaste.data.torch_datasets import read_dataset_items

SOURCES = (
    "a path (a folder of pictures, a CSV, an .npz, a saved Hugging Face dataset), a Hugging Face or torch dataset, "
    "an array or tensor, (x, y), a list of texts, pictures or dicts, or a data frame"
)


def read_points(source: Any, **options: Any) -> Points:
    """Read points, labelled or not. As ``ft.open``, but without pretrained backbones: ``x`` of pictures are pixels.

    ``options`` are the arguments of ``ft.open``, and ``most``, ``ask`` and ``for_study`` of ``ReadOptions``.

    Example:
        >>> import tempfile, pathlib
        >>> from foretaste.data import read_points
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "flowers.csv"
        >>> _ = file.write_text("id,label,width\\na,rose,1\\nb,,2\\nc,tulip,3\\n")
        >>> points = read_points(file)
        >>> points.known_labels, [points.ids[i] for i in points.pool]
        (['rose', 'tulip'], ['b'])
    """
    how = ReadOptions(**options)
    points = replace(_read_source(source, how), regression=how.regression)
    if how.label is False:
        points = replace(points, labels=[None] * len(points))
    if how.classes is not None:
        points = replace(points, own_classes=tuple(map(str, how.classes)))
    if callable(how.encoder):
        points = replace(points, encode=how.encoder)
    elif how.encoder in TEXT_ENCODERS and points.kind != "text":
        raise ValueError(f"encoder is {how.encoder!r}, for text, and {points.where} holds {points.kind}")
    return checked_points(points)


def _read_source(source: Any, how: ReadOptions) -> Points:
    """The reader for what the source is."""
    if isinstance(source, str | os.PathLike):
        return _read_path(Path(source).expanduser(), how)
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # pandas, without importing it
        return _points_of_frame(source, how)
    if type(source).__module__.split(".")[0] == "datasets":
        return read_hugging_face(source, f"the {type(source).__name__}", how)
    if isinstance(source, tuple) and len(source) == 2 and how.label is None:
        return _read_source(source[0], replace(how, label=source[1]))
    if isinstance(source, Tensor | np.ndarray):
        return _points_of_array(source, how)
    if isinstance(source, list) and source:
        return _points_of_list(source, how)
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, Mapping | bytes):
        return _points_of_items(source, how)
    raise TypeError(f"source is a {type(source).__name__}; expected {SOURCES}")


def _read_path(path: Path, how: ReadOptions) -> Points:
    if not _names_column(how):
        raise TypeError(f"label is a {type(how.label).__name__} and the source a file; expected the name of a column")
    if is_saved_dataset(path):
        return read_hugging_face(path, str(path), how)
    if path.is_dir():
        return read_folder(path, how)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected an .npz, a CSV, or a folder of pictures")
    if path.suffix.lower() == ".npz":
        return read_npz(path, how)
    if not is_table(path):
        known = ", ".join((".npz", *TABLE_ENDINGS))
        raise ValueError(
            f"{path}: unknown ending {path.suffix!r}; expected {known}, or a folder of pictures. Unpack archives first"
        )
    named = not how.wants_text and not isinstance(how.label, str)
    if named and file_columns(path, labelled=how.for_study) is not None:
        return read_folder(path, how)
    return points_of_table(read_table(path), how)


def _names_column(how: ReadOptions) -> bool:
    """Whether ``label`` names a column, or says nothing; else it is the labels themselves."""
    return isinstance(how.label, str | bool | None)


def _points_of_frame(frame: Any, how: ReadOptions) -> Points:
    """A pandas DataFrame: the same rules as a CSV; an index that is no range is the ids, if there is no column."""
    labels = None if _names_column(how) else array_labels(np.asarray(how.label))
    names = [str(name) for name in frame.columns]
    if twice := {name for name in names if names.count(name) > 1}:
        stand = count_names(twice, "column {} stands", "columns {} stand")
        raise ValueError(f"the data frame: {stand} twice; rename one")
    columns = {name: [cell_text(v) for v in frame.iloc[:, k].tolist()] for k, name in enumerate(names)}
    index = [str(v) for v in frame.index.tolist()]
    points = points_of_table(Table("the data frame", columns, range(len(frame)), "row"), how, labels)
    if not points.own_ids and index != points.ids and len({*index}) == len(index):
        points = replace(points, ids=index, own_ids=True)
    return points


def _points_of_list(source: list[Any], how: ReadOptions) -> Points:
    """Texts, dicts (rows), pictures, paths of pictures, or vectors."""
    first = source[0]
    labels = None if _names_column(how) else _labels_beside(how, len(source))
    if all(isinstance(item, str) for item in source):
        if all(os.path.splitext(item)[1].lower() in PICTURE_ENDINGS for item in source):
            raise ValueError(
                f"the list holds names of pictures as strings, such as {first!r}; give pathlib.Path objects"
            )
        table = Table(
            "the list of texts", {"text": [item.strip() or None for item in source]}, range(len(source)), "text"
        )
        return points_of_table(table, replace(how, text="text"), labels or [None] * len(source))
    if all(isinstance(item, Mapping) for item in source):
        names = list(dict.fromkeys(str(key) for row in source for key in row))
        columns = {name: [cell_text(row.get(name)) for row in source] for name in names}
        table = Table("the list of rows", columns, range(len(source)), "row")
        return points_of_table(table, how, labels)
    if all(isinstance(item, os.PathLike) for item in source):
        files = [Path(item).expanduser() for item in source]
        opened: Callable[[int], Image.Image] = lambda i: open_picture(files[i])  # noqa: E731
        return picture_points(
            "the list of files", opened, lambda i: files[i].read_bytes(), list(map(str, files)), labels, how
        )
    if isinstance(first, tuple | Image.Image | Tensor | np.ndarray) and not isinstance(first, str):
        return _points_of_items(source, how)
    return _points_of_array(np.asarray(source), how)


def _points_of_array(source: "Tensor | np.ndarray", how: ReadOptions) -> Points:
    """(N, D) features, or pictures (N, H, W), (N, H, W, C), (N, C, H, W), as in an .npz."""
    array = source.detach().cpu().numpy() if isinstance(source, Tensor) else source
    if array.dtype.kind in "US" or (array.dtype == object and array.ndim == 1):
        return _points_of_list([str(item) for item in array.tolist()], how)
    layout = how.layout
    if isinstance(source, Tensor) and source.dim() == 4 and layout is None:
        layout = "NCHW"  # as torch has them
    if array.ndim == 2 and array.dtype.kind in "iub":
        array = array.astype(np.float32)
    ((laid, note),) = lay_out_points([array], ["the array"], layout)
    return array_points("the array", laid, _labels_beside(how, len(laid)), (note,))


def _labels_beside(how: ReadOptions, n: int) -> list[str | None]:
    """Labels that came beside arrays: None, NaN, "" and, among whole numbers, −1 are missing."""
    if how.label is None or how.label is False:
        return [None] * n
    if isinstance(how.label, str):
        raise TypeError(
            f"label is {how.label!r}, the name of a column; expected the labels themselves, one for each point"
        )
    raw = how.label.detach().cpu().numpy() if isinstance(how.label, Tensor) else how.label
    words = label_words(raw, how.regression, "the labels")
    if len(words) != n:
        raise ValueError(
            f"there are {len(words)} labels for {n} points; expected one for each, None where it is missing"
        )
    return words


def _points_of_items(dataset: Any, how: ReadOptions) -> Points:
    """A map-style torch dataset or a list, of x or (x, y): pictures stay where they are, vectors and texts are read."""
    where = "the list" if isinstance(dataset, list) else f"the {type(dataset).__name__}"
    got = read_dataset_items([dataset], where, replace(how, for_study=False))
    if got.labels is not None and how.label is None:
        how = replace(how, label=got.labels)
    labels = _labels_beside(how, len(dataset))
    if got.values is None:
        names = [f"item {i}" for i in range(len(dataset))]
        points = picture_points(where, got.opened, picture_bytes(got.opened), names, labels, how)
        points = replace(points, ids=[name.removeprefix("item ") for name in points.ids], own_ids=False)
    elif isinstance(got.values, list):
        points = _points_of_list(got.values, replace(how, label=labels))
    else:
        points = array_points(where, got.values, labels)
    if got.classes is not None and how.classes is None and not how.regression:
        points = replace(points, own_classes=got.classes)
        points = replace(points, labels=named_classes(where, points.labels, got.classes))
    return points


def hugging_face(
    path: str | os.PathLike[str],
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
    """Read a labelled dataset that ``save_to_disk`` wrote. As ``load``, and you may name columns and splits.

    ``image`` is the column of pictures, ``label`` that of labels, ``pool`` the split to query from. ``test`` is the
    split to measure on, or a share of each class; a share counts where there is no split test (or validation), or
    where ``pool`` alone is given.
    """
    how = ReadOptions(
        label=label, size=size, channels=channels, skip_broken=skip_broken, most=most, progress=progress,
        for_study=True,
    )  # fmt: skip
    points = read_hugging_face(Path(path), str(path), how, image=image, pool=pool, test=test)
    return checked_points(points).split(0.0 if isinstance(test, str) else test, name=Path(path).resolve().name)
