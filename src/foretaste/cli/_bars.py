"""A progress bar for work that calls ``progress(done, total)``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from foretaste.cli._app import console

if TYPE_CHECKING:
    from rich.progress import Progress


def counting(transient: bool = False) -> "Progress":
    """What is being done, how much of it is, for how long and how much longer."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=transient)


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    if not console.is_terminal:  # in a log it would be lines of nothing
        yield lambda done, total: None
        return
    with counting(transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
