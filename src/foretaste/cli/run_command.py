"""``foretaste run``: a study from a configuration file; ``foretaste demo``: a small one on handwritten digits."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretaste.cli.app import (
    app,
    check_output_folder,
    console,
    counting_bar,
    progress_bar,
    say,
    usable_cores,
    with_examples,
)
from foretaste.cli.report_command import print_summary
from foretaste.errors import counted

if TYPE_CHECKING:
    from foretaste.study import Study


MACHINE_PANEL = "The machine"  # of --help


def _list_studies(wanted: bool) -> None:
    if wanted:
        from foretaste.study import read, shipped

        width = max(map(len, shipped()))
        say(*(f"{name:<{width}}  {read(name).title}" for name in shipped()))
        raise typer.Exit


@app.command(
    "run",
    **with_examples(
        "foretaste run --list",
        "foretaste run fig2a --smoke",
        "foretaste run my_study.toml --set train.steps=600 --out runs/mine",
    ),
)
def run_command(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG", help="A .toml file, or the name of a study in the package (--list names them)."
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="key=value, such as train.max_lr=0.1 or seeds=[0,1]."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/NAME.")] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Shrink the study to about a minute. Its numbers mean nothing.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes at once. Default: one per core, or one per GPU.", rich_help_panel=MACHINE_PANEL
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda (all cards), cuda:1, or auto.", rich_help_panel=MACHINE_PANEL)
    ] = "auto",
    plugin: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="A Python file that registers your own strategies.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Stop after this time, at the next record of each process. The same command resumes.",
            rich_help_panel=MACHINE_PANEL,
        ),
    ] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Print what the study would cost, and stop.")] = False,
    list_: Annotated[
        bool, typer.Option("--list", callback=_list_studies, is_eager=True, help="List the studies in the package.")
    ] = False,
) -> None:
    """Run a study: every arm with every seed (Algorithm 1). An interrupted run resumes when started again."""
    from foretaste.study import check_data, check_folder, describe, lock_folder, read
    from foretaste.study import estimate as estimate_cost
    from foretaste.study import smoke as shrink

    if config is None:
        raise ValueError("CONFIG not given; expected a .toml file, or one of the names of `foretaste run --list`")
    study = read(config, changes or [], plugins=plugin or [])
    study = shrink(study) if smoke else study
    folder = out or Path("runs") / (Path(config).stem + ("-smoke" if smoke else ""))
    check_output_folder(folder)
    devices = study_devices(device)
    if folder.exists() and not estimate:
        with lock_folder(folder):  # before data is read and costs are measured
            check_folder(folder, study)
    tasks = len(study.names) * len(study.seeds)
    n = min(processes or (usable_cores() if devices == ("cpu",) else len(devices)), tasks)
    data = _study_data(study, devices[0], smoke)
    say(*(f"note: {note}" for note in data.notes))
    if folder.exists() and not estimate:
        check_data(folder, study, data)
    if not smoke and study.experiment == "loop":
        with console.status("measuring a few steps and queries of each arm to estimate the cost"):
            cost = estimate_cost(study, data)
        say(cost.words(n))
    if estimate:
        raise typer.Exit
    command = command_line(config, changes, plugin, smoke)
    warning = "Shrunk by --smoke: a look at the machinery, not a result" if smoke else None
    description = describe(study, data, command=command, processes=n, device=devices[0], warning=warning)
    run_and_report(
        study, folder, None, processes=n, devices=devices, standin=smoke, data=data, description=description,
        minutes=minutes,
    )  # fmt: skip


def run_and_report(study: "Study", folder: Path, page: Path | None, **arguments: Any) -> None:
    """Run a study behind a bar; then make its page in the folder ``page`` and print its table.

    ``arguments`` are those of ``foretaste.study.run``.
    """
    from foretaste import report
    from foretaste.label import find_answers
    from foretaste.study import run

    with counting_bar() as bars:
        task = bars.add_task("starting", total=study.size)

        def show(record: Any) -> None:
            text = record["arm"]
            if "accuracy" in record:
                text += f", {counted(record['labelled'], 'label')}: {record['accuracy']:.1%}"
            bars.update(task, advance=1, description=f"{text:<36}")

        records = run(study, folder, seen=show, answers=find_answers, **arguments)
    if len(records) < study.size:
        minutes = arguments["minutes"]
        say(f"Stopped after {minutes:g} min: {len(records)} of {study.size} records. The same command resumes.")
    if not records:
        raise typer.Exit
    written = report.folder(folder, page)
    if study.experiment == "loop":
        print_summary(report.summarize(records))
    say(f"The page: {written.resolve()}")


def _study_data(study: "Study", device: str, smoke: bool) -> Any:
    """The data of a study, behind a bar while features are computed."""
    from foretaste.label import find_answers
    from foretaste.study import prepared

    if study.features is None:
        return prepared(study.data, device, standin=smoke, answers=find_answers)
    with progress_bar(f"features of {study.features.backbone}") as progress:
        return prepared(
            study.data, device, standin=smoke, features=study.features, progress=progress, answers=find_answers
        )


def command_line(config: str, changes: list[str] | None, plugins: list[str] | None, smoke: bool) -> str:
    """The command that makes the same records again."""
    given = [("--set", one) for one in changes or []] + [("--plugin", one) for one in plugins or []]
    return shlex.join(["foretaste", "run", config, *sum(given, ()), *(["--smoke"] if smoke else [])])


def study_devices(name: str) -> tuple[str, ...]:
    """The devices that the processes of a study share."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: torch sees no CUDA device here; use --device cpu")
    count = torch.cuda.device_count()
    if name == "cuda":
        return tuple(f"cuda:{k}" for k in range(count))
    if name.startswith("cuda:") and not (name[5:].isdigit() and int(name[5:]) < count):
        raise ValueError(f"--device {name}: expected cuda:0 to cuda:{count - 1}")
    if name != "cpu" and not name.startswith("cuda:"):
        raise ValueError(f"--device {name}; expected cpu, cuda, cuda:1, or auto")
    return (name,)


@app.command("demo", **with_examples())
def demo_command(
    out: Annotated[Path, typer.Option(help="Folder of the page, the figures and the records.")] = Path("demo"),
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds. Default: 5, or 2 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two cycles only: a look, not a result.")] = False,
) -> None:
    """Compare strategies on scikit-learn's handwritten digits: train, query, repeat. Under 90 s on two cores."""
    check_output_folder(out)
    from foretaste.study import describe, prepared, read

    n = seeds or (2 if quick else 5)
    study = read("demo", [f"seeds={list(range(n))}", *(["labels.cycles=2"] if quick else [])])
    processes, data = min(usable_cores(), n * len(study.arms)), prepared(study.data, "cpu")
    command = f"foretaste demo --seeds {n}" + (" --quick" if quick else "")
    description = describe(study, data, command=command, processes=processes)
    run_and_report(study, out, out, processes=processes, data=data, description=description)
