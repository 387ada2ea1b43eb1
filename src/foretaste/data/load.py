"""Load a data set by its name, or by the path of your own.

A new format has a file of its own; enter it here, for studies, and in sources.py, for ``ft.open``.
"""

import os
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path

import torch

from foretaste.data.catalogue import LARGEST_DATASET, home
from foretaste.data.cifar import cifar10, cifar100
from foretaste.data.class_names import NAMES_SHOWN, index_labels
from foretaste.data.dataset import Images, check_normalise_choice, stratified_or_raise, with_normalisation
from foretaste.data.folders import folder as picture_folder
from foretaste.data.huggingface import hugging_face, is_saved_dataset
from foretaste.data.named import digits, fashion_mnist, mnist, svhn
from foretaste.data.npz import npz
from foretaste.data.pictures import ImageSize
from foretaste.data.points import Points, content_digests
from foretaste.data.shipped import breast_cancer, docstrings, wine
from foretaste.data.sources import read_points
from foretaste.data.tables import LABEL_COLUMNS, file_columns, is_table
from foretaste.errors import counted, did_you_mean

Answers = Callable[[Path], Callable[[Points], Points] | None]

NAMED_READERS: dict[str, Callable[[Path, int], Images]] = {
    "digits": lambda folder, most: digits(),
    "mnist": lambda folder, most: mnist(folder, most=most),
    "fashion-mnist": lambda folder, most: fashion_mnist(folder, most=most),
    "svhn": lambda folder, most: svhn(folder, most=most),
    "cifar10": lambda folder, most: cifar10(folder, most=most),
    "cifar100": lambda folder, most: cifar100(folder, most=most),
    "cifar100-coarse": lambda folder, most: cifar100(folder, "coarse", most=most),
    "breast-cancer": lambda folder, most: breast_cancer(),
    "wine": lambda folder, most: wine(),
    "docstrings": lambda folder, most: docstrings(),
}
NAMES = tuple(NAMED_READERS)


def load(
    name: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    *,
    normalise: str = "auto",
    test: float = 0.2,
    size: ImageSize = None,
    channels: int | None = None,
    skip_broken: bool = False,
    most: int = LARGEST_DATASET,
    answers: Answers | None = None,
) -> Images:
    """Load a data set by name, or from a file or folder of your own.

    Args:
        name: one of ``NAMES``, or a path: an .npz, a folder of class folders or with a CSV, a CSV of features, of text
            or a mixed table, or a Hugging Face dataset saved to disk.
        folder: the folder of data sets; None is $FORETASTE_DATA, else ~/.cache/foretaste.
        normalise: "auto" takes the published mean and deviation of a named set, and measures others on the pool;
            "measured" measures always; "none" does not normalise.
        test: share of each class to measure on, if the data has no split of its own.
        size: pixels a side, or (height, width), for files of pictures.
        channels: 1 or 3, for files of pictures.
        skip_broken: leave out pictures that cannot be read; ``notes`` names them.
        most: bytes in memory; more is refused before it is read.
        answers: finds what puts labels into the points of a path that people have labelled elsewhere, or None.

    Returns:
        The data set.

    Raises:
        FileNotFoundError: files of the set are missing; the error says where it looked.
        ValueError: an unknown name (the error names the nearest), or data that cannot be read.

    Example:
        >>> from foretaste.data import load
        >>> data = load("digits")
        >>> len(data.pool), len(data.test)
        (1197, 600)
    """
    check_normalise_choice(normalise)
    where = home() if folder is None else Path(folder).expanduser()
    of_pictures = {"size": size, "channels": channels, "skip_broken": skip_broken or None}
    if isinstance(name, str) and name in NAMED_READERS:
        _check_only_pictures(of_pictures, f"{name} has its own")
        return with_normalisation(NAMED_READERS[name](where, most), normalise, known=True)
    path = _locate_path(name, where)
    answered = None if answers is None else answers(path)
    if answered is not None:
        read = read_points(path, size=size, channels=channels, skip_broken=skip_broken, most=most)
        if (points := answered(read)) is not read:
            data = _labelled_points(points, path, test)
            scaled = points.kind in ("text", "table")
            return data if scaled else with_normalisation(data, normalise, known=False)
    if path.suffix.lower() == ".npz":
        _check_only_pictures(of_pictures, "an .npz is read as it is")
        return with_normalisation(npz(path, test=test, most=most), normalise, known=False)
    if is_table(path) and path.is_file() and file_columns(path) is None:
        _check_only_pictures(of_pictures, "this table names no files")
        data = _labelled_points(read_points(path), path, test)
        return data if data.read else with_normalisation(data, normalise, known=False)
    if is_saved_dataset(path):
        data = hugging_face(path, size=size, channels=channels, test=test, skip_broken=skip_broken, most=most)
    elif path.is_dir() or is_table(path):
        data = picture_folder(path, size=size, channels=channels, test=test, skip_broken=skip_broken, most=most)
    else:
        raise ValueError(
            f"{path} is no data set that can be read; expected an .npz, a CSV, a folder of class folders or with a "
            "CSV, or a Hugging Face dataset saved to disk. Unpack archives first"
        )
    return with_normalisation(data, normalise, known=data.normalise is not None)


def feature_table(path: str | os.PathLike[str], *, test: float = 0.2) -> Images:
    """A labelled table of numbers: a column label (or class, target), perhaps an id, and features.

    Args:
        path: a CSV or TSV with a first line of names, or a Parquet file.
        test: share of each class to measure on, always the same points.

    Returns:
        The data set; ``x`` is (N, D) float32. Rows without a label are left out.

    Raises:
        ValueError: the table has no labels, one class, labels that are measurements, or cells that are no numbers.

    Example:
        >>> import tempfile, pathlib
        >>> from foretaste.data import feature_table
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "iris.csv"
        >>> _ = file.write_text("label,width,height\\n" + "a,1,2\\nb,3,4\\n" * 5)
        >>> data = feature_table(file)
        >>> data.classes, data.x.shape, len(data.test)
        (('a', 'b'), torch.Size([10, 2]), 2)
    """
    file = Path(path).expanduser()
    points = read_points(file, text=False)
    if points.kind != "features":
        raise ValueError(f"{file} holds {points.kind}; expected a number in every cell beside id and label")
    return _labelled_points(points, file, test)


def _labelled_points(points: Points, path: Path, test: float) -> Images:
    """The points of a path that have a label. Text and mixed tables are encoded, and so scaled already."""
    encoded, pictures = points.kind in ("text", "table"), points.kind == "pictures"
    if not pictures:
        points.x  # noqa: B018  encoders are fitted on all points, labelled or not
    known = points.take(points.labelled)
    if not len(known):
        have = f"has columns {', '.join(points.columns[:NAMES_SHOWN])} and" if points.columns else "has"
        raise ValueError(f"{path} {have} none for the label; expected one of {', '.join(LABEL_COLUMNS)}")
    y_N, classes = index_labels(known.known_labels, path)
    pool, held = stratified_or_raise(y_N, test, path)
    notes = [] if pictures else [f"{path.name}: {known.x.shape[1]} features of {len(y_N)} points"]
    if encoded:
        many = known.x.shape[1]
        notes = [f"{path.name}: {points.kind}, encoded as {many} numbers, fitted on all {len(points)} points"]
    if left := len(points) - len(known):
        notes.append(f"{counted(left, 'point has', 'points have')} no label: left out")
    if known.contradiction:
        notes.append(known.contradiction)
    read = blake2b(b"".join(content_digests(points)), digest_size=16).hexdigest() if encoded else None
    y, files = torch.from_numpy(y_N), tuple(known.ids) if pictures else None
    notes = [*points.notes, *notes]
    return Images(path.stem, known.x, y, pool, held, classes, files=files, notes=tuple(notes), read=read)


def _locate_path(name: str | os.PathLike[str], where: Path) -> Path:
    """The path as given, else below the folder of data sets."""
    path = Path(name).expanduser()
    for candidate in (path, where / path):
        if candidate.exists():
            return candidate
    if not isinstance(name, str) or len(path.parts) > 1 or path.suffix:
        raise FileNotFoundError(f"{path} is not there, nor {where / path}")
    guess = did_you_mean(name.lower().replace("_", "-"), NAMES)
    raise ValueError(f"unknown data set {name!r}{guess}. Or a path: an .npz, a folder of class folders")


def _check_only_pictures(given: Mapping[str, object], why: str) -> None:
    if wrong := [f"{key} ({value!r})" for key, value in given.items() if value is not None]:
        raise ValueError(f"{', '.join(wrong)}: only for folders of pictures and Hugging Face datasets; {why}")
