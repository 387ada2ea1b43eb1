"""The page of ``foretaste fidelity``: predicted against real changes, and a verdict."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from foretaste.report._draw import QUIET, UNDATED, bare
from foretaste.report._inline import VARIABLES, adopt
from foretaste.report._page import head, made, write
from foretaste.report._verdict import best, of_kind, setting, verdict

COLUMNS = ("output", "ridge", "precision", "correlation", "rank", "error", "slope", "kernel s")
BLUE, ORANGE, GREEN = (VARIABLES[name][0] for name in ("blue", "vermillion", "green"))
TITLE = "foretaste fidelity: look-ahead against real retraining"


def fidelity_page(records: Sequence[Any], out: Path, *, classes: Sequence[str] = (), title: str = TITLE) -> Path:
    """Write the page and return where it is."""
    said = verdict(records)
    first, *rest = said.lines
    text = f"<p>{escape(first)}</p>\n" + "".join(f"<p class=quiet>{escape(line)}</p>\n" for line in rest)
    text += "".join(f"<p class=warning>{escape(line)}</p>\n" for line in said.warnings)
    parts = [head(title, said.headline, text), _charts(records), _settings(records), _retrained(records, classes)]
    return write(out, title, [*parts, made(_about(of_kind(records, "about")[0]))])


def _charts(records: Sequence[Any]) -> str:
    cards, note = "", ""
    for points in of_kind(records, "points"):
        cards += _card("changes", "predicted against real changes of outputs", partial(_scatter, points))
        if len(points["scores"][0]) > 1:
            cards += _card("scores", "predicted against real movement", partial(_scores, points))
        drawn = f"{len(points['real'])} of {points['of']}" if points["of"] > len(points["real"]) else str(points["of"])
        note = f"With {setting(points)}. In the first chart a point is one output at one watched point ({drawn})"
        note += "; in the second, one candidate with its likeliest label." if len(points["scores"][0]) > 1 else "."
    if found := of_kind(records, "calibration"):
        cards += _card("scale", "error against the scale of the kernel", partial(_scales, found))
    if not cards:
        return ""
    return (
        f"<section><h2>Predicted and real</h2>\n<div class=charts>{cards}</div>\n"
        f"<p class=note>{escape(note)}</p></section>\n"
    )


def _card(name: str, title: str, draw: Callable[[Axes], None]) -> str:
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure = Figure(figsize=(5.3, 4.4), layout="constrained")
        draw(figure.subplots())
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata=UNDATED["svg"])
    return f"<figure>{adopt(text.getvalue(), name, title)}</figure>\n"


def _scatter(points: Mapping[str, Any], ax: Axes) -> None:
    x, y = np.array(points["predicted"]), np.array(points["real"])
    ax.scatter(x, y, s=7, color=BLUE, alpha=0.35, linewidths=0, zorder=3)
    _diagonal(ax, x, y)
    bare(ax, "Change of an output", grid="both")
    ax.set_xlabel("predicted by look-ahead", color=QUIET)
    ax.set_ylabel("after retraining", color=QUIET)


def _scores(points: Mapping[str, Any], ax: Axes) -> None:
    x, y = (np.array(values) for values in points["scores"])
    ax.scatter(x, y, s=38, color=ORANGE, linewidths=0, zorder=3)
    _diagonal(ax, x, y)
    bare(ax, "How far a candidate moves the network", grid="both")
    ax.set_xlabel("predicted by look-ahead", color=QUIET)
    ax.set_ylabel("after retraining", color=QUIET)


def _diagonal(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    ax.plot([low, high], [low, high], color=QUIET, linewidth=1, linestyle="--", zorder=2)


def _scales(found: Sequence[Mapping[str, Any]], ax: Axes) -> None:
    for c, colour, marker in zip(found, (BLUE, ORANGE, GREEN), "os^"):
        grid = [(g["theta_scale"], g["error"]) for g in c["grid"] if g["error"] is not None]
        ax.plot(*zip(*grid), color=colour, marker=marker, markersize=4.5, linewidth=1.8, label=c["output"], zorder=3)
    bare(ax, "Relative error by the scale of Θ")
    scales = [g["theta_scale"] for g in found[0]["grid"]]
    ax.set_xscale("log", base=4)
    ax.set_xticks(scales, [f"{x:g}" if x >= 1 else f"1/{1 / x:g}" for x in scales])
    ax.minorticks_off()
    ax.axvline(1, color=QUIET, linewidth=1, linestyle="--", zorder=1)
    ax.set_xlabel("theta_scale", color=QUIET)
    ax.legend(frameon=False, labelcolor="linecolor")


def _row(s: Mapping[str, Any]) -> list[str]:
    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}".replace("-", "−")

    shown = [number(s[key]) for key in ("correlation", "rank", "error", "slope")]
    return [s["output"], f"{s['ridge_share']:.0e}", s["precision"], *shown, f"{s['seconds']:.2f}"]


def _settings(records: Sequence[Any]) -> str:
    top = best(records)
    body = ""
    for s in of_kind(records, "setting"):
        first, *cells = _row(s)
        mark = (" · as ft.query" if s["own"] else "") + (" · best" if s is top else "")
        body += f"<tr{' class=best' if s is top else ''}><th scope=row>{escape(first)}<small>{mark}</small></th>"
        body += "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>\n"
    skipped = "".join(
        f"<p class=note>Not tried: {escape(setting(s))}: {escape(s['why'])}.</p>\n" for s in of_kind(records, "skipped")
    )
    if not body:
        return f"<section><h2>Settings</h2>\n{skipped}</section>\n" if skipped else ""
    names = "".join(f"<th scope=col>{escape(c)}</th>" for c in COLUMNS)
    note = (
        "Correlation: of predicted with real changes, with their sign, over watched points, outputs and candidates. "
        "Rank: Spearman over candidates. Error: of the difference, relative to the real change; predicting no change "
        "has 1. Slope: real changes over predicted ones. Ridge: of the mean diagonal. The best is chosen on these same "
        "candidates."
    )
    return (
        f"<section><h2>By setting</h2>\n<div class=scroll><table><thead><tr>{names}</tr></thead>\n<tbody>\n{body}"
        f"</tbody></table></div>\n<p class=note>{escape(note)}</p>\n{skipped}</section>\n"
    )


def _retrained(records: Sequence[Any], classes: Sequence[str]) -> str:
    body = ""
    for r in of_kind(records, "retraining"):
        if r["repeat"] == 0:
            who = "none: labelled points alone" if r["candidate"] is None else str(r["candidate"])
            label = "" if r["label"] is None else classes[r["label"]] if r["label"] < len(classes) else str(r["label"])
            cells = (label, r["whose"] or "", f"{r['moved']:.3g}", f"{r['residual']:.1e}", f"{r['seconds']:.2f}")
            body += f"<tr><th scope=row class=long>{escape(who)}</th>" + "".join(f"<td>{escape(c)}</td>" for c in cells)
            body += "</tr>\n"
    columns = ("candidate", "label", "which is its", "outputs moved", "residual after", "seconds")
    names = "".join(f"<th scope=col>{c}</th>" for c in columns)
    return (
        "<section><h2>What was retrained</h2>\n"
        f"<div class=scroll><table><thead><tr>{names}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
        "<p class=note>The first seed. Moved: Euclidean, over all watched outputs, from the network as it was. "
        "The first row, without a new label, is taken off the others.</p></section>\n"
    )


def _about(about: Mapping[str, Any]) -> dict[str, str]:
    train = ", ".join(f"{key} {value}" for key, value in about["train"].items())
    made = {
        "network": f"{about.get('network', '')} {about['parameters']:,} parameters, on {about['device']}".strip(),
        "data": f"{about.get('data', '')}: {about['L']} labelled, a pool of {about['U']}, {about['C']} classes",
        "retraining": f"from the trained weights, {train}; {about['repeats']} seeds",
        "labelled residual": f"{about['residual']:.2e}",
        "two retrainings agree at": "not measured: one seed"
        if about["agreement"] is None
        else f"{about['agreement']:.4f}",
        "no prediction beyond": ""
        if about["ceiling"] is None
        else f"{about['ceiling']:.4f} (square root of the reliability)",
        "moved with no new label": f"{about['drift']:.3g}, by a label {about['change']:.3g}",
        "seed": str(about["seed"]),
        "time": f"{about['seconds']:.0f} s",
    }
    return {key: value for key, value in made.items() if value}


def table(records: Sequence[Any]) -> Table:
    """For the terminal."""
    shown, top = Table(box=None, pad_edge=False, header_style="bold"), best(records)
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name in ("output", "precision") else "right")
    for s in of_kind(records, "setting"):
        shown.add_row(*map(Text, _row(s)), style="bold" if s is top else None)
    return shown
