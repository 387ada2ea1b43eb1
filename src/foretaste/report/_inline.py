"""What stands inside the page itself: charts as SVG in its own colours, pictures as data."""

import base64
import io
import re
from html import escape

import numpy as np
from matplotlib.image import imsave

from foretaste.report._draw import UNDATED, Chart, svg
from foretaste.report._palette import COLOURS, GREY, PAPER, Ink
from foretaste.report._summary import Summary

VARIABLES = PAPER | COLOURS | {"grey": GREY}
LARGEST = 64  # pixels a side of a picture


def style() -> str:
    """The colours as CSS variables, by what the reader's system prefers."""
    light, dark = ("".join(f"--{name}:{pair[k]};" for name, pair in VARIABLES.items()) for k in (0, 1))
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def card(s: Summary, chart: Chart, name: str) -> str:
    """A chart that follows the page: its colours become variables, its font the page's, its ids its own."""
    text = svg(s, chart, name)
    return f"<figure>{adopt(text, name, chart.title)}</figure>\n"


def adopt(text: str, name: str, title: str) -> str:
    """matplotlib's SVG as a part of the page."""
    text = text[text.index("<svg") :]
    for variable, (light, _) in VARIABLES.items():
        text = text.replace(light, f"var(--{variable})")
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1; font-family: inherit", text)  # older matplotlib
    text = re.sub(r"font: (bold|\d+) ([\d.]+px) [^;\"]*", r"font-weight: \1; font-size: \2; font-family: inherit", text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    words = escape(title).replace("\\", "\\\\")
    return re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img" aria-label="{words}">', text, count=1)


def swatch(ink: Ink) -> str:
    """A short piece of an arm's line."""
    dashes = f' stroke-dasharray="{" ".join(f"{2.2 * d:g}" for d in ink.dashes)}"' if ink.dashes else ""
    line = f'<path d="M0 5H22" style="stroke:var(--{ink.name})" stroke-width="3"{dashes}/>'
    return f'<svg class=swatch viewBox="0 0 22 10" aria-hidden="true">{line}</svg>'


def thumbnail(pixels: np.ndarray) -> str:
    """Pixels in [0, 1] or uint8, (h, w) or (h, w, 3), as the address of a PNG that the page carries."""
    x = pixels.astype(float) / 255 if pixels.dtype == np.uint8 else np.clip(pixels, 0, 1)
    k = -(-max(x.shape[:2]) // LARGEST)
    if k > 1:  # means of k × k pixels
        h, w = (max(n // k, 1) for n in x.shape[:2])
        x = x[: h * k, : w * k].reshape(h, min(k, x.shape[0]), w, min(k, x.shape[1]), *x.shape[2:]).mean((1, 3))
    out = io.BytesIO()
    imsave(out, x, cmap="gray", vmin=0, vmax=1, format="png", metadata=UNDATED["png"])
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
