"""``foretaste data list`` and ``foretaste data get``."""

from pathlib import Path
from typing import Annotated

import typer

from foretaste.cli._app import app, console

data = typer.Typer(help="Data sets: which are known, which are here, and how to get them.", no_args_is_help=True)
app.add_typer(data, name="data")

Folder = Annotated[
    Path | None, typer.Option(help="Where data sets lie; $FORETASTE_DATA or ~/.cache/foretaste unless told.")
]


@data.command("list")
def list_(folder: Folder = None) -> None:
    """The data sets known by name, their licences, and where they are found."""
    from rich.table import Table

    from foretaste.data import home
    from foretaste.data._catalogue import CATALOGUE
    from foretaste.data._find import size_of
    from foretaste.data._get import found

    root = (folder or home()).expanduser()
    table = Table(box=None, pad_edge=False)
    for column in ("name", "images", "classes", "size", "licence", "found"):
        table.add_column(column, justify="right" if column == "classes" else "left", overflow="fold")
    table.add_row("digits", "1.2k + 600", "10", "8×8×1", "CC BY 4.0", "in scikit-learn")
    for name, source in CATALOGUE.items():
        place = found(name, root)
        where = f"no ({size_of(source.size)})" if place is None else [*place.relative_to(root).parts, "."][0]
        table.add_row(name, source.images, str(source.classes), source.shape, source.licence, where)
    console.print(
        f"Looked for in {root}; images are pool + test, in brackets what there is to get.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print(table)


@data.command("get")
def get_(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="One or more of those listed.")],
    folder: Folder = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch anew what is there already.")] = False,
) -> None:
    """Download data sets from their publishers; a call that was cut short is gone on with by the next one."""
    from foretaste.data._get import check_name

    for name in names:
        check_name(name)  # all of them, before the first byte
    for name in dict.fromkeys(names):
        _fetch(name, folder, force)


def _fetch(name: str, folder: Path | None, force: bool) -> None:
    """One data set behind its bars, a bar a file; then what its publisher asks for."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from foretaste.data import get
    from foretaste.data._catalogue import CATALOGUE

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console) as bars:

        def seen(file: str, done: int, of: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=of)
            bars.update(tasks[file], completed=done)

        place = get(name, folder, progress=seen, force=force)
    source = CATALOGUE[name]
    told = f"{name}: {place} ({'fetched' if tasks else 'there already'})"
    paper = f"  licence: {source.licence}; paper: {source.cite}"
    console.print(f"{told}\n{paper}", markup=False, highlight=False, soft_wrap=True)
