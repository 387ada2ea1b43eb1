"""``foretaste fidelity``: whether look-ahead can be trusted on a network."""

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretaste.cli import inputs as given
from foretaste.cli.app import app, check_output_folder, console, how_made, progress_bar, say, with_examples
from foretaste.cli.prepare import make_problem, train_problem
from foretaste.errors import format_seconds, printable

if TYPE_CHECKING:
    from foretaste.cli.prepare import LabellingProblem
    from foretaste.data import Points

DEMO_STEPS = 600
compared_option = partial(typer.Option, rich_help_panel="What is compared")


@app.command(
    "fidelity",
    **with_examples(
        "foretaste fidelity --demo",
        "foretaste fidelity photos/ --candidates 8",
        "foretaste fidelity --labelled L.npz --pool U.npz --network wrn1 --loss ce",
    ),
)
def fidelity_command(
    ctx: typer.Context,
    data: given.DataArgument = None,
    labelled: given.LabelledOption = None,
    pool: given.PoolOption = None,
    network: given.NetworkOption = None,
    backbone: given.EncoderOption = None,
    set_: given.SetOption = None,
    weights: given.WeightsOption = None,
    demo: Annotated[bool, typer.Option("--demo", help="Use scikit-learn's digits and an MLP; under a minute.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the page and the records.")] = Path("fidelity"),
    candidates: Annotated[int, compared_option(min=1, help="Points of the pool to retrain on.")] = 8,
    repeats: Annotated[int, compared_option(min=1, help="Retrainings of each by another seed, for SGD's noise.")] = 2,
    retrain_steps: Annotated[
        int | None, given.network_option(min=1, help="Steps of each retraining. Default: as --steps.")
    ] = None,
    watch: Annotated[int, compared_option(min=1, help="Points of the pool on which changes are measured.")] = 200,
    output: Annotated[
        str, compared_option(help="Kernel outputs to try (signs, sum, first, trace, full), separated by commas.")
    ] = "signs,sum,first,full",
    ridge: Annotated[
        str, compared_option(help="Ridges to try: misfit, or numbers relative to the kernel's mean diagonal.")
    ] = "misfit,1e-6,1e-2",
    budget: given.BudgetOption = None,
    label: given.LabelColumnOption = None,
    text: given.TextColumnOption = None,
    id_: given.IdColumnOption = None,
    classes: given.ClassesOption = None,
    loss: given.LossOption = None,
    normalise: given.NormaliseOption = None,
    size: given.SizeOption = None,
    channels: given.ChannelsOption = None,
    skip_broken: given.SkipBrokenOption = True,
    store: given.KeptLabelsOption = None,
    steps: given.StepsOption = None,
    max_lr: given.MaxLrOption = None,
    batch: given.BatchOption = 32,
    weight_decay: Annotated[float, given.network_option(min=0, help="Weight decay of every training.")] = 0.0,
    device: given.DeviceOption = "auto",
    seed: given.SeedOption = 0,
) -> None:
    """Compare look-ahead with real retraining on a few candidates, and say whether to trust it. No files: a demo."""
    check_output_folder(out)
    demo = demo or not (data or labelled or pool or network or weights)
    if demo and (data or labelled or pool or weights):
        raise ValueError("--demo brings its own data; leave DATA, --labelled, --pool and --weights out")
    try:
        ridges = [word if word == "misfit" else float(word) for word in map(str.strip, ridge.split(","))]
    except ValueError:
        raise ValueError(f"--ridge {ridge}; expected numbers or misfit, separated by commas") from None
    steps = DEMO_STEPS if demo and steps is None else steps
    network_options = given.parse_settings(set_, "--set")
    from foretaste.study import check_fidelity

    truth: list[str | None] | None
    if demo:
        points, truth = demo_points()
    else:
        points, truth = given.read_inputs(
            data, labelled, pool, network=network, weights=weights, encoder=backbone, label=label, text=text, id=id_,
            size=size, channels=channels, skip_broken=skip_broken, store=store, device=device,
        )  # fmt: skip
        if not len(points.pool):
            raise ValueError(f"every point of {points.where} has a label; expected some without, to retrain on")
    p = make_problem(
        points, truth, network=network or ("mlp" if demo else None), options=network_options, weights=weights,
        classes=classes, loss=loss, normalise=normalise, device=device, seed=seed,
    )  # fmt: skip
    say(*(f"note: {note}" for note in p.notes))
    outputs = [word.strip() for word in output.split(",")]
    check_fidelity(len(p.x_U), p.loss, candidates, repeats, watch, outputs, ridges)  # before anything is trained
    train: dict[str, Any] = {"max_lr": max_lr, "batch_size": batch, "weight_decay": weight_decay}
    if weights is None:
        p = train_problem(p, steps=steps, seed=seed, **train)
    train["steps"] = retrain_steps or steps
    records = compare_with_retraining(
        p, train=train, candidates=candidates, repeats=repeats, watch=watch,
        outputs=outputs, ridges=ridges, budget=budget, seed=seed,
    )  # fmt: skip
    records[0]["network"], records[0]["made"] = p.name, how_made(ctx, seed, str(p.x_U.device))
    records[0]["data"] = "scikit-learn's digits" if demo else printable(p.points.where)
    report_fidelity(records, out, p.classes)


def report_fidelity(records: list[dict[str, Any]], out: Path, classes: tuple[str, ...]) -> None:
    """Write the records and the page; print the table and the verdict."""
    from foretaste.report import fidelity_page, fidelity_table, verdict
    from foretaste.study import save

    out.mkdir(parents=True, exist_ok=True)
    save(records, out / "records.jsonl")
    page = fidelity_page(records, out / "index.html", classes=classes)
    console.print(fidelity_table(records))
    found = verdict(records)
    warnings = [f"WARNING: {line}" for line in found.warnings]
    say("", f"{found.headline}.", *found.lines, *warnings, f"The page: {page.resolve()}")


def compare_with_retraining(problem: "LabellingProblem", **settings: Any) -> list[dict[str, Any]]:
    """``foretaste.study.fidelity`` behind a bar. After the first retraining it says how long all will take."""
    from foretaste.study import fidelity

    p, began = problem, time.perf_counter()
    with progress_bar("retraining") as progress:

        def show(done: int, total: int) -> None:
            if done == 1:
                one = time.perf_counter() - began
                each, all_ = format_seconds(one), format_seconds(one * total)
                say(f"{total} retrainings of about {each} each: about {all_} in all.")
            progress(done, total)

        return fidelity(
            p.net, p.x_L, p.y_L, p.x_U, y_U=p.y_U, ids=p.ids, loss=p.loss, normalise=p.normalise, progress=show,
            **settings,
        )  # fmt: skip


def demo_points() -> "tuple[Points, list[str | None]]":
    """40 labelled digits and a pool of 400, and the true labels of the pool."""
    from foretaste.data import Points, digits

    data = digits()
    x = data.x.float() / 255 / data.normalise[1][0] if data.normalise else data.x.float() / 255
    ids = data.pool[:440]
    labels: list[str | None] = [data.classes[int(c)] for c in data.y[ids]]
    known = [*labels[:40], *[None] * 400]
    return Points("digits", "features", x[ids], [str(i) for i in ids], known, True), labels[40:]
