"""``foretaste demo``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from foretaste.cli._app import app, console, cores
from foretaste.cli._watch import watched


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
    from foretaste.study import about, prepared, read, save

    n = seeds or (2 if quick else 5)
    study = read("demo", [f"seeds={list(range(n))}", *(["labels.cycles=2"] if quick else [])])
    out.mkdir(parents=True, exist_ok=True)
    began, processes = time.perf_counter(), min(cores(), n * len(study.arms))
    records = watched(study, processes)
    seconds = time.perf_counter() - began

    data = prepared(study.data, "cpu")
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
        about=about(study, data, command=command, processes=processes) | {"time": f"{seconds:.0f} s"},
        title=study.title,
    )
    summary = report.summarize(records)
    console.print(report.table(records))
    console.print(f"\n{report.headline(summary)}. {report.details(summary)}", markup=False, highlight=False)
    console.print(f"\nThe page: {page.resolve()}", markup=False, highlight=False, soft_wrap=True)
