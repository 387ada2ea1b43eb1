"""A data set in one .npz file: pictures or features. Arrays are measured before they are inflated; nothing is run."""

import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from foretaste.data.class_names import array_labels, class_labels, count_names, label_words, named_classes
from foretaste.data.dataset import LARGEST_DATASET, check_memory
from foretaste.data.pictures import Layout
from foretaste.data.points import Points, ReadOptions, array_points
from foretaste.errors import counted, did_you_mean, format_bytes

POINT_ARRAYS, LABEL_ARRAYS = ("x", "images", "features"), ("y", "labels", "label")
SPLIT_ARRAYS = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
)
CHANNEL_COUNTS = (1, 3)
DEFLATE_MOST = 1032  # a deflate stream never grows by more than this factor
T = TypeVar("T")


def read_npz(file: Path, how: ReadOptions) -> Points:
    """Points of an .npz: ``x`` and perhaps ``y``, ``ids``, ``classes``; or train and test arrays, each a side.

    Two axes (N, D) of floats are features; three or four axes are pictures. An array ``classes`` names the classes that
    whole numbers count into.
    """
    there = array_names(file)
    x_names, y_names = _choose_arrays(file, there, how)
    others = [name for name in ("ids", "classes") if name in there]
    names = [*x_names, *y_names, *others]
    held = dict(zip(names, read_arrays(file, names, how.most)))
    laid = lay_out_points([held[name] for name in x_names], [f"{file}: {name}" for name in x_names], how.layout)
    (x, note), (x_last, _) = laid[0], laid[-1]
    if x.shape[1:] != x_last.shape[1:] or x.dtype != x_last.dtype:
        raise ValueError(
            f"{file}: {x_names[0]} are {x.dtype} {x.shape[1:]} and {x_names[-1]} {x_last.dtype} {x_last.shape[1:]}; "
            "expected both alike"
        )
    sizes = [len(part) for part, _ in laid]
    _check_columns(file, held, y_names, sizes)
    called = tuple(str(name) for name in array_labels(held["classes"].ravel())) if "classes" in held else None
    labels: list[str | None] = [None] * sum(sizes)
    if y_names:
        labels, called = _read_labels(file, y_names, [held[name] for name in y_names], called, how)
    left = [name for name in there if name not in names]
    notes = (note, *([f"{count_names(left, 'array {} is', 'arrays {} are')} not read"] if left else []))
    side = ("pool",) * sizes[0] + ("test",) * sizes[1] if len(sizes) == 2 else ()
    points = array_points(str(file), join_arrays([part for part, _ in laid]), labels, notes, side)
    ids = [str(word) for word in array_labels(held["ids"])] if "ids" in held else points.ids
    return replace(points, ids=ids, own_ids="ids" in held, own_classes=called)


def _choose_arrays(file: Path, there: list[str], how: ReadOptions) -> tuple[list[str], list[str]]:
    """The arrays of points and those of labels, one of each or two: train and test."""
    for x_train, y_train, x_test, y_test in SPLIT_ARRAYS:
        if {x_train, y_train, x_test, y_test} <= set(there):
            return [x_train, x_test], [y_train, y_test]
    x, y = (next((name for name in names if name in there), None) for names in (POINT_ARRAYS, LABEL_ARRAYS))
    if isinstance(how.label, str):
        if how.label not in there:
            meant = did_you_mean(how.label, there, "Its arrays")
            raise ValueError(f"{file} has no array {how.label!r} for the label{meant}")
        y = how.label
    if x is not None and (y is not None or not how.for_study):
        return [x], [y] if y is not None else []
    have = f"{file} has {', '.join(there) or 'nothing'}"
    if not how.for_study:
        raise ValueError(f"{have}; expected x, and y and ids where there are any")
    nearest = max(
        (*SPLIT_ARRAYS, ("x", "y"), ("images", "labels")), key=lambda names: len({*names} & {*there}) / len(names)
    )
    missing = ", ".join(name for name in nearest if name not in there)
    raise ValueError(f"{have} and lacks {missing}; expected {', '.join(SPLIT_ARRAYS[0])}, or x and y")


def _check_columns(file: Path, held: dict[str, np.ndarray], y_names: Sequence[str], sizes: Sequence[int]) -> None:
    """Raise unless there is a label, and an id, for each point. A column (N, 1) becomes (N,)."""
    faults = []
    for name, count in [*zip(y_names, sizes), *([("ids", sum(sizes))] if "ids" in held else [])]:
        array = held[name]
        if array.shape == (count, 1):
            array = held[name] = array[:, 0]
        if array.shape != (count,):
            faults.append(f"{name} is {array.dtype} {array.shape}; expected one for each of {count} points")
        elif name != "ids" and array.dtype.kind == "b":
            faults.append(f"{name} is of truth values; expected integers, strings, or numbers for regression")
    if faults:
        raise ValueError(f"{file}: {'; '.join(faults)}")


def _read_labels(
    file: Path, names: Sequence[str], arrays: Sequence[np.ndarray], called: tuple[str, ...] | None, how: ReadOptions
) -> tuple[list[str | None], tuple[str, ...] | None]:
    """Labels as words, of train and test together, and the classes where the file decides their order.

    Where points may be without a label, −1 and NaN are none. A study needs them all, and −1 is a class.
    """
    counts = [y.dtype.kind in "iuf" for y in arrays]
    if len(set(counts)) > 1:
        raise ValueError(f"{file}: labels are numbers in one part and strings in the other; expected both alike")
    if not how.for_study:
        labels = [word for name, y in zip(names, arrays) for word in label_words(y, how.regression, file)]
    else:
        words = [array_labels(y) for y in arrays]
        for name, y, some in zip(names, arrays, words):
            if missing := int((~np.isfinite(y)).sum()) if y.dtype.kind == "f" else some.count(None):
                raise ValueError(f"{file}: {missing} of {len(some)} labels in {name} are missing (NaN) or infinite")
        labels = class_labels([word for some in words for word in some], f"{file}: {' and '.join(names)}")
    if called is not None:
        return named_classes(file, labels, called) if counts[0] else labels, called
    known = {word for word in labels if word is not None}
    return labels, tuple(sorted(known, key=int if counts[0] else None)) if how.for_study else None


def join_arrays(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The arrays one after another, in row-major memory."""
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    return np.concatenate(parts, out=np.empty(shape, parts[0].dtype))


def lay_out_points(
    arrays: Sequence[np.ndarray], names: Sequence[str], layout: Layout | None = None
) -> list[tuple[np.ndarray, str]]:
    """Each array as pictures (n, channels, H, W) or as float32 features, and a note on how that was decided.

    Float pictures share one range, so that train and test are scaled alike.
    """
    for x, name in zip(arrays, names):
        if x.ndim < 2 or x.size == 0:
            raise ValueError(
                f"{name} is {x.dtype} {x.shape}; expected at least one point along the first axis, and numbers"
            )
        if x.dtype.kind != "f" and (x.dtype != np.uint8 or x.ndim not in (3, 4)):
            raise ValueError(
                f"{name} is {x.dtype} {x.shape}; expected pictures as uint8 (N, H, W), (N, H, W, C) or (N, C, H, W), "
                "or features as floats (N, D)"
            )
    plain = [_float32(x, name) if x.dtype.kind == "f" else x for x, name in zip(arrays, names)]
    if floats := [k for k, x in enumerate(plain) if x.dtype.kind == "f" and x.ndim in (3, 4)]:
        pixels, note = _scale_pictures([plain[k] for k in floats], names[floats[0]])
        for k, x in zip(floats, pixels):
            plain[k] = x
    laid = []
    for k, (x, name) in enumerate(zip(plain, names)):
        if x.ndim not in (3, 4):
            laid.append((x, f"floats {x.shape[1:]}: features"))
            continue
        x_nCHW, axes = _channels_first(x, name, layout)
        laid.append((x_nCHW, f"{axes}; {note}" if k in floats else axes))
    return laid


def _float32(x: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        kept = x.astype(np.float32)
    if bad := int((~np.isfinite(kept)).sum()):
        where = int(np.argwhere(~np.isfinite(kept))[0][0])
        raise ValueError(
            f"{name}: {counted(bad, 'number is', 'numbers are')} not finite in float32, the first in row {where}"
        )
    return kept


def _scale_pictures(arrays: list[np.ndarray], name: str) -> tuple[list[np.ndarray], str]:
    """Float pictures as bytes if they were bytes, else as floats in [0, 1]; and a note.

    Pictures have three or four axes and lie in [0, 1] or [0, 255]. Anything else is no picture.
    """
    low, high = min(float(x.min()) for x in arrays), max(float(x.max()) for x in arrays)
    if low < 0 or high > 255:
        raise ValueError(
            f"{name} is float {arrays[0].shape} with values from {low:.4g} to {high:.4g}; floats of three or four axes "
            "are pictures, and pictures lie in [0, 1] or [0, 255]. Save them before they are normalised, or reshape "
            "features to (N, D)"
        )
    unit, given = (255, "[0, 1]") if high <= 1 else (1, "[0, 255]")
    if all((np.abs(x * unit - np.rint(x * unit)) < 1e-3).all() for x in arrays):
        return [np.rint(x * unit).astype(np.uint8) for x in arrays], f"floats in {given}: kept as bytes"
    scaled = arrays if unit == 255 else [x / np.float32(255) for x in arrays]
    return scaled, f"floats in {given}: kept as floats in [0, 1]"


def _channels_first(x: np.ndarray, name: str, layout: Layout | None) -> tuple[np.ndarray, str]:
    """Pictures as (n, channels, H, W), and a note on which axis is the channels."""
    if layout not in (None, "NHWC", "NCHW"):
        raise ValueError(f"layout is {layout!r}; expected 'NHWC' or 'NCHW'")
    if x.ndim == 3:
        return x[:, None], "pictures (N, H, W): one channel"
    first, last = x.shape[1] in CHANNEL_COUNTS, x.shape[3] in CHANNEL_COUNTS
    if layout is None and first == last:
        raise ValueError(
            f"{name} is {x.shape}: {'both' if first else 'neither'} of axes 1 and 3 could be the channels (1 or 3); "
            "give layout='NHWC' or 'NCHW' (in Python), or reshape features to (N, D)"
        )
    if layout == "NCHW" or (layout is None and first):
        return x, f"pictures (N, C, H, W): axis 1 is the channels{'' if layout else ', for it has ' + str(x.shape[1])}"
    reason = "" if layout else f", for it has {x.shape[3]}"
    return x.transpose(0, 3, 1, 2), f"pictures (N, H, W, C): axis 3 is the channels{reason}"


# Arrays of the file, read only after their headers are checked.


def array_names(file: Path) -> list[str]:
    """The names of the arrays in an .npz."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is not there; expected an .npz file")
    return _with_zip(file, lambda zipped: [name.removesuffix(".npy") for name in zipped.namelist()])


def read_arrays(file: Path, names: Sequence[str], most: int = LARGEST_DATASET) -> list[np.ndarray]:
    """Those arrays of the file, after all their headers are read and checked.

    A member must be as long as its header's shape says, its packed bytes must be able to hold that, and all together
    must not exceed ``most``. The zip reader itself stops where the declared length ends.
    """
    total = _with_zip(file, lambda zipped: sum(_declared_bytes(zipped, name) for name in names))
    check_memory(f"{file} inflates to {format_bytes(total)}", total, most)
    return _with_zip(file, lambda zipped: [_read_array(zipped, name) for name in names])


class WrongArrayError(Exception):
    """What is wrong with an array, in words."""


def _with_zip(file: Path, read: Callable[[zipfile.ZipFile], T]) -> T:
    """``read`` the zip; errors name the file."""
    try:
        with zipfile.ZipFile(file) as zipped:
            return read(zipped)
    except WrongArrayError as error:
        raise ValueError(f"{file}: {error}") from error
    except Exception as error:  # a corrupted zip or header can raise anything
        reason = str(error) or type(error).__name__
        raise ValueError(f"{file}: truncated or corrupted, or no .npz ({reason}); write or fetch it again") from error


def _declared_bytes(zipped: zipfile.ZipFile, name: str) -> int:
    """Bytes of an array in memory, by its header, after all that the header and the zip say is checked."""
    entry = zipped.getinfo(f"{name}.npy")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise WrongArrayError(f"{name} is packed by method {entry.compress_type}; write it with numpy.savez_compressed")
    with zipped.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise WrongArrayError(f"{name} is of npy version {version}; expected 1.0 or 2.0, an array of numbers")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        declared = entry.file_size - stream.tell()
    if dtype.kind not in "biufUS" or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise WrongArrayError(
            f"{name} is {dtype} {shape}; expected numbers or strings: nothing else is read, least of all objects"
        )
    if declared != (held := math.prod(shape) * dtype.itemsize):
        raise WrongArrayError(
            f"{name} is {dtype} {shape}, {held} bytes, and the zip declares {declared}; write it again"
        )
    if entry.file_size > DEFLATE_MOST * entry.compress_size:
        raise WrongArrayError(
            f"{name} declares {format_bytes(declared)}, more than its {entry.compress_size} packed bytes can hold"
        )
    return held


def _read_array(zipped: zipfile.ZipFile, name: str) -> np.ndarray:
    with zipped.open(f"{name}.npy") as stream:  # at its end the zip reader checks the CRC
        return np.lib.format.read_array(stream, allow_pickle=False)
