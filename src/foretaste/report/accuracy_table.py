"""Columns and cells of the accuracy table of a study, on the page and in the terminal.

The page inserts its column "baseline" by position (``pages._accuracy_section``): look there when you add one.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from foretaste.errors import format_seconds
from foretaste.report.summary import Summary, query_cost, summarize
from foretaste.report.words import caveat, format_cell
from foretaste.study import Record

if TYPE_CHECKING:
    from rich.table import Table

TERMINAL_WIDTH = 80  # characters


def table(records: Iterable[Record] | Summary) -> "Table":
    """A table for the terminal: accuracies, the paired difference to the baseline, and the time of a query.

    Args:
        records: The records of a study, or a summary of them.

    Returns:
        A rich table, 80 characters wide unless names are very long. It shows as many numbers of labels as fit.

    Example:
        >>> from foretaste import report, study
        >>> report.table(study.load("runs/fig2a")).row_count
        3
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    s = records if isinstance(records, Summary) else summarize(records)
    title = "Test accuracy, %, by number of labels"
    out = Table(title=title, caption=caveat(s), title_justify="left", caption_justify="left", box=SIMPLE_HEAD)
    out.padding, out.show_edge = (0, 0, 0, 0), False
    fixed = [arm_columns(s, []), *(arm_cells(s, name, []) for name in s.arms)]
    # Intervals have a line of their own, or eight columns would not fit 80 characters.
    widths = [max(len(part) for row in fixed for part in row[k].split(" ± ")) for k in range(1, len(fixed[0]))]
    room = TERMINAL_WIDTH - sum(widths) - len(fixed[0]) - min(max(map(len, s.arms)), TERMINAL_WIDTH // 3)
    across = max(2, room // (1 + max(4, len(str(s.counts[-1])))))
    cycles = np.unique(np.linspace(0, len(s.counts) - 1, min(len(s.counts), across)).round().astype(int)).tolist()
    for column in arm_columns(s, cycles):
        out.add_column(Text(column), justify="left" if column == "arm" else "right")
    best = s.ranked()[0]
    for name in s.arms:
        first, *cells = arm_cells(s, name, cycles)
        out.add_row(
            Text(first), *(Text(cell.replace(" ± ", "\n±")) for cell in cells), style="bold" if name == best else None
        )
    return out


def arm_columns(s: Summary, cycles: Sequence[int]) -> list[str]:
    """The head of the table, for these cycles."""
    difference = [f"− {s.baseline or 'baseline'}"] if s.against else []
    return ["arm", "mean", *difference, "query", *(str(s.counts[c]) for c in cycles)]


def arm_cells(s: Summary, name: str, cycles: Sequence[int]) -> list[str]:
    """The cells of one arm, for these cycles."""
    cells = [name, format_cell(s.average(name))]
    if s.against:
        cells.append(format_cell(s.lead(name, s.against[name]), sign=True) if name in s.against else "")
    query = query_cost(s, name).query
    cells.append("" if query is None else format_seconds(query))
    return cells + [format_cell(s.accuracy(name, c)) for c in cycles]
