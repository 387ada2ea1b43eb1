"""``foretaste run``: a study from a configuration file; ``demo``: one on handwritten digits; ``report``: its page."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretaste.cli.app import app, check_output_folder, console, counting_bar, progress_bar, say, with_examples
from foretaste.cli.inputs import find_device
from foretaste.errors import counted

if TYPE_CHECKING:
    from foretaste.report import Summary
    from foretaste.study import Study

machine_option = partial(typer.Option, rich_help_panel="The machine")


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
        int | None, machine_option(min=1, help="Processes at once. Default: one per core, or one per GPU.")
    ] = None,
    device: Annotated[str, machine_option(help="cpu, cuda (all cards), cuda:1, or auto.")] = "auto",
    executor: Annotated[
        str,
        machine_option(help="Where they run: processes; ray or submitit (Slurm), on a cluster; serial, one by one."),
    ] = "processes",
    address: Annotated[
        str | None, machine_option(help="Of a Ray cluster, such as auto. Default: one is started on this machine.")
    ] = None,
    plugin: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="A Python file that registers your own strategies.")
    ] = None,
    minutes: Annotated[
        float | None,
        machine_option(help="Stop after this time, at the next record of each process. The same command resumes."),
    ] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Print what the study would cost, and stop.")] = False,
    list_: Annotated[
        bool, typer.Option("--list", callback=_list_studies, is_eager=True, help="List the studies in the package.")
    ] = False,
) -> None:
    """Run a study: every arm with every seed (Algorithm 1). An interrupted run resumes when started again."""
    from foretaste import study as studies
    from foretaste.executors import Executor, usable_cores
    from foretaste.files import lock_folder
    from foretaste.label import find_answers

    if config is None:
        raise ValueError("CONFIG not given; expected a .toml file, or one of the names of `foretaste run --list`")
    study = studies.read(config, changes or [], plugins=plugin or [])
    study = studies.smoke(study) if smoke else study
    folder = out or Path("runs") / (Path(config).stem + ("-smoke" if smoke else ""))
    check_output_folder(folder)
    how = Executor(executor, address=address, folder=folder if executor == "submitit" else None)
    devices = study_devices("cpu" if executor in ("ray", "submitit") and device == "auto" else device)
    resumes = folder.exists() and not estimate
    if resumes:
        with lock_folder(folder):  # before data is read and costs are measured
            studies.check_folder(folder, study)
    tasks = len(study.names) * len(study.seeds)
    n = min(processes or (usable_cores() if devices == ("cpu",) else len(devices)), tasks)
    with progress_bar(f"features of {study.features.backbone}" if study.features else "reading") as progress:
        data = studies.prepared(
            study.data, devices[0], standin=smoke, features=study.features, progress=progress, answers=find_answers
        )
    say(*(f"note: {note}" for note in data.notes))
    if resumes:
        studies.check_data(folder, study, data)
    if not smoke and study.experiment == "loop":
        with console.status("measuring a few steps and queries of each arm to estimate the cost"):
            cost = studies.estimate(study, data)
        say(cost.words(n))
    if estimate:
        raise typer.Exit
    command = command_line(config, changes, plugin, smoke)
    warning = "Shrunk by --smoke: a look at the machinery, not a result" if smoke else None
    description = studies.describe(study, data, command=command, processes=n, device=devices[0], warning=warning)
    run_and_report(
        study, folder, processes=n, devices=devices, standin=smoke, data=data, description=description,
        minutes=minutes, executor=how,
    )  # fmt: skip


def run_and_report(study: "Study", folder: Path, page: Path | None = None, **arguments: Any) -> None:
    """``foretaste.study.run`` behind a bar; then make the page in the folder ``page`` and print the table."""
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


def command_line(config: str, changes: list[str] | None, plugins: list[str] | None, smoke: bool) -> str:
    """The command that makes the same records again."""
    given = [("--set", one) for one in changes or []] + [("--plugin", one) for one in plugins or []]
    return shlex.join(["foretaste", "run", config, *sum(given, ()), *(["--smoke"] if smoke else [])])


def study_devices(name: str) -> tuple[str, ...]:
    """The devices that the processes of a study share: cuda means all cards."""
    import torch

    where = find_device(name)
    cards = torch.cuda.device_count() if where.type == "cuda" and where.index is None else 0
    return tuple(f"cuda:{k}" for k in range(cards)) or (str(where),)


@app.command("demo", **with_examples())
def demo_command(
    out: Annotated[Path, typer.Option(help="Folder of the page, the figures and the records.")] = Path("demo"),
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds. Default: 5, or 2 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two cycles only: a look, not a result.")] = False,
) -> None:
    """Compare strategies on scikit-learn's handwritten digits: train, query, repeat. Under 90 s on two cores."""
    check_output_folder(out)
    from foretaste.executors import usable_cores
    from foretaste.study import describe, prepared, read

    n = seeds or (2 if quick else 5)
    study = read("demo", [f"seeds={list(range(n))}", *(["labels.cycles=2"] if quick else [])])
    processes, data = min(usable_cores(), n * len(study.arms)), prepared(study.data, "cpu")
    command = f"foretaste demo --seeds {n}" + (" --quick" if quick else "")
    description = describe(study, data, command=command, processes=processes)
    run_and_report(study, out, out, processes=processes, data=data, description=description)


@app.command(
    "report", **with_examples("foretaste report runs/fig2a", "foretaste report runs/warm runs/cold --out comparison")
)
def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders of runs; several are compared.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report. Default: DIR/report, or comparison for several runs.")
    ] = None,
) -> None:
    """Make the page, figures and tables of a run, finished or not, or compare several runs."""
    check_output_folder(out)
    from foretaste import report as make

    if len(runs) == 1:
        page = make.folder(runs[0], out)
        there = make.read_run(runs[0])
        found = [there.summary()] if there.experiment == "loop" else []
    else:
        page = make.compare(runs, out or Path("comparison"))
        found = [group.summary for group in make.groups(runs)]
    for summary in found:
        print_summary(summary)
    say(f"The page: {page.resolve()}")


def print_summary(summary: "Summary") -> None:
    """The table of a study, what is missing, and what its intervals decide."""
    from foretaste.report import details, headline, table

    console.print(table(summary))
    say(*summary.missing, f"\n{headline(summary)}. {details(summary)}\n")
