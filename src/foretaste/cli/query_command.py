"""``foretaste query``: which points of a pool to label next, as a ranked CSV and a page."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretaste.cli import inputs as given
from foretaste.cli.app import app, console, console_warnings, how_made, progress_bar, say, with_examples
from foretaste.cli.prepare import describe_network, make_problem, save_problem, split_problem, train_problem
from foretaste.errors import counted, csv_cell, errors_only, format_seconds, printable
from foretaste.files import whole_file

if TYPE_CHECKING:
    from torch import Tensor

    from foretaste.cli.prepare import LabellingProblem
    from foretaste.pick import Query

RANKED_COLUMNS = ("rank", "picked", "id", "score", "predicted", "probability", "margin")
SHOWN_ROWS = 10  # in the terminal
COUNTED_POINTS = 2000  # points of the pool on which changed predictions are counted
EXPLAINED = 100  # picks that the page shows and explains


@app.command(
    "query",
    **with_examples(
        "foretaste query photos/ -n 20",
        "foretaste query reviews.csv --text body --label topic",
        "foretaste query photos/ --strategy margin --network resnet18 --size 64 --save",
    ),
)
def query_command(
    ctx: typer.Context,
    data: given.DataArgument = None,
    labelled: given.LabelledOption = None,
    pool: given.PoolOption = None,
    network: given.NetworkOption = None,
    backbone: given.EncoderOption = None,
    tune: given.TuneOption = None,
    set_: given.SetOption = None,
    weights: given.WeightsOption = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="cover, gain, mlmoc, margin, ... (docs/strategies.md). Default: cover; variance with --regression."
        ),
    ] = None,
    n: Annotated[int, typer.Option("-n", "--number", min=1, help="How many points to choose.")] = 20,
    out: Annotated[Path, typer.Option(help="The ranked CSV.")] = Path("ranked.csv"),
    page: Annotated[
        str | None, typer.Option(help="The HTML page of the chosen points. Default: beside the CSV; none: no page.")
    ] = None,
    select: Annotated[str, given.kernel_option(help="auto, top, greedy or fantasy.")] = "auto",
    output: Annotated[
        str,
        given.kernel_option(
            help="Outputs the kernel is of: auto, sum, signs, first, trace, full, or an output's number."
        ),
    ] = "auto",
    ridge: Annotated[
        float | None,
        given.kernel_option(min=0, help="λ. Default: the strategy's own, or 1e-6 of the kernel's mean diagonal."),
    ] = None,
    budget: given.BudgetOption = None,
    precision: Annotated[
        str, given.kernel_option(help="auto, float32, or on CUDA tf32 or half; float64 for a float64 network.")
    ] = "auto",
    watch: Annotated[
        int | None, given.kernel_option(min=1, help="Score by this many points of the pool, not by all: less memory.")
    ] = None,
    options: Annotated[
        list[str] | None,
        given.kernel_option(metavar="KEY=VALUE", help="Options of the strategy, such as scale=0.1."),
    ] = None,
    use_pool: Annotated[
        str,
        given.kernel_option(
            metavar="auto|off",
            help="auto: learn from the points without a label too, where leave-one-out on the labels says that they "
            "help. They enter the kernel, and a network that is trained here learns their soft labels.",
        ),
    ] = "off",
    label: given.LabelColumnOption = None,
    text: given.TextColumnOption = None,
    id_: given.IdColumnOption = None,
    classes: given.ClassesOption = None,
    loss: given.LossOption = None,
    regression: Annotated[bool, given.data_option("--regression", help="Labels are numbers.")] = False,
    normalise: given.NormaliseOption = None,
    size: given.SizeOption = None,
    channels: given.ChannelsOption = None,
    skip_broken: given.SkipBrokenOption = True,
    store: given.KeptLabelsOption = None,
    steps: given.StepsOption = None,
    max_lr: given.MaxLrOption = None,
    batch: given.BatchOption = 32,
    save: Annotated[
        bool, given.network_option("--save", help="Save the weights trained here, beside the CSV.")
    ] = False,
    device: given.DeviceOption = "auto",
    seed: given.SeedOption = 0,
) -> None:
    """Rank a pool for labelling: labelled points and a pool in, a CSV of ids, scores and predictions out.

    Where nothing is labelled yet, the points that cover the pool come first.
    """
    inputs = given.check_inputs_exist(data, labelled, pool)
    if out.is_dir() or (out.exists() and any(out.samefile(p) for p in (*inputs, weights) if p and p.exists())):
        raise ValueError(f"--out {out} is a folder or one of the inputs; expected the name of a CSV to write")
    page_file = page_path(page, out)
    if save and weights is not None:
        raise ValueError("--save keeps weights that are trained here, and --weights were given; leave one out")
    if tune is not None:
        check_tuning(network=network, weights=weights, save=save, regression=regression, use_pool=use_pool != "off")
    if use_pool not in ("auto", "off"):
        raise ValueError(f"--use-pool {use_pool}; expected auto or off")
    network_options = given.parse_settings(set_, "--set")
    strategy_options = given.parse_settings(options, "--options")
    import foretaste as ft
    from foretaste.network import check_tune

    if tune is not None:
        check_tune(tune)
    strategy = strategy or ("variance" if regression else ft.acquire.DEFAULT_STRATEGY)
    ft.acquire.find_strategy(strategy).settings(strategy_options)  # a wrong name is reported before anything is read
    points, truth = given.read_inputs(
        data, labelled, pool, network=network, weights=weights, encoder=backbone, label=label, text=text, id=id_,
        regression=regression, size=size, channels=channels, skip_broken=skip_broken, store=store, device=device,
        needs_labels=False, tuned=tune is not None,
    )  # fmt: skip
    if not len(points.pool):
        write_ranked([], out)
        say(*(f"note: {note}" for note in points.notes))
        say(f"Nothing is left to choose: every point of {points.where} has a label. Ranking, empty: {out}")
        return
    p = make_problem(
        points, truth, network=network, options=network_options, weights=weights, classes=classes, loss=loss,
        normalise=normalise, device=device, seed=seed, tune=tune,
    )  # fmt: skip
    if save and p.name == "head":
        raise ValueError(
            "--save keeps a network by its name, and a head has none; it is trained in a second. Give --network mlp to "
            "keep one"
        )
    if save and not p.predicts:
        raise ValueError(f"--save keeps weights that are trained here, and {points.where} has no labels; leave it out")
    U = len(p.x_U)
    ask: dict[str, Any] = {
        "strategy": strategy, "select": select, "options": strategy_options, "batch_size": min(n, U), "budget": budget,
        "watch": watch if watch and watch < U else None, "ridge": ridge, "precision": precision,
        "output": int(output) if output.isdecimal() else output, "pool": "auto" if use_pool == "auto" else None,
    }  # fmt: skip
    check_query_settings(p, **ask)
    say(*(f"note: {note}" for note in p.notes))
    for option, wanted, done in (("-n", n, "chosen"), ("--watch", watch or 0, "watched")):
        if wanted > U:
            say(f"note: {option} {wanted}: the pool has {counted(U, 'point')} left, and all of it is {done}")
    if not len(p.x_L):
        hint = "" if points.kind == "pictures" else " (if it has, --label names their column)"
        say(f"{points.where} has no labels{hint}. {first_batch_words(p, strategy)}")
    elif weights is None:
        learnt = {"pool": p.x_U} if use_pool == "auto" and p.classes else {}
        p = train_problem(p, steps=steps, max_lr=max_lr, batch_size=batch, seed=seed, **learnt)
        if save:
            say(f"Weights: {save_problem(p, out.with_suffix('.safetensors'))}")
    choose_points(split_problem(p), ask, seed, out, page_file, how_made(ctx, seed, str(p.x_U.device)))


def check_tuning(**given: Any) -> None:
    """Raise if --tune does not go with other options."""
    if wrong := [f"--{name.replace('_', '-')}" for name, value in given.items() if value]:
        raise ValueError(
            f"--tune trains a part of the backbone, and {' and '.join(wrong)} do not go with it; leave them out"
        )


def first_batch_words(problem: "LabellingProblem", strategy: str) -> str:
    """What is chosen where nothing is labelled."""
    from foretaste.acquire import find_strategy

    how, found = describe_network(problem) + ("" if problem.predicts else ", untrained"), find_strategy(strategy)
    covers = found.covers_first
    what = f"points that cover the pool by the kernel of a network ({how})" if covers else strategy
    return f"This is a first batch: {what}. Label it, then ask again."


def page_path(page: str | None, out: Path) -> Path | None:
    """Where the page goes: beside the CSV unless --page says otherwise; None for --page none."""
    if page == "none":
        return None
    path = out.with_suffix(".html") if page is None else Path(page)
    if path.is_dir() or path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--page {path}; expected the name of an .html file, or none")
    return path


def choose_points(
    problem: "LabellingProblem", ask: dict[str, Any], seed: int, out: Path, page: Path | None, made: dict[str, str]
) -> None:
    """Query, write the ranked CSV and the page, print the summary and the first rows."""
    import foretaste as ft
    from foretaste.tangent import freeze, outputs

    p, before = problem, console_warnings.count
    with progress_bar("choosing") as progress:
        q = ft.query(
            p.net, *p.labelled, p.feed(p.x_U), ids=p.ids, seed=seed, loss=p.loss, progress=progress, **ask,
        )  # fmt: skip
    f_UC = outputs(freeze(p.net, params=lambda name: True), p.feed(p.x_U)) if p.predicts else None
    rows = ranked_rows(p, q, f_UC)
    write_ranked(rows, out)
    summary, warnings = summarise_query(p, q), list[str]()
    say(f"{summary} Ranking: {out}")
    if not _has_learned(p, q):
        advice = ". Train longer (--steps), or run `foretaste fidelity` before you trust the scores"
        why = f": {p.points.contradiction}" if p.points.contradiction else advice
        warnings.append(f"The network has not learned its labels, which look-ahead assumes{why}.")
        if console_warnings.count == before or p.points.contradiction:
            say(f"WARNING: {warnings[0]}")
    show_ranked(rows[: min(len(q), SHOWN_ROWS)])
    if page is not None:
        if not len(p.x_L):
            summary = f"Nothing is labelled yet. {first_batch_words(p, ask['strategy'])} {summary}"
        write_picks(p, q, f_UC, page, ask, summary=summary, warnings=warnings, made=made)
        say(f"The page: {page.resolve()}")


def check_query_settings(
    problem: "LabellingProblem", *, strategy: str, select: str, batch_size: int, options: dict[str, Any], **how: Any
) -> None:
    """Raise with everything that ``ft.query`` would refuse, before anything is trained."""
    from foretaste.acquire import find_strategy
    from foretaste.pick import check_query

    if select == "sequential":
        raise ValueError("--select sequential asks for a label after each pick, in Python; here use greedy or fantasy")
    outputs, output = problem.outputs, how["output"]
    if isinstance(output, int) and output >= outputs:
        expected = "0" if outputs == 1 else f"0 to {outputs - 1}"
        raise ValueError(f"--output {output} and the network has {counted(outputs, 'output')}; expected {expected}")
    if how.get("pool") is not None and find_strategy(strategy).picks:
        raise ValueError(f"--use-pool auto is for scores, and strategy {strategy!r} picks by itself; leave one out")
    found = check_query(
        problem.net, strategy=strategy, select=select, batch_size=batch_size, x_U=problem.x_U, ids=problem.ids,
        options=options, loss=problem.loss, **how,
    ).how  # fmt: skip
    found.check(outputs)
    covers = found.covers_first and (found.coverage is not None or select == "auto")
    if not problem.predicts and "classes" in found.needs and not covers:
        raise ValueError(
            f"{problem.points.where} has no labels, and strategy {strategy!r} asks what a trained network predicts, or "
            "how many classes there are; leave --strategy out (the default covers the pool), or label a few points of "
            "each class first"
        )
    found.settings(options, problem.feed(problem.x_U[:1]))
    if found.picks:
        rehearse_query(problem, strategy=strategy, options=options, **how)


def rehearse_query(problem: "LabellingProblem", **how: Any) -> None:
    """Choose one of three points with the untrained network: a strategy may need layers that the network lacks."""
    import foretaste as ft

    p = replace(problem, x_L=problem.x_L[:3], y_L=problem.y_L[:3])
    with errors_only():  # an untrained network does not fit its labels
        ft.query(p.net, *p.labelled, p.feed(p.x_U[:3]), batch_size=1, loss=p.loss, **how | {"watch": None})


def ranked_rows(problem: "LabellingProblem", q: "Query", f_UC: "Tensor | None") -> list[dict[str, Any]]:
    """One row for each point of the pool: the chosen in the order of choice, then the others by score."""
    from foretaste.losses import probabilities

    p, chosen = problem, q.indices.tolist()
    score_U = [] if q.scores is None else q.scores.tolist()
    rest = sorted(set(range(len(p.x_U))) - set(chosen), key=lambda j: (-score_U[j] if score_U else 0, j))
    predicted_U, top_U2 = [], []
    if f_UC is not None and p.classes:
        predicted_U = [p.classes[c] for c in f_UC.argmax(1).tolist()]
        top_U2 = probabilities(f_UC, p.loss).topk(2).values.tolist()
    elif f_UC is not None:
        predicted_U = [f"{f:.9g}" for f in f_UC[:, 0].tolist()]
    rows = []
    for rank, j in enumerate([*chosen, *rest], 1):
        row = dict.fromkeys(RANKED_COLUMNS, "") | {"rank": rank, "picked": int(rank <= len(chosen)), "id": p.ids[j]}
        if score_U:
            row["score"] = f"{score_U[j]:.9g}"
        if predicted_U:
            row["predicted"] = predicted_U[j]
        if top_U2:
            first, second = top_U2[j]
            row |= {"probability": f"{first:.6g}", "margin": f"{first - second:.6g}"}
        rows.append(row)
    return rows


def write_ranked(rows: list[dict[str, Any]], out: Path) -> None:
    """Write the CSV, all of it or nothing. Ids and classes never become formulas (``csv_cell``)."""
    with whole_file(out) as part, part.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, RANKED_COLUMNS)
        table.writeheader()
        table.writerows({name: csv_cell(str(value)) for name, value in row.items()} for row in rows)


def summarise_query(problem: "LabellingProblem", q: "Query") -> str:
    """A paragraph: what was chosen, how well the labels are learned, and where the time went."""
    p = problem
    made = "with the weights given" if p.predicts else "untrained"
    made = f"trained here in {format_seconds(p.fitted.seconds)}" if p.fitted else made
    text = [
        f"{len(q)} of {counted(len(p.x_U), 'point')} chosen by {q.info['strategy']} ({q.info['select']}); "
        f"network: {p.name}, {made}."
    ]
    residual = p.fitted.residual if p.fitted else q.info.get("residual_L")
    if residual is not None and len(p.x_L):
        text.append(f"Mean squared residual of the {counted(len(p.x_L), 'labelled point')}: {residual:.1e}.")
    if (pool := q.info.get("pool")) is not None:
        text.append(pool_words(pool, len(p.x_L)))
    stages = [f"{name} {format_seconds(s)}" for name, s in q.seconds.items() if name != "total" and s >= 0.005]
    spent = f" ({', '.join(stages)})" if stages else ""
    return " ".join([*text, f"Choosing took {format_seconds(q.seconds['total'])}{spent}."])


def pool_words(pool: dict[str, Any], L: int) -> str:
    """What the points without a label are worth, ``q.info["pool"]``, in one sentence."""
    from foretaste.lookahead import FEWEST_POINTS

    if not L:
        return "The points without a label are in the kernel; what that is worth only labels can tell."
    if pool["points"] < FEWEST_POINTS:
        return (
            f"The points without a label are left out: with {FEWEST_POINTS} points in all they could teach the network."
        )
    if not pool["used"]:
        return "The points without a label do not help here, by leave-one-out on the labels: the network alone chooses."
    right = f"error {pool['error']:.2g} with them, {pool['without']:.2g} without"
    if pool["hits"] is not None:
        right = f"{pool['hits']:.0%} of the labels are predicted right with them, {pool['hits_without']:.0%} without"
    return f"The points without a label help, by leave-one-out: {right}."


def _has_learned(problem: "LabellingProblem", q: "Query") -> bool:
    """Whether the network interpolates its labels, as far as that is known; the threshold is that of ``fit``.

    With the pool in the kernel it need not.
    """
    if q.info.get("pool", {}).get("used"):
        return True
    if problem.fitted:
        return problem.fitted.interpolates
    residual, C = q.info.get("residual_L"), len(problem.classes)
    return residual is None or not C or not len(problem.x_L) or residual <= 0.01 * (1 - 1 / C) / C


def show_ranked(rows: list[dict[str, Any]]) -> None:
    """Print the first rows as a table, without columns that are empty."""
    from rich.table import Table
    from rich.text import Text

    shown = [name for name in RANKED_COLUMNS if name != "picked" and any(row[name] != "" for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in shown:
        table.add_column(name, justify="left" if name in ("id", "predicted") else "right")
    for row in rows:
        numbers = {name: f"{float(row[name]):.4g}" for name in ("score", "probability", "margin") if row[name]}
        table.add_row(*(Text(numbers.get(name, str(row[name]))) for name in shown))
    console.print(table)


# The page: the chosen points as a person sees them, and what their labels would change.


def write_picks(
    problem: "LabellingProblem", q: "Query", f_UC: "Tensor | None", out: Path, ask: dict[str, Any], *, summary: str,
    warnings: list[str], made: dict[str, str],
) -> Path:  # fmt: skip
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
    # With the pool in the kernel the graph needs all of it.
    candidates = chosen if ask.get("pool") is None else range(U)
    try:
        with errors_only():  # the query has warned already
            state = ft.linearize(
                p.net, *p.labelled, p.feed(p.x_U[list(candidates)]), watch=p.feed(p.x_U[watched]), loss=p.loss,
                output=output, ridge=ridge, budget=ask["budget"], pool=ask.get("pool"),
            )  # fmt: skip
            now_W, reasons = state.mean.argmax(1), {}
            for j in chosen:
                k = candidates.index(j)
                parts = []
                for c in p_UC[j].topk(2).indices.tolist():
                    changed = int((state.lookahead(k, c).argmax(1) != now_W).sum())
                    parts.append(f"if {p.classes[c]}, {counted(changed, 'prediction changes', 'predictions change')}")
                text = "; ".join(parts)
                reasons[j] = [f"{text[0].upper()}{text[1:]}."]
    except (ValueError, MemoryError) as error:  # strategies such as margin need no kernel, and have chosen
        return {}, f"What a label would change is not shown: {error}."
    sample = "the pool" if len(watched) == U else f"a sample of the pool, of {U}"
    return reasons, (
        f"Below each: the two likeliest classes, and how many of {counted(len(watched), 'prediction')} on {sample} a "
        "label would change, as look-ahead computes it without training."
    )


def shown_item(problem: "LabellingProblem", i: int) -> dict[str, Any]:
    """The point as a person sees it: a picture, a text, or a row."""
    from PIL import Image

    points, item = problem.points, problem.points.items[i]
    match points.kind:
        case "pictures" if hasattr(item, "numpy"):  # pixels (channels, height, width)
            pixels = ((item.clamp(0, 1) * 255).round().byte() if item.is_floating_point() else item).numpy()
            array = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy()
            return {"picture": Image.fromarray(array)}
        case "pictures":
            return {"picture": item}
        case "text" | "clips":
            return {"text": str(item)}
        case "table":
            return {"row": item}
        case _:
            return {"row": {name: f"{v:.6g}" for name, v in zip(points.columns, item.tolist())}}
