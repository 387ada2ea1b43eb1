"""CIFAR10 and CIFAR100 from their publisher's Python batches, which are pickles; they are read without running them.

A pickle is a program: it names functions and calls them. Here each name that a file of arrays needs is bound to a small
function of ours, and every other name is refused before it is looked up. numpy's own ``__setstate__`` is never called,
since it trusts a crafted dtype. The unpickler is the one written in Python: the one in C allocates gigabytes for a memo
index of five bytes.
"""

import io
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from foretaste.data.dataset import LARGEST_DATASET, Images, MeanAndStd, check_memory
from foretaste.data.named import SetPart, assemble_parts, check_class_ids
from foretaste.errors import format_bytes

CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_NORMALISE: MeanAndStd = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100_NORMALISE: MeanAndStd = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
KNOWN_NAMES = {
    ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"), ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
}  # fmt: skip
PICKLED_DTYPES = {kind + size for kind in "uif" for size in "1248"} - {"f1"}


def read_cifar10(at: Mapping[str, Path], most: int) -> Images:
    """CIFAR10: pictures of 32×32 in ten classes. A batch may have any length: half sets exist."""
    place = at["test_batch"].parent
    extra = sorted(p.name for p in place.iterdir() if re.fullmatch(r"data_batch_\d+", p.name) and p.name not in at)
    if extra:
        raise ValueError(f"{place} has {', '.join(extra)} beside data_batch_1 to 5; CIFAR10 has five: move those away")
    *train, test = (_read_batch(at[name], "labels", 10, most) for name in at)
    classes = _class_names(place / "batches.meta", "label_names", 10, most) or CIFAR10_NAMES
    return assemble_parts("cifar10", train, test, classes, CIFAR10_NORMALISE)


def read_cifar100(at: Mapping[str, Path], most: int, labels: Literal["fine", "coarse"] = "fine") -> Images:
    """CIFAR100: pictures of 32×32 in a hundred classes, or in the twenty coarse ones."""
    name, classes = ("cifar100", 100) if labels == "fine" else ("cifar100-coarse", 20)
    train, test = (_read_batch(at[part], f"{labels}_labels", classes, most) for part in ("train", "test"))
    called = _class_names(at["train"].parent / "meta", f"{labels}_label_names", classes, most)
    return assemble_parts(name, [train], test, called or [str(c) for c in range(classes)], CIFAR100_NORMALISE)


def _read_batch(path: Path, labels: str, classes: int, most: int) -> SetPart:
    """Rows of 3072 bytes, red then green then blue, and the labels under the key ``labels``."""
    entries = _pickled_entries(path, ("data", labels), "a CIFAR batch", most)
    x_nD = entries["data"]
    if not (isinstance(x_nD, np.ndarray) and x_nD.dtype == np.uint8 and x_nD.shape[1:] == (3072,) and len(x_nD)):
        came = f"{x_nD.dtype} {x_nD.shape}" if isinstance(x_nD, np.ndarray) else type(x_nD).__name__
        raise ValueError(f"{path}: its images are {came}; expected uint8 (n, 3072), n at least one")
    y_n = check_class_ids(entries[labels], len(x_nD), classes, str(path))
    return SetPart(x_nD.reshape(-1, 3, 32, 32), y_n, str(path))


def _class_names(path: Path, key: str, classes: int, most: int) -> Sequence[str] | None:
    """The class names from the publisher's file of names; None without that file."""
    if not path.is_file():
        return None
    called: Any = _pickled_entries(path, (key,), "a CIFAR file of names", most)[key]
    words = isinstance(called, list) and all(isinstance(c, bytes | str) for c in called)
    if not words or len(set(called)) != classes:
        raise ValueError(f"{path}: {key} is not a list of {classes} names; fetch it again, or move it away")
    return [c.decode("utf-8", "replace") if isinstance(c, bytes) else c for c in called]


def _pickled_entries(path: Path, keys: tuple[str, ...], what: str, most: int) -> dict[str, object]:
    """The dict in a pickle, after a check that it has all ``keys``; ``what`` the file should be."""
    entries = unpickle(path, what, most)
    if not isinstance(entries, dict):
        raise ValueError(f"{path} holds a {type(entries).__name__}; it is not {what}")
    if missing := [key for key in keys if key not in entries]:
        there = ", ".join(map(str, entries)) or "nothing"
        raise ValueError(f"{path} lacks {', '.join(missing)} and has {there}; it is not {what}")
    return entries


def unpickle(path: Path, what: str, most: int = LARGEST_DATASET) -> Any:
    """What a pickle of dict, list, tuple, bytes, str, numbers and arrays holds. Errors call it ``what``."""
    size = path.stat().st_size
    check_memory(f"{path}: {format_bytes(size)}", size, most)
    try:
        return _with_arrays(ArraysOnly(path.read_bytes()).load())
    except RefusedNameError as error:
        raise ValueError(f"{path} wants to run {error}; it is not {what}") from error
    except Exception as error:  # a corrupted pickle can raise anything
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path}: truncated or corrupted, or not {what} ({reason}); fetch it again") from error


class RefusedNameError(Exception):
    """A pickle asks for this dotted name."""


class PickledDtype:
    """numpy.dtype of a plain number: 'u1', then its byte order as state."""

    __slots__ = ("order", "plain")

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.plain = name.decode("ascii") if isinstance(name, bytes) else str(name)
        self.order = "|"
        if self.plain not in PICKLED_DTYPES:
            raise pickle.UnpicklingError(f"an array of {self.plain!r}, not of numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else str(state[1])
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {order!r}")
        self.order = order


class PickledArray:
    """numpy.ndarray as pickled: an empty array, then (version, shape, dtype, by columns, bytes) as state."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, dtype, by_columns, raw = state[-4:]
        self.array = array_from_bytes(raw, dtype, shape, "F" if by_columns else "C")


def array_from_bytes(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
    if not isinstance(raw, bytes | bytearray) or not isinstance(dtype, PickledDtype):
        raise pickle.UnpicklingError("an array not of numbers")
    return np.frombuffer(raw, dtype.order + dtype.plain).reshape(shape, order="F" if order in ("F", b"F") else "C")


class ArraysOnly(pickle._Unpickler):
    """Python's unpickler with five known names, each bound to a ``StandIn``."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw), encoding="bytes")
        self.room = len(raw)  # bytes that may still be encoded: the same text again and again would fill the memory

    def find_class(self, module: str, name: str) -> Any:
        if (module.replace("numpy._core", "numpy.core"), name) not in KNOWN_NAMES:
            raise RefusedNameError(f"{module}.{name}")
        return StandIn(name, self)

    def get_extension(self, code: int) -> None:
        raise RefusedNameError(f"the extension of code {code}")

    def persistent_load(self, pid: Any) -> Any:
        raise RefusedNameError("a persistent id")


class StandIn:
    """Takes the place of a function that a pickle names. A pickle can call it, and cannot set its attributes."""

    __slots__ = ("name", "reader")

    def __init__(self, name: str, reader: ArraysOnly) -> None:
        self.name, self.reader = name, reader

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("state for a function")

    def __call__(self, *args: Any) -> Any:
        if self.name == "dtype":
            return PickledDtype(*args)
        if self.name == "_frombuffer":  # protocol 5
            return array_from_bytes(*args)
        if self.name == "encode":
            return self.encode(*args)
        if self.name == "_reconstruct":
            if not isinstance(args[0], StandIn) or args[0].name != "ndarray":
                raise RefusedNameError("a kind of array of its own")
            return PickledArray()
        raise RefusedNameError(f"numpy.{self.name}")

    def encode(self, text: str, codec: Any) -> bytes:
        """Bytes as protocol 2 of Python 3 writes them."""
        self.reader.room -= len(text)
        if codec not in ("latin1", b"latin1") or self.reader.room < 0:
            raise pickle.UnpicklingError("bytes that are not written as such")
        return text.encode("latin1")


def _with_arrays(value: Any) -> Any:
    """Replace stand-ins by their arrays, in the dict that a batch is; its keys become str."""
    if isinstance(value, PickledArray):
        if value.array is None:
            raise pickle.UnpicklingError("an array without its numbers")
        return value.array
    if isinstance(value, dict):
        return {k.decode("latin1") if isinstance(k, bytes) else k: _with_arrays(v) for k, v in value.items()}
    return value
