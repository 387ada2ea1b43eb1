"""The page of ``foretaste query``: the chosen points as a person sees them, and why each was chosen."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretaste.errors import counted, format_seconds, printable

if TYPE_CHECKING:
    from torch import Tensor

    from foretaste.cli.prepare import LabellingProblem
    from foretaste.pick import Query

COUNTED_POINTS = 2000  # points of the pool on which look-aheads are counted
EXPLAINED = 100  # picks, as many as the page shows


def write_picks(
    problem: "LabellingProblem",
    q: "Query",
    f_UC: "Tensor | None",
    out: Path,
    ask: dict[str, Any],
    *,
    summary: str,
    warnings: list[str],
    made: dict[str, str],
) -> Path:
    """Write the page of the chosen points. ``made`` says how: the command, the seed, the versions, the date."""
    from foretaste.losses import probabilities
    from foretaste.report import Pick, picks_page

    p, chosen = problem, q.indices.tolist()
    p_UC = probabilities(f_UC, p.loss) if f_UC is not None and p.classes else None
    reasons, explained = explain_picks(p, p_UC, chosen[:EXPLAINED], ask)
    picks = []
    for rank, j in enumerate(chosen, 1):
        said: dict[str, Any] = {"predicted": "" if f_UC is None else f"{float(f_UC[j, 0]):.6g}"}
        if p_UC is not None:
            best, second = p_UC[j].topk(2).indices.tolist()
            said = {
                "predicted": p.classes[best], "probability": float(p_UC[j, best]),
                "second": p.classes[second], "second_probability": float(p_UC[j, second]),
            }  # fmt: skip
        shown = shown_item(p, int(p.points.pool[j])) if rank <= EXPLAINED else {}
        picks.append(Pick(rank=rank, id=p.ids[j], why=reasons.get(j, []), **said, **shown))
    about = {
        "data": printable(p.points.where),
        "labelled": (counted(len(p.x_L), "point") if len(p.x_L) else "no points")
        + (f", {counted(len(p.classes), 'class', 'classes')}" if p.classes else ""),
        "pool": counted(len(p.x_U), "point"),
        "network": p.name,
        "strategy": f"{q.info['strategy']} ({q.info['select']})",
        "time": format_seconds(q.seconds["total"]),
    } | made
    when = "next" if len(p.x_L) else "first"
    head = f"Label this one {when}" if len(picks) == 1 else f"Label these {len(picks)} {when}"
    return picks_page(
        picks, out, title=f"foretaste query · {printable(Path(p.points.where).name)}", headline=head,
        sentences=[line for line in (summary, explained) if line], notes=p.notes, warnings=warnings, about=about,
    )  # fmt: skip


def explain_picks(
    problem: "LabellingProblem", p_UC: "Tensor | None", chosen: list[int], ask: dict[str, Any]
) -> tuple[dict[int, list[str]], str]:
    """For each pick, how many predictions its two likeliest labels would change; and a sentence on it.

    Only the picks are candidates, and of a large pool a sample is watched: this stays cheap where the query was not.
    """
    import torch

    import foretaste as ft

    p = problem
    if p_UC is None or not chosen:
        return {}, ""
    how = ft.acquire.find_strategy(ask["strategy"])
    output = how.kernel_output(ask["output"])
    ridge = how.kernel.ridge if ask["ridge"] is None else ask["ridge"]
    U = len(p.x_U)
    watched = torch.randperm(U, generator=torch.Generator().manual_seed(0))[:COUNTED_POINTS].sort().values
    log = logging.getLogger("foretaste")
    level = log.level
    log.setLevel(logging.ERROR)  # the query has warned already
    try:
        state = ft.linearize(
            p.net, *p.labelled, p.feed(p.x_U[chosen]), watch=p.feed(p.x_U[watched]), loss=p.loss,
            output=output, ridge=ridge, budget=ask["budget"],
        )  # fmt: skip
        now_W = state.mean.argmax(1)
        reasons = {}
        for k, j in enumerate(chosen):
            parts = []
            for c in p_UC[j].topk(2).indices.tolist():
                changed = int((state.lookahead(k, c).argmax(1) != now_W).sum())
                what = "prediction changes" if changed == 1 else "predictions change"
                parts.append(f"if {p.classes[c]}, {changed} {what}")
            reasons[j] = [_sentence(parts)]
    except (ValueError, MemoryError) as error:  # margin and its kin need no kernel, and have chosen
        return {}, f"What a label would change is not shown: {error}."
    finally:
        log.setLevel(level)
    sample = "the pool" if len(watched) == U else f"a sample of the pool, of {U}"
    return reasons, (
        f"Below each: the two likeliest classes, and how many of {counted(len(watched), 'prediction')} on {sample} a "
        "label would change, as look-ahead computes it without training."
    )


def _sentence(parts: list[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def shown_item(problem: "LabellingProblem", i: int) -> dict[str, Any]:
    """The point as a person sees it: a picture, a text, or a row."""
    points = problem.points
    item = points.items[i]
    if points.kind == "pictures":
        return {"picture": _as_image(item)}
    if points.kind == "text":
        return {"text": str(item)}
    if points.kind == "table":
        return {"row": item}
    if points.columns:
        return {"row": {name: f"{value:.6g}" for name, value in zip(points.columns, item.tolist())}}
    return {}


def _as_image(item: Any) -> Any:
    from PIL import Image

    if not hasattr(item, "numpy"):
        return item
    pixels = (item.clamp(0, 1) * 255).round().byte() if item.is_floating_point() else item
    array = pixels.numpy()
    return Image.fromarray(array[0] if len(array) == 1 else array.transpose(1, 2, 0).copy())
