"""``foretaste bench``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from foretaste.cli._app import app


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
