"""Any map-style torch dataset of (picture or numbers, class), read once into one tensor."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from foretaste.data._decode import MOST, NAMED, Decoded, Progress, bytes_needed, why
from foretaste.data._folder import assemble
from foretaste.data._images import Images
from foretaste.data._items import Refused, class_id, kind, pair, picture, probe
from foretaste.data._pixels import GREY, Side, exact, oriented_size, pixels

SHARE = 0.2


def from_torch(
    dataset: Any,
    test: Any = SHARE,
    *,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    size: Side = None,
    channels: int | None = None,
    skip_broken: bool = False,
    most: int = MOST,
    progress: Progress | None = None,
) -> Images:
    """``dataset`` is the pool; ``test`` another one, or the share of each class to measure on (None: 0.2).

    Items are (PIL image, tensor or array; integer). Bytes, and floats that are bytes over 255 (``ToTensor``), become
    bytes; other floats stay float32 as they are. A dataset that gives the same item differently each time is refused.
    """
    test = SHARE if test is None else test
    share = test if isinstance(test, float | int) else 0.0
    if test is dataset:
        raise ValueError(
            "test is the dataset itself, so nothing would be learned from what is not measured; give another"
        )
    parts = [dataset] if isinstance(test, float | int) else [dataset, test]
    name = name or type(dataset).__name__
    probed = [item for part, what in zip(parts, ("the dataset", "test")) for item in probe(part, what)]
    rows = [(part, i) for part in parts for i in range(len(part))]
    names = [f"item {i}" if part is dataset else f"test item {i}" for part, i in rows]
    if all(picture(item) is not None for item in probed):
        into: _Bytes | _Floats = _Bytes(len(rows), size, channels, most)
    elif size is not None or channels is not None:
        raise ValueError(f"size={size}, channels={channels}: {name} gives floats that are no bytes over 255; drop them")
    else:
        into = _Floats(len(rows), most)
    y, broken = np.full(len(rows), -1, dtype=np.int64), dict[int, str]()
    for k, (part, i) in enumerate(rows):
        try:
            item, label = pair(part[i])
            into.put(k, item)
        except (MemoryError, Refused):
            raise
        except Exception as error:  # whatever the user's dataset raises on a damaged file
            broken[k] = why(error)
        else:
            y[k] = class_id(label, names[k])
        if progress is not None and (k % 100 == 99 or k + 1 == len(rows)):
            progress(k + 1, len(rows))
    if broken and (not skip_broken or len(broken) == len(rows)):
        raise ValueError(f"{_told(broken, names)}; mend them, or give skip_broken=True to go without")
    kept = np.array([k for k in range(len(rows)) if k not in broken], dtype=np.int64)
    x = into.done() if not broken else into.done()[kept]
    words = _classes(dataset, classes, int(y.max()))
    sides = [None if len(parts) == 1 else ("pool" if rows[k][0] is dataset else "test") for k in kept]
    notes = (f"{_told(broken, names)}: left out",) if broken else ()
    data = assemble(name, Decoded(torch.from_numpy(x), kept, notes), [words[c] for c in y[kept]], sides, share, words)
    if x.dtype == np.uint8 or x.ndim < 3:
        return data
    return replace(data, notes=(*data.notes, "pixels are floats as the dataset gives them, not bytes"))


class _Bytes:
    """Pictures of one size; the first says which, unless told. Grey until the first one in colour."""

    def __init__(self, n: int, size: Side, channels: int | None, most: int) -> None:
        if channels not in (None, 1, 3):
            raise ValueError(f"channels={channels}; expected 1 (grey), 3 (colour), or None")
        self.n, self.most, self.channels, self.shape = n, most, channels, exact(size)
        self.resize, self.sizes = size is not None, Counter[tuple[int, int]]()
        self.x: np.ndarray | None = None

    def put(self, k: int, item: Any) -> None:
        image = picture(item)
        if image is None:
            raise ValueError(f"not a picture of bytes as the others: {kind(item)}")
        h, w = oriented_size(image)
        self.sizes[h, w] += 1
        self.shape = self.shape or (h, w)
        if not self.resize and (h, w) != self.shape:
            return  # all sizes are told at the end
        c = self.channels or (1 if image.mode in GREY else 3)
        if self.x is None:
            _room(self.n, (c, *self.shape), self.most)
            self.x = np.zeros((self.n, c, *self.shape), dtype=np.uint8)
        elif c > self.x.shape[1]:
            _room(self.n, (c, *self.shape), self.most)
            self.x = self.x.repeat(3, axis=1)
        self.x[k], _ = pixels(image, self.shape, self.x.shape[1], resize=self.resize)

    def done(self) -> np.ndarray:
        if not self.resize and len(self.sizes) > 1:
            met = ", ".join(f"{w}×{h} ({n})" for (h, w), n in self.sizes.most_common(5))
            raise ValueError(f"pictures of {len(self.sizes)} sizes, width × height: {met}; give size= (pixels a side)")
        assert self.x is not None
        return self.x


class _Floats:
    """Numbers of one shape, as they are."""

    def __init__(self, n: int, most: int) -> None:
        self.n, self.most = n, most
        self.x: np.ndarray | None = None

    def put(self, k: int, item: Any) -> None:
        if getattr(item, "dtype", None) in (torch.uint8, np.uint8) and item.ndim > 1:
            raise Refused(f"an item is a {kind(item)}; expected pictures of 1 or 3 channels")
        values = np.asarray(item.detach().cpu() if isinstance(item, torch.Tensor) else item, dtype=np.float32)
        if self.x is None:
            _room(self.n, (4, *values.shape), self.most)
            self.x = np.zeros((self.n, *values.shape), dtype=np.float32)
        if values.shape != self.x.shape[1:]:
            raise ValueError(f"shape {values.shape} where the others have {self.x.shape[1:]}")
        if not np.isfinite(values).all():
            raise ValueError("not all of its numbers are finite")
        self.x[k] = values

    def done(self) -> np.ndarray:
        assert self.x is not None
        return self.x


def _room(n: int, shape: tuple[int, ...], most: int) -> None:
    try:
        bytes_needed(n, shape, most)
    except ValueError as error:
        raise Refused(str(error)) from None


def _classes(dataset: Any, given: Sequence[str] | None, largest: int) -> tuple[str, ...]:
    """As given; else the dataset's own, through any Subset of it; else numbers."""
    inner = dataset
    while given is None and inner is not None:
        given, inner = getattr(inner, "classes", None), getattr(inner, "dataset", None)
    words = tuple(map(str, given)) if given is not None else tuple(map(str, range(largest + 1)))
    if largest >= len(words):
        raise ValueError(f"a label is {largest} and there are {len(words)} classes ({', '.join(words[:5])}, ...)")
    if len(set(words)) < len(words):
        raise ValueError(f"two classes have the same name: {', '.join(words[:20])}")
    return words


def _told(broken: dict[int, str], names: Sequence[str]) -> str:
    told = ", ".join(f"{names[k]} ({broken[k]})" for k in sorted(broken)[:NAMED])
    more = f" and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
    return f"{len(broken)} of {len(names)} items cannot be read: {told}{more}"
