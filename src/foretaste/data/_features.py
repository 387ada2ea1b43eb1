"""Features in a CSV: a line of names, then a point a line."""

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from foretaste.data._images import Images
from foretaste.data._listing import natural
from foretaste.data._stratify import stratified
from foretaste.data._table import FILE, LABEL, MOST

ID = ("id", "ids", "name", "key", "index")
NAMED = 10


@dataclass(frozen=True, eq=False)
class Table:
    """What a CSV of numbers holds; ids and labels as words, None without such a column."""

    x: np.ndarray  # (N, D) float32
    names: tuple[str, ...]  # (D,) of the features
    ids: list[str] | None
    labels: list[str] | None


def features(path: str | os.PathLike[str], *, test: float = 0.2) -> Images:
    """A labelled CSV of numbers: a column label (or class, target), perhaps an id, and features. ``test`` of each class
    measures, always the same points."""
    file = Path(path).expanduser()
    got = read_table(file)
    if got.labels is None:
        raise ValueError(
            f"{file} has columns {', '.join(got.names[:NAMED])} and none for the label; expected one of "
            f"{', '.join(LABEL)} (and one of {', '.join(FILE[:3])} where the points are pictures)"
        )
    classes = tuple(sorted(set(got.labels), key=natural))
    if len(classes) < 2:
        raise ValueError(f"{file}: all labels are {classes[0]!r}; expected two classes or more")
    at = {name: c for c, name in enumerate(classes)}
    y_N = np.array([at[label] for label in got.labels], dtype=np.int64)
    pool, held = stratified(y_N, test)
    if test and not len(held):
        raise ValueError(f"{file}: {len(y_N)} points leave none for a test share of {test}; give more of either")
    note = f"{file.name}: {len(got.names)} features of {len(y_N)} points"
    return Images(file.stem, torch.from_numpy(got.x), torch.from_numpy(y_N), pool, held, classes, notes=(note,))


def read_table(path: Path) -> Table:
    """Numbers with names; columns id (or name, key) and label (or class, target) are not features."""
    if path.stat().st_size > MOST:
        raise ValueError(f"{path} has {path.stat().st_size / 1e9:.3g} GB; for more than 1 GB use an .npz")
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            mark = max(",;\t", key=lines.readline().count)
            lines.seek(0)
            rows = [(k, row) for k, row in enumerate(csv.reader(lines, delimiter=mark), 1) if any(map(str.strip, row))]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a CSV in UTF-8: {error}") from None
    if not rows:
        raise ValueError(f"{path} is empty; expected a first line of names, then a point a line")
    head = [name.strip() for name in rows.pop(0)[1]]
    if all(map(_is_number, head)):
        raise ValueError(f"{path}: its first line is numbers; expected names, such as id,label,width,height")
    if not rows:
        raise ValueError(f"{path} has no points; expected at least one")
    plain = [name.lower() for name in head]
    at_id, at_label = (next((plain.index(s) for s in names if s in plain), None) for names in (ID, LABEL))
    at_x = [k for k in range(len(head)) if k not in (at_id, at_label)]
    if not at_x:
        raise ValueError(f"{path} has columns {', '.join(head)} and no features; expected numbers beside id and label")
    faults, x_ND = [], np.empty((len(rows), len(at_x)), np.float32)
    for n, (line, row) in enumerate(rows):
        if len(row) != len(head):
            faults.append(f"line {line}: {len(row)} cells where {len(head)} columns are named")
            continue
        bad = [head[k] for k in at_x if not _is_number(row[k])]
        if bad:
            faults.append(f"line {line}: {', '.join(bad[:3])} not a finite number")
            continue
        x_ND[n] = [float(row[k]) for k in at_x]
        faults += [f"line {line}: no {head[k]}" for k in (at_id, at_label) if k is not None and not row[k].strip()]
    if faults:
        raise ValueError(
            f"{path}: {listed(faults)}; expected numbers beside id and label, or a column {FILE[0]} that names pictures"
        )
    ids, labels = (None if k is None else [row[k].strip() for _, row in rows] for k in (at_id, at_label))
    return Table(x_ND, tuple(head[k] for k in at_x), ids, labels)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(np.float32(cell))
    except ValueError:
        return False


def listed(faults: Sequence[str]) -> str:
    more = f"; and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return "; ".join(faults[:NAMED]) + more
