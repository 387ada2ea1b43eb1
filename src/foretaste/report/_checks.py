"""The pages of the two experiments that are no loop: Theorem 3.1, warm and cold start, and Eq. 12's block solve."""

import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from foretaste.report._draw import QUIET, UNDATED, bare, save
from foretaste.report._inline import adopt
from foretaste.report._page import head, made, versions, write
from foretaste.report._palette import COLOURS
from foretaste.report._runs import Run
from foretaste.report._summary import Estimate, interval
from foretaste.report._words import seconds

ROUNDING = 1e-8
Gaps = dict[int, list[float]]  # of finite networks, by width


def checked(run: Run, out: Path) -> Path:
    """Write the page of experiment "theorem" or "block" into ``out`` and return where it is."""
    records = [r for r in run.records if r.get("kind") == run.experiment]
    if not records:
        raise ValueError(f"{run.path} has no records of experiment {run.experiment!r} yet; nothing to report")
    said, text, body = theorem(records, out) if run.experiment == "theorem" else block(records)
    planned = run.study.get("seeds", [])
    if lost := [s for s in planned if s not in {r["seed"] for r in records}]:
        who = f"{'seed' if len(lost) == 1 else 'seeds'} {', '.join(map(str, lost))}"
        text += f"<p class=warning>Not all of it is there: {who} not begun.</p>\n"
    about = dict(run.told.get("about") or {})
    about |= {} if "versions" in about else versions(records)
    top = head(run.title, said, text, run.notes, run.warnings)
    return write(out / "index.html", run.title, [top, body, made(about)])


def theorem(records: Sequence[Any], out: Path) -> tuple[str, str, str]:
    """Headline, words and tables of Theorem 3.1; the chart goes into ``out`` too."""
    exact = [r["warm_cold_kernel"] for r in records if r.get("warm_cold_kernel") is not None]
    gaps: Gaps = {}
    for r in records:
        if r.get("warm_cold_network") is not None:
            gaps.setdefault(r["width"], []).append(r["warm_cold_network"])
    gaps = dict(sorted(gaps.items()))
    said = f"In kernel regression warm and cold start {_agree(max(exact))}" if exact else "Warm against cold start"
    fall = slope(records)
    text = "<p>Theorem 3.1: training on from the last weights ends where training anew does, as width grows.</p>\n"
    if fall is not None:
        band = "" if fall.half is None else f" ± {fall.half:.2f} (95 %, {fall.n} seeds)"
        signed = f"{fall.mean:.2f}".replace("-", "−")
        text += f"<p>In trained networks the gap goes as width to the power {signed}{band}.</p>\n"
    rows = [["kernel regression", f"{max(exact):.1e}", "", str(len(exact))]] if exact else []
    for width, values in gaps.items():
        e = interval(values)
        rows.append([f"network of width {width}", f"{e.mean:.3g}", "" if e.half is None else f"{e.half:.2g}", str(e.n)])
    body = _table("Warm against cold start", ["", "relative gap", "± 95 %", "seeds"], rows)
    note = "<p class=note>Kernel regression: the largest of all seeds. Networks: the mean over seeds.</p>"
    chart = ""
    if gaps:
        fig = _chart(gaps)
        out.mkdir(parents=True, exist_ok=True)
        save(fig, out / "gap", ("svg", "pdf"))
        buffer = io.StringIO()
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gap"}):
            fig.savefig(buffer, format="svg", transparent=True, metadata=UNDATED["svg"])
        picture = adopt(buffer.getvalue(), "gap", "Gap against width")
        chart = (
            f"<section><h2>The gap against width</h2>\n<div class=charts><figure>{picture}</figure></div></section>\n"
        )
    return said, text, chart + f"<section>{body}{note}</section>\n"


def slope(records: Sequence[Any]) -> Estimate | None:
    """Of log gap on log width by least squares, seed by seed; None with fewer than two widths."""
    found = []
    for seed in sorted({r["seed"] for r in records}):
        own = [(r["width"], gap) for r in records if r["seed"] == seed and (gap := r.get("warm_cold_network"))]
        if len({width for width, _ in own}) > 1:
            x, y = np.log(np.array(own, dtype=float)).T
            found.append(float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()))
    return interval(found) if found else None


def _chart(gaps: Gaps) -> Figure:
    fig = Figure(figsize=(5.3, 3.6), layout="constrained")
    ax = fig.subplots()
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
    bare(ax, "Relative gap of warm and cold start; line: geometric mean")
    return fig


def block(records: Sequence[Any]) -> tuple[str, str, str]:
    """Headline, words and table of Eq. 12 against the direct solve of Eq. 11."""
    worst = max(r["relative_difference"] for r in records)
    same = min(float(r["same_top"]) for r in records)
    faster = float(np.median([r["seconds_direct"] / max(r["seconds_block"], 1e-9) for r in records]))
    said = f"Block update and direct solve {_agree(worst)}"
    top = "the same points come out on top" if same == 1 else f"at least {same:.0%} of the points on top are the same"
    text = f"<p>Eq. 12 against Eq. 11 solved anew, relative to the largest output: {top}; the block update takes "
    text += f"1/{faster:.0f} of the time (median).</p>\n" if faster >= 1.5 else f"{1 / faster:.1f} × the time.</p>\n"
    rows = [
        [
            f"{r['arm']}, seed {r['seed']}" if r.get("arm") else f"seed {r['seed']}",
            str(r["L"]), str(r["U"]), f"{r['largest_difference']:.1e}", f"{r['relative_difference']:.1e}",
            f"{float(r['same_top']):.0%}", seconds(r["seconds_block"]), seconds(r["seconds_direct"]),
        ]
        for r in records
    ]  # fmt: skip
    head = ["", "L", "U", "largest difference", "relative", "same on top", "block s", "direct s"]
    return said, text, f"<section>{_table('Block against direct', head, rows)}</section>\n"


def _agree(gap: float) -> str:
    """Rounding of float64 is at most about 1e-8 here; what is more is a difference."""
    return f"agree to {gap:.1e}" if gap <= ROUNDING else f"differ by {gap:.1e}"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th scope=col>{escape(c)}</th>" for c in head)
    body = "".join(
        f"<tr><th scope=row>{escape(first)}</th>{''.join(f'<td>{escape(c)}</td>' for c in cells)}</tr>\n"
        for first, *cells in rows
    )
    return (
        f"<h2>{escape(title)}</h2>\n<div class=scroll><table><thead><tr>{top}</tr></thead>\n"
        f"<tbody>\n{body}</tbody></table></div>\n"
    )
