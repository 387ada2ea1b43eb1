"""From arrays that were read to a data set: what must hold whatever the file format."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from foretaste.data._images import Images, Normalise


@dataclass(frozen=True, eq=False)
class Part:
    """What one file, or a file of images and one of labels, holds."""

    x: np.ndarray  # (n, channels, H, W) uint8
    y: np.ndarray  # (n,) int64
    file: str  # named in errors


def class_ids(raw: object, count: int, classes: int, file: str) -> np.ndarray:
    """Labels as read, held to be ``count`` integers from 0 to ``classes`` − 1."""
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
            f"{file}: {len(wrong)} labels out of range, the first {y_n[wrong[0]]} at {wrong[0]}; "
            f"expected 0 to {classes - 1}"
        )
    return y_n.astype(np.int64)


def assemble(
    name: str,
    train: Sequence[Part],
    test: Part,
    classes: Sequence[str],
    normalise: Normalise | None = None,
    notes: tuple[str, ...] = (),
) -> Images:
    """Training images are the pool, with ids from 0 in the order of the files; test images come after them."""
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
        x=torch.from_numpy(joined([part.x for part in parts])),
        y=torch.from_numpy(y_N),
        pool=pool,
        test=np.arange(len(pool), len(y_N)),
        classes=tuple(classes),
        normalise=normalise,
        notes=(*notes, *strangers(y_N[: len(pool)], test.y, classes)),
    )


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """One array after another, row by row in memory whatever order they came in."""
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    return np.concatenate(parts, out=np.empty(shape, parts[0].dtype))


def strangers(pool_y: np.ndarray, test_y: np.ndarray, classes: Sequence[str]) -> tuple[str, ...]:
    """A note where test has classes that the pool has not: no label asked for can teach them."""
    only = [classes[c] for c in np.setdiff1d(test_y, pool_y)]
    return (f"{len(only)} classes occur in test and never in the pool: {', '.join(only[:5])}",) if only else ()
