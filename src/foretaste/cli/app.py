"""What every command shares: the application, the console, error messages and progress bars."""

import logging
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.segment import Segment
from typer.core import TyperCommand, TyperGroup

from foretaste.errors import printable
from foretaste.files import is_disk_full

if TYPE_CHECKING:
    from rich.progress import Progress


class SafeConsole(Console):
    """A console that escapes control characters: names of files, labels and arms may hold some.

    Rich's own escape codes (colours, the cursor of a bar) are not text, and stay.
    """

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


console = SafeConsole(emoji=False)  # :x: in a name stays as it is

# Arguments of the library that are no options of the command line.
PYTHON_NAMES = {"x_L": "the labelled points", "x_U": "the pool", "y_L": "the labels"}

# In --help: what newcomers need first.
COMMAND_ORDER = ("demo", "query", "label", "status", "serve", "fidelity", "run", "report", "data", "doctor")
RESUMING = ("demo", "run", "data", "label")  # commands that go on where they were interrupted
GIVEN_WORDS = f"{__name__}.words"  # of the command line, in the context's ``meta``


class FlagsWithoutType:
    """Help in which a flag takes no value: typer shows it as <bool>."""

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return list(params)


class ForetasteCommand(FlagsWithoutType, TyperCommand):
    """One command."""


class PlainGroup(FlagsWithoutType, TyperGroup):
    """Several commands."""


def with_examples(*lines: str) -> dict[str, Any]:
    """Arguments of ``app.command`` for a command whose help ends with examples."""
    # An empty line between them: older versions of typer join lines that have none.
    return {"cls": ForetasteCommand, "epilog": "\n\n".join(["Examples:", *lines]) if lines else None}


class ForetasteGroup(PlainGroup):
    """Commands whose errors are one line and exit code 2. With --debug an error is Python's traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=COMMAND_ORDER.index)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ctx.meta[GIVEN_WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        log = logging.getLogger("foretaste")
        console_warnings.find_flags = lambda: self._flags(ctx)  # later: the command is not known yet
        log.addHandler(console_warnings)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            more = "; the same command resumes" if ctx.invoked_subcommand in RESUMING else ""
            SafeConsole(stderr=True).print(f"interrupted{more}")
            raise typer.Exit(130) from None
        except Exception as error:
            from_typer = isinstance(error, typer.Abort) or hasattr(error, "exit_code")
            if from_typer or ctx.params.get("debug"):
                raise
            line = f"error: {name_options(error_line(error), self._flags(ctx))}"
            SafeConsole(stderr=True, soft_wrap=True, emoji=False).print(line, markup=False, highlight=False)
            raise typer.Exit(2) from None
        finally:
            log.removeHandler(console_warnings)

    def _flags(self, ctx: Any) -> dict[str, str]:
        """Python name → flag, for the options of the command that was called."""
        command = self.commands.get(ctx.invoked_subcommand)
        params = [p for c in (command, *getattr(command, "commands", {}).values()) for p in getattr(c, "params", [])]
        flags = {p.name.rstrip("_"): p.opts[0] for p in params if p.opts[0].startswith("-")}
        size = flags.get("n") or flags.get("batch")
        return flags | ({"batch_size": size} if size else {})


class ConsoleWarnings(logging.Handler):
    """Prints what foretaste logs as a warning, and counts it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count = 0
        self.find_flags: Callable[[], dict[str, str]] = dict

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        say(f"WARNING: {name_options(record.getMessage(), self.find_flags())}")


console_warnings = ConsoleWarnings()


def error_line(error: Exception) -> str:
    """An exception as one line. The type is named only where the message was not written for users."""
    kind = "" if isinstance(error, (ValueError, OSError, RuntimeError)) else f"{type(error).__name__}: "
    if is_disk_full(error) and "the disk is full" not in str(error):
        kind = "the disk is full; free some space and run the same command again: "
    return " ".join(f"{kind}{error}".split())


def name_options(text: str, flags: dict[str, str]) -> str:
    """The same message, with options of the command line in place of Python arguments.

    >>> flags = {"size": "--size", "skip_broken": "--skip-broken"}
    >>> name_options("give size= (pixels a side), or skip_broken=True", flags)
    'give --size (pixels a side), or --skip-broken'
    """
    flags = PYTHON_NAMES | flags
    names = "|".join(sorted(flags, key=len, reverse=True))

    def option(found: re.Match[str]) -> str:
        name, ending = found[1], found[2]
        # Without "=" a name counts only if it cannot be an English word, or if the message begins with it.
        if not ending and "_" not in name and not (found.start() == 0 and text.startswith(f"{name} is ")):
            return name
        return flags[name] + (" " if ending == "=" and text[found.end() : found.end() + 1].strip(" ),;") else "")

    text = re.sub(r"\S+ \((--[^()]*) on the command line\)", r"\1", text)  # messages that give both names
    # After a dot the name is a key of a study (train.steps=), after a slash a part of a path.
    text = re.sub(rf"(?<![\w./'-])({names})(?![\w/-]|\.\w)(=True\b|=)?", option, text)
    return re.sub(r'--options \{"(\w+)": "?([^{}"]*)"?\}', r"--options \1=\2", text)


app = typer.Typer(
    cls=ForetasteGroup,
    help="Look-ahead active learning: what a network would become if a point were labelled.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"foretaste {version('foretaste')}")
        raise typer.Exit


@app.callback()
def _main_options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    # Threads that spin while they wait make small linear algebra many times slower on shared cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def say(*lines: str) -> None:
    """Print plain lines: no markup, no colours, no wrapping."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def how_made(ctx: typer.Context, seed: int, device: str) -> dict[str, str]:
    """What repeats a page: the command, the seed, the versions, the date."""
    import torch

    from foretaste.study import software_versions

    where = software_versions(torch.device(device))
    return {
        "command": printable(shlex.join(["foretaste", *ctx.meta[GIVEN_WORDS]])),
        "seed": str(seed),
        "versions": ", ".join(f"{name} {version}" for name, version in where.items() if name != "device"),
        "machine": where["device"],
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
    }


def check_output_folder(out: Path | None) -> None:
    """Raise if the folder that --out names is a file."""
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; expected a folder, or the name of a new one")


def counting_bar(*, downloads: bool = False, transient: bool = False) -> "Progress":
    """A bar with a description, a count and the times so far and left; for downloads, with bytes and their speed."""
    from rich import progress as of

    counts = [of.MofNCompleteColumn(), of.TimeElapsedColumn()]
    columns = [of.DownloadColumn(), of.TransferSpeedColumn()] if downloads else counts
    what = of.TextColumn("{task.description}", markup=False)
    return of.Progress(what, of.BarColumn(), *columns, of.TimeRemainingColumn(), console=console, transient=transient)


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that calls ``progress(done, total)``. It disappears when the work ends."""
    if not console.is_terminal:  # in a log file a bar would be many empty lines
        yield lambda done, total: None
        return
    with counting_bar(transient=True) as bars:
        task = bars.add_task(description, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
