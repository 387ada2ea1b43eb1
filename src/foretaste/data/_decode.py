"""Many pictures of any size and format, read by a pool of threads into one uint8 tensor."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from foretaste.data._find import MOST as MOST
from foretaste.data._pixels import GREY, Side, exact, oriented_size, pixels

CHUNK = 32  # pictures a task: a future for each would outweigh the work
NAMED = 10

Progress = Callable[[int, int], None]
Open = Callable[[int], Image.Image]


@dataclass(frozen=True, eq=False)
class Decoded:
    """``x[k]`` is picture ``kept[k]`` of those asked for."""

    x: Tensor  # (len(kept), channels, H, W) uint8
    kept: np.ndarray
    notes: tuple[str, ...] = ()


def decode(
    opened: Open,
    names: Sequence[str],
    *,
    size: Side = None,
    channels: int | None = None,
    most: int = MOST,
    skip_broken: bool = False,
    progress: Progress | None = None,
    workers: int | None = None,
) -> Decoded:
    """Every picture ``opened(i)`` as bytes, channels first; ``names[i]`` is what an error calls it.

    What cannot be read is named, counted and raised; with ``skip_broken`` it is left out and a note says so. The memory
    is reckoned before a pixel is read.
    """
    if channels not in (None, 1, 3):
        raise ValueError(f"channels={channels}; expected 1 (grey), 3 (colour), or None to take what the pictures have")
    ids, broken = list(range(len(names))), dict[int, str]()
    shape = exact(size)
    if shape is None or channels is None:
        seen: dict[int, tuple[int, int, bool]] = {}

        def look(i: int) -> None:
            with opened(i) as image:
                seen[i] = (*oriented_size(image), image.mode in GREY)

        def whole(i: int) -> None:
            with opened(i) as image:
                image.load()

        broken |= _each(look, ids, workers)[0]
        ids = [i for i in ids if i not in broken]
        if broken and not skip_broken:
            broken |= _each(whole, ids, workers)[0]  # an error is due: let it name those broken further on, too
        _refuse(broken, names, skip_broken)
        shape = shape or _common(seen, names)
        channels = channels or (1 if all(grey for *_, grey in seen.values()) else 3)
    bytes_needed(len(ids), (channels, *shape), most)

    x = np.empty((len(names), channels, *shape), dtype=np.uint8)

    def read(i: int) -> str | None:
        with opened(i) as image:
            x[i], remark = pixels(image, shape, channels, resize=size is not None)
        return remark

    later, remarks = _each(read, ids, workers, progress)
    broken |= later
    _refuse(broken, names, skip_broken)
    kept = [i for i in ids if i not in broken]
    for new, old in enumerate(kept):  # in place: a second copy may not fit
        if new != old:
            x[new] = x[old]
    notes = [f"{n} of {len(names)} pictures {remark}" for remark, n in sorted(remarks.items())]
    if broken:
        notes.append(f"{_told(broken, names, 100)}: left out")
    return Decoded(torch.from_numpy(x[: len(kept)]), np.array(kept, dtype=np.int64), tuple(notes))


def bytes_needed(n: int, shape: tuple[int, ...], most: int) -> int:
    """Refuse what would not fit, before it is read."""
    need = n * int(np.prod(shape, dtype=np.int64))
    if need > most:
        raise ValueError(
            f"{n} pictures of {'×'.join(map(str, shape))} bytes are {need / 1e9:.3g} GB, "
            f"above most={most / 1e9:.3g} GB; give a smaller size, or a larger most"
        )
    return need


def _common(seen: dict[int, tuple[int, int, bool]], names: Sequence[str]) -> tuple[int, int]:
    """The one size of all pictures, or an error that says which there are."""
    count = Counter((h, w) for h, w, _ in seen.values())
    if not count:
        raise ValueError(f"none of {len(names)} pictures could be read")
    if len(count) == 1:
        return next(iter(count))
    met = ", ".join(f"{w}×{h} ({n})" for (h, w), n in count.most_common(5))
    more = f" and {len(count) - 5} more" if len(count) > 5 else ""
    raise ValueError(
        f"pictures of {len(count)} sizes, width × height: {met}{more}; give size= (pixels a side) to bring them to one"
    )


def _each(
    task: Callable[[int], str | None], ids: list[int], workers: int | None, progress: Progress | None = None
) -> tuple[dict[int, str], Counter[str]]:
    """Run ``task`` on every id; why it failed where it did, and how often each remark was made."""
    broken: dict[int, str] = {}
    remarks: Counter[str] = Counter()

    def chunk(start: int) -> tuple[dict[int, str], list[str], int]:
        failed, said = dict[int, str](), list[str]()
        for i in ids[start : start + CHUNK]:
            try:
                if remark := task(i):
                    said.append(remark)
            except MemoryError:
                raise
            except Exception as error:  # a decoder may raise anything at all on rubbish
                failed[i] = why(error)
        return failed, said, min(start + CHUNK, len(ids))

    # Pillow warns of a bomb and reads it nevertheless; of odd EXIF it warns without need.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        pool = ThreadPoolExecutor(workers or min(16, os.cpu_count() or 1))
        try:
            for failed, said, done in pool.map(chunk, range(0, len(ids), CHUNK)):
                broken |= failed
                remarks.update(said)
                if progress is not None:
                    progress(done, len(ids))
        finally:
            pool.shutdown(cancel_futures=True)
    return broken, remarks


def why(error: Exception) -> str:
    """A reason in a few words."""
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"more than {Image.MAX_IMAGE_PIXELS or 0:,} pixels, Pillow's limit"
    if isinstance(error, UnidentifiedImageError):
        return "not a picture"
    return " ".join(str(error).split())[:120] or type(error).__name__


def _told(broken: dict[int, str], names: Sequence[str], most: int) -> str:
    told = ", ".join(f"{names[i]} ({broken[i]})" for i in sorted(broken)[:most])
    more = f" and {len(broken) - most} more" if len(broken) > most else ""
    return f"{len(broken)} of {len(names)} pictures cannot be read: {told}{more}"


def _refuse(broken: dict[int, str], names: Sequence[str], skip_broken: bool) -> None:
    if broken and not skip_broken:
        raise ValueError(f"{_told(broken, names, NAMED)}; mend or remove them, or give skip_broken=True to go without")
    if len(broken) == len(names):
        raise ValueError(f"{_told(broken, names, NAMED)}; nothing is left")
