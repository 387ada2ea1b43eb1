"""What stands inside the page itself: charts as SVG in its own colours, pictures as data."""

import base64
import io
import re

import numpy as np
from matplotlib.image import imsave

from foretaste.report._curves import Panel, svg
from foretaste.report._palette import GREY, INKS, PAPER
from foretaste.report._summary import Summary

COLOURS = PAPER | {ink.name: (ink.light, ink.dark) for ink in (*INKS, GREY)}


def style() -> str:
    """The colours as CSS variables, by what the reader's system prefers."""
    light, dark = ("".join(f"--{name}:{pair[k]};" for name, pair in COLOURS.items()) for k in (0, 1))
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def chart(s: Summary, panel: Panel, name: str, title: str) -> str:
    """A panel that follows the page: its colours become variables, its font the page's, its ids its own."""
    text = svg(s, panel, name)
    text = text[text.index("<svg") :]
    for variable, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{variable})")
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1; font-family: inherit", text)  # older matplotlib
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    words = title.replace("&", "").replace("<", "").replace('"', "")
    return re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img" aria-label="{words}">', text, count=1)


def thumbnail(pixels: np.ndarray) -> str:
    """Pixels in [0, 1], (h, w) or (h, w, 3), as the address of a PNG that the page carries."""
    out = io.BytesIO()
    imsave(out, np.clip(pixels, 0, 1), cmap="gray", vmin=0, vmax=1, format="png")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
