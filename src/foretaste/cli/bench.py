"""``foretaste bench``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from foretaste.cli.app import app


@app.command("bench")
def bench_command(
    out: Annotated[Path | None, typer.Option(help="Where the measurements are written.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all cores.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: a look, not a result.")] = False,
    device: Annotated[
        str | None,
        typer.Option(help="cuda: whole queries on a GPU beside their rivals; FORETASTE_DATA has the images."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="With --device: wrn1, resnet18, wrn2, resnet18-10000, picks, training or growth; repeat it."),
    ] = None,
    neural_tangents: Annotated[
        Path | None,
        typer.Option(help="Python of an environment that has neural-tangents: its kernels beside ours."),
    ] = None,
) -> None:
    """Measure ft.ntk beside torch.func and one forward pass on this machine; or queries, with --device."""
    import foretaste.bench

    bench: Any = foretaste.bench
    if device is None and only:
        raise ValueError("--only chooses among the queries of --device cuda; give both")
    if device is None:
        bench.run(quick=quick, out=out, threads=threads, neural_tangents=neural_tangents)
    else:
        bench.run_queries(bench.device_of(device), only=only or (), quick=quick, out=out)
