"""A folder of pictures, or of clips: class folders, perhaps within train and test folders; or a CSV of labels."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from foretaste.data.class_names import class_labels, count_names, differing_labels, natural_key
from foretaste.data.clips import clip_media, clip_points
from foretaste.data.pictures import HOW_TO_SKIP, PICTURE_ENDINGS, open_picture
from foretaste.data.points import Points, ReadOptions, picture_points
from foretaste.data.tables import (
    SIDES,
    TABLE_ENDINGS,
    FileRow,
    file_columns,
    file_inside,
    is_table,
    note_validation,
    read_file_table,
    resolve_sides,
    stays_inside,
)
from foretaste.errors import counted, is_utf8, printable

SYSTEM_FILES = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"}  # left by systems, besides hidden files
NO_CLASS_FOLDERS = ("unlabelled", "unlabeled", "unsorted")


@dataclass(frozen=True)
class FolderListing:
    """Paths relative to the root, with slashes, in natural order."""

    pictures: tuple[str, ...] = ()  # or clips, where there are none
    others: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """What one of its files is called."""
        return "clip" if self.pictures and clip_media(self.pictures[0]) else "picture"


def read_folder(path: Path, how: ReadOptions) -> Points:
    """Pictures of class folders, perhaps in train and test folders; or with a CSV of labels; or without labels.

    A study takes the labelled ones alone. Its class folders must have pictures, and all rows of its CSV a label.
    """
    root, table = find_label_table(path, needed=how.for_study)
    given = path == table
    here = FolderListing() if given and not how.for_study else list_folder(root)
    if not how.for_study:
        here = _or_clips(here)
    rows, notes = _rows_of_table(table, here, how, given) if table else _rows_of_folders(root, here, how)
    sides = resolve_sides([row.side for row in rows])
    rows = [replace(row, side=side) for row, side in zip(rows, sides) if side != "val"]
    if "val" in sides:
        notes.append(note_validation(sides.count("val"), here.word, f"{here.word}s"))
    files, labels = [row.file for row in rows], [row.label for row in rows]
    if bad := [printable(file) for file in files if not is_utf8(file)]:  # no CSV, page or record could hold them
        names = count_names(bad, "name {} is", "names {} are")
        raise ValueError(f"{printable(str(root))}: {names} not UTF-8; rename the files (convmv does many at once)")
    top, where = root.resolve(), str(path if given and not how.for_study else root)
    path_of: Callable[[int], Path] = lambda i: file_inside(top, files[i])  # noqa: E731
    split = [str(row.side) for row in rows] if rows and rows[0].side else ()
    if not how.for_study and files and all(map(clip_media, files)):
        clips = clip_points(where, files, labels, how, split, path_of)
        return replace(clips, notes=(*notes, *clips.notes))
    points = picture_points(
        where, lambda i: open_picture(path_of(i)),
        lambda i: path_of(i).read_bytes(), files, labels, how, split, path_of,
    )  # fmt: skip
    notes += points.notes
    if how.for_study and (twice := _copies(top, points)):
        notes.append(twice)
    return replace(points, notes=tuple(notes))


def _or_clips(here: FolderListing) -> FolderListing:
    """A folder without pictures may hold clips: they stand in their place."""
    clips = tuple(name for name in here.others if clip_media(name))
    if here.pictures or not clips:
        return here
    return replace(here, pictures=clips, others=tuple(name for name in here.others if not clip_media(name)))


def _copies(top: Path, points: Points) -> str | None:
    """A note on equal files with different labels: pictures of a study are decoded, and no longer compare as files."""
    files = [top / name for name in points.ids]
    sizes = [file.stat().st_size for file in files]
    digest_of: Callable[[int], bytes] = lambda i: blake2b(files[i].read_bytes()).digest()  # noqa: E731
    return differing_labels(points.ids, points.labels, sizes, digest_of, ("picture", "pictures"))


def find_label_table(path: Path, *, needed: bool = True) -> tuple[Path, Path | None]:
    """The folder, and the CSV that holds its labels; None if its class folders do.

    If labels are ``needed`` and there are no class folders, a CSV without the columns counts too: its error says what
    is missing.
    """
    if path.is_file() and is_table(path):
        return path.parent, path
    if not path.is_dir():
        raise FileNotFoundError(f"{path} is neither a folder nor a CSV; expected a folder of class folders, or a CSV")
    root, names = path, os.listdir(path)
    tables = sorted(p for n in names if n[0] != "." and n.lower().endswith(TABLE_ENDINGS) and (p := path / n).is_file())
    named = [p for p in tables if file_columns(p) is not None]
    if len(named) > 1:
        several = count_names((p.name for p in named), "table {}", "tables {}")
        raise ValueError(f"{root}: {several} of labels; give the path of one")
    if named:
        return root, named[0]
    if not tables or not needed or any((root / n).is_dir() and not _is_ignored(n) for n in names):
        return root, None
    return root, tables[0]


def _rows_of_table(path: Path, here: FolderListing, how: ReadOptions, given: bool) -> tuple[list[FileRow], list[str]]:
    """The rows of a CSV; then pictures that it does not name, without a label, unless the CSV itself was ``given``."""
    rows, remarks = read_file_table(path, skip_broken=how.skip_broken, gaps=not how.for_study)
    notes, named = [f"labels are from {path.name}", *remarks], {row.file for row in rows}
    if not how.regression:
        labels = class_labels([row.label for row in rows], path)
        rows = [FileRow(row.file, label, row.side) for row, label in zip(rows, labels)]
    more = [file for file in here.pictures if file not in named]
    if more and (how.for_study or not given):
        one, many = f"{here.word} of the folder does not stand", f"{here.word}s of the folder do not stand"
        stand = counted(len(more), one, many)
        notes.append(f"{stand} in {path.name}: {'left out' if how.for_study else 'no label'}")
    if how.for_study or given:
        return rows, notes
    return [*rows, *(FileRow(file, None, "pool" if rows and rows[0].side else None) for file in more)], notes


def _rows_of_folders(root: Path, here: FolderListing, how: ReadOptions) -> tuple[list[FileRow], list[str]]:
    """The class of a picture is its folder's name: the first below the root, or below train and test."""
    if not here.pictures and not how.for_study:
        raise ValueError(
            f"{root} has no pictures and no clips; expected some, or folders of them. A CSV or an .npz is given by its "
            "own path"
        )
    sided = _split_folders(root, here, how)
    depth = 1 if sided else 0
    rows, loose = list[FileRow](), list[str]()
    for file in here.pictures:
        parts = file.split("/")
        inside = len(parts) >= depth + 2 and (not sided or parts[0] in sided)
        label = parts[depth] if inside and parts[depth].lower() not in NO_CLASS_FOLDERS else None
        if label is None and how.for_study:
            loose.append(file)
        else:
            rows.append(FileRow(file, label, sided.get(parts[0], "pool") if len(sided) > 1 else None))
    if not rows:
        raise ValueError(
            f"{root} has {len(here.pictures)} pictures ({', '.join(sorted(PICTURE_ENDINGS))}), none in a class folder; "
            "expected one folder a class with pictures in it, or a CSV with the columns file and label beside them"
        )
    notes = _note_other_files(here)
    if loose:
        notes.append(f"{count_names(loose, 'picture {} lies', 'pictures {} lie')} in no class folder: left out")
    kinds = {f for f in here.folders if f.count("/") == depth and (not sided or f.split("/")[0] in sided)}
    kinds -= {f for f in kinds if f.split("/")[-1].lower() in NO_CLASS_FOLDERS}
    empty = kinds - {"/".join(row.file.split("/")[: depth + 1]) for row in rows}
    if empty and how.for_study:
        names = f"{count_names(empty, 'class folder {} is', 'class folders {} are')} without pictures"
        if not how.skip_broken:
            raise ValueError(f"{root}: {names}; remove them, or {HOW_TO_SKIP}")
        notes.append(f"{names}: left out")
    return rows, notes


def _split_folders(root: Path, here: FolderListing, how: ReadOptions) -> dict[str, str]:
    """The folders called train, test and val with class folders in them, and their sides; none if it is no split."""
    tops = [name for name in here.folders if "/" not in name]
    sided = {name: SIDES[name.lower()] for name in tops if name.lower() in SIDES}
    deep = {name for name in sided if any(f.startswith(f"{name}/") for f in here.folders)}
    alone = len(sided) > 1 or len(tops) == 1
    if deep == set(sided) and "pool" in sided.values() and alone:
        return sided
    if deep and alone and how.for_study:
        raise ValueError(
            f"{root} has {count_names(sided, 'folder {}', 'folders {}')} named as a split, but class folders only in "
            f"{', '.join(sorted(deep))}; expected class folders in train and in test (or val), or give the path of one"
        )
    return {}


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


def _note_other_files(here: FolderListing) -> list[str]:
    """A note on files that are no pictures, or no clips, by ending."""
    count = Counter(os.path.splitext(name)[1].lower() or "no ending" for name in here.others)
    if not count:
        return []
    kinds = ", ".join(f"{n} {ending}" for ending, n in count.most_common(5))
    left = counted(count.total(), f"file is not a {here.word} and was", f"files are not {here.word}s and were")
    return [f"{left} left out: {kinds}"]
