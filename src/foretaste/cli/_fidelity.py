"""``foretaste fidelity``: whether look-ahead may be trusted on one's own network."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretaste.cli import _options as o
from foretaste.cli._app import app, console
from foretaste.cli._bars import bar

if TYPE_CHECKING:
    from foretaste.cli._case import Case


@app.command()
def fidelity(
    labelled: o.LabelledFile = None,
    pool: o.PoolFile = None,
    network: o.NetworkName = None,
    set_: o.Set = None,
    weights: o.Weights = None,
    demo: Annotated[bool, typer.Option("--demo", help="On scikit-learn's digits with an MLP; under a minute.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the page and the records.")] = Path("fidelity"),
    candidates: Annotated[int, typer.Option(min=1, help="Points of the pool that are really retrained on.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Retrainings of each by another seed: SGD's own noise.")] = 2,
    retrain_steps: Annotated[int | None, typer.Option(min=1, help="Steps of each retraining; as --steps.")] = None,
    watch: Annotated[int, typer.Option(min=1, help="Points of the pool on which changes are seen.")] = 200,
    output: Annotated[str, typer.Option(help="Kernel outputs to try, by commas.")] = "sum,first,full",
    ridge: Annotated[str, typer.Option(help="Ridges to try, of the mean diagonal, by commas.")] = "1e-8,1e-6,1e-4,1e-2",
    budget: Annotated[str | None, typer.Option(help='Memory for the kernel, such as "8GB".')] = None,
    classes: o.Classes = None,
    loss: o.Loss = None,
    normalise: o.Normalise = None,
    size: o.Size = None,
    channels: o.Channels = None,
    skip_broken: o.SkipBroken = False,
    steps: o.Steps = None,
    max_lr: o.MaxLr = None,
    batch: o.Batch = 32,
    weight_decay: Annotated[float, typer.Option(min=0, help="Of every training.")] = 0.0,
    device: o.Device = "auto",
    seed: o.Seed = 0,
) -> None:
    """Hold look-ahead against real retraining on a few candidates, and say whether to trust it. No files: a demo."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; expected a folder, or the name of a new one")
    demo = demo or not (labelled or pool or network or weights)
    if demo and (labelled or pool or weights):
        raise ValueError("--demo brings its own data; leave --labelled, --pool and --weights out")
    if not demo and (labelled is None or pool is None):
        missing = " and ".join(name for name, given in (("--labelled", labelled), ("--pool", pool)) if given is None)
        raise ValueError(f"{missing} not given; expected files of labelled points and of a pool, or --demo")
    try:
        ridges = [float(word) for word in ridge.split(",")]
    except ValueError:
        raise ValueError(f"--ridge {ridge}; expected numbers by commas, such as 1e-6,1e-4") from None
    steps = 600 if demo and steps is None else steps
    told = o.pairs(set_ or [], "--set")
    from foretaste.cli._case import case, trained
    from foretaste.cli._inputs import read
    from foretaste.study._fidelity import check_fidelity

    how: dict[str, Any] = {"size": size, "channels": channels, "skip_broken": skip_broken}
    with bar("reading") as progress:
        files = digits() if demo else [read(path, **how, progress=progress) for path in (labelled, pool) if path]
    c = case(
        *files, network=network or ("mlp" if demo else None), options=told, weights=weights, classes=classes, loss=loss,
        normalise=normalise, device=device, seed=seed,
    )  # fmt: skip
    for note in c.notes:
        say(f"note: {note}")
    outputs = [word.strip() for word in output.split(",")]
    check_fidelity(len(c.x_U), c.loss, candidates, repeats, watch, outputs, ridges)  # before anything is trained
    train: dict[str, Any] = {"max_lr": max_lr, "batch_size": batch, "weight_decay": weight_decay}
    if weights is None:
        say(f"No weights were given: training {c.name} on the {len(c.x_L)} labelled points.")
        with bar("training") as progress:
            c = trained(c, progress, steps=steps, seed=seed, **train)
    train["steps"] = retrain_steps or steps
    records = measure(
        c, train=train, candidates=candidates, repeats=repeats, watch=watch,
        outputs=outputs, ridges=ridges, budget=budget, seed=seed,
    )  # fmt: skip
    records[0]["network"] = c.name
    records[0]["data"] = f"{c.labelled.where} and {c.pool.where}" if not demo else "scikit-learn's digits"
    from foretaste.report._fidelity import fidelity_page, table
    from foretaste.report._verdict import verdict
    from foretaste.study import save

    out.mkdir(parents=True, exist_ok=True)
    save(records, out / "records.jsonl")
    page = fidelity_page(records, out / "index.html", classes=c.classes)
    console.print(table(records))
    came = verdict(records)
    say(
        "",
        f"{came.headline}.",
        *came.lines,
        *(f"WARNING: {line}" for line in came.warnings),
        f"The page: {page.resolve()}",
    )


def measure(c: "Case", **settings: Any) -> list[dict[str, Any]]:
    """``foretaste.study.fidelity`` behind a bar; what it will cost is said after the first retraining."""
    from foretaste.study import fidelity as compare

    began = time.perf_counter()
    with bar("retraining") as progress:

        def seen(done: int, total: int) -> None:
            if done == 1:
                one = time.perf_counter() - began
                say(f"{total} retrainings of about {one:.1f} s each: about {_span(one * total)} in all.")
            progress(done, total)

        return compare(
            c.net, c.x_L, c.y_L, c.x_U, y_U=c.y_U, ids=c.pool.ids, loss=c.loss, normalise=c.normalise, progress=seen,
            **settings,
        )  # fmt: skip


def digits() -> list[Any]:
    """40 labelled digits and a pool of 400, with the true labels."""
    from foretaste.cli._inputs import Points
    from foretaste.data import digits as load

    data = load()
    x = data.x.float() / 255 / data.normalise[1][0] if data.normalise else data.x.float() / 255
    parts = (data.pool[:40], data.pool[40:440])
    labels = [data.classes[int(c)] for c in data.y]
    return [Points("digits", x[ids], [str(i) for i in ids], [labels[i] for i in ids], own_ids=True) for ids in parts]


def _span(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def say(*lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
