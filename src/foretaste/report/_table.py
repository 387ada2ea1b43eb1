"""The table in the terminal."""

import math
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from foretaste.report._headline import caveat, number
from foretaste.report._summary import Summary, summarize
from foretaste.study.records import Record


def table(records: Iterable[Record]) -> Table:
    """Accuracy at each label count and over cycles, the paired difference to random, and the seconds of a query."""
    s = summarize(records)
    title = "Test accuracy, %, by number of labels"
    out = Table(title=title, caption=caveat(s), title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
    out.padding, out.show_edge = (0, 0, 0, 0), False
    for column in columns(s):
        out.add_column(Text(column), justify="left" if column == "strategy" else "right")
    best = s.ranked()[0]
    for name in s.strategies:
        # The interval on a line of its own, or eight columns do not fit 80 characters.
        first, *cells = row(s, name)
        out.add_row(
            Text(first), *(Text(cell.replace(" ± ", "\n±")) for cell in cells), style="bold" if name == best else None
        )
    return out


def columns(s: Summary) -> list[str]:
    difference = [f"− {s.baseline}"] if s.baseline else []
    return ["strategy", "mean", *difference, "query s", *map(str, s.counts)]


def row(s: Summary, name: str) -> list[str]:
    """The cells of one strategy, as the terminal and the page show them."""
    cells = [name, number(s.average(name))]
    if s.baseline:
        cells.append("" if name == s.baseline else number(s.lead(name, s.baseline), sign=True))
    _, query = s.seconds(name)
    cells.append("" if query is None else seconds(query))
    return cells + [number(s.accuracy(name, c)) for c in range(len(s.counts))]


def seconds(t: float) -> str:
    """Two digits that count: 12, 1.2, 0.12, 0.012."""
    return f"{t:.{max(0, 1 - math.floor(math.log10(t)))}f}" if t >= 0.001 else "<0.001"
