"""A progress bar for work that calls ``progress(done, total)``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from foretaste.cli._app import console


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    if not console.is_terminal:  # in a log it would be lines of nothing
        yield lambda done, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
