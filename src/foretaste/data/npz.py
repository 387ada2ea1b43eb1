"""A data set in one .npz file: pictures or features. Arrays are measured before they are inflated; nothing is run."""

import math
import os
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeVar

import numpy as np
import torch

from foretaste.data.catalogue import LARGEST_DATASET
from foretaste.data.class_names import array_labels, check_words, class_labels
from foretaste.data.dataset import Images, stratified_or_raise
from foretaste.data.named import DEFLATE_MOST, join_arrays, note_unseen_classes
from foretaste.errors import counted, format_bytes

SPLIT_ARRAYS = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
)
WHOLE_ARRAYS = (("x", "y"), ("images", "labels"))
CHANNEL_COUNTS = (1, 3)
ARRAY_BLOCK = 1 << 22
Layout = Literal["NHWC", "NCHW"]
T = TypeVar("T")


def npz(
    path: str | os.PathLike[str], *, test: float = 0.2, layout: Layout | None = None, most: int = LARGEST_DATASET
) -> Images:
    """A labelled data set in an .npz file.

    The arrays are ``train_images``, ``train_labels``, ``test_images`` and ``test_labels`` (or ``x_train``, ...); or
    ``x`` and ``y``. Two axes (N, D) of floats are features. Three or four axes are pictures: (N, H, W), (N, H, W, C) or
    (N, C, H, W), of bytes or of floats in [0, 1] or [0, 255]. The axis of 1 or 3 is the channels; ``notes`` say how it
    was decided. Labels are integers, whole floats or strings. An array ``classes`` names the classes that integers
    count into.

    Args:
        path: the file.
        test: share of each class of ``x`` and ``y`` to measure on, always the same points.
        layout: "NHWC" or "NCHW", where the shape does not decide.
        most: bytes in memory; more is refused before it is inflated.

    Returns:
        The data set. Features are float32. Pictures are bytes; float pictures that are not bytes / 255 are float32 in
        [0, 1].

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: arrays are missing, damaged or do not fit together, or labels are measurements.

    Example:
        >>> import tempfile, pathlib
        >>> import numpy as np
        >>> from foretaste.data import npz
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "own.npz"
        >>> np.savez(file, x=np.zeros((20, 8, 8, 3)), y=np.arange(20) % 2)
        >>> npz(file).x.shape
        torch.Size([20, 3, 8, 8])
    """
    file = Path(path).expanduser()
    there = array_names(file)
    names = _choose_arrays(file, there)
    read = read_arrays(file, [*names, *({"classes"} & set(there))], most)
    called = read.pop() if len(read) > len(names) else None
    x_parts, y_parts = read[0::2], read[1::2]
    laid = lay_out_points(x_parts, [f"{file}: {name}" for name in names[0::2]], layout)
    x_N, notes = _join_sources(file, names[0::2], laid)
    y_N, classes = _class_ids_of_arrays(file, names[1::2], y_parts, [len(x) for x in x_parts], called)
    if len(laid) == 2:
        pool, held = np.arange(len(laid[0][0])), np.arange(len(laid[0][0]), len(x_N))
        notes += note_unseen_classes(y_N[pool], y_N[held], classes)
    else:
        pool, held = stratified_or_raise(y_N, test, file)
    return Images(file.stem, torch.from_numpy(x_N), torch.from_numpy(y_N), pool, held, classes, notes=notes)


def _choose_arrays(file: Path, there: list[str]) -> tuple[str, ...]:
    for names in (*SPLIT_ARRAYS, *WHOLE_ARRAYS):
        if set(names) <= set(there):
            return names
    nearest = max((*SPLIT_ARRAYS, *WHOLE_ARRAYS), key=lambda names: len(set(names) & set(there)) / len(names))
    missing = ", ".join(name for name in nearest if name not in there)
    raise ValueError(
        f"{file} has {', '.join(there) or 'nothing'} and lacks {missing}; expected {', '.join(SPLIT_ARRAYS[0])}, or x "
        "and y"
    )


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
    arrays = [_float32(x, name) if x.dtype.kind == "f" else x for x, name in zip(arrays, names)]
    floats = [k for k, x in enumerate(arrays) if x.dtype.kind == "f" and x.ndim in (3, 4)]
    if floats:
        pixels, note = _scale_pictures([arrays[k] for k in floats], names[floats[0]])
        arrays = list(arrays)
        for k, x in zip(floats, pixels):
            arrays[k] = x
    laid = []
    for k, (x, name) in enumerate(zip(arrays, names)):
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


def _join_sources(
    file: Path, names: Sequence[str], laid: list[tuple[np.ndarray, str]]
) -> tuple[np.ndarray, tuple[str, ...]]:
    (x, how), (x_last, _) = laid[0], laid[-1]
    if x.shape[1:] != x_last.shape[1:] or x.dtype != x_last.dtype:
        raise ValueError(
            f"{file}: {names[0]} are {x.dtype} {x.shape[1:]} and {names[-1]} {x_last.dtype} {x_last.shape[1:]}; "
            "expected both alike"
        )
    return join_arrays([x for x, _ in laid]), (f"{file.name}: {how}",)


def _class_ids_of_arrays(
    file: Path, names: Sequence[str], raw: list[np.ndarray], counts: list[int], called: np.ndarray | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as class ids, and the class names, over train and test together."""
    flat = []
    for name, y, count in zip(names, raw, counts):
        y_n = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
        if y_n.ndim != 1 or y_n.dtype.kind not in "iufUS":
            raise ValueError(f"{file}: {name} is {y.dtype} {y.shape}; expected one integer or string for each point")
        if len(y_n) != count:
            raise ValueError(f"{file}: {len(y_n)} labels in {name} for {count} points; expected as many")
        if y_n.dtype.kind == "f":
            if missing := int((~np.isfinite(y_n)).sum()):
                raise ValueError(f"{file}: {missing} of {count} labels in {name} are missing (NaN) or infinite")
            class_labels(array_labels(y_n), f"{file}: {name}")  # raises unless they are whole
            y_n = y_n.astype(np.int64)
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
    check_words(file, "class", "classes", classes)
    return y_N.astype(np.int64), classes


# Arrays of the file, read only after their headers are checked.


@dataclass(frozen=True)
class ArrayHeader:
    """What an array's header declares."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    by_columns: bool
    start: int  # of its numbers, after the header

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


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
    found = _with_zip(file, lambda zipped: [_read_header(zipped, name) for name in names])
    if (total := sum(header.bytes for header in found)) > most:
        raise ValueError(
            f"{file} inflates to {format_bytes(total)}, above the limit of {format_bytes(most)}; "
            "raise the limit (most= in Python) if that is right"
        )
    return _with_zip(file, lambda zipped: [_read_numbers(zipped, header) for header in found])


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


def _read_header(zipped: zipfile.ZipFile, name: str) -> ArrayHeader:
    entry = zipped.getinfo(f"{name}.npy")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise WrongArrayError(f"{name} is packed by method {entry.compress_type}; write it with numpy.savez_compressed")
    with zipped.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise WrongArrayError(f"{name} is of npy version {version}; expected 1.0 or 2.0, an array of numbers")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(stream)
        header = ArrayHeader(name, shape, dtype, by_columns, stream.tell())
    if dtype.kind not in "biufUS" or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise WrongArrayError(
            f"{name} is {dtype} {shape}; expected numbers or strings: nothing else is read, least of all objects"
        )
    declared = entry.file_size - header.start
    if declared != header.bytes:
        raise WrongArrayError(
            f"{name} is {dtype} {shape}, {header.bytes} bytes, and the zip declares {declared}; write it again"
        )
    if entry.file_size > DEFLATE_MOST * entry.compress_size:
        raise WrongArrayError(
            f"{name} declares {format_bytes(declared)}, more than its {entry.compress_size} packed bytes can hold"
        )
    return header


def _read_numbers(zipped: zipfile.ZipFile, header: ArrayHeader) -> np.ndarray:
    flat = np.empty(header.bytes, np.uint8)
    with zipped.open(f"{header.name}.npy") as stream:
        stream.read(header.start)
        done = 0
        while block := _read_block(stream, header.bytes - done):
            flat[done : done + len(block)] = np.frombuffer(block, np.uint8)
            done += len(block)
        if done < header.bytes or stream.read(1):  # at the end the zip reader checks the CRC
            raise WrongArrayError(
                f"{header.name} declares {header.bytes} bytes and does not hold as many; write it again"
            )
    return flat.view(header.dtype).reshape(header.shape, order="F" if header.by_columns else "C")


def _read_block(stream: IO[bytes], left: int) -> bytes:
    return stream.read(min(ARRAY_BLOCK, left)) if left else b""
