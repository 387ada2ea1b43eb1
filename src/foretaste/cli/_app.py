"""What every command shares: the application, and how it tells of an error."""

import errno
import os
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

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
            if isinstance(error, OSError) and error.errno == errno.ENOSPC and "the disk is full" not in str(error):
                kind = "the disk is full; free some space and run the same command again: "
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


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
