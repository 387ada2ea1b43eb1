"""Readers of the named sets digits, MNIST, Fashion-MNIST (idx files) and SVHN (MATLAB files); ``cifar`` has its own."""

import gzip
import math
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch

from foretaste.data.catalogue import LARGEST_DATASET, FoundFiles, named_files, search_named
from foretaste.data.dataset import Images, MeanAndStd, ids_of
from foretaste.errors import counted, format_bytes

DIGITS_TEST = 600
DIGITS_STEP = 15  # scikit-learn stores 0 to 16: times 15 they fill a byte
DIGIT_NAMES = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
FASHION_NORMALISE: MeanAndStd = ((0.2860,), (0.3530,))
SVHN_NORMALISE: MeanAndStd = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
# MNIST and Fashion-MNIST have the same file names. Their first labels show which one it is.
FIRST_LABELS = {"mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)}
IDX_KINDS = {1: "labels", 3: "images"}
IDX_BLOCK = 1 << 20
DEFLATE_MOST = 1032  # a deflate stream never grows by more than this factor
# Bytes of a number, by MATLAB's names. Some copies keep labels as double.
MATLAB_WIDTHS = {f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)}
MATLAB_WIDTHS |= {"single": 4, "double": 8}


def find_named(name: str, folder: str | os.PathLike[str] | None = None) -> FoundFiles | None:
    """Where a named set lies, complete or not: the place that ``load`` reads from.

    Args:
        name: mnist, fashion-mnist, svhn, cifar10 or cifar100.
        folder: the folder of data sets; None is $FORETASTE_DATA, else ~/.cache/foretaste.

    Returns:
        The place, the files found there and the names of those missing; None if there are no files, or if they belong
        to a set with the same file names.

    Example:
        >>> from foretaste.data import find_named
        >>> find_named("svhn", "an/empty/folder") is None
        True
    """
    found = search_named(name, folder)
    if found is not None and name in FIRST_LABELS and (labels := found.files.get("train labels")):
        try:
            first = read_idx(labels, 1)[:10].tolist()
        except ValueError:  # damaged: load says how
            return found
        if _set_with_labels(first, name):
            return None
    return found


def digits() -> Images:
    """Handwritten digits of 8×8 pixels that come with scikit-learn: no download.

    Returns:
        1197 points to query from and 600 to measure on, always the same, classes in proportion. A network receives
        [0, 1].

    Example:
        >>> from foretaste.data import digits
        >>> digits().classes
        ('0', '1', '2', '3', '4', '5', '6', '7', '8', '9')
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    x = torch.as_tensor(bunch.images * DIGITS_STEP).to(torch.uint8)[:, None]
    pool, test = train_test_split(range(len(x)), test_size=DIGITS_TEST, stratify=bunch.target, random_state=0)
    return Images(
        name="digits",
        x=x,
        y=torch.as_tensor(bunch.target, dtype=torch.int64),
        pool=ids_of(pool),
        test=ids_of(test),
        classes=tuple(str(c) for c in bunch.target_names),
        normalise=((0.0,), (16 * DIGITS_STEP / 255,)),
    )


def mnist(folder: str | os.PathLike[str], *, most: int = LARGEST_DATASET) -> Images:
    """MNIST: 60,000 + 10,000 digits of 28×28. Not normalised, since the paper feeds [0, 1].

    Args:
        folder: the folder of data sets, or of the files.
        most: bytes in memory; a larger set is refused before it is read.

    Returns:
        The data set; its training images are the pool.

    Raises:
        FileNotFoundError: files are missing; the error names all of them.
        ValueError: a file is damaged, or holds another set.
    """
    return _idx_set("mnist", folder, DIGIT_NAMES, None, most)


def fashion_mnist(folder: str | os.PathLike[str], *, most: int = LARGEST_DATASET) -> Images:
    """Fashion-MNIST: 60,000 + 10,000 pictures of clothes, 28×28. Arguments and errors as in ``mnist``."""
    return _idx_set("fashion-mnist", folder, CLOTHES, FASHION_NORMALISE, most)


def svhn(folder: str | os.PathLike[str], *, most: int = LARGEST_DATASET) -> Images:
    """SVHN, cropped digits: 73,257 + 26,032 house numbers of 32×32. Arguments and errors as in ``mnist``."""
    at = named_files("svhn", folder)
    train, test = (_read_mat(at[part], most) for part in ("train", "test"))
    return assemble_parts("svhn", [train], test, DIGIT_NAMES, SVHN_NORMALISE)


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
    name: str,
    train: Sequence[SetPart],
    test: SetPart,
    classes: Sequence[str],
    normalise: MeanAndStd | None = None,
    notes: tuple[str, ...] = (),
) -> Images:
    """One data set: the training images are the pool, with ids from 0 in file order; the test images follow."""
    parts = [*train, test]
    for part in parts:
        if part.x.shape[1:] != parts[0].x.shape[1:]:
            raise ValueError(
                f"{part.file}: images are {part.x.shape[1:]} and those of {parts[0].file} {parts[0].x.shape[1:]} "
                "(channels, height, width); expected all alike"
            )
    y_N = np.concatenate([part.y for part in parts])
    pool = np.arange(len(y_N) - len(test.y))
    return Images(
        name=name,
        x=torch.from_numpy(join_arrays([part.x for part in parts])),
        y=torch.from_numpy(y_N),
        pool=pool,
        test=np.arange(len(pool), len(y_N)),
        classes=tuple(classes),
        normalise=normalise,
        notes=(*notes, *note_unseen_classes(y_N[: len(pool)], test.y, classes)),
    )


def join_arrays(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The arrays one after another, in row-major memory."""
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    return np.concatenate(parts, out=np.empty(shape, parts[0].dtype))


def note_unseen_classes(pool_y: np.ndarray, test_y: np.ndarray, classes: Sequence[str]) -> tuple[str, ...]:
    """A note if test has classes that the pool lacks: no queried label can teach them."""
    only = [classes[c] for c in np.setdiff1d(test_y, pool_y)]
    return (
        (f"{counted(len(only), 'class occurs', 'classes occur')} in test and never in the pool: {', '.join(only[:5])}",)
        if only
        else ()
    )


def _idx_set(
    name: str, folder: str | os.PathLike[str], classes: tuple[str, ...], normalise: MeanAndStd | None, most: int
) -> Images:
    at = named_files(name, folder)
    parts = []
    for part in ("train", "t10k"):
        images, labels = at[f"{part} images"], at[f"{part} labels"]
        x_nHW = read_idx(images, 3, most)
        y_n = check_class_ids(read_idx(labels, 1, most), len(x_nHW), 10, str(labels))
        parts.append(SetPart(x_nHW[:, None], y_n, str(images)))
    if other := _set_with_labels(parts[0].y[:10].tolist(), name):
        raise ValueError(f"{at['train labels']} holds the labels of {other}, not of {name}; load {other!r} instead")
    return assemble_parts(name, parts[:1], parts[1], classes, normalise)


def _set_with_labels(first: Sequence[int], name: str) -> str | None:
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
