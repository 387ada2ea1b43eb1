"""Load a data set by its name, or by the path of your own, split into pool and test."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretaste.data.catalogue import NAMED_READERS, NAMES, home
from foretaste.data.dataset import LARGEST_DATASET, Images, measured
from foretaste.data.pictures import ImageSize, Layout, PictureProgress
from foretaste.data.points import Points
from foretaste.data.sources import read_points
from foretaste.errors import did_you_mean

NORMALISE_CHOICES = ("auto", "none", "measured")

Answers = Callable[[Path], Callable[[Points], Points] | None]


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
    text: str | bool | None = None,
    layout: Layout | None = None,
    progress: PictureProgress | None = None,
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
        text: the column of text of a table; False takes the other columns, None decides by what they hold.
        layout: "NHWC" or "NCHW", for an .npz of pictures whose shape does not decide.
        progress: called as ``progress(done, of how many)`` while pictures are read.

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
    if normalise not in NORMALISE_CHOICES:
        raise ValueError(f"normalise is {normalise!r}; expected one of {', '.join(NORMALISE_CHOICES)}")
    where = home() if folder is None else Path(folder).expanduser()
    of_pictures = {"size": size, "channels": channels, "skip_broken": skip_broken or None}
    given = [f"{key} ({value!r})" for key, value in of_pictures.items() if value is not None]
    only = f"{', '.join(given)}: only for folders of pictures and Hugging Face datasets"
    if isinstance(name, str) and name in NAMED_READERS:
        if given:
            raise ValueError(f"{only}; {name} has its own")
        return _with_normalisation(NAMED_READERS[name](where, most), normalise, known=True)
    path = _locate_path(name, where)
    how: dict[str, Any] = {
        "size": size, "channels": channels, "skip_broken": skip_broken, "most": most, "text": text, "layout": layout,
        "progress": progress,
    }  # fmt: skip
    points = None
    if answers is not None and (answered := answers(path)) is not None:
        read = read_points(path, **how)
        if (points := answered(read)) is read:
            points = None
    if points is None:
        points = read_points(path, for_study=True, **how)
    else:
        points = replace(points, own_classes=None)  # classes are those that occur
    if given and (points.kind != "pictures" or path.suffix.lower() == ".npz"):
        raise ValueError(f"{only}; {path.name} holds {points.kind} in memory")
    place = Path(points.where)
    data = points.split(test, name=place.resolve().name if place.is_dir() else place.stem)
    if test and not len(data.test):
        raise ValueError(f"{path}: {len(data.y)} points leave none for a test share of {test}; give more of either")
    # Text and mixed tables are encoded, and so scaled already.
    return data if data.read else _with_normalisation(data, normalise, known=False)


def _with_normalisation(data: Images, how: str, known: bool) -> Images:
    """ "auto" keeps the published numbers where they are ``known``, and measures otherwise."""
    if how == "none":
        return replace(data, normalise=None)
    return data if how == "auto" and known else replace(data, normalise=measured(data))


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
