"""Labels in and out: CSV, JSON lines, folders of pictures, tasks of Label Studio, Parquet, and COCO.

The format follows from the name: ``.csv``, ``.jsonl``, ``.parquet``, ``.json`` (Label Studio), ``.coco.json``; what has
no ending is a folder. What one writes the other reads. A file is checked as a whole before the first label is taken in.
"""

import csv
import io
import json
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from foretaste.errors import FORMULA_STARTS, check_known, check_regular, csv_cell, did_you_mean, format_bytes, printable
from foretaste.files import whole_file, whole_folder
from foretaste.label.formats import coco_text, read_coco, read_parquet, write_parquet
from foretaste.label.store import CopyGroups, LabelStore
from foretaste.label.task import BAR, LabelTask

FILE_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]*")  # of the name of a file, and not of a folder such as day.2
TEXT_FORMATS = ("csv", "jsonl", "json", "coco")
EXPORT_COLUMNS = ("item", "label", "kind", "who", "at", "purpose")
ITEM_FIELDS = {"pictures": "image", "clips": "clip"}  # of a kind of items in a task of Label Studio; else "text"
ITEM_COLUMNS = ("item", "file", "filename", "path", "image", "id")  # names under which a CSV may have the items
LARGEST_IMPORT = 500_000_000
KINDS_OUT = ("label", "unsure", "ignore", "skip")
UPLOADED = re.compile(r"^[0-9a-f]{8}-(.+)$")  # how Label Studio names a file that was uploaded
LABEL_STUDIO_FROM, LABEL_STUDIO_TO = "label", "item"  # names in the labelling configuration


@dataclass(frozen=True)
class LabelRow:
    """One item and what was said about it."""

    item: str
    label: str | None
    kind: str = "label"  # "label", "unsure", "ignore", "skip"
    who: str = ""
    at: str = ""
    purpose: str = ""
    row: int | None = None  # of a table without ids, counted from 0
    voices: str = ""  # what each person said, as JSON, where several were asked
    doubt: float | None = None  # the chance that it is wrong, by how reliable those are who said it


def label_rows(
    store: LabelStore, twins: Mapping[str, str] | None = None, rows_of: Mapping[str, int] | None = None
) -> list[LabelRow]:
    """What the store knows now, one row an item, in the order of the answers.

    ``twins``: item → the item that it is a copy of. Copies without an answer of their own get the row that counts for
    all of them, and say so in ``purpose``.
    ``rows_of``: item → its row in a table without ids, where it is there still.
    """
    rows, groups, shared, weighed = {}, CopyGroups(twins or {}), store.shared(), store.votes == "reliability"
    for item, event in sorted(store.current().items(), key=lambda pair: pair[1].seq):
        kind = "label" if event.label is not None else event.kind
        said = json.dumps(shared[item].labels, ensure_ascii=False) if item in shared else ""
        purpose = shared[item].purpose if item in shared else event.purpose
        doubt = round(store.doubt_of(item), 3) if weighed and event.label is not None else None
        rows[item] = LabelRow(item, event.label, kind, event.who, event.at, purpose or "", voices=said, doubt=doubt)
    copies = [
        replace(rows[event.item], item=copy, purpose="copy")
        for first, event in groups.in_force(store.current()).items()
        for copy in groups.members(first)
        if copy not in rows
    ]
    found = [*rows.values(), *copies]
    return [replace(row, row=rows_of.get(row.item)) for row in found] if rows_of else found


def export_labels(
    rows: Sequence[LabelRow],
    out: str | os.PathLike[str],
    *,
    root: Path | None = None,
    field: str = "image",
    classes: Sequence[str] = (),
    texts: Callable[[], Mapping[str, str]] | None = None,
    task: LabelTask | None = None,
) -> Path:
    """Write labels to a file or a folder.

    Args:
        rows: What to write; see ``label_rows``.
        out: ``labels.csv``, ``labels.jsonl``, ``labels.parquet`` (Hugging Face's datasets), ``tasks.json`` (Label
            Studio), ``labels.coco.json``, or a folder, which gets a folder a class with copies of the files.
        root: The folder of the pictures or clips, which class folders need.
        field: The name of the item in a Label Studio task: "image", "clip" or "text"; see ``ITEM_FIELDS``.
        classes: All classes in order, for formats that number them; else those of the rows.
        texts: Gives item → text, which a Parquet file of texts holds.
        task: What was asked; None: one class an item. Sets and numbers go to CSV, JSON lines and Label Studio, sets to
            COCO too.

    Returns:
        The path written.

    Raises:
        ValueError: a file of another format, a folder for items that are no pictures, or class names that cannot be
            names of folders.
        FileExistsError: the folder is not empty.
    """
    out, task = Path(out), task or LabelTask()
    ending = ".coco" if out.name.lower().endswith(".coco.json") else out.suffix.lower()
    if ending in (".csv", ".jsonl", ".json") or out.name.lower().endswith(".coco.json"):
        with whole_file(out) as part, part.open("w", encoding="utf-8", newline="") as file:
            file.writelines(export_text(rows, ending.lstrip("."), field=field, classes=classes, task=task))
        return out
    if not task.one:
        raise ValueError(f"{out.name} has one class an item, and the task is {task.kind}; name a .csv, .jsonl or .json")
    if ending == ".parquet":
        known, names = [row for row in rows if row.label is not None], _classes_of(rows, classes)
        plain = [{c: str(getattr(row, c)) for c in EXPORT_COLUMNS} for row in known]
        content: tuple[str, Callable[[str], Any]] | None = None
        if root is not None and field == "image":
            content = "image", partial(_picture_bytes, root.resolve())
        elif texts is not None and field == "text":
            content = "text", texts().get
        with whole_file(out) as part:
            write_parquet(part, plain, names, content)
        return out
    if FILE_ENDING.fullmatch(ending) and not out.is_dir():
        raise ValueError(
            f"labels are not written as {ending}; name a .csv, .jsonl, .parquet, .json (Label Studio), .coco.json, or "
            "a new folder without an ending"
        )
    if root is None:
        raise ValueError(f"{out} would be a folder of files, and these items are none; name a .csv, .jsonl or .json")
    return _export_folders(rows, out, root)


def export_text(
    rows: Iterable[LabelRow], kind: str, *, field: str = "image", classes: Sequence[str] = (),
    task: LabelTask | None = None,
) -> Iterator[str]:  # fmt: skip
    """The text of an export, piece by piece: "csv", "jsonl", "json" (Label Studio) or "coco".

    ``field``: as in a task of Label Studio. ``classes``: all of them in order. ``task``: what was asked.
    """
    check_known("format", kind, TEXT_FORMATS)
    task = task or LabelTask()
    if kind == "coco" and task.kind == "number":
        raise ValueError("COCO has classes, and these labels are numbers; take CSV or JSON lines")
    rows = list(rows)
    columns = (
        *EXPORT_COLUMNS,
        *(c for c in ("row", "voices", "doubt") if any(getattr(row, c) not in (None, "") for row in rows)),
    )
    if kind == "csv":
        # Called file, the column makes a CSV inside the folder of the pictures the labels of that folder (ft.open).
        names = ("item" if field == "text" else "file", *columns[1:])
        yield _csv_line(names)
        for row in rows:
            if task.kind == "several" and row.label is not None:
                row = replace(row, label=row.label.removeprefix(BAR) or BAR)
            yield _csv_line(["" if (v := getattr(row, c)) is None else str(v) for c in columns])
    elif kind == "jsonl":
        for row in rows:
            said = {c: getattr(row, c) for c in columns}
            if not task.one and row.label is not None:
                said["label"] = task.taught(row.label)
            if row.voices:
                said["voices"] = json.loads(row.voices)
            yield json.dumps(said, ensure_ascii=False) + "\n"
    elif kind == "coco":
        named = [(row.item, task.names(row.label)) for row in rows if row.label is not None]
        yield coco_text(named, _classes_of(rows, classes) if task.one else classes)
    else:
        tasks = [label_studio_task(row, field, task) for row in rows if row.label is not None]
        yield json.dumps(tasks, ensure_ascii=False, indent=1) + "\n"


def _classes_of(rows: Iterable[LabelRow], classes: Sequence[str]) -> list[str]:
    """The classes, and after them those that only rows have."""
    return [*classes, *sorted({row.label for row in rows if row.label is not None} - {*classes})]


def prediction_text(
    found: Iterable[tuple[str, str, float]], rows: Iterable[LabelRow], *, field: str = "image"
) -> Iterator[str]:
    """A CSV of what is predicted of each item, with the label of those that have one."""
    labels = {row.item: row.label or "" for row in rows}
    names = ("item" if field == "text" else "file", "label", "predicted", "probability")
    for cells in (names, *((i, labels.get(i, ""), c, "" if p != p else f"{p:.4f}") for i, c, p in found)):
        yield _csv_line(cells)


def _csv_line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([_protected(cell) for cell in cells])
    return line.getvalue()


def _protected(text: str) -> str:
    """A cell that is no formula. A text that looks protected gets one more apostrophe, so that all come back."""
    return f"'{text}" if _looks_protected(text) else csv_cell(text)


def _looks_protected(text: str) -> bool:
    return text.startswith("'") and text.lstrip("'").startswith(FORMULA_STARTS)


def label_studio_task(row: LabelRow, field: str, task: LabelTask) -> dict[str, Any]:
    """A task with one annotation, as Label Studio imports them."""
    assert row.label is not None
    kind, value = ("number", task.taught(row.label)) if task.kind == "number" else ("choices", task.names(row.label))
    choice = {"from_name": LABEL_STUDIO_FROM, "to_name": LABEL_STUDIO_TO, "type": kind, "value": {kind: value}}
    return {
        "data": {field: row.item, "foretaste_id": row.item, "who": row.who, "at": row.at},
        "annotations": [{"result": [choice], "was_cancelled": False}],
    }


def _export_folders(rows: Sequence[LabelRow], out: Path, root: Path) -> Path:
    """Copies of the files, one folder a class."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} is not an empty folder; name a new one")
    labelled = [row for row in rows if row.label is not None]
    bad = sorted({str(row.label) for row in labelled if not _is_folder_name(str(row.label))})
    if bad:
        raise ValueError(f"{_named(bad, 'class {} cannot', 'classes {} cannot')} name a folder; export a CSV")
    top = root.resolve()
    with whole_folder(out) as part:
        for row in labelled:
            source = _picture_path(top, row.item)
            target = part / str(row.label) / row.item
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    return out


def _picture_path(top: Path, item: str) -> Path:
    """The file of a picture in the folder ``top``, and in no other."""
    source = (top / item).resolve()
    if not source.is_relative_to(top):
        raise ValueError(f"{printable(item)} leads out of {top}; it is not copied")
    check_regular(source)
    return source


def _picture_bytes(top: Path, item: str) -> bytes:
    return _picture_path(top, item).read_bytes()


def _named(names: Iterable[str], one: str, many: str) -> str:
    """How many names, and the first of them; ``foretaste.data`` loads torch, so only where something is wrong."""
    from foretaste.data import count_names

    return count_names(names, one, many)


def _is_folder_name(name: str) -> bool:
    return not name.startswith(".") and not any(c in name for c in '/\\\0:*?"<>|') and name.strip() == name != ""


# In


def read_labels(path: str | os.PathLike[str], items: Sequence[str], task: LabelTask | None = None) -> list[LabelRow]:
    """Read labels that ``export_labels``, Label Studio or a person wrote.

    Args:
        path: A CSV with a column label and one of item, file, path, image or id; JSON lines or Parquet of the same; a
            Label Studio export; COCO's JSON; or a folder of class folders.
        items: The ids that are known here. Names in a Label Studio task or a class folder may be longer: their end
            must be one id.
        task: What was asked; None: one class an item.

    Returns:
        The rows, in the order of the file.

    Raises:
        ValueError: something cannot be read, or is about an item that is not here. All such rows are counted.
    """
    path, task = Path(path), task or LabelTask()
    if path.is_dir():
        pairs = list(_read_folders(path))
    else:
        check_regular(path)
        if (size := path.stat().st_size) > LARGEST_IMPORT:
            raise ValueError(f"{path} has {format_bytes(size)}; expected at most {format_bytes(LARGEST_IMPORT)}")
        ending = path.suffix.lower().lstrip(".")
        readers: dict[str, Callable[[Path], Iterator[LabelRow]]] = {
            "csv": _read_csv,
            "jsonl": _read_lines,
            "json": partial(_read_json, task=task),
            "parquet": _read_parquet,
        }
        check_known("format", ending, readers)
        try:
            pairs = list(readers[ending](path))
        except UnicodeDecodeError:
            from foretaste.data import how_to_utf8

            raise ValueError(how_to_utf8(path)) from None
    return _match(path, pairs, items)


def import_labels(store: LabelStore, rows: Sequence[LabelRow], *, who: str = "import") -> int:
    """Take rows into the store, all or none. What is there already and the same is left alone.

    Returns:
        How many events were written.

    Raises:
        ValueError: a class that the store does not have.
    """
    said = {name for row in rows if row.label is not None for name in store.task.names(row.label)}
    if strange := sorted(said - set(store.known_classes)):
        raise ValueError(
            f"{_named(strange, 'class {} is', 'classes {} are')} not among {', '.join(store.classes)}; "
            "name them with classes= too"
        )
    before = len(store.events())
    with store.together():
        for row in rows:
            if row.label is not None:
                row = replace(row, label=store.task.check(row.label, store.classes, store.known_classes))
            now = store.state_of(row.item)
            if now is not None and now.label == row.label and (row.label is not None or now.kind == row.kind):
                continue
            kind = row.kind if row.label is None else "label" if now is None or now.label is None else "relabel"
            purpose = row.purpose if row.purpose in ("teach", "check") else None
            if row.label is None and now is not None and now.label is not None:
                continue  # a label says more than "not sure"
            store.record(row.item, kind, row.label, who=row.who or who, purpose=purpose)
    return len(store.events()) - before


def _read_csv(path: Path) -> Iterator[LabelRow]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            reader = csv.DictReader(file, strict=True)
            columns = [c.strip().lower() for c in reader.fieldnames or []]
            item = next((c for c in ITEM_COLUMNS if c in columns), None)
            if item is None or "label" not in columns:
                raise ValueError(
                    f"{path} has the columns {', '.join(columns) or 'none'}; expected label and one of "
                    f"{', '.join(ITEM_COLUMNS)}"
                )
            reader.fieldnames = columns
            for number, cells in enumerate(reader, 2):
                if None in cells or None in cells.values():
                    raise ValueError(f"{path}, row {number}: not as many cells as there are columns")
                plain = {name: text[1:] if _looks_protected(text) else text for name, text in cells.items()}
                yield _row(plain, item, f"{path}, row {number}")
        except csv.Error as error:
            raise ValueError(f"{path} is not a CSV: {error}") from None


def _read_lines(path: Path) -> Iterator[LabelRow]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            value = _json(line, f"{path}, line {number}")
            item = next((c for c in ITEM_COLUMNS if isinstance(value, dict) and c in value), None)
            if item is None:
                raise ValueError(f"{path}, line {number}: expected an object with item and label")
            yield _row(value, item, f"{path}, line {number}")


def _row(cells: dict[str, Any], item: str, where: str) -> LabelRow:
    found = {c: cells.get(c) for c in ("label", "kind", "who", "at", "purpose")} | {"item": cells[item]}
    if isinstance(names := found["label"], list) and all(isinstance(name, str) for name in names):
        found["label"] = BAR + BAR.join(names)
    for name, value in found.items():
        if not isinstance(value, str | int | float | None) or isinstance(value, bool):
            raise ValueError(f"{where}: {name} is a {type(value).__name__}; expected text")
    text = {name: "" if value is None else str(value) for name, value in found.items()}
    kind = text["kind"] or "label"
    if kind in ("relabel", "undo"):
        kind = "label"
    check_known(f"kind ({where})", kind, KINDS_OUT)
    label = text["label"] or None
    if (label is None) == (kind == "label"):
        raise ValueError(
            f"{where}: the kind is {kind} and the label {label!r}; a label needs a class, others have none"
        )
    return LabelRow(text["item"], label, kind, text["who"], text["at"], text["purpose"])


def _read_parquet(path: Path) -> Iterator[LabelRow]:
    for number, cells in enumerate(read_parquet(path, ITEM_COLUMNS)):
        yield _row(cells, "item", f"{path}, row {number}")


def _read_json(path: Path, task: LabelTask) -> Iterator[LabelRow]:
    """COCO's images with categories, or tasks of Label Studio."""
    said = _json(path.read_text(encoding="utf-8"), str(path))
    if isinstance(said, dict) and "images" in said:
        found = read_coco(path, said, task.kind == "several")
        return (LabelRow(item, names[0] if task.one else BAR + BAR.join(names)) for item, names in found)
    if not isinstance(said, list):
        raise ValueError(f"{path} is not a list of tasks, as Label Studio exports them, nor COCO's JSON")
    return _read_tasks(path, said, task)


def _read_tasks(path: Path, tasks: list[Any], asked: LabelTask) -> Iterator[LabelRow]:
    """Tasks of a Label Studio export, plain JSON or JSON_MIN; the last annotation of a task that was not cancelled."""
    for number, task in enumerate(tasks, 1):
        data = task.get("data", task) if isinstance(task, dict) else None
        if not isinstance(data, dict):
            raise ValueError(f"{path}, task {number}: expected an object with data")
        names = [data.get(k) for k in ("foretaste_id", *ITEM_COLUMNS, "text")]
        name = next((str(n) for n in names if isinstance(n, str | int) and n != ""), None)
        if name is None:
            raise ValueError(
                f"{path}, task {number}: its data names no item; expected one of {', '.join(ITEM_COLUMNS)}"
            )
        if not isinstance(given := task.get("annotations"), list | None):
            raise ValueError(f"{path}, task {number}: annotations is a {type(given).__name__}; expected a list")
        label = last_choice(task) if asked.one else _last_answer(task, asked)
        if label is not None:
            yield LabelRow(name, label, who=str(data.get("who") or ""), at=str(data.get("at") or ""))


def last_choice(task: dict[str, Any]) -> str | None:
    """The class that an annotation of a task chose; None if there is none."""
    if isinstance(task.get("choice"), str):
        return str(task["choice"])  # JSON_MIN
    return next((choices[0] for annotation in _annotations(task) if (choices := chosen(annotation))), None)


def _annotations(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The annotations of a task that were not cancelled, the last one first."""
    for annotation in reversed(_listed(task.get("annotations"))):
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        yield annotation


def _last_answer(task: dict[str, Any], asked: LabelTask) -> str | None:
    """The set or the number that the last annotation of a task says; None if there is none."""
    for annotation in _annotations(task):
        values = [r.get("value") for r in _listed(annotation.get("result")) if isinstance(r, dict)]
        numbers = [v.get("number", v.get("rating")) for v in values if isinstance(v, dict)]
        if asked.kind == "several":
            return BAR + BAR.join(chosen(annotation))
        if numbers and isinstance(numbers[0], int | float):
            return asked.said(float(numbers[0]))
    return None


def chosen(annotation: Mapping[str, Any], control: str | None = None) -> list[str]:
    """What an annotation chose, with the Choices of a name or, for None, with the first that chose anything."""
    for result in _listed(annotation.get("result")):
        value = result.get("value") if isinstance(result, dict) else None
        choices = value.get("choices") if isinstance(value, dict) else None
        texts = isinstance(choices, list) and all(isinstance(choice, str) for choice in choices)
        if texts and choices and control in (None, result.get("from_name")):
            return choices
    return []


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _read_folders(path: Path) -> Iterator[LabelRow]:
    for folder in sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")):
        for at, _, files in sorted(os.walk(folder)):
            for name in sorted(files):
                if not name.startswith("."):
                    yield LabelRow((Path(at) / name).relative_to(folder).as_posix(), folder.name)


class ItemNames:
    """Finds the item that a name means: the id itself, or a path of which one is the end of the other.

    >>> names = ItemNames(["cats/a.png", "b.png"])
    >>> names.find("/data/local-files/?d=photos/cats/a.png"), names.find("a.png"), names.find("/data/upload/1/0a1b2c3d-b.png")
    ('cats/a.png', 'cats/a.png', 'b.png')
    >>> names.find("dogs/a.png") is None
    True
    """  # noqa: E501

    def __init__(self, items: Iterable[str]) -> None:
        self.known = set(items)
        self.ends = defaultdict[str, list[str]](list)
        for item in self.known:
            self.ends[item.rsplit("/", 1)[-1]].append(item)

    def find(self, name: str) -> str | None:
        """The one item that is meant; None if there is none, or more than one."""
        if name in self.known:
            return name
        try:
            path = unquote(name.split("?d=")[-1] if "?d=" in name else urlsplit(name).path if "://" in name else name)
        except ValueError:  # no address, though it looks like one: "http://[see there]"
            return None
        start, _, end = path.rpartition("/")
        uploaded = UPLOADED.match(end)
        for way in (path, f"{start}/{uploaded[1]}") if uploaded else (path,):
            near = self.ends.get(way.rsplit("/", 1)[-1], ())
            fits = [i for i in near if way == i or way.endswith(f"/{i}") or i.endswith(f"/{way}")]
            if len(fits) == 1:
                return fits[0]
        return None


def _match(path: Path, rows: Iterable[LabelRow], items: Sequence[str]) -> list[LabelRow]:
    """Rows with the ids that are known here; those of others are an error."""
    names = ItemNames(items)
    found, lost = list[LabelRow](), list[str]()
    for row in rows:
        item = names.find(row.item)
        if item is None:
            lost.append(row.item)
        else:
            found.append(replace(row, item=item))
    if lost:
        words = _named([printable(name) for name in lost], "item {} is", "items {} are")
        raise ValueError(f"{path}: {words} not here{did_you_mean(lost[0], list(items)[:5000], None)}")
    if twice := [item for item, n in Counter(row.item for row in found).items() if n > 1]:
        raise ValueError(f"{path}: {_named(twice, 'item {} stands', 'items {} stand')} there more than once")
    return found


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error})") from None
