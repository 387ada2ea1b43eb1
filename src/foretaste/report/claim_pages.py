"""Pages of the two experiments without a loop: Theorem 3.1 (warm and cold start), and the block solve of Eq. 12."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretaste.errors import format_seconds
from foretaste.report.drawing import COLOURS, QUIET, Chart, plain_axes, save_figure
from foretaste.report.pages import PageRow, PageSection, PageTable, inline_charts, render_page, with_versions
from foretaste.report.summary import Interval, interval, list_seeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST_ROUNDING = 1e-8  # of float64 here; a larger gap is a difference
WidthGaps = dict[int, list[float]]  # relative gaps of finite networks, by width


def check_page(
    experiment: str, records: Sequence[Any], out: Path, *, planned: Sequence[int], about: Mapping[str, str],
    **shown: Any,
) -> Path:  # fmt: skip
    """Write the page of experiment "theorem" or "block" into the folder ``out`` and return its path."""
    headline, sentences, sections = theorem_page(records, out) if experiment == "theorem" else block_page(records)
    lost = [s for s in planned if s not in {r["seed"] for r in records}]
    return render_page(
        "sections.html", out / "index.html", headline=headline, sentences=sentences, quiet=[],
        cautions=[f"Not all of it is there: {list_seeds(lost)} not begun."] if lost else [], sections=sections,
        about=with_versions(about, records), **shown,
    )  # fmt: skip


def theorem_page(records: Sequence[Any], out: Path) -> tuple[str, list[str], list[PageSection]]:
    """Headline, sentences and sections of Theorem 3.1. The chart is saved in ``out`` too."""
    exact = [r["warm_cold_kernel"] for r in records if r.get("warm_cold_kernel") is not None]
    gaps: WidthGaps = {}
    for r in records:
        if r.get("warm_cold_network") is not None:
            gaps.setdefault(r["width"], []).append(r["warm_cold_network"])
    gaps = dict(sorted(gaps.items()))
    headline = f"In kernel regression warm and cold start {_agreement(max(exact))}" if exact else "Warm and cold start"
    sentences = ["Theorem 3.1: as width grows, training on from the last weights ends where training anew does."]
    if (power := gap_power(records)) is not None:
        band = "" if power.shown_half is None else f" ± {power.shown_half:.2f} (95 %, {power.n} seeds)"
        signed = f"{power.mean:.2f}".replace("-", "−")
        sentences.append(f"In trained networks the gap goes as width to the power {signed}{band}.")
    rows = [PageRow("kernel regression", [f"{max(exact):.1e}", "", str(len(exact))])] if exact else []
    for width, values in gaps.items():
        e = interval(values)
        cells = [f"{e.mean:.3g}", "–" if e.shown_half is None else f"{e.shown_half:.2g}", str(e.n)]
        rows.append(PageRow(f"network of width {width}", cells))
    charts = [Chart("Gap against width", partial(_draw_gaps, gaps=gaps), 3.6)] if gaps else []
    save_figure(charts, out / "gap")
    sections = [PageSection("The gap against width", charts=inline_charts(charts, "gap"))] if gaps else []
    note = "Kernel regression: the largest gap of all seeds. Networks: the mean over seeds."
    table = PageTable(["", "relative gap", "± 95 %", "seeds"], rows)
    return headline, sentences, [*sections, PageSection("Warm against cold start", [note], table=table)]


def gap_power(records: Sequence[Any]) -> Interval | None:
    """The slope of log gap on log width, fitted seed by seed; None with fewer than two widths."""
    from scipy.stats import linregress

    found = []
    for seed in sorted({r["seed"] for r in records}):
        own = [(r["width"], gap) for r in records if r["seed"] == seed and (gap := r.get("warm_cold_network"))]
        if len({width for width, _ in own}) > 1:
            width, gap = np.log(np.array(own, dtype=float)).T
            found.append(float(linregress(width, gap).slope))
    return interval(found) if found else None


def _draw_gaps(ax: "Axes", gaps: WidthGaps) -> None:
    from matplotlib.ticker import LogLocator

    blue = COLOURS["blue"][0]
    for width, values in gaps.items():
        ax.plot([width] * len(values), values, "o", color=blue, alpha=0.45, markersize=5, markeredgewidth=0)
    ax.plot(list(gaps), [np.exp(np.mean(np.log(v))) for v in gaps.values()], color=blue, linewidth=1.8)
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(list(gaps), [str(w) for w in gaps])
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.minorticks_off()
    ax.set_xlabel("width", color=QUIET)
    plain_axes(ax, "Relative gap of warm and cold start; line: geometric mean")


def block_page(records: Sequence[Any]) -> tuple[str, list[str], list[PageSection]]:
    """Headline, sentences and table of Eq. 12 against the direct solve of Eq. 11."""
    worst = max(r["relative_difference"] for r in records)
    same = min(float(r["same_top"]) for r in records)
    faster = float(np.median([r["seconds_direct"] / max(r["seconds_block"], 1e-9) for r in records]))
    top = "the same points come out on top" if same == 1 else f"at least {same:.0%} of the points on top are the same"
    time = f"1/{faster:.0f} of the time (median)" if faster >= 1.5 else f"{1 / faster:.1f} × the time"
    sentence = (
        f"Eq. 12 against Eq. 11 solved anew, relative to the largest output: {top}; the block update takes {time}."
    )
    rows = [
        PageRow(
            f"{r['arm']}, seed {r['seed']}" if r.get("arm") else f"seed {r['seed']}",
            [
                str(r["L"]), str(r["U"]), f"{r['largest_difference']:.1e}", f"{r['relative_difference']:.1e}",
                f"{float(r['same_top']):.0%}", format_seconds(r["seconds_block"]), format_seconds(r["seconds_direct"]),
            ],
        )
        for r in records
    ]  # fmt: skip
    columns = ["", "L", "U", "largest difference", "relative", "same on top", "block", "direct"]
    section = PageSection("Block against direct", table=PageTable(columns, rows))
    return f"Block update and direct solve {_agreement(worst)}", [sentence], [section]


def _agreement(gap: float) -> str:
    return f"agree to {gap:.1e}" if gap <= LARGEST_ROUNDING else f"differ by {gap:.1e}"
