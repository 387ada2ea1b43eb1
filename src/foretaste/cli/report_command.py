"""``foretaste report``: the page, figures and tables of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretaste.cli.app import app, check_output_folder, console, say, with_examples

if TYPE_CHECKING:
    from foretaste.report import Summary


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
