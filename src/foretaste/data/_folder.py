"""A folder of pictures: one folder a class, with train and test folders above them or not; or one folder and a CSV."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from foretaste.data._decode import MOST, Decoded, Progress, decode
from foretaste.data._images import Images
from foretaste.data._listing import Listing, listing, natural, other_files, told
from foretaste.data._pixels import ENDINGS, Side, open_picture
from foretaste.data._stratify import stratified
from foretaste.data._table import SIDES, Row, columns, table


def folder(
    path: str | PathLike[str],
    *,
    size: Side = None,
    channels: int | None = None,
    test: float = 0.2,
    skip_broken: bool = False,
    most: int = MOST,
    progress: Progress | None = None,
) -> Images:
    """Read all pictures of a folder (or of a CSV in it) into memory, as bytes of one size.

    ``size``: pixels a side (or height and width), scaled to cover and cut from the middle; None where all are alike.
    ``channels``: 1 or 3; None is 3 unless all are grey. ``test``: the share of each class to measure on, always the
    same; not used where the folder has train and test (or val) folders, or the CSV such a column. ``skip_broken``: go
    without pictures that cannot be read, files that are missing and classes without pictures; ``notes`` names them.
    """
    root = Path(path)
    meant = root.is_file() and root.suffix.lower() in (".csv", ".tsv")  # the table itself, whatever lies beside it
    if meant:
        root, tables = root.parent, [root]
    elif root.is_dir():
        tables = sorted(p for p in root.iterdir() if p.suffix.lower() in (".csv", ".tsv") and p.name[0] != ".")
    else:
        raise FileNotFoundError(f"{root} is neither a folder nor a CSV; expected a folder of class folders, or a CSV")
    here = listing(root)
    named = [p for p in tables if columns(p) is not None]
    if len(named) > 1:
        raise ValueError(
            f"{root}: {told((p.name for p in named), 'table {}', 'tables {}')} of labels; give the path of one"
        )
    if named or (tables and (meant or not here.folders)):
        rows, notes = _from_table((named or tables)[0], here, skip_broken)
    else:
        rows, notes = _from_folders(root, here, skip_broken)
    rows, left = _without_val(rows)
    files = [row.file for row in rows]
    decoded = decode(
        lambda i: open_picture(root / files[i]),
        files,
        size=size,
        channels=channels,
        most=most,
        skip_broken=skip_broken,
        progress=progress,
    )
    kept = [rows[i] for i in decoded.kept]
    data = assemble(root.resolve().name, decoded, [r.label for r in kept], [r.side for r in kept], test)
    gone = {row.label for row in rows} - set(data.classes)
    lost = (f"{told(gone, 'class {} has', 'classes {} have')} no picture that can be read: left out",) if gone else ()
    return replace(data, files=tuple(r.file for r in kept), notes=(*notes, *left, *data.notes, *lost))


def assemble(
    name: str,
    decoded: Decoded,
    labels: Sequence[str],
    sides: Sequence[str | None],
    test: float,
    classes: Sequence[str] | None = None,
) -> Images:
    """Pictures, their labels in words and their sides, as ``Images``; classes as given or in natural order."""
    classes = tuple(classes) if classes is not None else tuple(sorted(set(labels), key=natural))
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
        if only := sorted({labels[i] for i in held} - {labels[i] for i in pool}, key=natural):
            raise ValueError(
                f"{name}: {told(only, 'class {} stands', 'classes {} stand')} only in test; no label could "
                "teach it: move some of its pictures to train, or remove it"
            )
    if test and (unmeasured := {labels[i] for i in pool} - {labels[i] for i in held}):
        notes.append(f"{told(unmeasured, 'class {} has', 'classes {} have')} no picture in test")
    return Images(name, decoded.x, torch.from_numpy(y), pool, held, classes, notes=tuple(notes))


def _from_table(path: Path, here: Listing, skip_broken: bool) -> tuple[list[Row], list[str]]:
    rows, said = table(path, skip_broken=skip_broken)
    notes = [f"labels are from {path.name}", *said]
    if unnamed := len(set(here.pictures) - {row.file for row in rows}):
        notes.append(f"{unnamed} pictures of the folder do not stand in {path.name} and were left out")
    return rows, notes


def _from_folders(root: Path, here: Listing, skip_broken: bool) -> tuple[list[Row], list[str]]:
    """The class of a picture is its folder's name: the first below the root, or below train and test."""
    tops = [name for name in here.folders if "/" not in name]
    sided = {name: SIDES[name.lower()] for name in tops if name.lower() in SIDES}
    deep = {name for name in sided if any(f.startswith(f"{name}/") for f in here.folders)}
    has_split = deep == set(sided) and "pool" in sided.values() and (len(sided) > 1 or len(tops) == 1)
    if deep and not has_split and (len(sided) > 1 or len(tops) == 1):
        raise ValueError(
            f"{root} has {told(sided, 'folder {}', 'folders {}')} named as a split, but class folders only in "
            f"{', '.join(sorted(deep))}; expected class folders in train and in test (or val), or give the path of one"
        )
    depth = 1 if has_split else 0
    only_train = has_split and len(sided) == 1
    rows, loose = list[Row](), list[str]()
    for file in here.pictures:
        parts = file.split("/")
        if len(parts) < depth + 2 or (has_split and parts[0] not in sided):
            loose.append(file)
        else:
            side = None if not has_split or only_train else sided[parts[0]]
            rows.append(Row(file, parts[depth], side))
    if not rows:
        raise ValueError(
            f"{root} has {len(here.pictures)} pictures ({', '.join(sorted(ENDINGS))}), none in a class folder; "
            "expected one folder a class with pictures in it, or a CSV with the columns file and label beside them"
        )
    notes = [f"{told(loose, 'picture {} lies', 'pictures {} lie')} in no class folder: left out"] if loose else []
    kinds = {f for f in here.folders if f.count("/") == depth and (not has_split or f.split("/")[0] in sided)}
    if empty := kinds - {"/".join(row.file.split("/")[: depth + 1]) for row in rows}:
        say = f"{told(empty, 'class folder {} is', 'class folders {} are')} without pictures"
        if not skip_broken:
            raise ValueError(f"{root}: {say}; remove them, or give skip_broken=True to go without")
        notes.append(f"{say}: left out")
    if note := other_files(here.others):
        notes.append(note)
    return rows, notes


def _without_val(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Validation pictures measure where there are no test pictures; else they are nobody's."""
    sides = {row.side for row in rows}
    if "val" not in sides:
        return rows, []
    if "test" in sides:
        left = [row for row in rows if row.side != "val"]
        return left, [f"{len(rows) - len(left)} validation pictures were left out; test measures"]
    return [Row(r.file, r.label, "test" if r.side == "val" else r.side) for r in rows], []
