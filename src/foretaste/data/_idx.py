"""MNIST and Fashion-MNIST from idx files, gzipped or not."""

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from foretaste.data._find import MOST, find, size_of
from foretaste.data._images import Images, Normalise
from foretaste.data._parts import Part, assemble, class_ids

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
FASHION_NORMALISE: Normalise = ((0.2860,), (0.3530,))
# The two sets share their files' names: their first labels tell which one lies there.
BEGINS = {"mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)}
KINDS = {1: "labels", 3: "images"}
CHUNK = 1 << 20
DEFLATE = 1032  # no deflate stream grows by more than this


def mnist(folder: str | os.PathLike[str], *, most: int = MOST) -> Images:
    """60,000 + 10,000 digits of 28×28; not normalised, for the paper feeds [0, 1]."""
    inside = ("raw", "MNIST/raw", "")
    return idx_set("mnist", folder, [f"{d}{i}" for d in ("mnist/", "MNIST/", "") for i in inside], DIGITS, None, most)


def fashion_mnist(folder: str | os.PathLike[str], *, most: int = MOST) -> Images:
    """60,000 + 10,000 pictures of clothes, 28×28."""
    inside = ("raw", "FashionMNIST/raw", "")
    layouts = [f"{d}{i}" for d in ("fashion-mnist/", "fashion_mnist/", "FashionMNIST/", "") for i in inside]
    return idx_set("fashion-mnist", folder, layouts, CLOTHES, FASHION_NORMALISE, most)


def idx_set(
    name: str,
    folder: str | os.PathLike[str],
    layouts: list[str],
    classes: tuple[str, ...],
    normalise: Normalise | None,
    most: int,
) -> Images:
    wanted = {
        f"{part} {KINDS[dims]}": [
            f"{part}-{KINDS[dims]}{dot}idx{dims}-ubyte{gz}" for gz in ("", ".gz") for dot in ("-", ".")
        ]
        for part in ("train", "t10k")
        for dims in (3, 1)
    }
    at = find(name, folder, layouts, wanted)
    parts = []
    for part in ("train", "t10k"):
        images, labels = at[f"{part} images"], at[f"{part} labels"]
        x_nHW = read_idx(images, 3, most)
        parts.append(
            Part(x_nHW[:, None], class_ids(read_idx(labels, 1, most), len(x_nHW), 10, str(labels)), str(images))
        )
    begins = tuple(parts[0].y[:10].tolist())
    for other in BEGINS.keys() - {name}:
        if begins == BEGINS[other]:
            raise ValueError(f"{at['train labels']} holds the labels of {other}, not of {name}; load {other!r} instead")
    return assemble(name, parts[:1], parts[1], classes, normalise)


def read_idx(path: Path, dims: int, most: int = MOST) -> np.ndarray:
    """The bytes an idx file declares, and an error unless it holds those and no more.

    A gzipped file is never inflated beyond what its header declares, and one byte that tells a longer one.
    """
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            with gzip.GzipFile(fileobj=raw) if packed else raw as file:
                shape = header(path, file, dims)
                room = os.path.getsize(path) * (DEFLATE if packed else 1)
                return body(path, file, shape, room, most)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: truncated or corrupted gzip ({error}); fetch it again") from error


def header(path: Path, file: IO[bytes] | gzip.GzipFile, dims: int) -> tuple[int, ...]:
    magic = file.read(4)
    if magic != bytes([0, 0, 8, dims]):
        seen = (
            KINDS.get(magic[3], "something else") if magic[:3] == b"\0\0\x08" and len(magic) == 4 else "no idx of bytes"
        )
        raise ValueError(
            f"{path}: begins with {magic.hex(' ') or 'nothing'} ({seen}); expected 00 00 08 {dims:02x} ({KINDS[dims]})"
        )
    sizes = file.read(4 * dims)
    if len(sizes) < 4 * dims:
        raise ValueError(f"{path}: truncated in its header, {4 + len(sizes)} bytes; fetch it again")
    return struct.unpack(f">{dims}I", sizes)


def body(path: Path, file: IO[bytes] | gzip.GzipFile, shape: tuple[int, ...], room: int, most: int) -> np.ndarray:
    declared = math.prod(shape)
    says = f"{path}: its header declares {' × '.join(map(str, shape))} = {declared} bytes"
    if declared > most:
        raise ValueError(f"{says}, above the limit of {size_of(most)}; raise most= if that is meant")
    if declared > room:  # before memory is taken for them
        raise ValueError(f"{says} and so small a file cannot hold them: truncated; fetch it again")
    if declared == 0:
        raise ValueError(f"{says}; expected at least one image")
    read = np.empty(declared, np.uint8)
    done = 0
    while done < declared:
        chunk = file.read(min(CHUNK, declared - done))
        if not chunk:
            raise ValueError(f"{says} and {done} are there: truncated; fetch it again")
        read[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
        done += len(chunk)
    if file.read(1):  # at the end of a gzip this also checks its CRC
        raise ValueError(f"{says} and there are more; fetch it again")
    return read.reshape(shape)
