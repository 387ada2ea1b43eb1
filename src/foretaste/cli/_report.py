"""``foretaste report``."""

from pathlib import Path
from typing import Annotated

import typer

from foretaste.cli._app import app, console


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; several are compared.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the report; DIR/report unless told, comparison for several.")
    ] = None,
) -> None:
    """Make the page, figures and tables of a run, finished or not, or compare several."""
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; expected a folder, or the name of a new one")
    from foretaste import report as make

    if len(runs) == 1:
        page = make.folder(runs[0], out)
        there = make.read(runs[0])
        found = [there.summary()] if there.experiment == "loop" else []
    else:
        page = make.compare(runs, out or Path("comparison"))
        found = [group.summary for group in make.groups(runs)]
    for s in found:
        console.print(make.table(s))
        for line in s.missing:
            console.print(line, markup=False, highlight=False)
        console.print(f"\n{make.headline(s)}. {make.details(s)}\n", markup=False, highlight=False)
    console.print(f"The page: {page.resolve()}", markup=False, highlight=False, soft_wrap=True)
