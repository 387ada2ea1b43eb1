"""Labels from a CSV: which file, which class, and on which side of the split."""

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from foretaste.data._listing import told, within

FILE = ("file", "filename", "file_name", "filepath", "file_path", "path", "image", "image_path", "image_file", "img")
LABEL = ("label", "labels", "class", "class_name", "category", "target", "y")
SPLIT = ("split", "set", "subset", "partition")
SIDES = {"pool": "pool", "train": "pool", "training": "pool", "test": "test", "testing": "test"}
SIDES |= dict.fromkeys(("val", "valid", "validation", "dev"), "val")
MOST = 10**9  # bytes of a CSV: more is not one


@dataclass(frozen=True)
class Row:
    """One line of the table: ``file`` relative to the folder; ``side`` is pool, test, val, or None without a column."""

    file: str
    label: str
    side: str | None


def columns(path: Path) -> tuple[dict[str, int], list[str], str] | None:
    """Where file, label and split stand, all names, and what separates them; None if file or label is not there."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        first = lines.readline(100_000)
    mark = max(",;\t", key=first.count)
    names = next(csv.reader([first.strip("\r\n")], delimiter=mark), [])
    names = [name.strip() for name in names]
    plain = [name.lower().replace(" ", "_").replace("-", "_") for name in names]
    at = {}
    for what, spellings in (("file", FILE), ("label", LABEL), ("split", SPLIT)):
        if found := [s for s in spellings if s in plain]:
            at[what] = plain.index(found[0])
    return (at, names, mark) if {"file", "label"} <= set(at) else None


def table(path: Path, *, skip_broken: bool = False) -> tuple[list[Row], tuple[str, ...]]:
    """The rows of a CSV in its own folder, in its order, and notes.

    Names that climb out of the folder, files that stand twice, and cells left empty are errors, whatever is skipped;
    files that are missing are left out on request.
    """
    if path.stat().st_size > MOST:
        raise ValueError(f"{path} has {path.stat().st_size / 1e9:.3g} GB; a table of labels has less than 1 GB")
    found = columns(path)
    if found is None:
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            have = lines.readline(300).strip()
        raise ValueError(
            f"{path}: no column for the file or none for the label; its first line is {have!r}, expected names such as "
            f"file,label or file,label,split (also {', '.join(FILE[1:4])}; {', '.join(LABEL[1:5])}; {', '.join(SPLIT)})"
        )
    rows = _rows(path, *found)
    _no_repeats(path, rows)
    base, notes = path.parent, list[str]()
    prefix = _prefix(base, rows)
    rows = [Row(prefix + row.file, row.label, row.side) for row in rows]
    top = base.resolve()
    if outside := [row.file for row in rows if not within(top, base / row.file)]:
        raise ValueError(
            f"{path}: {told(outside, 'file {} is a link', 'files {} are links')} out of the folder; copy them"
        )
    if missing := {row.file for row in rows if not (base / row.file).is_file()}:
        say = told(missing, "file {} is missing", "files {} are missing")
        if not skip_broken:
            raise FileNotFoundError(f"{path}: {say}; add them, or give skip_broken=True to go without")
        notes.append(f"{path.name}: {told(missing, 'file {} is missing', 'files {} are missing', 100)}: left out")
        rows = [row for row in rows if row.file not in missing]
    return rows, tuple(notes)


def _rows(path: Path, at: dict[str, int], names: list[str], mark: str) -> list[Row]:
    rows, wrong = list[Row](), list[str]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, delimiter=mark)
            next(reader, None)
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) != len(names):
                    wrong.append(f"line {reader.line_num}: {len(cells)} cells where {len(names)} columns are named")
                    continue
                file, label = (cells[at[what]].strip() for what in ("file", "label"))
                side = SIDES.get(cells[at["split"]].strip().lower()) if "split" in at else None
                if not label or not file:
                    wrong.append(f"line {reader.line_num}: no {'label' if file else 'file'}")
                elif "split" in at and side is None:
                    wrong.append(f"line {reader.line_num}: split {cells[at['split']]!r}; expected {', '.join(SIDES)}")
                elif _climbs(file):
                    wrong.append(f"line {reader.line_num}: {file} leads out of the folder")
                else:
                    rows.append(Row(PurePosixPath(file.replace("\\", "/")).as_posix(), label, side))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as a CSV: {error}") from None
    if wrong:
        more = f"; and {len(wrong) - 10} more lines" if len(wrong) > 10 else ""
        raise ValueError(f"{path}: {'; '.join(wrong[:10])}{more}")
    if not rows:
        raise ValueError(f"{path} names no files")
    return rows


def _climbs(file: str) -> bool:
    """Absolute on any system, or with a step upwards."""
    path = PureWindowsPath(file)  # takes both slashes
    return bool(path.anchor) or ".." in path.parts


def _no_repeats(path: Path, rows: list[Row]) -> None:
    count = Counter(row.file for row in rows)
    if twice := [file for file, n in count.items() if n > 1]:
        differ = {f for f in twice if len({row.label for row in rows if row.file == f}) > 1} if len(twice) < 100 else ()
        say = f", {len(differ)} of them with different labels" if differ else ""
        raise ValueError(
            f"{path}: {told(twice, 'file {} stands', 'files {} stand')} more than once{say}; keep one line each"
        )


def _prefix(base: Path, rows: list[Row]) -> str:
    """Files beside the CSV; or, when none is there and the CSV has one folder beside it, in that folder."""
    if any((base / row.file).exists() for row in rows):
        return ""
    beside = [p for p in base.iterdir() if p.is_dir() and not p.is_symlink() and not p.name.startswith(".")]
    if len(beside) == 1 and any((beside[0] / row.file).exists() for row in rows):
        return f"{beside[0].name}/"
    return ""
