"""Named data sets: those that every installation has (digits, two tables, docstrings); idx (MNIST); MATLAB (SVHN)."""

import ast
import gzip
import math
import os
import struct
import sysconfig
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from foretaste.data.dataset import LARGEST_DATASET, Images, MeanAndStd, check_memory, ids_of, measured, stratified
from foretaste.data.npz import DEFLATE_MOST, join_arrays
from foretaste.data.points import array_points
from foretaste.errors import counted, format_bytes

DIGIT_NAMES = tuple("0123456789")
SVHN_NORMALISE: MeanAndStd = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
# MNIST and Fashion-MNIST have the same file names. Their first labels show which one it is.
FIRST_LABELS = {"mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)}
IDX_KINDS = {1: "labels", 3: "images"}
# Bytes of a number, by MATLAB's names. Some copies keep labels as double.
MATLAB_WIDTHS = {f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)}
MATLAB_WIDTHS |= {"single": 4, "double": 8}
# Packages and modules of the standard library with a hundred docstrings or so each.
DOCUMENTED = (
    "asyncio", "decimal", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "urllib", "xml",
)  # fmt: skip
DIGITS_TEST = 600
DIGITS_STEP = 15  # scikit-learn stores 0 to 16: times 15 they fill a byte
SHORTEST_DOCSTRING = 40  # characters
DOCSTRING_WORDS = 2000  # columns
SHIPPED_TEST = 0.3  # share of each class to measure on


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
    check_memory(says, declared, most)
    if declared > room:  # before memory is allocated
        raise ValueError(f"{says} and so small a file cannot hold them: truncated; fetch it again")
    if declared == 0:
        raise ValueError(f"{says}; expected at least one image")
    raw = file.read(declared)
    if len(raw) < declared:
        raise ValueError(f"{says} and {len(raw)} are there: truncated; fetch it again")
    if file.read(1):  # at the end of a gzip this also checks its CRC
        raise ValueError(f"{says} and there are more; fetch it again")
    return np.frombuffer(raw, np.uint8).reshape(shape)


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
    check_memory(f"{path} declares {format_bytes(declared)}", declared, most)


def _unreadable_mat(path: Path, error: Exception) -> ValueError:
    reason = str(error) or type(error).__name__
    return ValueError(f"{path}: truncated or corrupted, or not MATLAB's format 5 ({reason}); fetch it again")


# Sets that every installation has: no download.


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
    y, scale = torch.as_tensor(bunch.target, dtype=torch.int64), ((0.0,), (16 * DIGITS_STEP / 255,))
    return Images("digits", x, y, ids_of(pool), ids_of(test), DIGIT_NAMES, scale)


def breast_cancer() -> Images:
    """A table of scikit-learn: 569 tumours, 30 measurements, benign or malignant. No download.

    A network receives each column standardised over the pool and divided by √30: a row has a length of about one.

    Example:
        >>> from foretaste.data import breast_cancer
        >>> data = breast_cancer()
        >>> data.x.shape, data.classes
        (torch.Size([569, 30]), ('malignant', 'benign'))
    """
    from sklearn.datasets import load_breast_cancer

    return _shipped_table("breast-cancer", load_breast_cancer())


def wine() -> Images:
    """A table of scikit-learn: 178 wines, 13 measurements, three growers. No download; scaled as ``breast_cancer``.

    Example:
        >>> from foretaste.data import wine
        >>> len(wine().pool), len(wine().test)
        (125, 53)
    """
    from sklearn.datasets import load_wine

    return _shipped_table("wine", load_wine())


def _shipped_table(name: str, bunch: Any) -> Images:
    classes = tuple(map(str, bunch.target_names))
    points = array_points(name, bunch.data.astype(np.float32), [classes[c] for c in bunch.target])
    data = replace(points, own_classes=classes).split(SHIPPED_TEST, name=name)
    mean, deviation = measured(data)
    return replace(data, normalise=(mean, tuple(d * data.x.shape[1] ** 0.5 for d in deviation)))


def docstrings() -> Images:
    """A small corpus that every Python has: docstrings of ten packages of its standard library, told by their package.

    About 2,000 in Python 3.11. Another version of Python has other ones, so results compare within one version only.
    They become TF-IDF of their 2,000 most frequent words, counted and weighed on the pool alone; rows of length one.

    Example:
        >>> from foretaste.data import docstrings
        >>> data = docstrings()
        >>> len(data.classes), data.x.shape[1]
        (10, 2000)
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    root = Path(sysconfig.get_paths()["stdlib"])
    texts: dict[str, str] = {}
    for name in DOCUMENTED:
        for text in docstrings_in(root / ("_pydecimal.py" if name == "decimal" else name)):
            texts.setdefault(text, name)  # the same words twice would stand in pool and test
    if missing := [name for name in DOCUMENTED if name not in texts.values()]:
        raise FileNotFoundError(
            f"{root} has no source files of {', '.join(missing)}: this Python is stripped or packed. Use a Python from "
            "python.org or of your system"
        )
    y_N = np.array([DOCUMENTED.index(name) for name in texts.values()], dtype=np.int64)
    pool, test = stratified(y_N, SHIPPED_TEST)
    listed = list(texts)
    counts = TfidfVectorizer(max_features=DOCSTRING_WORDS, sublinear_tf=True, stop_words="english", dtype=np.float32)
    counts.fit([listed[i] for i in pool])
    x_ND = torch.from_numpy(np.asarray(counts.transform(listed).todense(), dtype=np.float32))
    note = f"docstrings: {len(listed)} of this Python's standard library; other versions of Python have other ones"
    return Images("docstrings", x_ND, torch.from_numpy(y_N), pool, test, DOCUMENTED, notes=(note,))


def docstrings_in(place: Path) -> Iterator[str]:
    """The docstrings of a file, or of all files of a package, in the order of their names. Nothing is imported."""
    for file in sorted(place.rglob("*.py")) if place.is_dir() else [place] if place.is_file() else []:
        left: list[ast.AST] = [ast.parse(file.read_bytes())]
        while left:
            node = left.pop()
            left += [inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt | ast.ExceptHandler)]
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= SHORTEST_DOCSTRING:
                    yield text
