"""Items that are read when they are asked for: pictures of files, rows or datasets. Never all in memory."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from foretaste.data.dataset import LARGEST_DATASET
from foretaste.data.pictures import (
    BROWSER_MEDIA,
    ImageSize,
    OpenPicture,
    PictureProgress,
    check_complete,
    decode_pictures,
    describe_broken,
    glance,
    oriented_size,
    raise_broken,
    readable_picture,
    run_on_each,
    short_reason,
)

StoredBytes = Callable[[int], bytes]
LARGEST_ORIGINAL = 1 << 28  # bytes of a file that is handed out as it is


class StoredItems(Sequence[Any]):
    """Items that are files, or as good as files. Each is known by what it holds, wherever it lies."""

    names: list[str]
    lengths: list[int]  # bytes as stored
    _digests: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def content_digest(self, i: int) -> bytes:
        """Of item i as stored."""
        raise NotImplementedError

    def take(self, rows: Sequence[int]) -> Self:
        """Some of the items, in that order."""
        raise NotImplementedError

    def digest_of(self, i: int) -> bytes:
        """Of one item as stored: the same file has the same digest, without decoding it."""
        return self.content_digest(i) if self._digests is None else self._digests[i]

    def by_content(self) -> tuple[Self, list[int]]:
        """The items in the order of their digests, each read once, and which of them each is."""
        digests = [self.digest_of(i) for i in range(len(self))]
        order = sorted(range(len(self)), key=digests.__getitem__)
        some = self.take(order)
        some._digests = [digests[i] for i in order]
        return some, order

    @cached_property
    def digest(self) -> str:
        """Of all items, in their order. ``ft.features`` keeps what it computes under it."""
        return blake2b(b"".join(map(self.digest_of, range(len(self)))), digest_size=16).hexdigest()


class PictureItems(StoredItems):
    """Pictures of any sizes; ``items[i]`` reads one from disk: upright, in colour, eight bits a channel."""

    def __init__(
        self, opened: OpenPicture, stored: StoredBytes, names: Sequence[str], sizes: Sequence[tuple[int, int]],
        lengths: Sequence[int],
    ) -> None:  # fmt: skip
        self.opened, self.stored, self.names = opened, stored, list(names)
        self.sizes, self.lengths = list(sizes), list(lengths)  # (height, width) upright; bytes as stored

    @overload
    def __getitem__(self, i: int) -> Image.Image: ...
    @overload
    def __getitem__(self, i: slice) -> list[Image.Image]: ...
    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        return self.shown(range(len(self))[i])

    def shown(self, i: int, most: int | None = None) -> Image.Image:
        """Picture i, at most ``most`` pixels a side; None: of its own size."""
        with self._readable(i) as image:
            return readable_picture(image, most)

    def original(self, i: int) -> tuple[bytes, str] | None:
        """The file of picture i as it is, and its media type; None if browsers do not show such a file.

        What it is told by its content, never by its name.
        """
        with self._readable(i) as image:
            media, file = BROWSER_MEDIA.get(image.format or ""), getattr(image, "fp", None)
            if media is None or file is None or _file_length(image) > LARGEST_ORIGINAL:
                return None
            file.seek(0)
            return file.read(), media

    @contextmanager
    def _readable(self, i: int) -> Iterator[Image.Image]:
        try:
            with self.opened(i) as image:
                yield image
        except Exception as error:  # a decoder may raise anything on a broken file
            raise ValueError(f"{self.names[i]} cannot be read ({short_reason(error)}); mend or remove it") from error

    def content_digest(self, i: int) -> bytes:
        return blake2b(self.stored(i), digest_size=16).digest()

    def take(self, rows: Sequence[int]) -> Self:
        rows = list(rows)
        return type(self)(
            lambda i: self.opened(rows[i]), lambda i: self.stored(rows[i]), [self.names[i] for i in rows],
            [self.sizes[i] for i in rows], [self.lengths[i] for i in rows],
        )  # fmt: skip


def pixels(
    items: Sequence[Any],
    *,
    size: ImageSize = None,
    channels: int | None = None,
    most: int = LARGEST_DATASET,
    progress: PictureProgress | None = None,
    where: object = None,
) -> Tensor:
    """(N, channels, H, W) uint8: every picture decoded at one size, all in memory. Sizes that differ need ``size``."""
    if isinstance(items, Tensor):
        return items
    assert isinstance(items, PictureItems)
    how: dict[str, Any] = {"size": size, "channels": channels, "most": most, "progress": progress, "where": where}
    return decode_pictures(items.opened, items.names, **how).x


def join_pictures(a: PictureItems, b: PictureItems) -> PictureItems:
    """The pictures of both, one after the other."""
    n = len(a)
    return PictureItems(
        lambda i: a.opened(i) if i < n else b.opened(i - n), lambda i: a.stored(i) if i < n else b.stored(i - n),
        a.names + b.names, a.sizes + b.sizes, a.lengths + b.lengths,
    )  # fmt: skip


def checked_pictures(
    opened: OpenPicture, stored: StoredBytes, names: Sequence[str], *, skip_broken: bool, where: object,
    progress: PictureProgress | None = None, path_of: Callable[[int], Path] | None = None,
) -> tuple[PictureItems, list[int], tuple[str, ...]]:  # fmt: skip
    """The pictures that can be read, which of ``names`` they are, and a note that names the others.

    Headers and ends of files are read, not pixels. Without ``skip_broken`` the others are an error, all at once.
    ``path_of``: where pictures are files, their paths.
    """
    sizes, lengths = [(0, 0)] * len(names), [0] * len(names)

    def look(i: int) -> None:
        if path_of is not None and (seen := glance(path_of(i))) is not None:
            sizes[i], lengths[i] = seen[:2], seen[2]
            return
        with opened(i) as image:
            sizes[i] = oriented_size(image)
            lengths[i] = _file_length(image)
            check_complete(image)

    broken, _ = run_on_each(look, list(range(len(names))), None, progress)
    raise_broken(broken, names, skip_broken, f"{where}: ")
    kept = [i for i in range(len(names)) if i not in broken]
    notes = (f"{describe_broken(broken, names, 'pictures', 100)}: left out",) if broken else ()
    items = PictureItems(opened, stored, names, sizes, lengths)
    return items if not broken else items.take(kept), kept, notes


def _file_length(image: Image.Image) -> int:
    """In bytes; 0 if the picture was never in a file. The position in the file stays."""
    if (file := getattr(image, "fp", None)) is None:
        return 0
    here, length = file.tell(), file.seek(0, os.SEEK_END)
    file.seek(here)
    return int(length)


def item_digest(items: Sequence[Any], i: int, size: int = 16) -> bytes:
    """Equal for equal items: a picture as stored, the text, the row or the numbers. ``size`` in bytes, at most 16."""
    if isinstance(items, StoredItems):
        return items.digest_of(i)[:size]
    item = items[i]
    raw = np.ascontiguousarray(item.numpy()).tobytes() if isinstance(item, Tensor) else repr(item).encode()
    return blake2b(raw, digest_size=size).digest()


def take_items(items: Sequence[Any], rows: Sequence[int]) -> Sequence[Any]:
    """Some of the items, in that order; pictures stay on disk."""
    if isinstance(items, Tensor):
        return items[torch.as_tensor(rows, dtype=torch.int64)]
    return items.take(rows) if hasattr(items, "take") else [items[i] for i in rows]
