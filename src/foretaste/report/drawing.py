"""How charts look: colours, axes, long names, and SVG that is the same bytes every time.

matplotlib is imported inside functions, so that ``import foretaste.report`` stays fast.
"""

import base64
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretaste.files import write_whole
from foretaste.report.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image

# Okabe and Ito's colours, which colour-blind readers can tell apart, on light and on dark ground. Each arm also has a
# marker of its own, for grey print.
COLOURS = {
    "vermillion": ("#d55e00", "#ff8a3d"),
    "blue": ("#0072b2", "#56b4e9"),
    "green": ("#007f5c", "#2fcf9f"),
    "purple": ("#b8578f", "#e39ac4"),
    "ochre": ("#9a6a00", "#f0c038"),
    "ink": ("#3a3f47", "#d6dbe1"),
}
GREY = ("#747b84", "#9aa3ad")
# What is drawn besides arms, by the name of the page's CSS variable.
PAPER = {"text": ("#1d2126", "#e8eaed"), "quiet": ("#5c646e", "#a3abb5"), "line": ("#dfe2e6", "#353b43")}
CSS_COLOURS = PAPER | COLOURS | {"grey": GREY}
TEXT, QUIET, LINE = (PAPER[name][0] for name in ("text", "quiet", "line"))

MARKERS = "os^DvPphX<>d*"
BASELINE_MARKERS = "X.+x1234"
DASHES = ((), (5, 1.6), (1.4, 1.4), (6, 1.5, 1.4, 1.5))  # all colours once with each
BASELINE_DASHES = (
    (3.7, 1.6), (1, 1.65), (6.4, 1.6, 1, 1.6), (8, 3), (1, 4), (6, 1, 1, 1, 1, 1), (2, 1, 2, 4), (12, 2),
)  # fmt: skip
LONGEST_NAME = 26  # characters of an arm's name in a chart
THUMBNAIL_SIDE = 64  # pixels

# Files must not depend on when they were written.
UNDATED: dict[str, Any] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


@dataclass(frozen=True)
class Ink:
    """How one arm is drawn."""

    name: str  # of the page's CSS variable
    colour: str  # on light ground
    marker: str
    dashes: tuple[float, ...] = ()

    @property
    def linestyle(self) -> Any:
        """As matplotlib takes it."""
        return (0, self.dashes) if self.dashes else "-"

    @property
    def dash_array(self) -> str:
        """As SVG takes it."""
        return " ".join(f"{2.2 * d:g}" for d in self.dashes)


def arm_inks(s: Summary) -> dict[str, Ink]:
    """Baselines are grey and dashed. Other arms take colours in turn, then the same colours with dashes."""
    out = {
        name: Ink("grey", GREY[0], BASELINE_MARKERS[i % 8], BASELINE_DASHES[i % len(BASELINE_DASHES)])
        for i, name in enumerate(s.bases)
    }
    colours = list(COLOURS.items())
    for i, name in enumerate(name for name in s.arms if name not in s.bases):
        colour, (light, _) = colours[i % len(colours)]
        out[name] = Ink(colour, light, MARKERS[i % len(MARKERS)], DASHES[i // len(colours) % len(DASHES)])
    return out


@dataclass(frozen=True)
class Chart:
    """One pair of axes, and its size in inches."""

    title: str  # read out by screen readers
    draw: Callable[["Axes"], None]
    height: float = 4.2
    width: float = 5.3
    rows: bool = False  # names of arms stand left of the axes


def make_figure(charts: Sequence[Chart]) -> "Figure":
    """Charts side by side."""
    from matplotlib.figure import Figure

    size = (1.15 * sum(c.width for c in charts), 1.1 * max(c.height for c in charts))
    out = Figure(figsize=size, layout="constrained")
    for ax, chart in zip(np.atleast_1d(out.subplots(1, len(charts))), charts):
        chart.draw(ax)
        _move_title(ax, chart)
    return out


def _move_title(ax: "Axes", chart: Chart) -> None:
    """Start the title above the names of rows: above the axes alone, there may be no room for all of it."""
    if chart.rows:
        ax.figure.draw_without_rendering()  # type: ignore[union-attr]
        left = ax.get_tightbbox(for_layout_only=True).x0  # type: ignore[union-attr]
        ax.set_title(ax.get_title(loc="left"), loc="left", x=ax.transAxes.inverted().transform((left, 0))[0])


def save_figure(charts: Sequence[Chart], path: Path, endings: Iterable[str] = ("svg", "pdf")) -> None:
    """Write ``path`` with each ending. Without charts, remove such files of an earlier report."""
    import matplotlib as mpl

    if not charts:
        for ending in endings:
            path.with_name(f"{path.name}.{ending}").unlink(missing_ok=True)
        return
    figure = make_figure(charts)
    for ending in endings:
        # Letters as paths: they look the same on every machine.
        with mpl.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "path", "pdf.fonttype": 42}):
            drawn = io.BytesIO()  # matplotlib's own error on a full disk names neither the disk nor the file
            figure.savefig(drawn, format=ending, dpi=160, metadata=UNDATED[ending])
        write_whole(path.with_name(f"{path.name}.{ending}"), drawn.getvalue())


def inline_svg(chart: Chart, name: str) -> str:
    """A chart as a part of a page: the page's colours and font. ``name`` keeps the ids of several charts apart."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure = Figure(figsize=(chart.width, chart.height), layout="constrained")
        chart.draw(ax := figure.subplots())
        _move_title(ax, chart)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata=UNDATED["svg"])
    text = out.getvalue()
    text = text[text.index("<svg") :]
    for variable, (light, _) in CSS_COLOURS.items():
        text = text.replace(light, f"var(--{variable})")
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1; font-family: inherit", text)  # older matplotlib
    text = re.sub(r"font: (bold|\d+) ([\d.]+px) [^;\"]*", r"font-weight: \1; font-size: \2; font-family: inherit", text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    label = escape(chart.title).replace("\\", "\\\\")
    return re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img" aria-label="{label}">', text, count=1)


def css_colours() -> str:
    """The colours as CSS variables, light or dark as the reader's system prefers."""
    light, dark = ("".join(f"--{name}:{pair[k]};" for name, pair in CSS_COLOURS.items()) for k in (0, 1))
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def thumbnail(pixels: np.ndarray) -> str:
    """Pixels in [0, 1] or uint8, (h, w) or (h, w, 3), as the data address of a small PNG."""
    from PIL import Image

    shown = pixels if pixels.dtype == np.uint8 else np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    image = Image.fromarray(np.ascontiguousarray(shown))
    return picture_address(image.reduce(-(-max(image.size) // THUMBNAIL_SIDE)))  # means of k × k pixels


def picture_address(image: "Image.Image", kind: str = "png") -> str:
    """A picture as a data address: "png", or "jpeg"."""
    out = io.BytesIO()
    image.save(out, kind, quality=82)
    return f"data:image/{kind};base64," + base64.b64encode(out.getvalue()).decode()


def plain_axes(ax: "Axes", title: str, grid: str = "y") -> None:
    """A title on the left, thin lines, no frame."""
    ax.set_title(title, loc="left", color=TEXT, fontsize=12, parse_math=False)
    ax.tick_params(colors=QUIET, length=0, which="both")
    ax.grid(axis=grid, color=LINE, linewidth=0.8, zorder=0)  # type: ignore[arg-type]
    ax.set_axisbelow(True)
    for side in ax.spines.values():
        side.set_visible(False)


def name_rows(ax: "Axes", names: Sequence[str]) -> None:
    """A row for each name, from the top."""
    ax.set_yticks(range(len(names)), shorten_names(names), parse_math=False)
    ax.set_ylim(len(names) - 0.5, -0.5)
    for label in ax.get_yticklabels():
        label.set_color(TEXT)


def rows_height(n: int) -> float:
    """Inches for n rows."""
    return 1.1 + 0.33 * n


def shorten_names(names: Sequence[str]) -> list[str]:
    """Long names without their middle, and with a number if that makes two of them equal."""
    most = LONGEST_NAME
    cut = [n if len(n) <= most else f"{n[: most // 2]}…{n[-(most // 2 - 1) :]}" for n in names]
    return [f"{c} ({k})" if cut.count(c) > 1 else c for k, c in enumerate(cut, start=1)]


def spread_apart(places: Sequence[float], gap: float, low: float = -np.inf, high: float = np.inf) -> list[float]:
    """Move rising ``places`` as little as possible, so that they lie in [low, high] and rise by ``gap`` or more.

    "As little as possible" is in least squares. With z_k = place_k − k·gap the constraint is that z rises: isotonic
    regression.
    """
    from sklearn.isotonic import isotonic_regression

    if not places:
        return []
    steps = gap * np.arange(len(places))
    z = isotonic_regression(np.array(places, float) - steps, y_min=low, y_max=high - steps[-1])
    return (z + steps).tolist()
