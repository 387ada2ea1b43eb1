"""``foretaste query``: which points of a pool to label next, as a ranked CSV."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretaste.cli import _options as o
from foretaste.cli._app import app, console
from foretaste.cli._bars import bar

if TYPE_CHECKING:
    from torch import Tensor

    from foretaste.cli._case import Case
    from foretaste.query import Query

HEAD = ("rank", "picked", "id", "score", "predicted", "probability", "margin")
SHOWN = 10


@app.command()
def query(
    labelled: o.LabelledFile = None,
    pool: o.PoolFile = None,
    network: o.NetworkName = None,
    set_: o.Set = None,
    weights: o.Weights = None,
    strategy: Annotated[str, typer.Option(help="gain, mlmoc, margin, badge, ... (docs/strategies.md).")] = "gain",
    n: Annotated[int, typer.Option("-n", "--number", min=1, help="How many to choose.")] = 20,
    out: Annotated[Path, typer.Option(help="The ranked CSV.")] = Path("ranked.csv"),
    select: Annotated[str, typer.Option(help="auto, top, greedy or fantasy.")] = "auto",
    output: Annotated[str, typer.Option(help="Kernel of: sum, first, trace, full, or the number of a logit.")] = "sum",
    ridge: Annotated[float | None, typer.Option(min=0, help="λ; 1e-6 of the mean diagonal of Θ unless told.")] = None,
    budget: Annotated[str | None, typer.Option(help='Memory for the kernel, such as "8GB".')] = None,
    precision: Annotated[str, typer.Option(help="auto, float32, or on CUDA tf32 or half.")] = "auto",
    watch: Annotated[int | None, typer.Option(min=1, help="Watch so many points of the pool, not all.")] = None,
    options: Annotated[list[str] | None, typer.Option(help="Options of the strategy, such as scale=0.1.")] = None,
    classes: o.Classes = None,
    loss: o.Loss = None,
    regression: Annotated[
        bool, typer.Option("--regression", help="Labels are numbers; use strategy variance.")
    ] = False,
    normalise: o.Normalise = None,
    size: o.Size = None,
    channels: o.Channels = None,
    skip_broken: o.SkipBroken = False,
    steps: o.Steps = None,
    max_lr: o.MaxLr = None,
    batch: o.Batch = 32,
    save: Annotated[bool, typer.Option("--save", help="Keep the weights trained here, beside the CSV.")] = False,
    device: o.Device = "auto",
    seed: o.Seed = 0,
) -> None:
    """Rank a pool for labelling: a network, labelled points and a pool in, a CSV of ids, scores and predictions out."""
    if labelled is None or pool is None:
        missing = " and ".join(name for name, given in (("--labelled", labelled), ("--pool", pool)) if given is None)
        raise ValueError(f"{missing} not given; expected files of labelled points and of the pool to choose from")
    if out.is_dir() or (out.exists() and any(out.samefile(p) for p in (labelled, pool, weights) if p and p.exists())):
        raise ValueError(f"--out {out} is a folder or one of the inputs; expected the name of a CSV to write")
    if save and weights is not None:
        raise ValueError("--save keeps weights that are trained here, and --weights were given; leave one out")
    told, settings = o.pairs(set_ or [], "--set"), o.pairs(options or [], "--options")
    import foretaste as ft
    from foretaste.cli._case import case, keep, trained
    from foretaste.cli._inputs import read
    from foretaste.cli._settings import check

    ft.acquire.find(strategy).settings(settings)  # a wrong name is told before anything is trained
    how: dict[str, Any] = {"size": size, "channels": channels, "skip_broken": skip_broken}
    with bar("reading") as progress:
        files = [read(path, **how, progress=progress) for path in (labelled, pool)]
    c = case(
        *files, network=network, options=told, weights=weights, classes=classes, loss=loss, normalise=normalise,
        regression=regression, device=device, seed=seed,
    )  # fmt: skip
    if n > len(c.x_U):
        raise ValueError(f"-n {n} and the pool has {len(c.x_U)} points; expected at most {len(c.x_U)}")
    ask: dict[str, Any] = {
        "strategy": strategy, "select": select, "batch_size": n, "options": settings, "budget": budget, "ridge": ridge,
        "output": int(output) if output.isdecimal() else output, "precision": precision, "watch": watch,
    }  # fmt: skip
    check(c, **ask)
    say(*(f"note: {note}" for note in c.notes))
    if weights is None:
        say(f"No weights were given: training {c.name} on the {len(c.x_L)} labelled points.")
        with bar("training") as progress:
            c = trained(c, progress, steps=steps, max_lr=max_lr, batch_size=batch, seed=seed)
        if save:
            say(f"Weights: {keep(c, out.with_suffix('.safetensors'))}")
    with bar("choosing") as progress:
        q = ft.query(
            c.net, c.feed(c.x_L), c.y_L, c.feed(c.x_U), ids=c.pool.ids, seed=seed, loss=c.loss, progress=progress,
            **ask,
        )  # fmt: skip
    from foretaste.tangent import outputs, subject

    f_UC = outputs(subject(c.net, params=lambda name: True), c.feed(c.x_U))
    rows = ranked(c, q, f_UC)
    write(rows, out)
    say(summary(c, q, out))
    show(rows[: min(n, SHOWN)])


def ranked(c: "Case", q: "Query", f_UC: "Tensor") -> list[dict[str, Any]]:
    """A row for each point of the pool: the chosen in the order they were picked, then the others by score."""
    from foretaste.acquire import probabilities

    picked = q.indices.tolist()
    rest = sorted(set(range(len(f_UC))) - set(picked))
    if q.scores is not None:
        score_U = q.scores.tolist()
        rest.sort(key=lambda j: -score_U[j])
    if c.classes:
        p_UC = probabilities(f_UC, c.loss)
        top_U2 = p_UC.topk(2).values.tolist()
        best_U = f_UC.argmax(1).tolist()
    rows = []
    for rank, j in enumerate([*picked, *rest], 1):
        row = {"rank": rank, "picked": int(rank <= len(picked)), "id": c.pool.ids[j]}
        row["score"] = "" if q.scores is None else f"{score_U[j]:.9g}"
        if c.classes:
            row["predicted"] = c.classes[best_U[j]]
            row |= {"probability": f"{top_U2[j][0]:.6g}", "margin": f"{top_U2[j][0] - top_U2[j][1]:.6g}"}
        else:
            row |= {"predicted": f"{float(f_UC[j, 0]):.9g}", "probability": "", "margin": ""}
        rows.append(row)
    return rows


def write(rows: list[dict[str, Any]], out: Path) -> None:
    """Whole or not at all."""
    import csv
    import os

    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, HEAD)
            table.writeheader()
            table.writerows(rows)
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def summary(c: "Case", q: "Query", out: Path) -> str:
    """What was used, whether it may be trusted, and where the time went, in a paragraph."""
    L, C = len(c.x_L), len(c.classes)
    made = f"{c.name}, trained here in {c.fitted.seconds:.1f} s" if c.fitted else f"{c.name}, with the weights given"
    text = [f"{len(q)} of {len(c.x_U)} points chosen by {q.info['strategy']} ({q.info['select']}); network: {made}."]
    residual = c.fitted.residual if c.fitted else q.info.get("residual_L")
    if residual is not None:
        learned = c.fitted.interpolates if c.fitted else not C or residual <= 0.01 * (1 - 1 / C) / C
        text.append(f"Mean squared residual of the {L} labelled points: {residual:.1e}.")
        if not learned:
            text.append(
                "WARNING: the network has not learned its labels, which look-ahead assumes; train longer, or see "
                "`foretaste fidelity` before you trust the scores."
            )
    stages = ", ".join(f"{name} {s:.2g} s" for name, s in q.seconds.items() if s >= 0.005 or name == "total")
    return " ".join([*text, f"Time: {stages}. Ranking: {out}"])


def show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in HEAD:
        if name != "picked":
            table.add_column(name, justify="left" if name in ("id", "predicted") else "right")
    for row in rows:
        cells = [
            f"{float(row[k]):.4g}" if k in ("score", "probability", "margin") and row[k] else str(row[k])
            for k in HEAD
            if k != "picked"
        ]
        from rich.text import Text

        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)


def say(*lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
