"""CIFAR10 and CIFAR100 from the Python batches of their publisher, read without executing them."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from foretaste.data._find import MOST, find
from foretaste.data._images import Images, Normalise
from foretaste.data._parts import Part, assemble, class_ids
from foretaste.data._unpickle import unpickle

TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NORMALISE_10: Normalise = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
NORMALISE_100: Normalise = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
LABELS = {"fine": 100, "coarse": 20}


def cifar10(folder: str | os.PathLike[str], *, most: int = MOST) -> Images:
    """50,000 + 10,000 pictures of 32×32 in ten classes. Five batches, of any length: half sets exist."""
    batches = [f"data_batch_{k}" for k in range(1, 6)]
    layouts = ("cifar10/cifar-10-batches-py", "cifar10", "cifar-10-batches-py", "")
    at = find("cifar10", folder, layouts, {name: [name] for name in [*batches, "test_batch"]})
    place = at["test_batch"].parent
    extra = sorted(p.name for p in place.iterdir() if re.fullmatch(r"data_batch_\d+", p.name) and p.name not in batches)
    if extra:
        raise ValueError(f"{place} has {', '.join(extra)} beside data_batch_1 to 5; CIFAR10 has five: move those away")
    parts = [batch(at[name], "labels", 10, most) for name in [*batches, "test_batch"]]
    classes = names(place / "batches.meta", "label_names", 10, most) or TEN
    return assemble("cifar10", parts[:5], parts[5], classes, NORMALISE_10)


def cifar100(folder: str | os.PathLike[str], labels: Literal["fine", "coarse"] = "fine", *, most: int = MOST) -> Images:
    """50,000 + 10,000 pictures of 32×32 in a hundred classes, or in the twenty they are grouped into."""
    if labels not in LABELS:
        raise ValueError(f"labels is {labels!r}; expected 'fine' (100 classes) or 'coarse' (20)")
    name, classes = "cifar100" if labels == "fine" else "cifar100-coarse", LABELS[labels]
    layouts = ("cifar100/cifar-100-python", "cifar100", "cifar-100-python", "")
    at = find("cifar100", folder, layouts, {"train": ["train"], "test": ["test"]})
    train, test = (batch(at[part], f"{labels}_labels", classes, most) for part in ("train", "test"))
    called = names(at["train"].parent / "meta", f"{labels}_label_names", classes, most)
    return assemble(name, [train], test, called or [str(c) for c in range(classes)], NORMALISE_100)


def batch(path: Path, labels: str, classes: int, most: int) -> Part:
    """Rows of 3072 bytes, red then green then blue, and the labels under the key ``labels``."""
    entries = entries_of(path, ("data", labels), "a CIFAR batch", most)
    x_nD = entries["data"]
    if not (
        isinstance(x_nD, np.ndarray)
        and x_nD.dtype == np.uint8
        and x_nD.ndim == 2
        and x_nD.shape[1:] == (3072,)
        and len(x_nD)
    ):
        came = f"{x_nD.dtype} {x_nD.shape}" if isinstance(x_nD, np.ndarray) else type(x_nD).__name__
        raise ValueError(f"{path}: its images are {came}; expected uint8 (n, 3072), n at least one")
    return Part(x_nD.reshape(-1, 3, 32, 32), class_ids(entries[labels], len(x_nD), classes, str(path)), str(path))


def names(path: Path, key: str, classes: int, most: int) -> Sequence[str] | None:
    """The classes' names from the publisher's own file of them, where it is there."""
    if not path.is_file():
        return None
    called = entries_of(path, (key,), "a CIFAR file of names", most)[key]
    if not isinstance(called, list) or len(called) != classes or not all(isinstance(c, bytes | str) for c in called):
        raise ValueError(f"{path}: {key} is not a list of {classes} names; fetch it again, or move it away")
    return [c.decode("utf-8", "replace") if isinstance(c, bytes) else c for c in called]


def entries_of(path: Path, keys: tuple[str, ...], what: str, most: int) -> dict[str, object]:
    entries = unpickle(path, what, most)
    if not isinstance(entries, dict):
        raise ValueError(f"{path} holds a {type(entries).__name__}; it is not {what}")
    if missing := [key for key in keys if key not in entries]:
        there = ", ".join(map(str, entries)) or "nothing"
        raise ValueError(f"{path} lacks {', '.join(missing)} and has {there}; it is not {what}")
    return entries
