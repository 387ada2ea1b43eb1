"""``foretaste run``: a study from a configuration, into a folder that it can be taken up again from."""

from pathlib import Path
from typing import Annotated, Any

import typer

from foretaste.cli._app import app, console, cores
from foretaste.cli._watch import watched


def _listed(wanted: bool) -> None:
    if wanted:
        from foretaste.study import read, shipped

        for name in shipped():
            console.print(f"{name:<12} {read(name).title}", markup=False, highlight=False)
        raise typer.Exit


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="A .toml file, or the name of a study that comes along (see --list).")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, such as train.max_lr=0.1 or seeds=[0,1].")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME unless told.")] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="All of it, shrunk to a minute: a look, not a result.")
    ] = False,
    processes: Annotated[int | None, typer.Option(min=1, help="One a core, or one a GPU, unless told.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda (all cards), cuda:1, or auto.")] = "auto",
    plugin: Annotated[list[str] | None, typer.Option(help="A Python file that registers strategies of yours.")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Say what it would cost, and stop.")] = False,
    list_: Annotated[
        bool, typer.Option("--list", callback=_listed, is_eager=True, help="Name the studies that come along.")
    ] = False,
) -> None:
    """Run a study: every arm with every seed, Algorithm 1. Killed and started again, it goes on."""
    from foretaste import report
    from foretaste.study import about, prepared, read
    from foretaste.study import estimate as costs
    from foretaste.study import smoke as smaller
    from foretaste.study._description import belongs, describe
    from foretaste.study._folder import alone
    from foretaste.study._pictures import keep_pictures

    study = read(config, changes or [], plugins=plugin or [])
    study = smaller(study) if smoke else study
    folder = out or Path("runs") / (Path(config).stem + ("-smoke" if smoke else ""))
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; expected a folder, or the name of a new one")
    where = devices(device)
    if folder.exists() and not estimate:
        with alone(folder):  # before anything is read and measured in vain
            belongs(folder, study)
    n = min(processes or (cores() if where == ("cpu",) else len(where)), len(study.names) * len(study.seeds))
    data = prepared(study.data, where[0], standin=smoke)
    for note in data.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    if not smoke and study.experiment == "loop":
        with console.status("measuring a few steps and queries of each arm, to say what it will cost"):
            cost = costs(study, data)
        console.print(cost.words(n), markup=False, highlight=False)
    if estimate:
        raise typer.Exit
    words = about(study, data, command=command(config, changes, plugin, smoke), processes=n, device=where[0])
    with alone(folder):
        belongs(folder, study)
        describe(folder, study, told(data, words, smoke))
    records = watched(study, n, folder=folder, devices=where, standin=smoke)
    keep_pictures(folder, data, records)
    page = report.folder(folder)
    if study.experiment == "loop":
        console.print(report.table(records))
    console.print(f"\nThe page: {page.resolve()}", markup=False, highlight=False, soft_wrap=True)


def told(data: Any, words: dict[str, str], smoke: bool) -> dict[str, Any]:
    """What study.json says besides the configuration."""
    standin = [note for note in data.notes if "not a result" in note]
    shrunk = ["Shrunk by --smoke: a look at the machinery, not a result"] if smoke else []
    return {
        "classes": list(data.classes),
        "about": words,
        "data": data.name,
        "data_notes": [note for note in data.notes if note not in standin],
        "standin": ". ".join([*standin, *shrunk]) or None,
    }


def command(config: str, changes: list[str] | None, plugins: list[str] | None, smoke: bool) -> str:
    """What makes the same records again."""
    import shlex

    given = [("--set", one) for one in changes or []] + [("--plugin", one) for one in plugins or []]
    return shlex.join(["foretaste", "run", config, *sum(given, ()), *(["--smoke"] if smoke else [])])


def devices(name: str) -> tuple[str, ...]:
    """Those that a study's processes take turns on."""
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
    torch.device(name)
    return (name,)
