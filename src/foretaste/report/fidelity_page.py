"""Look-ahead against real retraining: whether to trust it, in words, and the page of ``foretaste fidelity``.

All from the records of ``foretaste.study.fidelity``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretaste.errors import counted, format_seconds
from foretaste.report.drawing import COLOURS, MARKERS, QUIET, Chart, plain_axes, save_figure
from foretaste.report.pages import PageRow, PageSection, PageTable, inline_charts, render_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

TRUSTED, WITH_CARE = 0.9, 0.6  # of the correlation between predicted and real changes
SAME_RANKING = 0.8  # of Spearman's correlation between the rankings of candidates, if it is also beyond chance
NOISY_RETRAINING = 0.8  # two retrainings that correlate less leave little to predict
FIDELITY_TITLE = "foretaste fidelity: look-ahead against real retraining"
SETTING_COLUMNS = ("output", "ridge", "precision", "correlation", "rank", "error", "slope", "kernel")
THRESHOLDS = (
    f"Trust needs a correlation of at least {TRUSTED} and a ranking of at least {SAME_RANKING}, beyond chance. "
    f"Care needs a correlation of at least {WITH_CARE}, or such a ranking."
)


@dataclass(frozen=True)
class Verdict:
    """Whether to trust look-ahead, in words."""

    level: str  # "trust", "care", "no"
    headline: str
    lines: tuple[str, ...]  # sentences, the most important first
    warnings: tuple[str, ...] = ()


def verdict(records: Sequence[Any]) -> Verdict:
    """Say whether look-ahead may be trusted on a network.

    The thresholds are ours. "Agree" and "trust" need both a correlation of predicted and real changes of 0.9 or more,
    and a rank correlation of candidates of 0.8 or more that chance would not give.

    Args:
        records: What ``foretaste.study.fidelity`` returned.

    Returns:
        A level ("trust", "care" or "no"), a headline, sentences and warnings.

    Example:
        >>> from foretaste import report, study
        >>> came = report.verdict(study.load("fidelity/records.jsonl"))
        >>> came.level, came.headline
        ('trust', 'Predictions agree with retraining (correlation 0.95, ranking 0.90): trust look-ahead here')
    """
    about, own = records_of_kind(records, "about")[0], own_setting(records)
    n, times = len(about["candidates"]), about["repeats"]
    lines = [
        f"{counted(n, 'candidate was', 'candidates were')} labelled, each in two ways, and the network really "
        f"retrained on {about['L']} + 1 points, {'once' if times == 1 else f'{times} times'} each; changes were seen "
        f"on {counted(about['W'], 'other point')} of the pool."
    ]
    level, headline = "no", "Nothing could be compared: do not trust look-ahead here"
    if own is not None and own["correlation"] is not None:
        level, headline = _level_and_headline(about, own)
        lines += [_outputs_line(about, own), _ranking_line(own["rank"], n)]
    lines += [*_scale_line(records_of_kind(records, "calibration")), THRESHOLDS]
    return Verdict(level, headline, tuple(lines), tuple(_cautions(records, about)))


def _level_and_headline(about: Any, own: Any) -> tuple[str, str]:
    """Both numbers are named, and the advice follows from both."""
    r, rank, needed = own["correlation"], own["rank"], least_rank(len(about["candidates"]))
    ranked = rank is not None and float(rounded_down(rank)) >= needed
    ranking = "too few candidates to rank" if rank is None else f"rankings at {rounded_down(rank)}"
    if rank is not None and rank >= SAME_RANKING and not ranked:
        ranking += " (may be chance)"
    if r >= TRUSTED and ranked:
        numbers = f"(correlation {rounded_down(r)}, ranking {rounded_down(rank)})"
        return "trust", f"Predictions agree with retraining {numbers}: trust look-ahead here"
    if r >= TRUSTED:
        level, advice = "care", "trust the predicted changes, not the ranking"
    elif r >= WITH_CARE:
        level = "care"
        advice = "trust look-ahead with care" if ranked else "trust the changes with care, not the ranking"
    elif ranked:
        level, advice = "care", "trust no more than the ranking"
    else:
        level, advice = "no", "do not trust look-ahead here"
    why = "" if about["interpolates"] else ": the network has not learned its labels, train it longer"
    return level, f"Predicted and real changes correlate at {rounded_down(r)}, {ranking}: {advice}{why}"


def rounded_down(value: float, digits: int = 2) -> str:
    """Rounded down, so that a value below a threshold is below it in print too."""
    scale = 10**digits
    return f"{math.floor(round(value * scale, 6)) / scale:.{digits}f}"


def least_rank(n: int) -> float:
    """The rank correlation of n candidates that counts: 0.8, or more where chance reaches it.

    Spearman's correlation of n unrelated pairs exceeds 1.96 / √(n − 1) one time in twenty.
    """
    chance = 1.96 / (n - 1) ** 0.5 if n > 1 else math.inf
    return max(SAME_RANKING, math.ceil(100 * chance) / 100 if chance <= 1 else math.inf)


def _outputs_line(about: Any, own: Any) -> str:
    said, default = describe_setting(own), about.get("query")  # None in records of older versions
    text = f"With the default kernel of foretaste query ({said})" if default and own["own"] else f"With {said}"
    text += f", predicted and real changes of the outputs correlate at {rounded_down(own['correlation'])}"
    if own["probabilities"] is not None:
        text += f" (of the probabilities: {own['probabilities']:.2f})"
    if own["slope"] is not None:
        text += f"; real changes are {own['slope']:.2f} times those predicted"
    if default and not own["own"]:
        text += f". The default of foretaste query is output {default['output']} with ridge {default['ridge']}"
    return f"{text}."


def _ranking_line(rank: float | None, n: int) -> str:
    if rank is None:
        return "There are too few candidates to compare their rankings."
    needed = least_rank(n)
    enough = "any value may be chance" if needed == math.inf else f"{needed:.2f} is needed"
    return (
        "Candidates are ranked by how much they move the network. Spearman's correlation of the predicted and the real "
        f"ranking is {rounded_down(rank)}; with {n} of them {enough}."
    )


def _scale_line(found: Sequence[Any]) -> list[str]:
    """Under cross-entropy, the scale of Θ to use."""
    parts = []
    for c in found:
        errors = {g["theta_scale"]: g["error"] for g in c["grid"]}
        end = " (the end of the grid)" if c["best"] in (min(errors), max(errors)) else ""
        parts.append(f"{c['best']:g}{end} for {c['output']} (error {errors[c['best']]:.2f})")
    words = "Cross-entropy: the scale of Θ that fits best, theta_scale= of ft.linearize, is"
    return [f"{words} {'; '.join(parts)}."] if parts else []


def _cautions(records: Sequence[Any], about: Any) -> list[str]:
    out = [
        f"The default kernel of foretaste query could not be tried: {s['why']}."
        for s in records_of_kind(records, "skipped")
        if s.get("own")
    ]
    if not about["interpolates"]:
        out.append(
            f"The network has not learned its labels: their mean squared residual is {about['residual']:.1e}. "
            "Look-ahead assumes that it has; train longer."
        )
    done = records_of_kind(records, "retraining")
    if missed := sum(not r["interpolates"] for r in done):
        out.append(
            f"{missed} of {counted(len(done), 'retraining')} did not learn the labels; more --retrain-steps may help."
        )
    if about["agreement"] is not None and about["agreement"] < NOISY_RETRAINING:
        out.append(
            "Retraining is itself noisy: two retrainings of one candidate by other seeds correlate at "
            f"{rounded_down(about['agreement'])}, so a prediction is hardly expected to reach more than "
            f"{about['ceiling']:.2f}."
        )
    if about["drift"] > about["change"]:
        out.append(
            f"Training on with no new label moves the outputs more ({about['drift']:.3g}) than a label does "
            f"({about['change']:.3g}): the network had not come to rest."
        )
    return out


# The settings that were tried


def records_of_kind(records: Sequence[Any], kind: str) -> list[Any]:
    return [r for r in records if r["kind"] == kind]


def own_setting(records: Sequence[Any]) -> Any | None:
    """The setting that ``foretaste query`` uses by default, or else the first that was tried."""
    tried = records_of_kind(records, "setting")
    return next((s for s in tried if s["own"]), tried[0] if tried else None)


def best_setting(records: Sequence[Any]) -> Any | None:
    """The setting with the highest correlation."""
    tried = [s for s in records_of_kind(records, "setting") if s["correlation"] is not None]
    return max(tried, key=lambda s: s["correlation"], default=None)


def describe_setting(s: Any) -> str:
    ridge = 'ridge="misfit"'
    if s["ridge_share"] is not None:  # that of the misfit is not known where it was not tried
        ridge = f"{ridge}, here" if s.get("misfit") else "ridge"
        ridge += f" {share_digits(s)} of the mean diagonal"
    return f'output="{s["output"]}", {ridge}, {s["precision"]}'


def share_digits(s: Any) -> str:
    return f"{s['ridge_share']:.2g}" if s.get("misfit") else f"{s['ridge_share']:.0e}"


# The page


def fidelity_page(
    records: Sequence[Any], out: Path, *, classes: Sequence[str] = (), title: str = FIDELITY_TITLE
) -> Path:
    """Write the page of ``foretaste fidelity``, and its figures as SVG and PDF beside it.

    Args:
        records: What ``foretaste.study.fidelity`` returned.
        out: The HTML file to write. The figures changes, scores and scale go to its folder.
        classes: Names of the classes, by class id.
        title: The name at the top of the page.

    Returns:
        The path of the page.

    Example:
        >>> from pathlib import Path
        >>> from foretaste import report, study
        >>> records = study.load("fidelity/records.jsonl")
        >>> report.fidelity_page(records, Path("fidelity/index.html")).as_posix()
        'fidelity/index.html'
    """
    came = verdict(records)
    first, *rest = came.lines
    charts = fidelity_charts(records)
    for name in ("changes", "scores", "scale"):
        save_figure([charts[name]] if name in charts else [], out.parent / name)
    sections = [_chart_section(records, charts), _settings_section(records), _retrainings_section(records, classes)]
    return render_page(
        "sections.html", out, title=title, headline=came.headline, sentences=[first], quiet=rest,
        cautions=came.warnings, sections=[section for section in sections if section is not None],
        about=_how_measured(records_of_kind(records, "about")[0]),
    )  # fmt: skip


def fidelity_charts(records: Sequence[Any]) -> dict[str, Chart]:
    """The charts that these records give, by the names of their files."""
    out = {}
    for points in records_of_kind(records, "points"):
        changes = partial(
            _draw_pairs, pairs=(points["predicted"], points["real"]), title="Change of an output", colour="blue", s=7,
            alpha=0.35,
        )  # fmt: skip
        out["changes"] = Chart("predicted against real changes of outputs", changes, 4.4)
        if len(points["scores"][0]) > 1:
            moves = "How far a candidate moves the network"
            scores = partial(_draw_pairs, pairs=points["scores"], title=moves, colour="vermillion", s=38)
            out["scores"] = Chart("predicted against real movement", scores, 4.4)
    if found := records_of_kind(records, "calibration"):
        out["scale"] = Chart("error against the scale of the kernel", partial(_draw_scales, found=found), 4.4)
    return out


def _chart_section(records: Sequence[Any], charts: Mapping[str, Chart]) -> PageSection | None:
    if not charts:
        return None
    notes = []
    for points in records_of_kind(records, "points"):
        drawn = f"{len(points['real'])} of {points['of']}" if points["of"] > len(points["real"]) else str(points["of"])
        second = "; in the second, one candidate with its likeliest label" if "scores" in charts else ""
        first = f"In the first chart a point is one output at one watched point ({drawn}){second}."
        notes = [f"With {describe_setting(points)}. {first}"]
    drawings = [drawing for name, chart in charts.items() for drawing in inline_charts([chart], name)]
    return PageSection("Predicted and real", notes, drawings)


def _draw_pairs(ax: "Axes", pairs: Sequence[Sequence[float]], title: str, colour: str, **dots: Any) -> None:
    """Predicted against real, with the diagonal."""
    x, y = map(np.array, pairs)
    ax.scatter(x, y, color=COLOURS[colour][0], linewidths=0, zorder=3, **dots)
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    ax.plot([low, high], [low, high], color=QUIET, linewidth=1, linestyle="--", zorder=2)
    plain_axes(ax, title, grid="both")
    ax.set_xlabel("predicted by look-ahead", color=QUIET)
    ax.set_ylabel("after retraining", color=QUIET)


def _draw_scales(ax: "Axes", found: Sequence[Mapping[str, Any]]) -> None:
    colours = (COLOURS[name][0] for name in ("blue", "vermillion", "green", "purple", "ochre"))
    for c, colour, marker in zip(found, colours, MARKERS):
        grid = [(g["theta_scale"], g["error"]) for g in c["grid"] if g["error"] is not None]
        ax.plot(*zip(*grid), color=colour, marker=marker, markersize=4.5, linewidth=1.8, label=c["output"], zorder=3)
    plain_axes(ax, "Relative error by the scale of Θ")
    scales = [g["theta_scale"] for g in found[0]["grid"]]
    ax.set_xscale("log", base=4)
    ax.set_xticks(scales, [f"{x:g}" if x >= 1 else f"1/{1 / x:g}" for x in scales])
    ax.minorticks_off()
    ax.axvline(1, color=QUIET, linewidth=1, linestyle="--", zorder=1)
    ax.set_xlabel("theta_scale", color=QUIET)
    ax.legend(frameon=False, labelcolor="linecolor")


def _setting_cells(s: Mapping[str, Any]) -> list[str]:
    ridge = f"misfit ({share_digits(s)})" if s.get("misfit") else share_digits(s)
    numbers = [s[key] for key in ("correlation", "rank", "error", "slope")]
    shown = ["–" if value is None else rounded_down(value, 3).replace("-", "−") for value in numbers]
    return [s["output"], ridge, s["precision"], *shown, format_seconds(s["seconds"])]


def _settings_section(records: Sequence[Any]) -> PageSection | None:
    top, rows = best_setting(records), []
    for s in records_of_kind(records, "setting"):
        first, *cells = _setting_cells(s)
        mark = " · as foretaste query" if s["own"] and "misfit" in s else ""
        mark += " · as ft.linearize" if s.get("plain") and s["output"] == "sum" else ""
        mark += " · highest correlation" if s is top else ""
        rows.append(PageRow(first, cells, best=s is top, mark=mark))
    skipped = [f"Not tried: {describe_setting(s)}: {s['why']}." for s in records_of_kind(records, "skipped")]
    if not rows:
        return PageSection("Settings", skipped) if skipped else None
    note = (
        "Correlation: of predicted with real changes, with their sign, over watched points, outputs and candidates. "
        "Rank: Spearman over candidates. Error: of the difference, relative to the real change; predicting no change "
        "has 1. Slope: real changes over predicted ones. Ridge: of the mean diagonal. Kernel: time to compute it. "
        "Bold: the highest correlation, chosen on these same candidates."
    )
    if any(s.get("misfit") for s in records_of_kind(records, "setting")):
        note += " Misfit: a ridge that leaves unfitted what the network left."
    return PageSection("By setting", [note, *skipped], table=PageTable(SETTING_COLUMNS, rows))


def _retrainings_section(records: Sequence[Any], classes: Sequence[str]) -> PageSection:
    rows = []
    for r in records_of_kind(records, "retraining"):
        if r["repeat"] == 0:
            who = "none: labelled points alone" if r["candidate"] is None else str(r["candidate"])
            label = "" if r["label"] is None else classes[r["label"]] if r["label"] < len(classes) else str(r["label"])
            numbers = [f"{r['moved']:.3g}", f"{r['residual']:.1e}", format_seconds(r["seconds"])]
            rows.append(PageRow(who, [label, r["whose"] or "", *numbers]))
    columns = ("candidate", "label", "which is its", "outputs moved", "residual after", "time")
    note = (
        "The first seed. Moved: Euclidean, over all watched outputs, from the network before. The first row, without "
        "a new label, is subtracted from the others."
    )
    return PageSection("What was retrained", [note], table=PageTable(columns, rows, words=(1, 2)))


def _how_measured(about: Mapping[str, Any]) -> dict[str, str]:
    train = ", ".join(f"{key} {value}" for key, value in about["train"].items())
    agreement, ceiling = about["agreement"], about["ceiling"]
    how = {
        "network": f"{about.get('network', '')} {about['parameters']:,} parameters, on {about['device']}".strip(),
        "data": f"{about.get('data', '')}: {about['L']} labelled, a pool of {about['U']}, {about['C']} classes",
        "retraining": f"from the trained weights, {train}; {counted(about['repeats'], 'seed')}",
        "labelled residual": f"{about['residual']:.2e}",
        "two retrainings correlate at": "not measured: one seed" if agreement is None else f"{agreement:.4f}",
        "no prediction expected beyond": "" if ceiling is None else f"{ceiling:.4f} (square root of the reliability)",
        "moved with no new label": f"{about['drift']:.3g}, by a label {about['change']:.3g}",
        "seed": str(about["seed"]),
        "time": format_seconds(about["seconds"]),
        **about.get("made", {}),  # none in records of older versions, nor from Python
    }
    return {key: value for key, value in how.items() if value}


def fidelity_table(records: Sequence[Any]) -> "Table":
    """The settings that were tried, as a rich table for the terminal; the best is bold.

    >>> from foretaste import report, study
    >>> report.fidelity_table(study.load("fidelity/records.jsonl")).row_count
    2
    """
    from rich.table import Table
    from rich.text import Text

    shown, top = Table(box=None, pad_edge=False, header_style="bold"), best_setting(records)
    for name in SETTING_COLUMNS:
        shown.add_column(name, justify="left" if name in ("output", "precision") else "right")
    for s in records_of_kind(records, "setting"):
        shown.add_row(*map(Text, _setting_cells(s)), style="bold" if s is top else None)
    return shown
