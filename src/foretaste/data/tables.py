"""Tables: a CSV that names files and their labels, and a CSV of features, one point a line."""

import csv
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import torch

from foretaste.data.dataset import Images, stratified_or_raise
from foretaste.data.labels import NAMES_SHOWN, class_labels, count_names, index_labels, join_faults
from foretaste.data.pictures import HOW_TO_SKIP
from foretaste.errors import check_regular

FILE_COLUMNS = (
    "file", "filename", "file_name", "filepath", "file_path", "path", "image", "image_path", "image_file", "img",
)  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target", "y")
SPLIT_COLUMNS = ("split", "set", "subset", "partition")
ID_COLUMNS = ("id", "ids", "name", "key", "index")
SIDES = {"pool": "pool", "train": "pool", "training": "pool", "test": "test", "testing": "test"}
SIDES |= dict.fromkeys(("val", "valid", "validation", "dev"), "val")
CSV_ENDINGS = (".csv", ".tsv")
LARGEST_CSV = 10**9  # bytes
LONGEST_CELL = 10_000_000  # characters: a book
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
LONGEST_FILE_NAME = 255  # bytes, on all usual systems


@dataclass(frozen=True)
class FileRow:
    """One line of a table of files. ``file`` is relative to the folder; ``side`` is pool, test, val, or None."""

    file: str
    label: str | None  # None where the cell is empty
    side: str | None  # None without a column for it


@dataclass(frozen=True)
class FileColumns:
    """Where file, label and split stand in a table, all its names, and the separator."""

    at: dict[str, int]
    names: list[str]
    separator: str


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """A CSV of numbers. Ids and labels are words; None without such a column."""

    x: np.ndarray  # (N, D) float32
    names: tuple[str, ...]  # (D,) of the features
    ids: list[str] | None
    labels: list[str | None] | None  # None where the cell is empty


def is_csv(path: Path) -> bool:
    """Whether the name ends in .csv or .tsv."""
    return path.suffix.lower() in CSV_ENDINGS


def file_columns(path: Path, *, labelled: bool = True) -> FileColumns | None:
    """The columns of a table of files; None if there is no column for the file (or for the label, if ``labelled``)."""
    check_regular(path)
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        first = lines.readline(100_000)
    separator = max(",;\t", key=first.count)
    try:
        names = next(csv.reader([first.strip("\r\n")], delimiter=separator), [])
    except csv.Error:  # whoever reads the table says what is wrong
        return None
    names = [name.strip() for name in names]
    plain = [name.lower().replace(" ", "_").replace("-", "_") for name in names]
    at = {}
    for what, spellings in (("file", FILE_COLUMNS), ("label", LABEL_COLUMNS), ("split", SPLIT_COLUMNS)):
        if found := [s for s in spellings if s in plain]:
            at[what] = plain.index(found[0])
    needed = {"file", "label"} if labelled else {"file"}
    return FileColumns(at, names, separator) if needed <= set(at) else None


def read_file_table(
    path: Path, *, skip_broken: bool = False, gaps: bool = False
) -> tuple[list[FileRow], tuple[str, ...]]:
    """The rows of a CSV of files, in its order, and notes. The files lie in the folder of the CSV.

    A path that leads out of the folder and a file that stands twice are errors. So is an empty label, unless ``gaps``
    are allowed; then the column may be missing too. ``skip_broken`` leaves out files that are missing.
    """
    if path.stat().st_size > LARGEST_CSV:
        raise ValueError(f"{path} has {path.stat().st_size / 1e9:.3g} GB; a table of labels has less than 1 GB")
    found = file_columns(path, labelled=not gaps)
    if found is None:
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            have = lines.readline(300).strip()
        raise ValueError(
            f"{path}: no column for the file or none for the label; its first line is {have!r}, expected names such as "
            f"file,label or file,label,split (also {', '.join(FILE_COLUMNS[1:4])}; {', '.join(LABEL_COLUMNS[1:5])}; "
            f"{', '.join(SPLIT_COLUMNS)})"
        )
    rows = _file_rows(path, found, gaps)
    _check_no_repeats(path, rows)
    base, notes = path.parent, list[str]()
    prefix = _file_prefix(base, rows)
    rows = [FileRow(prefix + row.file, row.label, row.side) for row in rows]
    top = base.resolve()
    if outside := [row.file for row in rows if not stays_inside(top, base / row.file)]:
        raise ValueError(
            f"{path}: {count_names(outside, 'file {} is a link', 'files {} are links')} out of the folder; copy them"
        )
    if missing := {row.file for row in rows if not (base / row.file).is_file()}:
        if not skip_broken:
            names = count_names(missing, "file {} is missing", "files {} are missing")
            raise FileNotFoundError(f"{path}: {names}; add them, or {HOW_TO_SKIP}")
        names = count_names(missing, "file {} is missing", "files {} are missing", 100)
        notes.append(f"{path.name}: {names}: left out")
        rows = [row for row in rows if row.file not in missing]
    return rows, tuple(notes)


def stays_inside(top: Path, path: Path) -> bool:
    """Whether ``path``, its links followed, stays below ``top`` (itself resolved). A loop of links leads nowhere."""
    try:
        return path.resolve().is_relative_to(top)
    except (OSError, RuntimeError, ValueError):
        return False


def file_inside(top: Path, name: str) -> Path:
    """A file of the folder ``top`` (itself resolved), its links followed; raises if they lead out of it by now."""
    path = (top / name).resolve()
    if not path.is_relative_to(top):
        raise ValueError("it has become a link out of the folder")
    return path


def _file_rows(path: Path, columns: FileColumns, gaps: bool) -> list[FileRow]:
    rows, wrong, at = list[FileRow](), list[str](), columns.at
    tops = (path.parent.absolute(), path.parent.resolve())
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, delimiter=columns.separator)
            next(reader, None)
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                line = f"line {reader.line_num}"
                if len(cells) != len(columns.names):
                    wrong.append(f"{line}: {len(cells)} cells where {len(columns.names)} columns are named")
                    continue
                named, label = cells[at["file"]].strip(), cells[at["label"]].strip() if "label" in at else ""
                side = SIDES.get(cells[at["split"]].strip().lower()) if "split" in at else None
                if not named or (not label and not gaps):
                    wrong.append(f"{line}: no {'label' if named else 'file'}")
                elif "split" in at and side is None:
                    wrong.append(f"{line}: split {cells[at['split']]!r}; expected {', '.join(SIDES)}")
                elif (
                    "\0" in named
                    or max(len(os.fsencode(part)) for part in re.split(r"[/\\]", named)) > LONGEST_FILE_NAME
                ):
                    wrong.append(f"{line}: {named[:20]!r}... cannot be the name of a file")
                elif (file := _path_inside(named, tops)) is None:
                    wrong.append(f"{line}: {named} leads out of the folder")
                else:
                    rows.append(FileRow(file, label or None, side))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as a CSV: {error}") from None
    if wrong:
        raise ValueError(f"{path}: {join_faults(wrong)}")
    if not rows:
        raise ValueError(f"{path} names no files")
    return rows


def _path_inside(file: str, tops: Sequence[Path]) -> str | None:
    """The path relative to the folder, with slashes; None if it leads out. ``tops`` are spellings of the folder."""
    path = PureWindowsPath(file)  # knows both slashes and drives
    if ".." in path.parts:
        return None
    if not path.anchor:
        return PurePosixPath(file.replace("\\", "/")).as_posix()
    here = Path(file)
    if not here.is_absolute():  # a drive, on a system without drives
        return None
    for candidate in (here, here.resolve()):
        for top in tops:
            if candidate.is_relative_to(top):
                return candidate.relative_to(top).as_posix()
    return None


def _check_no_repeats(path: Path, rows: list[FileRow]) -> None:
    count = Counter(row.file for row in rows)
    if twice := [file for file, n in count.items() if n > 1]:
        differ = {f for f in twice if len({row.label for row in rows if row.file == f}) > 1} if len(twice) < 100 else ()
        labels = f", {len(differ)} of them with different labels" if differ else ""
        raise ValueError(
            f"{path}: {count_names(twice, 'file {} stands', 'files {} stand')} more than once{labels}; "
            "keep one line each"
        )


def _file_prefix(base: Path, rows: list[FileRow]) -> str:
    """Files lie beside the CSV; if none does and there is one folder beside it, they lie in that folder."""
    if any((base / row.file).exists() for row in rows):
        return ""
    beside = [p for p in base.iterdir() if p.is_dir() and not p.is_symlink() and not p.name.startswith(".")]
    if len(beside) == 1 and any((beside[0] / row.file).exists() for row in rows):
        return f"{beside[0].name}/"
    return ""


def feature_table(path: str | os.PathLike[str], *, test: float = 0.2) -> Images:
    """A labelled CSV of numbers: a column label (or class, target), perhaps an id, and features.

    Args:
        path: a CSV or TSV with a first line of names.
        test: share of each class to measure on, always the same points.

    Returns:
        The data set; ``x`` is (N, D) float32.

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
    got = read_feature_table(file)
    if got.labels is None:
        raise ValueError(
            f"{file} has columns {', '.join(got.names[:NAMES_SHOWN])} and none for the label; expected one of "
            f"{', '.join(LABEL_COLUMNS)} (and one of {', '.join(FILE_COLUMNS[:3])} where the points are pictures)"
        )
    y_N, classes = index_labels([label for label in class_labels(got.labels, file) if label is not None], file)
    pool, held = stratified_or_raise(y_N, test, file)
    note = f"{file.name}: {len(got.names)} features of {len(y_N)} points"
    return Images(file.stem, torch.from_numpy(got.x), torch.from_numpy(y_N), pool, held, classes, notes=(note,))


def read_feature_table(path: Path) -> FeatureTable:
    """A labelled CSV of numbers. Columns id (or name, key) and label (or class, target) are not features."""
    head, rows = table_lines(path)
    plain = [name.lower() for name in head]
    at_id, at_label = (
        next((plain.index(s) for s in names if s in plain), None) for names in (ID_COLUMNS, LABEL_COLUMNS)
    )
    at_x = [k for k in range(len(head)) if k not in (at_id, at_label)]
    if not at_x:
        raise ValueError(f"{path} has columns {', '.join(head)} and no features; expected numbers beside id and label")
    needed = [k for k in (at_id, at_label) if k is not None]
    faults, x_ND = [], np.empty((len(rows), len(at_x)), np.float32)
    for n, (line, row) in enumerate(rows):
        if len(row) != len(head):
            faults.append(f"line {line}: {len(row)} cells where {len(head)} columns are named")
            continue
        bad = [head[k] for k in at_x if not is_finite_number(row[k])]
        if bad:
            faults.append(f"line {line}: {', '.join(bad[:3])} not a finite number")
            continue
        x_ND[n] = [float(row[k]) for k in at_x]
        faults += [f"line {line}: no {head[k]}" for k in needed if not row[k].strip()]
    if faults:
        raise ValueError(
            f"{path}: {join_faults(faults)}; expected numbers beside id and label, or a column {FILE_COLUMNS[0]} that "
            "names pictures"
        )
    ids = None if at_id is None else [row[at_id].strip() for _, row in rows]
    labels = None if at_label is None else [row[at_label].strip() or None for _, row in rows]
    return FeatureTable(x_ND, tuple(head[k] for k in at_x), ids, labels)


def table_lines(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names in the first line, and the other lines with their numbers."""
    check_regular(path)
    if path.stat().st_size > LARGEST_CSV:
        raise ValueError(f"{path} has {path.stat().st_size / 1e9:.3g} GB; for more than 1 GB use an .npz")
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            separator = max(",;\t", key=lines.readline().count)
            lines.seek(0)
            csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))  # of the process; Python's own is 131,072
            reader = csv.reader(lines, delimiter=separator)
            # The number of the row's last line: a cell in quotes may have several.
            rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a CSV in UTF-8: {error}") from None
    if not rows:
        raise ValueError(f"{path} is empty; expected a first line of names, then a point a line")
    head = [name.strip() for name in rows.pop(0)[1]]
    if all(map(is_finite_number, head)):
        raise ValueError(f"{path}: its first line is numbers; expected names, such as id,label,width,height")
    if not rows:
        raise ValueError(f"{path} has no points; expected at least one")
    return head, rows


def is_finite_number(cell: str) -> bool:
    """Whether the cell is a number that float32 can hold."""
    try:
        return abs(float(cell)) <= LARGEST_FLOAT32
    except ValueError:
        return False
