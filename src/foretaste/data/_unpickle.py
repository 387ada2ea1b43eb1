"""Pickles of arrays, read without running anything.

A pickle is a program: it names functions and calls them. Here each name that a file of arrays needs stands for a small
function of ours, and every other name is refused before it is looked up. numpy's own ``__setstate__`` is not called
either, for a crafted dtype makes it trust what it should not. The unpickler is the one in Python: the one in C takes
gigabytes for a five-byte memo index.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from foretaste.data._find import MOST, size_of

PLAIN = {kind + size for kind in "uif" for size in "1248"} - {"f1"}


def unpickle(path: Path, what: str, most: int = MOST) -> Any:
    """What the pickle ``path`` holds, of dict, list, tuple, bytes, str, numbers and arrays; ``what`` it should be."""
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"{path}: {size_of(size)}, above the limit of {size_of(most)}; raise most= if that is meant")
    try:
        return plain(ArraysOnly(path.read_bytes()).load())
    except Refused as error:
        raise ValueError(f"{path} wants to run {error}; it is not {what}") from error
    except Exception as error:  # a corrupted pickle fails in any way
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path}: truncated or corrupted, or not {what} ({reason}); fetch it again") from error


class Refused(Exception):
    """The dotted name of what a pickle wanted."""


class Stand:
    """In place of a function that a pickle names. A pickle cannot set its attributes."""

    __slots__ = ("does",)

    def __init__(self, does: Callable[..., Any]) -> None:
        self.does = does

    def __call__(self, *args: Any) -> Any:
        return self.does(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("state for a function")


class Dtype:
    """numpy.dtype of a plain number: 'u1', then its byte order as state."""

    __slots__ = ("order", "plain")

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.plain = name.decode("ascii") if isinstance(name, bytes) else str(name)
        self.order = "|"
        if self.plain not in PLAIN:
            raise pickle.UnpicklingError(f"an array of {self.plain!r}, not of numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else str(state[1])
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {order!r}")
        self.order = order


class Array:
    """numpy.ndarray as it is pickled: an empty one, then (version, shape, dtype, by columns, bytes) as state."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: np.ndarray | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, dtype, by_columns, raw = state[-4:]
        self.array = of_bytes(raw, dtype, shape, "F" if by_columns else "C")


def of_bytes(raw: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
    if not isinstance(raw, bytes | bytearray) or not isinstance(dtype, Dtype):
        raise pickle.UnpicklingError("an array not of numbers")
    return np.frombuffer(raw, dtype.order + dtype.plain).reshape(shape, order="F" if order in ("F", b"F") else "C")


class ArraysOnly(pickle._Unpickler):
    def __init__(self, raw: bytes) -> None:
        super().__init__(io.BytesIO(raw), encoding="bytes")
        self.room = len(raw)
        ndarray, dtype = Stand(self.refused("numpy.ndarray")), Stand(Dtype)
        self.stands = {
            ("numpy", "ndarray"): ndarray,
            ("numpy", "dtype"): dtype,
            ("_codecs", "encode"): Stand(self.encode),
        }
        for core in ("numpy.core", "numpy._core"):  # before and since numpy 2
            self.stands[f"{core}.multiarray", "_reconstruct"] = Stand(lambda kind, *_: self.start(kind, ndarray))
            self.stands[f"{core}.numeric", "_frombuffer"] = Stand(of_bytes)  # protocol 5

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.stands:
            raise Refused(f"{module}.{name}")
        return self.stands[module, name]

    def get_extension(self, code: int) -> None:
        raise Refused(f"the extension of code {code}")

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("a persistent id")

    @staticmethod
    def refused(name: str) -> Callable[..., Any]:
        def run(*_: Any) -> Any:
            raise Refused(name)

        return run

    @staticmethod
    def start(kind: Any, ndarray: Stand) -> Array:
        if kind is not ndarray:
            raise Refused("a kind of array of its own")
        return Array()

    def encode(self, text: str, codec: Any) -> bytes:
        """How protocol 2 of Python 3 writes bytes."""
        self.room -= len(text)
        if codec not in ("latin1", b"latin1") or self.room < 0:  # the same text again and again fills any memory
            raise pickle.UnpicklingError("bytes that are not written as such")
        return text.encode("latin1")


def plain(value: Any) -> Any:
    """Stands for arrays replaced by arrays, in the dict that a batch is; its keys as str."""
    if isinstance(value, Array):
        if value.array is None:
            raise pickle.UnpicklingError("an array without its numbers")
        return value.array
    if isinstance(value, dict):
        return {k.decode("latin1") if isinstance(k, bytes) else k: plain(v) for k, v in value.items()}
    return value
