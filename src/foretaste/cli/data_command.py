"""``foretaste data list`` and ``foretaste data get``: data sets known by name."""

from pathlib import Path
from typing import Annotated, Any

import typer

from foretaste.cli.app import PlainGroup, app, console, counting_bar, say, with_examples
from foretaste.errors import check_known, format_bytes

data_app = typer.Typer(
    help="Data sets: which are known, which are on disk, and how to get them.", no_args_is_help=True, cls=PlainGroup
)
app.add_typer(data_app, name="data")

DataFolder = Annotated[
    Path | None, typer.Option(help="Where data sets are kept. Default: $FORETASTE_DATA, or ~/.cache/foretaste.")
]


@data_app.command("list", **with_examples())
def list_data(folder: DataFolder = None) -> None:
    """List the data sets known by name, their licences, and where they are."""
    from rich.table import Table

    from foretaste.data import CATALOGUE, find_named, home

    root = (folder or home()).expanduser()
    table = Table(box=None, pad_edge=False)
    for column in ("name", "images", "classes", "size", "licence", "found"):
        table.add_column(column, justify="right" if column == "classes" else "left", overflow="fold")
    table.add_row("digits", "1.2k + 600", "10", "8×8×1", "CC BY 4.0", "in scikit-learn")
    for name, source in CATALOGUE.items():
        found = find_named(name, root)
        where = f"no ({format_bytes(source.size)})" if found is None else [*found.place.relative_to(root).parts, "."][0]
        where += " (not complete)" if found is not None and found.missing else ""
        table.add_row(name, source.images, str(source.classes), source.shape, source.licence, where)
    say(f"Looked in {root}. Images are pool + test; the size of a download is in brackets.")
    console.print(table)


@data_app.command("get", **with_examples("foretaste data get cifar10"))
def get_data(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="One or more names of `foretaste data list`.")],
    folder: DataFolder = None,
    force: Annotated[bool, typer.Option("--force", help="Download again what is there already.")] = False,
) -> None:
    """Download data sets from their publishers. Files that are there and correct are kept."""
    from foretaste.data import CATALOGUE

    for name in names:
        check_known("data set", name, CATALOGUE)  # all of them, before the first byte
    for name in dict.fromkeys(names):
        _download_with_bars(name, folder, force)


def _download_with_bars(name: str, folder: Path | None, force: bool) -> None:
    """Download one data set, one bar for each file; then print its licence and paper."""
    from foretaste.data import CATALOGUE, get

    tasks: dict[str, Any] = {}
    with counting_bar(downloads=True) as bars:

        def show(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done)

        place = get(name, folder, progress=show, force=force)
    source = CATALOGUE[name]
    say(
        f"{name}: {place} ({'fetched' if tasks else 'there already'})",
        f"  licence: {source.licence}; paper: {source.cite}",
    )
