"""Labelled points and pools from users' own files: an .npz, a folder of pictures, a CSV of features or of files."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foretaste.data import folder
from foretaste.data._decode import MOST, decode
from foretaste.data._features import read_table
from foretaste.data._listing import listing, other_files, told
from foretaste.data._members import arrays, names_in
from foretaste.data._npz import points as laid_out
from foretaste.data._pixels import open_picture
from foretaste.data._table import columns

X, Y = ("x", "images", "features"), ("y", "labels", "label")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Points:
    """What a file holds: points as they are, ids and labels as words."""

    where: str
    x: Tensor  # (N, channels, H, W) uint8, or float32
    ids: list[str]
    labels: list[str] | None = None
    features: tuple[str, ...] | None = None  # names of a CSV's columns
    own_ids: bool = False  # whether they are the user's, and not positions
    classes: tuple[str, ...] | None = None  # in the file's own order
    notes: tuple[str, ...] = ()


def read(
    path: Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    skip_broken: bool = False,
    progress: Progress | None = None,
) -> Points:
    """By its ending, or as a folder; raises with all that is wrong with it, ids that repeat among that."""
    if path.is_dir():
        got = _pictures(path, size, channels, skip_broken, progress)
    elif not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; expected an .npz, a CSV, or a folder of pictures")
    elif path.suffix.lower() == ".npz":
        got = _npz(path)
    elif path.suffix.lower() in (".csv", ".tsv"):
        got = _table(path) if columns(path) is None else _files(path, size, channels, skip_broken, progress)
    else:
        raise ValueError(f"{path}: unknown ending {path.suffix!r}; expected .npz, .csv, .tsv, or a folder of pictures")
    if not len(got.x):
        raise ValueError(f"{path} has no points; expected at least one")
    if twice := [name for name, n in Counter(got.ids).items() if n > 1]:
        raise ValueError(f"{path}: {told(twice, 'id {} stands', 'ids {} stand')} more than once; expected each once")
    return got


def _npz(path: Path) -> Points:
    there = names_in(path)
    x, y = (next((name for name in names if name in there), None) for names in (X, Y))
    if x is None:
        raise ValueError(f"{path} has {', '.join(there) or 'nothing'}; expected x, and y and ids where there are any")
    names = [name for name in (x, y, "ids", "classes") if name in there]
    got = dict(zip(names, arrays(path, names, MOST)))
    points, how = laid_out(got[x], f"{path}: {x}", None)
    faults = [
        f"{name} is {got[name].dtype} {got[name].shape}; expected one for each of {len(points)} points"
        for name in (y, "ids")
        if name in got and got[name].shape != (len(points),)
    ]
    if y is not None and got[y].dtype.kind == "b":
        faults.append(f"{y} is of truth values; expected integers, strings, or numbers for regression")
    if faults:
        raise ValueError(f"{path}: {'; '.join(faults)}")
    ids = _words(got["ids"]) if "ids" in got else [str(i) for i in range(len(points))]
    called = tuple(_words(got["classes"].ravel())) if "classes" in got else None
    y_N = got[y] if y else None
    labels = None if y_N is None else _words(y_N)
    if y_N is not None and called is not None and y_N.dtype.kind in "iu":
        if (bad := (y_N < 0) | (y_N >= len(called))).any():
            raise ValueError(f"{path}: {int(bad.sum())} labels are not among its {len(called)} classes, counted from 0")
        labels = [called[c] for c in y_N.tolist()]
    tensor = torch.from_numpy(np.ascontiguousarray(points))
    return Points(str(path), tensor, ids, labels, None, "ids" in got, called, (how,) if how else ())


def _words(a: np.ndarray) -> list[str]:
    return [one.decode() if isinstance(one, bytes) else str(one) for one in a.tolist()]


def _pictures(
    root: Path, size: int | None, channels: int | None, skip_broken: bool, progress: Progress | None
) -> Points:
    """Pictures in class folders, or without labels; files are called by their path within the folder."""
    if any(columns(p) is not None for p in root.iterdir() if p.suffix.lower() in (".csv", ".tsv")):
        return _files(root, size, channels, skip_broken, progress)
    here = listing(root)
    if not here.pictures:
        raise ValueError(f"{root} has no pictures; expected some, or folders of them")
    files = list(here.pictures)
    got = decode(
        lambda i: open_picture(root / files[i]), files, size=size, channels=channels, skip_broken=skip_broken,
        progress=progress,
    )  # fmt: skip
    files = [files[i] for i in got.kept]
    folders = [name.rpartition("/")[0].partition("/")[0] for name in files]
    loose = [name for name, parent in zip(files, folders) if not parent]
    notes = [*got.notes, *filter(None, [other_files(here.others)])]
    if loose and len(loose) < len(files):
        notes.append(
            f"{told(loose, 'picture {} lies', 'pictures {} lie')} beside the folders, so folders are no labels"
        )
    return Points(str(root), got.x, files, None if loose else folders, None, True, None, tuple(notes))


def _files(path: Path, size: int | None, channels: int | None, skip_broken: bool, progress: Progress | None) -> Points:
    """A CSV of files and labels."""
    data = folder(path, size=size, channels=channels, test=0.0, skip_broken=skip_broken, progress=progress)
    labels = [data.classes[int(c)] for c in data.y]
    return Points(str(path), data.x, list(data.files or ()), labels, None, True, None, data.notes)


def _table(path: Path) -> Points:
    """A CSV of numbers; a point without an id is called by its position."""
    got = read_table(path)
    ids = [str(n) for n in range(len(got.x))] if got.ids is None else got.ids
    return Points(str(path), torch.from_numpy(got.x), ids, got.labels, got.names, got.ids is not None)
