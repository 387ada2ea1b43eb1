"""Any map-style torch dataset of (picture or numbers, class), read once into one tensor."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from foretaste.data.dataset import LARGEST_DATASET, Images
from foretaste.data.pictures import (
    GREY_MODES,
    HOW_TO_SKIP,
    ImageSize,
    OpenPicture,
    PictureProgress,
    check_channels,
    check_picture_memory,
    describe_broken,
    height_and_width,
    one_size,
    oriented_size,
    picture_pixels,
    short_reason,
)
from foretaste.data.points import ReadOptions, array_points

TEST_SHARE = 0.2
PROBED_ITEMS = 16  # each read three times: a flip at p = 1/2 goes unnoticed with a chance of 4⁻¹⁶


def from_torch(
    dataset: Any,
    test: Any = TEST_SHARE,
    *,
    classes: Sequence[str] | None = None,
    name: str | None = None,
    size: ImageSize = None,
    channels: int | None = None,
    skip_broken: bool = False,
    most: int = LARGEST_DATASET,
    progress: PictureProgress | None = None,
) -> Images:
    """Read a torch dataset of (picture or numbers, class) into memory.

    Bytes, and floats that are bytes / 255 (``ToTensor``), become bytes. Other floats stay float32. A dataset that
    augments at random is refused: training augments by itself, and the pool must not change. ``test`` is another
    dataset to measure on, or a share of each class; None is 0.2. ``classes`` default to the dataset's own, else to
    numbers. The other arguments are those of ``load``.

    Example:
        >>> import torch
        >>> from foretaste.data import from_torch
        >>> points = torch.utils.data.TensorDataset(torch.rand(20, 5), torch.arange(20) % 2)
        >>> from_torch(points, name="points").x.shape
        torch.Size([20, 5])
    """
    test = TEST_SHARE if test is None else test
    if test is dataset:
        raise ValueError(
            "test is the dataset itself; measuring needs points that are not learned from: give another one, or a share"
        )
    share, parts = (test, [dataset]) if isinstance(test, float | int) else (0.0, [dataset, test])
    how = ReadOptions(
        size=size, channels=channels, skip_broken=skip_broken, most=most, progress=progress, for_study=True
    )
    name = name or type(dataset).__name__
    got = read_dataset_items(parts, name, how)
    assert isinstance(got.values, np.ndarray)
    assert got.labels is not None
    words = _dataset_classes(got.classes if classes is None else classes, max(got.labels))
    notes = got.notes
    if got.values.dtype != np.uint8 and got.values.ndim >= 3:
        notes += ("pixels are floats as the dataset gives them, not bytes",)
    side = tuple("pool" if k < len(dataset) else "test" for k in got.kept) if len(parts) == 2 else ()
    points = array_points(name, got.values, [words[c] for c in got.labels], notes, side)
    return replace(points, own_classes=words).split(share, name=name)


@dataclass(frozen=True, eq=False)
class DatasetItems:
    """The items of a dataset: pictures that are read when asked for, or all of them in memory."""

    labels: list[Any] | None  # None where no item has one
    classes: tuple[str, ...] | None  # the dataset's own
    values: list[str] | np.ndarray | None  # None for pictures that are not read yet
    opened: OpenPicture
    kept: list[int]  # the items that could be read
    notes: tuple[str, ...] = ()


def read_dataset_items(parts: Sequence[Any], where: str, how: ReadOptions) -> DatasetItems:
    """Items of map-style datasets or lists, each read once: x, or (x, y) where y may be None. A study needs every y.

    Pictures are read now for a study alone. A dataset that augments at random is refused: the pool must not change.
    """
    take = partial(_item_and_label, needed=how.for_study)
    probed = [item for part, what in zip(parts, ("the dataset", "test")) for item in _probe_items(part, what, take)]
    if not probed and not how.for_study:
        raise ValueError("no item of the dataset can be read; look at dataset[0]")
    rows = [(part, i) for part in parts for i in range(len(part))]
    names = [f"item {i}" if part is parts[0] else f"test item {i}" for part, i in rows]

    def opened(k: int) -> Image.Image:
        part, i = rows[k]
        image = _as_picture(take(part[i])[0])
        if image is None:
            raise ValueError("not a picture of bytes as the others")
        return image

    into = _collector(probed, len(rows), where, how)
    labels, broken = list[Any](), dict[int, str]()
    known = getattr(parts[0], "targets", None)  # as torchvision's have it: no picture need be read for its label
    if into is None and known is not None and len(known) == len(rows):
        labels = list(np.asarray(known).tolist())
    for k, (part, i) in enumerate([] if labels else rows):
        try:
            item, label = take(part[i])
            if into is not None:
                into.put(k, item)
        except (MemoryError, RefusedDatasetError):
            raise
        except Exception as error:  # a user's dataset may raise anything on a damaged file
            if into is None or not how.for_study:
                raise ValueError(f"{names[k]} cannot be read: {short_reason(error)}") from error
            broken[k] = short_reason(error)
        else:
            labels.append(_check_class_id(label, names[k]) if how.for_study else _plain_label(label))
        if how.progress is not None and (k % 100 == 99 or k + 1 == len(rows)):
            how.progress(k + 1, len(rows))
    if broken and (not how.skip_broken or len(broken) == len(rows)):
        raise ValueError(f"{describe_broken(broken, names, 'items')}; mend them, or {HOW_TO_SKIP}")
    kept = [k for k in range(len(rows)) if k not in broken]
    notes = (f"{describe_broken(broken, names, 'items')}: left out",) if broken else ()
    values = None if into is None else into.done(kept)
    inner, classes = parts[0], None
    while classes is None and inner is not None:  # also through a Subset
        classes, inner = getattr(inner, "classes", None), getattr(inner, "dataset", None)
    named = None if classes is None else tuple(map(str, classes))
    return DatasetItems(None if {*labels} <= {None} else labels, named, values, opened, kept, notes)


def _collector(
    probed: Sequence[Any], n: int, where: str, how: ReadOptions
) -> "_Texts | _BytePictures | _FloatArrays | None":
    """What collects the items; None for pictures that stay where they are."""
    if all(_as_picture(item) is not None for item in probed):
        return _BytePictures(n, how) if how.for_study else None
    if how.for_study and (how.size is not None or how.channels is not None):
        raise ValueError(
            f"size is {how.size} and channels {how.channels}, but {where} gives floats that are no bytes / 255; leave "
            "both out"
        )
    if not how.for_study and all(isinstance(item, str) for item in probed):
        return _Texts()
    return _FloatArrays(n, how)


def _item_and_label(item: Any, needed: bool) -> tuple[Any, Any]:
    """An item and its label, which may be missing unless ``needed``."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    if isinstance(item, tuple | list) and len(item) == 1 and not needed:
        return item[0], None
    if isinstance(item, str | Image.Image | torch.Tensor | np.ndarray) and not needed:
        return item, None
    have = f"with the keys {', '.join(map(str, item))}" if isinstance(item, dict) else _describe_item(item)
    raise RefusedDatasetError(f"an item of the dataset is a {type(item).__name__} {have}; expected (picture, class)")


def _plain_label(label: Any) -> Any:
    """A label as a Python value: tensors and arrays of one number are that number."""
    if label is None or isinstance(label, str):
        return label
    value = _as_array(label)
    if value.size != 1:
        raise ValueError(f"a label is {_describe_item(label)}; expected one number or word, or None")
    return value.reshape(()).item()


class RefusedDatasetError(ValueError):
    """The dataset as a whole is wrong, not one damaged item."""


def _as_picture(item: Any) -> Image.Image | None:
    """The item as a Pillow image, if it is a picture of bytes, or of floats that were bytes."""
    if isinstance(item, Image.Image):
        return item
    if isinstance(item, torch.Tensor):
        array = item.detach().cpu().numpy()  # channels first, as in torch
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


def _probe_items(dataset: Any, what: str, take: Callable[[Any], tuple[Any, Any]]) -> list[Any]:
    """A few items, after a check that each reading gives the same."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(f"{what} is a {type(dataset).__name__}; expected a map-style dataset, with len() and [i]")
    n = len(dataset)
    if n == 0:
        raise ValueError(f"{what} has no items")
    before, items = _generator_states(), []
    try:
        for i in np.unique(np.linspace(0, n - 1, PROBED_ITEMS).astype(int)).tolist():
            try:
                reads = [take(dataset[i]) for _ in range(3)]
            except RefusedDatasetError:
                raise
            except Exception:  # damaged: counted when all are read
                continue
            first = [_as_array(part) for part in reads[0]]
            same = all(np.array_equal(a, _as_array(b)) for again in reads[1:] for a, b in zip(first, again))
            if not same or not _same_states(before, _generator_states()):
                raise ValueError(
                    f"{what} {'draws random numbers' if same else 'gives another picture'} each time item {i} is read; "
                    "give the dataset without its augmentation: training augments by itself, the pool must not be "
                    "augmented"
                )
            items.append(reads[0][0])
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002  transforms draw from the global one
        torch.set_rng_state(before[2])
    return items


def _generator_states() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002


def _same_states(a: tuple[Any, Any, torch.Tensor], b: tuple[Any, Any, torch.Tensor]) -> bool:
    numpys = all(np.array_equal(x, y) for x, y in zip(a[1], b[1]))
    return a[0] == b[0] and numpys and torch.equal(a[2], b[2])


def _as_array(part: Any) -> np.ndarray:
    return np.asarray(part.detach().cpu() if isinstance(part, torch.Tensor) else part)


def _describe_item(item: Any) -> str:
    shape = f" of shape {tuple(item.shape)}" if hasattr(item, "shape") else ""
    return f"{type(item).__name__}{shape} {getattr(item, 'dtype', '')}".strip()


def _check_class_id(label: Any, name: str) -> int:
    value = _as_array(label)
    if value.size != 1 or value.dtype.kind not in "iu" or int(value.reshape(())) < 0:
        raise RefusedDatasetError(f"the label of {name} is {label!r}; expected one integer from 0, its class")
    return int(value.reshape(()))


class _Texts:
    """Collects texts."""

    def __init__(self) -> None:
        self.texts = list[str]()

    def put(self, k: int, item: Any) -> None:
        self.texts.append(str(item))

    def done(self, kept: list[int]) -> list[str]:
        return self.texts


class _Arrays:
    """Collects arrays of one shape; memory for all of them is taken when the first comes."""

    def __init__(self, n: int, how: ReadOptions) -> None:
        self.n, self.how = n, how
        self.x: np.ndarray | None = None

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        try:
            check_picture_memory(self.n, (np.dtype(dtype).itemsize, *shape), self.how.most)
        except ValueError as error:
            raise RefusedDatasetError(str(error)) from None
        return np.zeros((self.n, *shape), dtype)

    def done(self, kept: list[int]) -> np.ndarray:
        assert self.x is not None
        return self.x if len(kept) == self.n else self.x[kept]


class _BytePictures(_Arrays):
    """Collects pictures of one size: as given, else that of the first. Grey until one in colour comes."""

    def __init__(self, n: int, how: ReadOptions) -> None:
        super().__init__(n, how)
        check_channels(how.channels)
        self.shape, self.sizes = height_and_width(how.size), Counter[tuple[int, int]]()

    def put(self, k: int, item: Any) -> None:
        image = _as_picture(item)
        if image is None:
            raise ValueError(f"not a picture of bytes as the others: {_describe_item(item)}")
        h, w = oriented_size(image)
        self.sizes[h, w] += 1
        self.shape = self.shape or (h, w)
        if self.how.size is None and (h, w) != self.shape:
            return  # the error at the end lists all sizes
        c = self.how.channels or (1 if image.mode in GREY_MODES else 3)
        if self.x is None or c > self.x.shape[1]:
            grey = self.x
            self.x = self.allocate((c, *self.shape), np.uint8)
            if grey is not None:
                self.x[:] = grey
        self.x[k], _ = picture_pixels(image, self.shape, self.x.shape[1], resize=self.how.size is not None)

    def done(self, kept: list[int]) -> np.ndarray:
        if self.how.size is None:
            one_size(self.sizes)
        return super().done(kept)


class _FloatArrays(_Arrays):
    """Collects numbers of one shape, unchanged."""

    def put(self, k: int, item: Any) -> None:
        if self.how.for_study and getattr(item, "dtype", None) in (torch.uint8, np.uint8) and item.ndim > 1:
            raise RefusedDatasetError(f"an item is a {_describe_item(item)}; expected pictures of 1 or 3 channels")
        values = _as_array(item).astype(np.float32)
        if self.x is None:
            self.x = self.allocate(values.shape, np.float32)
        if values.shape != self.x.shape[1:]:
            raise ValueError(f"shape {values.shape} where the others have {self.x.shape[1:]}")
        if not np.isfinite(values).all():
            raise ValueError("not all of its numbers are finite")
        self.x[k] = values


def _dataset_classes(given: Sequence[str] | None, largest: int) -> tuple[str, ...]:
    """Class names as given, else numbers."""
    words = tuple(map(str, given)) if given is not None else tuple(map(str, range(largest + 1)))
    if largest >= len(words):
        raise ValueError(f"a label is {largest} and there are {len(words)} classes ({', '.join(words[:5])}, ...)")
    if len(set(words)) < len(words):
        raise ValueError(f"two classes have the same name: {', '.join(words[:20])}")
    return words
