"""The publishers' formats of MNIST and Fashion-MNIST (idx) and of SVHN (MATLAB); ``cifar`` has its own."""

import gzip
import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from foretaste.data.dataset import LARGEST_DATASET, Images, MeanAndStd
from foretaste.data.npz import DEFLATE_MOST, join_arrays
from foretaste.data.points import array_points
from foretaste.errors import counted, format_bytes

DIGIT_NAMES = tuple("0123456789")
SVHN_NORMALISE: MeanAndStd = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
# MNIST and Fashion-MNIST have the same file names. Their first labels show which one it is.
FIRST_LABELS = {"mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)}
IDX_KINDS = {1: "labels", 3: "images"}
IDX_BLOCK = 1 << 20
# Bytes of a number, by MATLAB's names. Some copies keep labels as double.
MATLAB_WIDTHS = {f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)}
MATLAB_WIDTHS |= {"single": 4, "double": 8}


@dataclass(frozen=True, eq=False)
class SetPart:
    """The images and labels of one file, or of a file of images and one of labels."""

    x: np.ndarray  # (n, channels, H, W) uint8
    y: np.ndarray  # (n,) int64
    file: str  # named in errors


def check_class_ids(raw: object, count: int, classes: int, file: str) -> np.ndarray:
    """Labels as int64, after a check that they are ``count`` integers from 0 to ``classes`` − 1."""
    try:
        y_n = np.asarray(raw)
    except ValueError:  # a ragged list
        y_n = np.empty((), object)
    if y_n.ndim != 1 or y_n.dtype.kind not in "iu":
        raise ValueError(f"{file}: labels are {y_n.dtype} of shape {y_n.shape}; expected one integer for each image")
    if len(y_n) != count:
        raise ValueError(f"{file}: {len(y_n)} labels for {count} images; expected as many")
    wrong = np.flatnonzero((y_n < 0) | (y_n >= classes))
    if len(wrong):
        raise ValueError(
            f"{file}: {counted(len(wrong), 'label')} out of range, the first {y_n[wrong[0]]} at {wrong[0]}; "
            f"expected 0 to {classes - 1}"
        )
    return y_n.astype(np.int64)


def assemble_parts(
    name: str, train: Sequence[SetPart], test: SetPart, classes: Sequence[str], normalise: MeanAndStd | None = None
) -> Images:
    """One data set: the training images are the pool, with ids from 0 in file order; the test images follow."""
    parts = [*train, test]
    for part in parts:
        if part.x.shape[1:] != parts[0].x.shape[1:]:
            raise ValueError(
                f"{part.file}: images are {part.x.shape[1:]} and those of {parts[0].file} {parts[0].x.shape[1:]} "
                "(channels, height, width); expected all alike"
            )
    labels = [classes[c] for part in parts for c in part.y.tolist()]
    side = ("pool",) * (len(labels) - len(test.y)) + ("test",) * len(test.y)
    points = array_points(parts[0].file, join_arrays([part.x for part in parts]), labels, side=side)
    return replace(replace(points, own_classes=tuple(classes)).split(name=name), normalise=normalise)


def read_idx_set(
    name: str, at: Mapping[str, Path], classes: Sequence[str], normalise: MeanAndStd | None, most: int
) -> Images:
    """A set of the form of MNIST: two idx files of images and two of labels."""
    parts = []
    for part in ("train", "t10k"):
        images, labels = at[f"{part} images"], at[f"{part} labels"]
        x_nHW = read_idx(images, 3, most)
        y_n = check_class_ids(read_idx(labels, 1, most), len(x_nHW), len(classes), str(labels))
        parts.append(SetPart(x_nHW[:, None], y_n, str(images)))
    if other := set_with_labels(parts[0].y[:10].tolist(), name):
        raise ValueError(f"{at['train labels']} holds the labels of {other}, not of {name}; load {other!r} instead")
    return assemble_parts(name, parts[:1], parts[1], classes, normalise)


def read_svhn(at: Mapping[str, Path], most: int) -> Images:
    """SVHN, cropped digits of 32×32, of two MATLAB files."""
    train, test = (_read_mat(at[part], most) for part in ("train", "test"))
    return assemble_parts("svhn", [train], test, DIGIT_NAMES, SVHN_NORMALISE)


def set_with_labels(first: Sequence[int], name: str) -> str | None:
    """The other set that begins with these labels."""
    return next((other for other, begins in FIRST_LABELS.items() if other != name and tuple(first) == begins), None)


def read_idx(path: Path, dims: int, most: int = LARGEST_DATASET) -> np.ndarray:
    """The bytes that an idx file declares; an error unless it holds exactly those.

    A gzipped file is inflated only as far as its header declares, plus one byte to notice a longer one.
    """
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            with gzip.GzipFile(fileobj=raw) if packed else raw as file:
                shape = _read_idx_header(path, file, dims)
                room = os.path.getsize(path) * (DEFLATE_MOST if packed else 1)
                return _read_idx_body(path, file, shape, room, most)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: truncated or corrupted gzip ({error}); fetch it again") from error


def _read_idx_header(path: Path, file: IO[bytes] | gzip.GzipFile, dims: int) -> tuple[int, ...]:
    """The shape, after a check of the magic number."""
    magic = file.read(4)
    if magic != bytes([0, 0, 8, dims]):
        seen = (
            IDX_KINDS.get(magic[3], "something else")
            if magic[:3] == b"\0\0\x08" and len(magic) == 4
            else "no idx of bytes"
        )
        raise ValueError(
            f"{path}: begins with {magic.hex(' ') or 'nothing'} ({seen}); "
            f"expected 00 00 08 {dims:02x} ({IDX_KINDS[dims]})"
        )
    sizes = file.read(4 * dims)
    if len(sizes) < 4 * dims:
        raise ValueError(f"{path}: truncated in its header, {4 + len(sizes)} bytes; fetch it again")
    return struct.unpack(f">{dims}I", sizes)


def _read_idx_body(
    path: Path, file: IO[bytes] | gzip.GzipFile, shape: tuple[int, ...], room: int, most: int
) -> np.ndarray:
    """The bytes after the header; ``room`` is the most that the file can hold."""
    declared = math.prod(shape)
    says = f"{path}: its header declares {' × '.join(map(str, shape))} = {declared} bytes"
    if declared > most:
        raise ValueError(
            f"{says}, above the limit of {format_bytes(most)}; raise the limit (most= in Python) if that is right"
        )
    if declared > room:  # before memory is allocated
        raise ValueError(f"{says} and so small a file cannot hold them: truncated; fetch it again")
    if declared == 0:
        raise ValueError(f"{says}; expected at least one image")
    read = np.empty(declared, np.uint8)
    done = 0
    while done < declared:
        chunk = file.read(min(IDX_BLOCK, declared - done))
        if not chunk:
            raise ValueError(f"{says} and {done} are there: truncated; fetch it again")
        read[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
        done += len(chunk)
    if file.read(1):  # at the end of a gzip this also checks its CRC
        raise ValueError(f"{says} and there are more; fetch it again")
    return read.reshape(shape)


def _read_mat(path: Path, most: int) -> SetPart:
    """X and y of one of SVHN's files; the label 10 is the digit 0."""
    from scipy.io import loadmat, whosmat

    try:
        kinds = {name: (shape, kind) for name, shape, kind in whosmat(path)}
    except Exception as error:  # scipy raises many kinds
        raise _unreadable_mat(path, error) from error
    _check_mat_headers(path, kinds, most)
    try:
        held = loadmat(path, variable_names=["X", "y"])
    except Exception as error:
        raise _unreadable_mat(path, error) from error
    x_HWCn, y = held["X"], held["y"].ravel()
    wrong = np.flatnonzero(~((y >= 1) & (y <= 10) & (y == np.rint(y))))
    if len(wrong):
        words = counted(len(wrong), "label is not a whole number", "labels are not whole numbers")
        raise ValueError(f"{path}: {words} from 1 to 10, the first {y[wrong[0]]} at {wrong[0]}")
    return SetPart(np.ascontiguousarray(x_HWCn.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10, str(path))


def _check_mat_headers(path: Path, kinds: dict[str, tuple[tuple[int, ...], str]], most: int) -> None:
    """Check what the headers declare, before anything is inflated."""
    if missing := [name for name in ("X", "y") if name not in kinds]:
        there = ", ".join(kinds) or "nothing"
        raise ValueError(
            f"{path} lacks {' and '.join(missing)} and has {there}; expected X and y (images, labels): is it cut short?"
        )
    (x_shape, x_kind), (y_shape, y_kind) = kinds["X"], kinds["y"]
    if len(x_shape) != 4 or x_shape[:3] != (32, 32, 3) or x_kind != "uint8" or not x_shape[3]:
        raise ValueError(f"{path}: X is {x_kind} {x_shape}; expected uint8 (32, 32, 3, N), N at least one")
    if y_kind not in MATLAB_WIDTHS or math.prod(y_shape) != x_shape[3]:
        raise ValueError(f"{path}: y is {y_kind} {y_shape} for {x_shape[3]} images; expected a number for each")
    declared = math.prod(x_shape) + math.prod(y_shape) * MATLAB_WIDTHS[y_kind]
    if declared > most:
        raise ValueError(
            f"{path} declares {format_bytes(declared)}, above the limit of {format_bytes(most)}; "
            "raise the limit (most= in Python) if that is right"
        )


def _unreadable_mat(path: Path, error: Exception) -> ValueError:
    reason = str(error) or type(error).__name__
    return ValueError(f"{path}: truncated or corrupted, or not MATLAB's format 5 ({reason}); fetch it again")
