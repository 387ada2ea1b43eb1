"""The command line. Heavy imports stand inside the commands, so that help is quick."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

if TYPE_CHECKING:
    from foretaste.study import Record, Study

console = Console()


class Clear(TyperGroup):
    """An error is one line and exit code 2; with --debug it is Python's traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted")
            raise typer.Exit(130) from None
        except Exception as error:
            ours = isinstance(error, typer.Abort) or hasattr(
                error, "exit_code"
            )  # the command line's own, handled above
            if ours or ctx.params.get("debug"):
                raise
            kind = "" if isinstance(error, (ValueError, OSError, RuntimeError)) else f"{type(error).__name__}: "
            line = " ".join(f"error: {kind}{error}".split())
            Console(stderr=True, soft_wrap=True).print(line, markup=False, highlight=False)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Clear,
    help="Look-ahead active learning: what a network would become if a point were labelled.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"foretaste {version('foretaste')}")
        raise typer.Exit


@app.callback()
def _common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    # Threads that spin while they wait make small linear algebra many times slower on shared cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the page, the figure and the records.")] = Path("demo"),
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; 5 unless told, 2 with --quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two cycles only: a look, not a result.")] = False,
) -> None:
    """Compare strategies on scikit-learn's handwritten digits: train, query, repeat. Under 90 s on two cores."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; expected a folder, or the name of a new one")
    from foretaste import report
    from foretaste.study import DATA, Study, about, save

    n = seeds or (2 if quick else 5)
    study = Study(seeds=tuple(range(n)), cycles=2 if quick else 7)
    out.mkdir(parents=True, exist_ok=True)
    began, processes = time.perf_counter(), min(cores(), n * len(study.strategies))
    records = watched(study, processes)
    seconds = time.perf_counter() - began

    data = DATA[study.data]()
    save(records, out / "records.jsonl")
    figure = report.curves(records)
    for ending in ("svg", "png"):
        figure.savefig(out / f"curves.{ending}", dpi=160)
    command = f"foretaste demo --seeds {n}" + (" --quick" if quick else "")
    page = report.page(
        records,
        out / "index.html",
        pictures={i: data.picture(i) for record in records for i in record["queried"]},
        classes=data.classes,
        about=about(study, data, command=command, seconds=seconds, processes=processes),
        title="foretaste demo: which handwritten digits to label next",
    )
    summary = report.summarize(records)
    console.print(report.table(records))
    console.print(f"\n{report.headline(summary)}. {report.details(summary)}", markup=False, highlight=False)
    console.print(f"\nThe page: {page.resolve()}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def bench(
    out: Annotated[Path | None, typer.Option(help="Where the measurements are written.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores unless told.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: a look, not a result.")] = False,
) -> None:
    """Measure ft.ntk beside torch.func and one forward pass, on this machine."""
    import foretaste.bench

    run: Any = getattr(foretaste.bench, "run")  # noqa: B009
    run(quick=quick, out=out, threads=threads)


def watched(study: "Study", processes: int) -> "list[Record]":
    """Run a study behind a progress bar."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from foretaste.study import run

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("starting", total=study.trainings)

        def seen(record: "Record") -> None:
            text = f"{record['strategy']}, {record['labelled']} labels: {record['accuracy']:.1%}"
            progress.update(bar, advance=1, description=f"{text:<36}")

        return run(study, processes=processes, seen=seen)


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    app()
