"""The table in the terminal, whose cells the page shows too."""

from collections.abc import Iterable, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from foretaste.report._headline import caveat
from foretaste.report._summary import Summary, summarize
from foretaste.report._times import spent
from foretaste.report._words import number, seconds
from foretaste.study import Record

WIDE = 80  # characters


def table(records: Iterable[Record] | Summary) -> Table:
    """Accuracy at label counts and over cycles, the paired difference to the baseline, and the seconds of a query."""
    s = records if isinstance(records, Summary) else summarize(records)
    title = "Test accuracy, %, by number of labels"
    out = Table(title=title, caption=caveat(s), title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
    out.padding, out.show_edge = (0, 0, 0, 0), False
    fixed = columns(s, [])
    room = WIDE - sum(map(len, fixed)) - len(fixed) - min(max(map(len, s.arms)), WIDE // 3)
    across = max(2, room // (1 + max(4, len(str(s.counts[-1])))))
    cycles = np.unique(np.linspace(0, len(s.counts) - 1, min(len(s.counts), across)).round().astype(int)).tolist()
    for column in columns(s, cycles):
        out.add_column(Text(column), justify="left" if column == "arm" else "right")
    best = s.ranked()[0]
    for name in s.arms:
        # The interval on a line of its own, or eight columns do not fit 80 characters.
        first, *cells = row(s, name, cycles)
        out.add_row(
            Text(first), *(Text(cell.replace(" ± ", "\n±")) for cell in cells), style="bold" if name == best else None
        )
    return out


def columns(s: Summary, cycles: Sequence[int]) -> list[str]:
    difference = [f"− {s.baseline or 'baseline'}"] if s.against else []
    return ["arm", "mean", *difference, "query s", *(str(s.counts[c]) for c in cycles)]


def row(s: Summary, name: str, cycles: Sequence[int]) -> list[str]:
    """The cells of one arm, as the terminal and the page show them."""
    cells = [name, number(s.average(name))]
    if s.against:
        cells.append(number(s.lead(name, s.against[name]), sign=True) if name in s.against else "")
    query = spent(s, name).query
    cells.append("" if query is None else seconds(query))
    return cells + [number(s.accuracy(name, c)) for c in cycles]
