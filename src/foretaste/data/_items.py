"""Items of a torch dataset: what they hold, and whether they are the same each time."""

import random
from typing import Any

import numpy as np
import torch
from PIL import Image

PROBES = 16  # items read three times: that a flip at p = 1/2 hides has a chance of 4⁻¹⁶


class Refused(ValueError):
    """Wrong of the dataset as a whole, not of one damaged item."""


def picture(item: Any) -> Image.Image | None:
    """As a Pillow image, if it is a picture of bytes, or of floats that were bytes."""
    if isinstance(item, Image.Image):
        return item
    if isinstance(item, torch.Tensor):
        array = item.detach().cpu().numpy()  # channels first, as torch has them
    elif isinstance(item, np.ndarray):
        array = item.transpose(2, 0, 1) if item.ndim == 3 and item.shape[2] in (1, 3) else item
    else:
        return None
    array = array[0] if array.ndim == 3 and array.shape[0] == 1 else array
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[0] != 3):
        return None
    if array.dtype.kind == "f":
        whole = np.rint(array * 255)
        if not (np.abs(array * 255 - whole) < 1e-3).all() or whole.min() < 0 or whole.max() > 255:
            return None
        array = whole.astype(np.uint8)
    if array.dtype != np.uint8:
        return None
    return Image.fromarray(np.ascontiguousarray(array if array.ndim == 2 else array.transpose(1, 2, 0)))


def probe(dataset: Any, what: str) -> list[Any]:
    """A handful of items, after making sure that they are the same each time they are asked for."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(f"{what} is a {type(dataset).__name__}; expected a map-style dataset, with len() and [i]")
    n = len(dataset)
    if n == 0:
        raise ValueError(f"{what} has no items")
    before = _generators()
    items = []
    try:
        for i in np.unique(np.linspace(0, n - 1, PROBES).astype(int)).tolist():
            try:
                reads = [pair(dataset[i]) for _ in range(3)]
            except Refused:
                raise
            except Exception:  # a damaged one: counted when all are read
                continue
            first = [values(part) for part in reads[0]]
            same = all(np.array_equal(a, values(b)) for again in reads[1:] for a, b in zip(first, again))
            if not same or not _equal(before, _generators()):
                raise ValueError(
                    f"{what} {'draws random numbers' if same else 'gives another picture'} each time item {i} is read; "
                    "give the dataset without its augmentation: training augments by itself, the pool must not be "
                    "augmented"
                )
            items.append(reads[0][0])
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002  the global one is what transforms draw from
        torch.set_rng_state(before[2])
    return items


def _generators() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002


def _equal(a: tuple[Any, Any, torch.Tensor], b: tuple[Any, Any, torch.Tensor]) -> bool:
    numpys = all(np.array_equal(x, y) for x, y in zip(a[1], b[1]))
    return a[0] == b[0] and numpys and torch.equal(a[2], b[2])


def values(part: Any) -> np.ndarray:
    return np.asarray(part.detach().cpu() if isinstance(part, torch.Tensor) else part)


def pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        have = f"with the keys {', '.join(map(str, item))}" if isinstance(item, dict) else kind(item)
        raise Refused(f"an item of the dataset is a {type(item).__name__} {have}; expected (picture, class)")
    return item[0], item[1]


def kind(item: Any) -> str:
    shape = f" of shape {tuple(item.shape)}" if hasattr(item, "shape") else ""
    return f"{type(item).__name__}{shape} {getattr(item, 'dtype', '')}".strip()


def class_id(label: Any, name: str) -> int:
    value = values(label)
    if value.size != 1 or value.dtype.kind not in "iu" or int(value.reshape(())) < 0:
        raise Refused(f"the label of {name} is {label!r}; expected one integer from 0, its class")
    return int(value.reshape(()))
