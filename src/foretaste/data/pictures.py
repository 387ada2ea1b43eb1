"""Pictures as bytes of one shape: each turned upright, cut from the middle, grey or colour; many read by threads."""

import io
import os
import stat
import struct
import threading
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from os import PathLike
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from foretaste.data.class_names import NAMES_SHOWN
from foretaste.data.dataset import LARGEST_DATASET
from foretaste.errors import shorten

ImageSize = int | tuple[int, int] | None  # pixels a side, or (height, width)
Layout = Literal["NHWC", "NCHW"]  # of arrays of pictures

DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")
GREY_MODES = ("1", "L", "LA", "La", *DEEP_MODES)
ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
# No others: Pillow's reader of EPS starts Ghostscript.
PICTURE_FORMATS = ("JPEG", "MPO", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")
PICTURE_ENDINGS = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif"}
PICTURE_ENDINGS |= {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k"}
BROWSER_MEDIA = {
    "JPEG": "image/jpeg", "MPO": "image/jpeg", "PNG": "image/png", "GIF": "image/gif", "WEBP": "image/webp",
    "BMP": "image/bmp",
}  # fmt: skip
TURNED_ORIENTATIONS = (5, 6, 7, 8)  # EXIF orientations in which width and height change places
EXIF_ORIENTATION = 0x0112
KEPT_SIDE = 512  # pixels
JPEG_TRAILER = 1 << 16  # bytes after the end mark that are looked through
GLANCED = 1 << 17  # bytes at the beginning of a file
JPEG_START, PNG_START = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
PLAIN_CHUNKS = (b"IHDR", b"IDAT", b"IEND", b"gAMA", b"pHYs", b"sRGB", b"cHRM", b"tIME", b"bKGD", b"sBIT")
PIXELS_AT_ONCE = 90_000_000  # in all threads that decode: about one picture of the largest size that Pillow opens
STRIP_PIXELS = 4_000_000  # of a picture that are converted at a time
PICTURES_A_TASK = 32  # one future for each picture would outweigh the work

HOW_TO_RESIZE = "give a size in pixels, such as size=64 (--size 64 on the command line), to bring them to one"
HOW_TO_SKIP = "leave them out with skip_broken=True (--skip-broken on the command line)"

PictureProgress = Callable[[int, int], object]  # done, of how many
OpenPicture = Callable[[int], Image.Image]


@cache
def _supported_formats() -> list[str]:
    Image.init()
    return [name for name in PICTURE_FORMATS if name in Image.OPEN]


def open_picture(source: str | PathLike[str] | bytes) -> Image.Image:
    """Open a picture from a file or from bytes, without reading its pixels; the first frame if there are several."""
    if not isinstance(source, bytes) and not stat.S_ISREG(os.stat(source).st_mode):
        raise ValueError("a pipe, a socket or a device, not a regular file")  # reading it might never end
    image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_supported_formats())
    if image.width * image.height > (Image.MAX_IMAGE_PIXELS or np.inf):
        image.close()
        raise Image.DecompressionBombError
    return image


_decoding, _decoded_pixels = threading.Condition(), 0


@contextmanager
def room_to_decode(image: Image.Image, side: int | None = None) -> Iterator[None]:
    """Wait until the picture just opened can be decoded with what other threads decode, ``PIXELS_AT_ONCE`` in all.

    A PNG of 30 kB may have 88 megapixels, which take 0.7 GB until they are converted; several at once took 4 GB. With
    ``side``, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, as long as both of its sides keep that many pixels.
    """
    global _decoded_pixels
    pixels = image.width * image.height
    if side is not None:
        image.draft(None, (side, side))
        if not image.info.get("progressive"):  # whose coefficients are in memory all at once
            pixels = image.width * image.height
    with _decoding:
        _decoding.wait_for(lambda: _decoded_pixels == 0 or _decoded_pixels + pixels <= PIXELS_AT_ONCE)
        _decoded_pixels += pixels
    try:
        yield
    finally:
        with _decoding:
            _decoded_pixels -= pixels
            _decoding.notify_all()


def picture_bytes(opened: OpenPicture) -> Callable[[int], bytes]:
    """The contents of pictures that are in no file: mode, size, pixels, and what else decides how they look."""

    def stored(i: int) -> bytes:
        with opened(i) as image:
            beside = image.getpalette(), image.info.get("transparency"), image.getexif().get(EXIF_ORIENTATION)
            told = "".join(f"{part} " for part in beside if part is not None)
            return f"{image.mode} {image.size} {told}".encode() + image.tobytes()

    return stored


def height_and_width(size: ImageSize) -> tuple[int, int] | None:
    """``size`` as (height, width); None stays None."""
    if size is None:
        return None
    h, w = size if isinstance(size, tuple) else (size, size)
    if h < 1 or w < 1:
        raise ValueError(f"size is {size}; expected pixels a side, or (height, width), from 1")
    return int(h), int(w)


def oriented_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) after the picture is turned upright."""
    w, h = image.size
    if image.format == "PNG" and not {"exif", "Raw profile type exif"} & image.info.keys():
        return h, w  # getexif would read all pixels first, to look for EXIF behind them
    return (w, h) if image.getexif().get(EXIF_ORIENTATION) in TURNED_ORIENTATIONS else (h, w)


def picture_pixels(
    image: Image.Image, shape: tuple[int, int], channels: int, *, resize: bool = True
) -> tuple[np.ndarray, str | None]:
    """(channels, height, width) bytes, and a remark if the conversion lost something.

    With ``resize`` the picture is scaled until it just covers ``shape``, and the middle is cut out. Without it, another
    size is an error.
    """
    h, w = shape
    with room_to_decode(image, 2 * max(h, w) if resize else None):
        image, remark = _upright_eight_bits(image, "L" if channels == 1 else "RGB")
        if image.size != (w, h):
            if not resize:
                raise ValueError(f"{image.width}×{image.height} pixels where the others have {w}×{h}; {HOW_TO_RESIZE}")
            image = ImageOps.fit(image, (w, h), Image.Resampling.BILINEAR)
    array = np.asarray(image)
    return (array[None] if channels == 1 else array.transpose(2, 0, 1)), remark


def readable_picture(image: Image.Image, most: int | None = None) -> Image.Image:
    """The picture turned upright, in colour, eight bits a channel, of its own size or at most ``most`` pixels a side.

    A large JPEG is decoded at a half, a quarter or an eighth, as long as its longer side keeps ``most`` pixels, or its
    shorter side ``KEPT_SIDE``: no backbone looks at more, and a phone's photo takes a tenth of the time.
    """
    with room_to_decode(image, KEPT_SIDE if most is None else -(-most * min(image.size) // max(image.size))):
        image = _upright_eight_bits(image, "RGB")[0]
        if most is not None:
            image.thumbnail((most, most))
    return image


def check_complete(image: Image.Image) -> None:
    """Raise unless the picture just opened is all there, where possible without decoding it.

    Broken files are mostly cut short. A PNG has checksums; a JPEG ends with a mark.
    """
    if image.mode == "F":
        raise ValueError("floating-point pixels, of unknown range")
    if image.format == "PNG":
        image.verify()
    elif image.format not in ("JPEG", "MPO") or not _ends_with_mark(getattr(image, "fp", None)):
        with room_to_decode(image):
            image.load()
            if image.mode == "I":  # a TIFF of 32 bits
                sixteen_bits(image)


def _ends_with_mark(file: Any) -> bool:
    """Whether a JPEG has its end mark; some cameras write more after it. The position in the file stays."""
    here = file.tell()
    try:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - JPEG_TRAILER))
        return b"\xff\xd9" in file.read(JPEG_TRAILER)
    finally:
        file.seek(here)


def glance(path: str | PathLike[str]) -> tuple[int, int, int] | None:
    """Height, width and bytes of a plain JPEG or PNG that is all there; None: Pillow has to look.

    Plain is eight bits, grey or colour, and nothing in it that could turn the picture. It takes a fifth of Pillow's
    time, which counts with 100,000 files.
    """
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG((known := os.fstat(file)).st_mode):
            return None
        length, head = known.st_size, os.read(file, GLANCED)
        size = None
        if head[:3] == JPEG_START:
            if len(head) < length:
                os.lseek(file, max(0, length - JPEG_TRAILER), os.SEEK_SET)
            tail = head if len(head) == length else os.read(file, JPEG_TRAILER)
            size = _jpeg_size(head) if b"\xff\xd9" in tail[-JPEG_TRAILER:] else None
        elif head[:8] == PNG_START and len(head) == length:
            size = _png_size(head)
    except (IndexError, struct.error):  # cut short
        return None
    finally:
        os.close(file)
    if size is None or not 0 < size[0] * size[1] <= (Image.MAX_IMAGE_PIXELS or np.inf):
        return None
    return *size, length


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """(height, width) of the frame, from the segments before it; None if one of them may turn the picture."""
    at = 2
    while head[at] == 0xFF:
        kind, length = head[at + 1], int.from_bytes(head[at + 2 : at + 4])
        if 0xC0 <= kind <= 0xC2:
            bits, height, width, channels = struct.unpack_from(">BHHB", head, at + 4)
            return (height, width) if bits == 8 and channels in (1, 3) else None
        if kind not in (0xDB, 0xC4, 0xDD, 0xE0, 0xFE):  # tables, JFIF, a comment
            return None
        at += 2 + length
    return None


def _png_size(whole: bytes) -> tuple[int, int] | None:
    """(height, width), if the checksum of every chunk is right and none of them turns the picture."""
    width, height, bits, colours = struct.unpack_from(">IIBB", whole, 16)
    if bits != 8 or colours not in (0, 2):
        return None
    at = 8
    while True:
        length, kind = struct.unpack_from(">I4s", whole, at)
        end = at + 8 + length
        (told,) = struct.unpack_from(">I", whole, end)
        if kind not in PLAIN_CHUNKS or zlib.crc32(whole[at + 4 : end]) != told:
            return None
        if kind == b"IEND":
            return height, width
        at = end + 4


def sixteen_bits(image: Image.Image) -> np.ndarray:
    """Its numbers, int64, from 0 to 65535; raises if they are more."""
    deep = np.asarray(image).astype(np.int64)
    if deep.min() < 0 or deep.max() > 65535:
        raise ValueError("more than 16 bits a pixel")
    return deep


def _upright_eight_bits(image: Image.Image, mode: str) -> tuple[Image.Image, str | None]:
    """A copy that is turned upright, as ``_eight_bits`` gives it. A large picture is converted in strips.

    So there are no more of its pixels in memory than what was decoded and what is returned.
    """
    image.load()  # a TIFF is turned by that
    if image.getexif().get(EXIF_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    rows = max(1, STRIP_PIXELS // image.width)
    if rows >= image.height:
        return _eight_bits(image, mode)
    whole, remark = Image.new(mode, image.size), None
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        part, remark = _eight_bits(strip, mode)
        whole.paste(part, (0, top))
    return whole, remark


def _eight_bits(image: Image.Image, mode: str) -> tuple[Image.Image, str | None]:
    """Eight bits a channel and no transparency, and a remark on what was lost."""
    if image.mode in DEEP_MODES:
        deep = sixteen_bits(image)
        return Image.fromarray(((deep + 128) // 257).astype(np.uint8)).convert(mode), "have 16 bits a pixel: cut to 8"
    if image.mode == "F":
        raise ValueError("floating-point pixels, of unknown range")
    if image.mode in ALPHA_MODES or "transparency" in image.info:
        over = image.convert("RGBA")
        white = Image.new("RGBA", over.size, "white")
        return Image.alpha_composite(white, over).convert(mode), "have an alpha channel: laid over white"
    return image.convert(mode), None


@dataclass(frozen=True, eq=False)
class DecodedPictures:
    """``x[k]`` is picture ``kept[k]`` of those requested."""

    x: Tensor  # (len(kept), channels, H, W) uint8
    kept: np.ndarray
    notes: tuple[str, ...] = ()


def decode_pictures(
    opened: OpenPicture, names: Sequence[str], *, size: ImageSize = None, channels: int | None = None,
    most: int = LARGEST_DATASET, skip_broken: bool = False, progress: PictureProgress | None = None,
    workers: int | None = None, where: object = None,
) -> DecodedPictures:  # fmt: skip
    """Every picture ``opened(i)`` as bytes, channels first; errors call it ``names[i]``, and its folder ``where``.

    An error counts and names the pictures that cannot be read; with ``skip_broken`` they are left out and a note says
    so. The memory is checked before a pixel is read.
    """
    check_channels(channels)
    ids, broken = list(range(len(names))), dict[int, str]()
    at = "" if where is None else f"{where}: "
    shape = height_and_width(size)
    if shape is None or channels is None:
        seen: dict[int, tuple[int, int, bool]] = {}

        def look(i: int) -> None:
            with opened(i) as image:
                seen[i] = (*oriented_size(image), image.mode in GREY_MODES)

        def whole(i: int) -> None:
            with opened(i) as image, room_to_decode(image):
                image.load()

        broken = run_on_each(look, ids, workers)[0]
        ids = [i for i in ids if i not in broken]
        if broken and not skip_broken:
            broken |= run_on_each(whole, ids, workers)[0]  # the error also names those that break later
        raise_broken(broken, names, skip_broken, at)
        shape = shape or one_size(Counter((h, w) for h, w, _ in seen.values()), at)
        channels = channels or (1 if all(grey for *_, grey in seen.values()) else 3)
    check_picture_memory(len(ids), (channels, *shape), most, at)

    x = np.empty((len(names), channels, *shape), dtype=np.uint8)

    def read(i: int) -> str | None:
        with opened(i) as image:
            x[i], remark = picture_pixels(image, shape, channels, resize=size is not None)
        return remark

    unread, remarks = run_on_each(read, ids, workers, progress)
    broken |= unread
    raise_broken(broken, names, skip_broken, at)
    kept = [i for i in ids if i not in broken]
    for new, old in enumerate(kept):  # in place: a second copy may not fit
        if new != old:
            x[new] = x[old]
    notes = [f"{n} of {len(names)} pictures {remark}" for remark, n in sorted(remarks.items())]
    if broken:
        notes.append(f"{describe_broken(broken, names, 'pictures', 100)}: left out")
    return DecodedPictures(torch.from_numpy(x[: len(kept)]), np.array(kept, dtype=np.int64), tuple(notes))


def check_picture_memory(n: int, shape: tuple[int, ...], most: int, at: str = "") -> None:
    """Raise if ``n`` pictures do not fit in ``most`` bytes. ``at`` begins the message."""
    need = n * int(np.prod(shape, dtype=np.int64))
    if need > most:
        raise ValueError(
            f"{at}{n} pictures of {'×'.join(map(str, shape))} bytes are {need / 1e9:.3g} GB, "
            f"above the limit of {most / 1e9:.3g} GB; choose a smaller size, or raise the limit (most= in Python)"
        )


def check_channels(channels: int | None) -> None:
    """Raise unless pictures can become grey or colour."""
    if channels not in (None, 1, 3):
        raise ValueError(
            f"channels is {channels}; expected 1 (grey), 3 (colour), or none to take what the pictures have"
        )


def one_size(count: Counter[tuple[int, int]], at: str = "") -> tuple[int, int]:
    """The (height, width) that all pictures share; an error lists the sizes if there are several."""
    if len(count) == 1:
        return next(iter(count))
    met = shorten([f"{w}×{h} ({n})" for (h, w), n in count.most_common()], 5)
    raise ValueError(f"{at}pictures of {len(count)} sizes, width × height: {met}; {HOW_TO_RESIZE}")


def run_on_each(
    task: Callable[[int], str | None], ids: list[int], workers: int | None, progress: PictureProgress | None = None
) -> tuple[dict[int, str], Counter[str]]:
    """Run ``task`` on every id in threads: the reason of each failure, and how often each remark came."""
    broken: dict[int, str] = {}
    remarks: Counter[str] = Counter()

    def chunk(start: int) -> tuple[dict[int, str], list[str], int]:
        failed, made = dict[int, str](), list[str]()
        for i in ids[start : start + PICTURES_A_TASK]:
            try:
                if remark := task(i):
                    made.append(remark)
            except MemoryError:  # the room for the pixels is there already: this is what the file claims
                failed[i] = "claims more memory than there is"
            except Exception as error:  # a decoder may raise anything on rubbish
                failed[i] = short_reason(error)
        return failed, made, min(start + PICTURES_A_TASK, len(ids))

    # Pillow only warns of a bomb, and warns of odd EXIF without need.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        pool = ThreadPoolExecutor(workers or min(16, os.cpu_count() or 1))
        try:
            for failed, made, done in pool.map(chunk, range(0, len(ids), PICTURES_A_TASK)):
                broken |= failed
                remarks.update(made)
                if progress is not None:
                    progress(done, len(ids))
        finally:
            pool.shutdown(cancel_futures=True)
    return broken, remarks


def short_reason(error: Exception) -> str:
    """The reason of a failure in a few words."""
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"more than {Image.MAX_IMAGE_PIXELS or 0:,} pixels, Pillow's limit"
    if isinstance(error, UnidentifiedImageError):
        return "not a picture"
    return " ".join(str(error).split())[:120] or type(error).__name__


def describe_broken(broken: dict[int, str], names: Sequence[str], what: str, most: int = NAMES_SHOWN) -> str:
    """How many ``what`` cannot be read, and the first of them with reasons."""
    shown = shorten([f"{names[i]} ({broken[i]})" for i in sorted(broken)], most)
    return f"{len(broken)} of {len(names)} {what} cannot be read: {shown}"


def raise_broken(
    broken: dict[int, str], names: Sequence[str], skip_broken: bool, at: str, what: str = "pictures"
) -> None:
    """Raise if ``what`` are broken that may not be left out, or if all are."""
    if broken and not skip_broken:
        raise ValueError(f"{at}{describe_broken(broken, names, what)}; mend or remove them, or {HOW_TO_SKIP}")
    if len(broken) == len(names):
        raise ValueError(
            f"{at}{describe_broken(broken, names, what)}; nothing is left. Copy them again from where they came, "
            "and check that they open elsewhere"
        )
