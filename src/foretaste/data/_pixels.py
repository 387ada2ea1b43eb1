"""One picture as bytes of a given shape: turned upright, cut from the middle, grey or colour."""

import io
from functools import cache
from os import PathLike

import numpy as np
from PIL import Image, ImageOps

Side = int | tuple[int, int] | None  # pixels a side, or (height, width)

DEEP = ("I;16", "I;16L", "I;16B", "I;16N", "I")
GREY = ("1", "L", "LA", "La", *DEEP)
SEEN_THROUGH = ("LA", "La", "PA", "RGBA", "RGBa")
# No other: Pillow's reader of EPS starts Ghostscript.
FORMATS = ("JPEG", "MPO", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF")
ENDINGS = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".avif"}
ENDINGS |= {".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k"}
TURNED = (5, 6, 7, 8)  # EXIF orientations in which width and height change places
ORIENTATION = 0x0112


@cache
def _formats() -> list[str]:
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def open_picture(source: str | PathLike[str] | bytes) -> Image.Image:
    """A picture in a file or in bytes, its pixels not yet read; the first frame, if there are several."""
    image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=_formats())
    if image.width * image.height > (Image.MAX_IMAGE_PIXELS or np.inf):
        image.close()
        raise Image.DecompressionBombError
    return image


def exact(size: Side) -> tuple[int, int] | None:
    """(height, width) of ``size``."""
    if size is None:
        return None
    h, w = size if isinstance(size, tuple) else (size, size)
    if h < 1 or w < 1:
        raise ValueError(f"size={size}; expected pixels a side, or (height, width), from 1")
    return int(h), int(w)


def oriented_size(image: Image.Image) -> tuple[int, int]:
    """(height, width) once turned upright."""
    w, h = image.size
    if image.format == "PNG" and not {"exif", "Raw profile type exif"} & image.info.keys():
        return h, w  # getexif would read all pixels first, for an EXIF that may stand behind them
    return (w, h) if image.getexif().get(ORIENTATION) in TURNED else (h, w)


def pixels(
    image: Image.Image, shape: tuple[int, int], channels: int, *, resize: bool = True
) -> tuple[np.ndarray, str | None]:
    """(channels, height, width) bytes, and what had to be done to them, if it loses something.

    With ``resize`` the picture is scaled until it just covers ``shape`` (the shorter side, if that is square) and cut
    from the middle; without it, another size is an error.
    """
    h, w = shape
    if resize:
        image.draft(None, (2 * max(h, w), 2 * max(h, w)))  # a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size
    image = ImageOps.exif_transpose(image)
    image, remark = _plain(image, "L" if channels == 1 else "RGB")
    if image.size != (w, h):
        if not resize:
            raise ValueError(f"{image.width}×{image.height} pixels where the others have {w}×{h}; give size=")
        image = image.resize((w, h), Image.Resampling.BILINEAR, box=_middle(image.size, w, h))
    array = np.asarray(image)
    return (array[None] if channels == 1 else array.transpose(2, 0, 1)), remark


def _middle(size: tuple[int, int], w: int, h: int) -> tuple[float, float, float, float]:
    """The largest box in the middle of ``size`` with the sides' ratio of (w, h)."""
    scale = min(size[0] / w, size[1] / h)
    left, top = (size[0] - w * scale) / 2, (size[1] - h * scale) / 2
    return left, top, min(left + w * scale, size[0]), min(top + h * scale, size[1])  # rounding may step outside


def _plain(image: Image.Image, mode: str) -> tuple[Image.Image, str | None]:
    """Eight bits a channel and nothing to see through."""
    if image.mode in DEEP:
        deep = np.asarray(image).astype(np.int64)
        if deep.min() < 0 or deep.max() > 65535:
            raise ValueError("more than 16 bits a pixel")
        return Image.fromarray(((deep + 128) // 257).astype(np.uint8)).convert(mode), "have 16 bits a pixel: cut to 8"
    if image.mode == "F":
        raise ValueError("floating-point pixels, of unknown range")
    if image.mode in SEEN_THROUGH or "transparency" in image.info:
        over = image.convert("RGBA")
        white = Image.new("RGBA", over.size, "white")
        return Image.alpha_composite(white, over).convert(mode), "have an alpha channel: laid over white"
    return image.convert(mode), None
