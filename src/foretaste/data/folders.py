"""A folder of pictures: class folders, perhaps within train and test folders; or pictures and a CSV of labels."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from foretaste.data.catalogue import LARGEST_DATASET
from foretaste.data.class_names import class_labels, count_names, differing_labels, natural_key
from foretaste.data.dataset import Images, stratified
from foretaste.data.pictures import (
    HOW_TO_SKIP,
    PICTURE_ENDINGS,
    DecodedPictures,
    ImageSize,
    PictureProgress,
    decode_pictures,
    open_picture,
)
from foretaste.data.tables import SIDES, FileRow, file_columns, file_inside, is_table, read_file_table, stays_inside
from foretaste.errors import counted, is_utf8, printable

SYSTEM_FILES = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"}  # left by systems, besides hidden files


@dataclass(frozen=True)
class FolderListing:
    """Paths relative to the root, with slashes, in natural order."""

    pictures: tuple[str, ...]
    others: tuple[str, ...]
    folders: tuple[str, ...]


def folder(
    path: str | PathLike[str],
    *,
    size: ImageSize = None,
    channels: int | None = None,
    test: float = 0.2,
    skip_broken: bool = False,
    most: int = LARGEST_DATASET,
    progress: PictureProgress | None = None,
) -> Images:
    """Read all pictures of a folder, or of a CSV in it, into memory as bytes of one size.

    Args:
        path: a folder of class folders, a folder with a CSV of the columns file and label, or that CSV.
        size: pixels a side, or (height, width). Pictures are scaled to cover it and cut from the middle. None keeps
            the size that all pictures share.
        channels: 1 or 3. None is 3, or 1 if all pictures are grey.
        test: share of each class to measure on, always the same points. Not used if the folder has train and test (or
            val) folders, or the CSV has a column split.
        skip_broken: leave out pictures that cannot be read, missing files and empty class folders. ``notes`` names
            them.
        most: bytes in memory; more is refused before a pixel is read.
        progress: called as ``progress(done, of how many)``.

    Returns:
        The data set; ``files`` has the path of each picture.

    Raises:
        FileNotFoundError: the path, or a file that the CSV names, is missing.
        ValueError: pictures of several sizes, pictures that cannot be read, or labels that make no sense.

    Example:
        >>> import tempfile, pathlib
        >>> from PIL import Image
        >>> from foretaste.data import folder
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("cat/0.png", "cat/1.png", "dog/0.png"):
        ...     (root / name).parent.mkdir(exist_ok=True)
        ...     Image.new("RGB", (8, 6)).save(root / name)
        >>> data = folder(root, test=0)
        >>> data.classes, data.x.shape
        (('cat', 'dog'), torch.Size([3, 3, 6, 8]))
    """
    root, table = find_label_table(Path(path))
    here = list_folder(root)
    rows, notes = _rows_of_table(table, here, skip_broken) if table else _rows_of_folders(root, here, skip_broken)
    rows, left = without_validation(rows)
    decoded = decode_files(root, [row.file for row in rows], size, channels, skip_broken, progress, most)
    kept = [rows[i] for i in decoded.kept]
    data = images_of_pictures(root.resolve().name, decoded, [str(r.label) for r in kept], [r.side for r in kept], test)
    gone = {str(row.label) for row in rows} - set(data.classes)
    lost = (
        (f"{count_names(gone, 'class {} has', 'classes {} have')} no picture that can be read: left out",)
        if gone
        else ()
    )
    files = tuple(row.file for row in kept)
    twice = differing_labels(
        files,
        [row.label for row in kept],
        [(root / file).stat().st_size for file in files],
        lambda i: blake2b((root / files[i]).read_bytes()).digest(),
        ("picture", "pictures"),
    )
    return replace(data, files=files, notes=(*notes, *left, *data.notes, *lost, *([twice] if twice else [])))


def find_label_table(path: Path, *, needed: bool = True) -> tuple[Path, Path | None]:
    """The folder, and the CSV that holds its labels; None if its class folders do.

    If labels are ``needed`` and there are no class folders, a CSV without the columns counts too: its error says what
    is missing.
    """
    given = path.is_file() and is_table(path)
    if given:
        root, tables = path.parent, [path]
    elif path.is_dir():
        root, tables = path, sorted(p for p in path.iterdir() if is_table(p) and p.name[0] != "." and p.is_file())
    else:
        raise FileNotFoundError(f"{path} is neither a folder nor a CSV; expected a folder of class folders, or a CSV")
    named = [p for p in tables if file_columns(p) is not None]
    if len(named) > 1:
        names = count_names((p.name for p in named), "table {}", "tables {}")
        raise ValueError(f"{root}: {names} of labels; give the path of one")
    if named:
        return root, named[0]
    has_folders = any(p.is_dir() and not _is_ignored(p.name) for p in root.iterdir())
    return root, tables[0] if tables and needed and (given or not has_folders) else None


def decode_files(
    root: Path,
    files: Sequence[str],
    size: ImageSize,
    channels: int | None,
    skip_broken: bool,
    progress: PictureProgress | None,
    most: int = LARGEST_DATASET,
) -> DecodedPictures:
    """The pixels of those files of a folder."""
    check_names(root, files)
    top = root.resolve()
    return decode_pictures(
        lambda i: open_picture(file_inside(top, files[i])),
        files,
        size=size,
        channels=channels,
        most=most,
        skip_broken=skip_broken,
        progress=progress,
        where=root,
    )


def check_names(root: Path, files: Iterable[str]) -> None:
    """Raise if names are not UTF-8: no CSV, page or record could hold them, and that would show only at the end."""
    if bad := [printable(file) for file in files if not is_utf8(file)]:
        names = count_names(bad, "name {} is", "names {} are")
        raise ValueError(f"{printable(str(root))}: {names} not UTF-8; rename the files (convmv does many at once)")


def images_of_pictures(
    name: str,
    decoded: DecodedPictures,
    labels: Sequence[str],
    sides: Sequence[str | None],
    test: float,
    classes: Sequence[str] | None = None,
) -> Images:
    """Pictures, their labels in words and their sides, as ``Images``. Classes are as given, or in natural order."""
    classes = tuple(classes) if classes is not None else tuple(sorted(set(labels), key=natural_key))
    if len(set(labels)) < 2:
        raise ValueError(f"{name}: all {len(labels)} pictures are of one class, {labels[0]!r}; expected two or more")
    at = {label: c for c, label in enumerate(classes)}
    y = np.array([at[label] for label in labels], dtype=np.int64)
    notes = list(decoded.notes)
    if sides[0] is None:
        pool, held = stratified(y, test)
    else:
        is_test = np.array([side == "test" for side in sides])
        pool, held = np.flatnonzero(~is_test).astype(np.int64), np.flatnonzero(is_test).astype(np.int64)
        if not len(pool) or not len(held):
            raise ValueError(f"{name}: no picture is on the {'test' if len(pool) else 'train'} side of its own split")
        if only := sorted({labels[i] for i in held} - {labels[i] for i in pool}, key=natural_key):
            raise ValueError(
                f"{name}: {count_names(only, 'class {} stands', 'classes {} stand')} only in test; no label could "
                "teach it: move some of its pictures to train, or remove it"
            )
    if test and (unmeasured := {labels[i] for i in pool} - {labels[i] for i in held}):
        notes.append(f"{count_names(unmeasured, 'class {} has', 'classes {} have')} no picture in test")
    return Images(name, decoded.x, torch.from_numpy(y), pool, held, classes, notes=tuple(notes))


def without_validation(rows: list[FileRow]) -> tuple[list[FileRow], list[str]]:
    """Validation pictures measure if there are no test pictures; otherwise they are left out, with a note."""
    sides = {row.side for row in rows}
    if "val" not in sides:
        return rows, []
    if "test" in sides:
        left = [row for row in rows if row.side != "val"]
        gone = counted(len(rows) - len(left), "validation picture was", "validation pictures were")
        return left, [f"{gone} left out; test measures"]
    return [FileRow(r.file, r.label, "test" if r.side == "val" else r.side) for r in rows], []


def _rows_of_table(path: Path, here: FolderListing, skip_broken: bool) -> tuple[list[FileRow], list[str]]:
    rows, remarks = read_file_table(path, skip_broken=skip_broken)
    notes = [f"labels are from {path.name}", *remarks]
    if unnamed := len(set(here.pictures) - {row.file for row in rows}):
        stand = counted(unnamed, "picture of the folder does not stand", "pictures of the folder do not stand")
        notes.append(f"{stand} in {path.name}: left out")
    labels = class_labels([row.label for row in rows], path)
    return [FileRow(row.file, label, row.side) for row, label in zip(rows, labels)], notes


def _rows_of_folders(root: Path, here: FolderListing, skip_broken: bool) -> tuple[list[FileRow], list[str]]:
    """The class of a picture is its folder's name: the first below the root, or below train and test."""
    tops = [name for name in here.folders if "/" not in name]
    sided = {name: SIDES[name.lower()] for name in tops if name.lower() in SIDES}
    deep = {name for name in sided if any(f.startswith(f"{name}/") for f in here.folders)}
    has_split = deep == set(sided) and "pool" in sided.values() and (len(sided) > 1 or len(tops) == 1)
    if deep and not has_split and (len(sided) > 1 or len(tops) == 1):
        raise ValueError(
            f"{root} has {count_names(sided, 'folder {}', 'folders {}')} named as a split, but class folders only in "
            f"{', '.join(sorted(deep))}; expected class folders in train and in test (or val), or give the path of one"
        )
    depth = 1 if has_split else 0
    only_train = has_split and len(sided) == 1
    rows, loose = list[FileRow](), list[str]()
    for file in here.pictures:
        parts = file.split("/")
        if len(parts) < depth + 2 or (has_split and parts[0] not in sided):
            loose.append(file)
        else:
            side = None if not has_split or only_train else sided[parts[0]]
            rows.append(FileRow(file, parts[depth], side))
    if not rows:
        raise ValueError(
            f"{root} has {len(here.pictures)} pictures ({', '.join(sorted(PICTURE_ENDINGS))}), none in a class folder; "
            "expected one folder a class with pictures in it, or a CSV with the columns file and label beside them"
        )
    notes = (
        [f"{count_names(loose, 'picture {} lies', 'pictures {} lie')} in no class folder: left out"] if loose else []
    )
    kinds = {f for f in here.folders if f.count("/") == depth and (not has_split or f.split("/")[0] in sided)}
    if empty := kinds - {"/".join(row.file.split("/")[: depth + 1]) for row in rows}:
        names = f"{count_names(empty, 'class folder {} is', 'class folders {} are')} without pictures"
        if not skip_broken:
            raise ValueError(f"{root}: {names}; remove them, or {HOW_TO_SKIP}")
        notes.append(f"{names}: left out")
    if note := note_other_files(here.others):
        notes.append(note)
    return rows, notes


def list_folder(root: Path) -> FolderListing:
    """Everything below ``root``. A link that leads out of it, or to a folder, is an error."""
    top = root.resolve()
    pictures, others, folders, bad = list[str](), list[str](), list[str](), list[str]()
    waiting = [""]
    while waiting:
        at = waiting.pop()
        with os.scandir(top / at) as entries:
            for entry in entries:
                name = f"{at}/{entry.name}".lstrip("/")
                if _is_ignored(entry.name):
                    continue
                if entry.is_symlink() and (not stays_inside(top, Path(entry.path)) or entry.is_dir()):
                    bad.append(name)
                elif entry.is_dir():
                    folders.append(name)
                    waiting.append(name)
                elif os.path.splitext(entry.name)[1].lower() in PICTURE_ENDINGS:
                    pictures.append(name)
                else:
                    others.append(name)
    if bad:
        raise ValueError(
            f"{root}: {count_names(bad, 'link {} leads', 'links {} lead')} out of the folder or to another folder, or "
            "in a loop; links are followed only to files inside: copy what is meant"
        )
    return FolderListing(*(tuple(sorted(names, key=natural_key)) for names in (pictures, others, folders)))


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM_FILES


def note_other_files(others: Iterable[str]) -> str | None:
    """A note on files that are not pictures, by ending."""
    count = Counter(os.path.splitext(name)[1].lower() or "no ending" for name in others)
    if not count:
        return None
    kinds = ", ".join(f"{n} {ending}" for ending, n in count.most_common(5))
    left = counted(count.total(), "file is not a picture and was", "files are not pictures and were")
    return f"{left} left out: {kinds}"
