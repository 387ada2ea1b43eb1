"""Arrays in an .npz file, measured before they are inflated; nothing in it is run."""

import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

from foretaste.data._find import size_of

CHUNK = 1 << 22
DEFLATE = 1032  # no deflate stream grows by more than this
T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """An array by its own header: what it will take."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    by_columns: bool
    start: int  # of its numbers, after the header

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def names_in(file: Path) -> list[str]:
    if not file.is_file():
        raise FileNotFoundError(f"{file} is not there; expected an .npz file")
    return guarded(file, lambda zipped: [name.removesuffix(".npy") for name in zipped.namelist()])


def arrays(file: Path, names: Sequence[str], most: int) -> list[np.ndarray]:
    """Those arrays of the file, after all their headers were read and found to be true.

    A member is refused unless it is as long as its header's shape says, its packed bytes can hold that, and all of
    them together are no more than ``most``. The zip reader itself stops where the declared length ends.
    """
    found = guarded(file, lambda zipped: [header(zipped, name) for name in names])
    if (total := sum(member.bytes for member in found)) > most:
        raise ValueError(
            f"{file} inflates to {size_of(total)}, above the limit of {size_of(most)}; raise most= if that is meant"
        )
    return guarded(file, lambda zipped: [numbers(zipped, member) for member in found])


class Wrong(Exception):
    """What is wrong with a file, in words."""


def guarded(file: Path, read: Callable[[zipfile.ZipFile], T]) -> T:
    """``read`` the zip, its errors told with the file's name."""
    try:
        with zipfile.ZipFile(file) as zipped:
            return read(zipped)
    except Wrong as error:
        raise ValueError(f"{file}: {error}") from error
    except Exception as error:  # a corrupted zip or header fails in any way
        reason = str(error) or type(error).__name__
        raise ValueError(f"{file}: truncated or corrupted, or no .npz ({reason}); write or fetch it again") from error


def header(zipped: zipfile.ZipFile, name: str) -> Member:
    entry = zipped.getinfo(f"{name}.npy")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Wrong(f"{name} is packed by method {entry.compress_type}; write it with numpy.savez_compressed")
    with zipped.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise Wrong(f"{name} is of npy version {version}; expected 1.0 or 2.0, an array of numbers")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(stream)
        member = Member(name, shape, dtype, by_columns, stream.tell())
    if dtype.kind not in "biufUS" or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise Wrong(
            f"{name} is {dtype} {shape}; expected numbers or strings: nothing else is read, least of all objects"
        )
    declared = entry.file_size - member.start
    if declared != member.bytes:
        raise Wrong(f"{name} is {dtype} {shape}, {member.bytes} bytes, and the zip declares {declared}; write it again")
    if entry.file_size > DEFLATE * entry.compress_size:
        raise Wrong(f"{name} declares {size_of(declared)}, more than its {entry.compress_size} packed bytes can hold")
    return member


def numbers(zipped: zipfile.ZipFile, member: Member) -> np.ndarray:
    flat = np.empty(member.bytes, np.uint8)
    with zipped.open(f"{member.name}.npy") as stream:
        stream.read(member.start)
        done = 0
        while chunk := read_some(stream, member.bytes - done):
            flat[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
            done += len(chunk)
        if done < member.bytes or stream.read(1):  # at the end the zip reader checks the CRC
            raise Wrong(f"{member.name} declares {member.bytes} bytes and does not hold as many; write it again")
    return flat.view(member.dtype).reshape(member.shape, order="F" if member.by_columns else "C")


def read_some(stream: IO[bytes], left: int) -> bytes:
    return stream.read(min(CHUNK, left)) if left else b""
