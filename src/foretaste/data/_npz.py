"""A data set of one's own in one .npz file: pictures as bytes, or features as floats."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from foretaste.data._find import MOST
from foretaste.data._images import Images
from foretaste.data._members import arrays, names_in
from foretaste.data._parts import joined, strangers
from foretaste.data._stratify import stratified

SPLIT = (("train_images", "train_labels", "test_images", "test_labels"), ("x_train", "y_train", "x_test", "y_test"))
WHOLE = (("x", "y"), ("images", "labels"))
CHANNELS = (1, 3)
Layout = Literal["NHWC", "NCHW"]


def npz(path: str | os.PathLike[str], *, test: float = 0.2, layout: Layout | None = None, most: int = MOST) -> Images:
    """``train_images``, ``train_labels``, ``test_images``, ``test_labels``; or ``x`` and ``y``, of which a ``test``
    share of each class measures, always the same.

    Pictures are uint8, (N, H, W), (N, H, W, C) or (N, C, H, W): the axis of 1 or 3 is the channels, unless ``layout``
    says which; ``notes`` say how it was decided. Floats of any shape (N, D, …) are features, kept as float32. Labels
    are integers or strings; class names are the labels, or those of an array ``classes`` that integers count into.
    """
    file = Path(path).expanduser()
    there = names_in(file)
    names = keys(file, there)
    read = arrays(file, [*names, *({"classes"} & set(there))], most)
    called = read.pop() if len(read) > len(names) else None
    x_parts, y_parts = read[0::2], read[1::2]
    laid = [points(x, f"{file}: {name}", layout) for x, name in zip(x_parts, names[0::2])]
    x_N, notes = together(file, names[0::2], laid)
    y_N, classes = classes_of(file, names[1::2], y_parts, [len(x) for x in x_parts], called)
    if len(laid) == 2:
        pool, held = np.arange(len(laid[0][0])), np.arange(len(laid[0][0]), len(x_N))
        notes += strangers(y_N[pool], y_N[held], classes)
    else:
        pool, held = stratified(y_N, test)
        if test and not len(held):
            raise ValueError(f"{file}: {len(y_N)} points leave none for a test share of {test}; give more of either")
    return Images(file.stem, torch.from_numpy(x_N), torch.from_numpy(y_N), pool, held, classes, notes=notes)


def keys(file: Path, there: list[str]) -> tuple[str, ...]:
    for names in (*SPLIT, *WHOLE):
        if set(names) <= set(there):
            return names
    nearest = max((*SPLIT, *WHOLE), key=lambda names: len(set(names) & set(there)) / len(names))
    missing = ", ".join(name for name in nearest if name not in there)
    raise ValueError(
        f"{file} has {', '.join(there) or 'nothing'} and lacks {missing}; expected {', '.join(SPLIT[0])}, or x and y"
    )


def points(x: np.ndarray, what: str, layout: Layout | None) -> tuple[np.ndarray, str | None]:
    """Pictures as (n, channels, H, W) bytes, or floats; and how it was decided what they are."""
    if x.ndim < 2 or x.size == 0:
        raise ValueError(
            f"{what} is {x.dtype} {x.shape}; expected at least one point along the first axis, and numbers"
        )
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            kept = x.astype(np.float32)
        if bad := int((~np.isfinite(kept)).sum()):
            where = int(np.argwhere(~np.isfinite(kept))[0][0])
            raise ValueError(f"{what}: {bad} numbers are not finite in float32, the first in row {where}")
        return kept, f"{x.dtype} {x.shape[1:]}: features"
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise ValueError(
            f"{what} is {x.dtype} {x.shape}; expected pictures as uint8 (N, H, W), (N, H, W, C) or (N, C, H, W), "
            "or features as floats (N, D)"
        )
    if x.ndim == 3:
        return x[:, None], "pictures (N, H, W): one channel"
    first, last = x.shape[1] in CHANNELS, x.shape[3] in CHANNELS
    if layout is None and first == last:
        raise ValueError(
            f"{what} is {x.shape}: {'both' if first else 'neither'} of axes 1 and 3 could be the channels (1 or 3); "
            "give layout='NHWC' or 'NCHW'"
        )
    if layout not in (None, "NHWC", "NCHW"):
        raise ValueError(f"layout is {layout!r}; expected 'NHWC' or 'NCHW'")
    if layout == "NCHW" or (layout is None and first):
        return x, f"pictures (N, C, H, W): axis 1 is the channels{'' if layout else ', for it has ' + str(x.shape[1])}"
    said = "" if layout else f", for it has {x.shape[3]}"
    return x.transpose(0, 3, 1, 2), f"pictures (N, H, W, C): axis 3 is the channels{said}"


def together(
    file: Path, names: Sequence[str], laid: list[tuple[np.ndarray, str | None]]
) -> tuple[np.ndarray, tuple[str, ...]]:
    (x, how), (x_last, _) = laid[0], laid[-1]
    if x.shape[1:] != x_last.shape[1:] or x.dtype != x_last.dtype:
        raise ValueError(
            f"{file}: {names[0]} are {x.dtype} {x.shape[1:]} and {names[-1]} {x_last.dtype} {x_last.shape[1:]}; "
            "expected both alike"
        )
    return joined([x for x, _ in laid]), (f"{file.name}: {how}",)


def classes_of(
    file: Path, names: Sequence[str], raw: list[np.ndarray], counts: list[int], called: np.ndarray | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as class ids, and the classes' names, over train and test together."""
    flat = []
    for name, y, count in zip(names, raw, counts):
        y_n = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        if y_n.ndim != 1 or y_n.dtype.kind not in "iuUS":
            raise ValueError(f"{file}: {name} is {y.dtype} {y.shape}; expected one integer or string for each point")
        if len(y_n) != count:
            raise ValueError(f"{file}: {len(y_n)} labels in {name} for {count} points; expected as many")
        flat.append(np.char.decode(y_n, "utf-8") if y_n.dtype.kind == "S" else y_n)
    if len({y_n.dtype.kind in "iu" for y_n in flat}) > 1:
        raise ValueError(f"{file}: labels are integers in one part and strings in the other; expected both alike")
    if called is None:
        values, y_N = np.unique(np.concatenate(flat), return_inverse=True)
        classes = tuple(map(str, values))
    else:
        y_N, classes = np.concatenate(flat), tuple(map(str, called.ravel()))
        if y_N.dtype.kind not in "iu" or called.dtype.kind != "U":
            raise ValueError(f"{file}: classes is {called.dtype} and labels {y_N.dtype}; expected strings and integers")
        if y_N.min() < 0 or y_N.max() >= len(classes):
            raise ValueError(f"{file}: labels go from {y_N.min()} to {y_N.max()}; expected 0 to {len(classes) - 1}")
    if len(classes) < 2:
        raise ValueError(f"{file}: all labels are {classes[0]!r}; expected two classes or more")
    return y_N.astype(np.int64), classes
