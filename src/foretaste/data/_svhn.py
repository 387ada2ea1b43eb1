"""SVHN, cropped digits, from its two MATLAB files."""

import math
import os
from pathlib import Path

import numpy as np

from foretaste.data._find import MOST, find, size_of
from foretaste.data._images import Images, Normalise
from foretaste.data._parts import Part, assemble

NORMALISE: Normalise = ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
# Bytes of a number, by MATLAB's names. Some copies keep labels as double.
WIDTH = {f"{sign}int{8 * size}": size for sign in ("", "u") for size in (1, 2, 4, 8)} | {"single": 4, "double": 8}


def svhn(folder: str | os.PathLike[str], *, most: int = MOST) -> Images:
    """73,257 + 26,032 house numbers of 32×32; the files' label 10 is the digit 0."""
    wanted = {part: [f"{part}_32x32.mat"] for part in ("train", "test")}
    at = find("svhn", folder, ("svhn", "SVHN", ""), wanted)
    train, test = (mat(at[part], most) for part in ("train", "test"))
    return assemble("svhn", [train], test, tuple("0123456789"), NORMALISE)


def mat(path: Path, most: int) -> Part:
    from scipy.io import loadmat, whosmat

    try:
        kinds = {name: (shape, kind) for name, shape, kind in whosmat(path)}
    except Exception as error:  # scipy has no one error for a file it cannot read
        raise unreadable(path, error) from error
    check(path, kinds, most)
    try:
        held = loadmat(path, variable_names=["X", "y"])
    except Exception as error:
        raise unreadable(path, error) from error
    x_HWCn, y = held["X"], held["y"].ravel()
    wrong = np.flatnonzero(~((y >= 1) & (y <= 10) & (y == np.rint(y))))
    if len(wrong):
        first = f"the first {y[wrong[0]]} at {wrong[0]}"
        raise ValueError(f"{path}: {len(wrong)} labels are not whole numbers from 1 to 10, {first}")
    return Part(np.ascontiguousarray(x_HWCn.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10, str(path))


def check(path: Path, kinds: dict[str, tuple[tuple[int, ...], str]], most: int) -> None:
    """What the headers declare, before anything is inflated."""
    if missing := [name for name in ("X", "y") if name not in kinds]:
        there = ", ".join(kinds) or "nothing"
        raise ValueError(
            f"{path} lacks {' and '.join(missing)} and has {there}; expected X and y (images, labels): is it cut short?"
        )
    (x_shape, x_kind), (y_shape, y_kind) = kinds["X"], kinds["y"]
    if len(x_shape) != 4 or x_shape[:3] != (32, 32, 3) or x_kind != "uint8" or not x_shape[3]:
        raise ValueError(f"{path}: X is {x_kind} {x_shape}; expected uint8 (32, 32, 3, N), N at least one")
    if y_kind not in WIDTH or math.prod(y_shape) != x_shape[3]:
        raise ValueError(f"{path}: y is {y_kind} {y_shape} for {x_shape[3]} images; expected a number for each")
    declared = math.prod(x_shape) + math.prod(y_shape) * WIDTH[y_kind]
    if declared > most:
        raise ValueError(
            f"{path} declares {size_of(declared)}, above the limit of {size_of(most)}; raise most= if that is meant"
        )


def unreadable(path: Path, error: Exception) -> ValueError:
    reason = str(error) or type(error).__name__
    return ValueError(f"{path}: truncated or corrupted, or not MATLAB's format 5 ({reason}); fetch it again")
