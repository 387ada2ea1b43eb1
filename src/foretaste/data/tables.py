"""Tables on disk, CSV, TSV or Parquet: one reader for all; and tables that name files and their labels."""

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from foretaste.data.class_names import cell_text, count_names, join_faults
from foretaste.data.pictures import HOW_TO_SKIP
from foretaste.errors import check_regular, counted, format_bytes

FILE_COLUMNS = (
    "file", "filename", "file_name", "filepath", "file_path", "path", "image", "image_path", "image_file", "img",
)  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target", "y")
SPLIT_COLUMNS = ("split", "set", "subset", "partition")
ID_COLUMNS = ("id", "ids", "name", "key", "index")
SIDES = {"pool": "pool", "train": "pool", "training": "pool", "test": "test", "testing": "test"}
SIDES |= dict.fromkeys(("val", "valid", "validation", "dev"), "val")
TABLE_ENDINGS = (".csv", ".tsv", ".parquet")
LARGEST_TABLE = 10**9  # bytes
LONGEST_CELL = 10_000_000  # characters: a book
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
LONGEST_FILE_NAME = 255  # bytes, on all usual systems

Cells = list[str | None]


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name, all of one length. ``lines`` are the numbers of the rows in their file, for messages."""

    where: str
    columns: Mapping[str, Cells]
    lines: Sequence[int]
    row: str = "line"  # what a row is called in messages
    notes: tuple[str, ...] = ()  # what was left out in reading it

    def __len__(self) -> int:
        return len(self.lines)

    def only(self, names: Sequence[str]) -> "Table":
        """Some of the columns, in that order."""
        return Table(self.where, {name: self.columns[name] for name in names}, self.lines, self.row)

    def take(self, rows: Sequence[int]) -> "Table":
        """Some of the rows, in that order."""
        columns = {name: [cells[i] for i in rows] for name, cells in self.columns.items()}
        return Table(self.where, columns, [self.lines[i] for i in rows], self.row)


@dataclass(frozen=True)
class FileRow:
    """One line of a table of files. ``file`` is relative to the folder; ``side`` is pool, test, val, or None."""

    file: str
    label: str | None  # None where the cell is empty
    side: str | None  # None without a column for it


def resolve_sides(sides: Sequence[str | None]) -> tuple[str | None, ...]:
    """Test measures; validation counts as test where there is no test, and stays "val" (left out) beside it."""
    return tuple(sides) if "test" in sides else tuple("test" if side == "val" else side for side in sides)


def column_sides(cells: Cells) -> tuple[str, ...] | None:
    """The side of each row; none unless every row has one and both sides occur. None: the column is no split."""
    if any(cell is not None and cell.lower() not in SIDES for cell in cells):
        return None
    sides = resolve_sides([None if cell is None else SIDES[cell.lower()] for cell in cells])
    return tuple(map(str, sides)) if {"pool", "test"} <= set(sides) and None not in sides else ()


def note_validation(n: int, one: str, many: str) -> str:
    """A note on points that are left out because there is a test side."""
    return f"{counted(n, f'validation {one} was', f'validation {many} were')} left out; test measures"


def is_table(path: Path) -> bool:
    """Whether the name ends in .csv, .tsv or .parquet."""
    return path.suffix.lower() in TABLE_ENDINGS


def file_columns(path: Path, *, labelled: bool = True) -> dict[str, str] | None:
    """The columns of file, label and split; None if there is none for the file (or for the label, if ``labelled``)."""
    names = table_names(path)
    plain = [name.lower().replace(" ", "_").replace("-", "_") for name in names]
    found = {}
    for what, spellings in (("file", FILE_COLUMNS), ("label", LABEL_COLUMNS), ("split", SPLIT_COLUMNS)):
        if usual := [s for s in spellings if s in plain]:
            found[what] = names[plain.index(usual[0])]
    needed = {"file", "label"} if labelled else {"file"}
    return found if needed <= set(found) else None


def read_file_table(
    path: Path, *, skip_broken: bool = False, gaps: bool = False
) -> tuple[list[FileRow], tuple[str, ...]]:
    """The rows of a CSV of files, in its order, and notes. The files lie in the folder of the CSV.

    A path that leads out of the folder and a file that stands twice are errors. So is an empty label, unless ``gaps``
    are allowed; then the column may be missing too. ``skip_broken`` leaves out files that are missing.
    """
    found = file_columns(path, labelled=not gaps)
    if found is None:
        have = ",".join(table_names(path))[:300]
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
    path, parts = top / name, name.split("/")
    # Without a link or a ".." there is nothing to follow. To resolve 100,000 names would take three seconds.
    plain = os.sep == "/" and not {"", ".", ".."}.intersection(parts)
    if plain and not any(os.path.islink("/".join((str(top), *parts[:n]))) for n in range(1, len(parts) + 1)):
        return path
    path = path.resolve()
    if not path.is_relative_to(top):
        raise ValueError("it has become a link out of the folder")
    return path


def _file_rows(path: Path, found: Mapping[str, str], gaps: bool) -> list[FileRow]:
    table = read_table(path)
    rows, wrong = list[FileRow](), list[str]()
    tops = (path.parent.absolute(), path.parent.resolve())
    for i, line in enumerate(table.lines):
        cells = {what: table.columns[name][i] for what, name in found.items()}
        named, label, split = cells["file"], cells.get("label"), cells.get("split") or ""
        side = SIDES.get(split.lower()) if "split" in found else None
        if not named or (not label and not gaps):
            wrong.append(f"{table.row} {line}: no {'label' if named else 'file'}")
        elif "split" in found and side is None:
            wrong.append(f"{table.row} {line}: split {split!r}; expected {', '.join(SIDES)}")
        elif "\0" in named or max(len(os.fsencode(part)) for part in re.split(r"[/\\]", named)) > LONGEST_FILE_NAME:
            wrong.append(f"{table.row} {line}: {named[:20]!r}... cannot be the name of a file")
        elif (file := _path_inside(named, tops)) is None:
            wrong.append(f"{table.row} {line}: {named} leads out of the folder")
        else:
            rows.append(FileRow(file, label, side))
    if wrong:
        raise ValueError(f"{path}: {join_faults(wrong)}")
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


def table_names(path: Path) -> list[str]:
    """The names of the columns, without reading the rows."""
    check_regular(path)
    if path.suffix.lower() == ".parquet":
        with _parquet(path) as file:
            return [str(name).strip() for name in file.schema_arrow.names]
    with path.open(encoding=_encoding(path), errors="replace", newline="") as lines:
        first = lines.readline(100_000)
    try:
        names = next(csv.reader([first.strip("\r\n")], delimiter=_separator(first)), [])
    except csv.Error:  # whoever reads the table says what is wrong
        return []
    return [name.strip() for name in names]


def read_table(path: Path) -> Table:
    """A CSV or TSV with a line of names, or a Parquet file. Cells are stripped words; an empty one is None.

    Raises:
        ImportError: a Parquet file, and pyarrow is not installed.
        ValueError: the file cannot be read, or has no rows; all bad lines at once.
    """
    check_regular(path)
    if (size := path.stat().st_size) > LARGEST_TABLE:
        raise ValueError(f"{path} has {format_bytes(size)}; for more than {format_bytes(LARGEST_TABLE)} use an .npz")
    table = _parquet_table(path) if path.suffix.lower() == ".parquet" else _csv_table(path)
    if not len(table):
        raise ValueError(f"{path} has no points; expected at least one")
    return table


def _csv_table(path: Path) -> Table:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))  # of the process; Python's own is 131,072
    try:
        with path.open(encoding=_encoding(path), newline="") as lines:
            separator = _separator(lines.readline())
            lines.seek(0)
            reader = csv.reader(lines, delimiter=separator)
            # The number of the row's last line: a cell in quotes may have several.
            rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except UnicodeError:
        raise ValueError(how_to_utf8(path)) from None
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as a CSV: {error}") from None
    if not rows:
        raise ValueError(f"{path} is empty; expected a first line of names, then a point a line")
    head = [name.strip() for name in rows.pop(0)[1]]
    if all(map(is_finite_number, head)):
        raise ValueError(f"{path}: its first line is numbers; expected names, such as id,label,width,height")
    if faults := [
        f"line {line}: {counted(len(row), 'cell')} where {counted(len(head), 'column is', 'columns are')} named"
        for line, row in rows
        if len(row) != len(head)
    ]:
        raise ValueError(f"{path}: {join_faults(faults)}")
    columns = [(name, [row[k].strip() or None for _, row in rows]) for k, name in enumerate(head)]
    # Commas at the ends of lines, as spreadsheets write them, are no columns.
    columns = [(name, cells) for name, cells in columns if name or any(cells)]
    return Table(str(path), _by_name(path, columns), [line for line, _ in rows])


def _parquet_table(path: Path) -> Table:
    with _parquet(path) as file:
        unpacked = sum(file.metadata.row_group(k).total_byte_size for k in range(file.metadata.num_row_groups))
        if unpacked > LARGEST_TABLE:
            raise ValueError(
                f"{path} unpacks to {format_bytes(unpacked)}; for more than {format_bytes(LARGEST_TABLE)} use an .npz"
            )
        read = file.read()
        read.validate(full=True)  # Arrow trusts the offsets in a file
        names = [str(name).strip() for name in read.column_names]
        columns = [(name, _parquet_cells(column)) for name, column in zip(names, read.columns)]
    known = _by_name(path, [(name, cells) for name, cells in columns if cells is not None])
    left = [f"{name}: {column.type}" for name, column in zip(names, read.columns) if name not in known]
    note = count_names(left, "column {} has", "columns {} have") + " no words or numbers: left out"
    how_to = "; for lists of numbers give datasets.Dataset.from_parquet(...)" if "list<" in note else ""
    return Table(str(path), known, range(read.num_rows), "row", (note + how_to,) if left else ())


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """An open Parquet file. What Arrow says against it names the file."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ImportError(
            f"{path}: reading Parquet needs the package pyarrow: pip install 'foretaste[parquet]', or save it as a CSV"
        ) from None
    try:
        with path.open("rb") as raw:
            yield ParquetFile(raw)
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())[:300]}") from None


def _parquet_cells(column: Any) -> Cells | None:
    """A column as the cells of a CSV; None if it holds something else than words, numbers, truth values and times."""
    from pyarrow import types

    kind = getattr(column.type, "value_type", column.type) if types.is_dictionary(column.type) else column.type
    if types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind) or types.is_dictionary(kind):
        return None
    return [cell_text(value.isoformat() if hasattr(value, "isoformat") else value) for value in column.to_pylist()]


def _by_name(path: Path, columns: Sequence[tuple[str, Cells]]) -> dict[str, Cells]:
    names = [name for name, _ in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path}: {count_names(twice, 'column {} stands', 'columns {} stand')} twice; rename one")
    return dict(columns)


def _separator(first: str) -> str:
    return max(",;\t", key=first.count)


def _encoding(path: Path) -> str:
    """UTF-8, with a mark or without; or UTF-16, if the mark says so."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def how_to_utf8(path: Path) -> str:
    """What to do about a file that is not UTF-8. What it is instead cannot be known, so nothing is guessed."""
    if _encoding(path) == "utf-16":
        return f"{path} begins as UTF-16 does and cannot be read as such; save it as UTF-8"
    raw = path.read_bytes()
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start
    line, start = raw.count(b"\n", 0, at) + 1, raw.rfind(b"\n", 0, at) + 1
    word = raw[max(start, at - 12) : at + 12].partition(b"\n")[0].decode("cp1252", "replace").strip()
    return (
        f"{path} is not UTF-8: line {line}, near {word!r} as Windows-1252 (also called Latin-1 or ANSI) would have it. "
        'Save it as "CSV UTF-8" in your spreadsheet; or, if that word is right, '
        f"iconv -f WINDOWS-1252 -t UTF-8 {path.name} > utf8-{path.name}"
    )


def is_finite_number(cell: str) -> bool:
    """Whether the cell is a number that float32 can hold."""
    try:
        return abs(float(cell)) <= LARGEST_FLOAT32
    except ValueError:
        return False
