"""One self-contained HTML page from jinja2 templates: no script, nothing fetched, light and dark.

Templates are in ``templates/``. Everything is escaped, except the SVG of our own charts (``Markup``).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from foretaste.errors import counted, format_bytes, format_seconds, printable
from foretaste.files import write_whole
from foretaste.report.charts import area_charts, bars_are_cut, cost_charts, learning_charts, wins_decidable
from foretaste.report.drawing import LONGEST_NAME, Chart, Ink, arm_inks, css_colours, inline_svg, thumbnail
from foretaste.report.summary import LEAST_SEEDS, Interval, Summary, query_cost, summarize, wins, without_spread
from foretaste.report.words import (
    WINS_EXPLAINED,
    caveat,
    details,
    format_cell,
    headline,
    learned_labels,
    list_stages,
    own_baselines,
    savings,
)
from foretaste.study import Record

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.table import Table

Pictures = Mapping[int, np.ndarray]
PICTURED_QUERIES = 2
PICTURES_PER_QUERY = 20  # of one query
WIDEST_CLASS = 14  # characters below a picture
TERMINAL_WIDTH = 80  # characters


def page(
    records: Iterable[Record] | Summary,
    out: Path,
    *,
    pictures: Pictures | None = None,
    classes: Sequence[str] | None = None,
    about: Mapping[str, str] | None = None,
    title: str = "foretaste",
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Path:
    """Write the page of a study.

    Args:
        records: The records of a study, or a summary of them.
        out: The HTML file to write. Its folder is made if need be.
        pictures: Pixels of queried points by their id, (h, w) or (h, w, 3), in [0, 1] or uint8. None shows none.
        classes: Names of the classes, by class id. None shows the ids.
        about: How the records were made: names and values, listed at the end of the page.
        title: The name of the study.
        notes: Paragraphs on the study, shown below the findings.
        warnings: Reasons why this may not be a result, shown above everything else.

    Returns:
        The path of the page.

    Example:
        >>> from pathlib import Path
        >>> from foretaste import report, study
        >>> report.page(study.load("runs/fig2a"), Path("page.html"), title="MNIST").name
        'page.html'
    """
    s = records if isinstance(records, Summary) else summarize(records)
    how = with_versions(about or {}, s.records.values())
    return render_page(
        "study.html", out, title=title, headline=headline(s), findings=findings(s), notes=notes, warnings=warnings,
        sections=study_sections(s, ""), pictures=_queried_pictures(s, pictures or {}, classes), about=how,
    )  # fmt: skip


def render_page(
    template: str, out: Path, *, title: str, headline: str, notes: Sequence[str] = (), warnings: Sequence[str] = (),
    **context: Any,
) -> Path:  # fmt: skip
    """Fill a template, write it to ``out`` and return that path."""
    html = templates().get_template(template).render(
        title=title, headline=headline, notes=[line.strip() for line in notes if line.strip()], warnings=warnings,
        colours=Markup(css_colours()), **context,
    )  # fmt: skip
    write_whole(out, printable(html))
    return out


@cache
def templates() -> "Environment":
    """The templates of this package, with every value escaped. A name that a template lacks is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = files("foretaste.report").joinpath("templates")
    return Environment(
        loader=FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@dataclass(frozen=True)
class PageRow:
    """A row of a table on a page: its name, then its cells."""

    name: str
    cells: Sequence[str]
    ink: Ink | None = None  # of an arm, shown as a piece of its line
    best: bool = False  # shown in bold
    mark: str = ""  # a few words beside the name

    @property
    def long(self) -> bool:
        """True if the name may take several lines."""
        return len(self.name) > LONGEST_NAME


@dataclass(frozen=True)
class PageTable:
    """A table on a page."""

    columns: Sequence[str]
    rows: Sequence[PageRow]
    words: Collection[int] = ()  # columns that hold words, not numbers


@dataclass(frozen=True)
class PageWins:
    """Who beats whom: shares by row and column, and the sums of columns."""

    rows: Sequence[PageRow]
    shares: Sequence[Sequence[float]]
    sums: Sequence[float]


@dataclass(frozen=True)
class PageSection:
    """A section of a page: its charts, its table, notes below them."""

    title: str
    notes: Sequence[str] = ()
    charts: Sequence[Markup] = ()
    table: PageTable | None = None
    wins: PageWins | None = None


def inline_charts(charts: Iterable[Chart], name: str) -> list[Markup]:
    """Charts as SVG for a template. ``name`` keeps the ids on one page apart."""
    return [Markup(inline_svg(chart, f"{name}{k}")) for k, chart in enumerate(charts)]


def findings(s: Summary) -> dict[str, Any]:
    """What came out, and how far it can be trusted: the sentences below the headline."""
    learned, residual = learned_labels(s)
    return {
        "sentences": [line for line in (details(s), own_baselines(s), savings(s)) if line],
        "missing": " ".join(s.missing),
        "caveat": caveat(s),
        "learned": learned,
        "residual": residual,
    }


def study_sections(s: Summary, name: str) -> list[PageSection]:
    """The charts and tables of one set of arms. ``name`` keeps the ids on one page apart."""
    start = ", but for the start that all share" if s.shared_start else ""
    note = f"Mean over seeds; bars are its 95 % interval{start}."
    if len(s.seeds) < LEAST_SEEDS:
        note = f"{'One seed' if len(s.seeds) == 1 else 'Two seeds'}, so no intervals."
    elif bars_are_cut(s):
        note += " Bars of accuracies are cut at 0 and 100, where arrowheads say that they go on."
    if len(s.bases) > 1:
        note += " Baselines are grey; the table says which is whose."
    curves = PageSection("Learning curves", [note], inline_charts(learning_charts(s), f"{name}curves"))
    sections = [curves, _accuracy_section(s), _area_section(s, name), _wins_section(s), _cost_section(s, name)]
    return [section for section in sections if section is not None]


def _table_of_arms(s: Summary, columns: Sequence[str], cells: Mapping[str, Sequence[str]], *words: int) -> PageTable:
    """A row for each arm; the highest mean is bold."""
    inks, best = arm_inks(s), s.ranked()[0]
    return PageTable(columns, [PageRow(a, row, inks[a], a == best) for a, row in cells.items()], words)


def _accuracy_section(s: Summary) -> PageSection:
    cycles = range(len(s.counts))
    columns = arm_columns(s, cycles)
    cells = {a: arm_cells(s, a, cycles)[1:] for a in s.arms}
    several = len(s.bases) > 1
    if several:
        columns.insert(3, "baseline")
        cells = {a: [*row[:2], s.against.get(a, ""), *row[2:]] for a, row in cells.items()}
    note = (
        "Mean is over the cycles after the first query, and so is the difference; bold is the highest mean. Numbered "
        "columns are numbers of labels. Query: median time of one query, everything included."
    )
    table = _table_of_arms(s, columns, cells, *((3,) if several else ()))
    return PageSection("Test accuracy, %", [note], table=table)


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


def _area_section(s: Summary, name: str) -> PageSection | None:
    if len(s.counts) == 1:
        return None
    cells = {}
    for a in s.arms:
        cells[a] = [format_cell(s.area(a))]
        if a in s.against:
            e = s.area_lead(a, s.against[a])
            cells[a] += [format_cell(e, sign=True), s.against[a], _verdict_of(e)]
        elif s.against:
            cells[a] += ["", "", ""]
    columns = ["arm", "area", *(["difference", "to", "by its interval"] if s.against else [])]
    note = (
        f"Area under the accuracy curve by trapezoids, from {s.counts[0]} to {s.counts[-1]} labels, divided by that "
        "span: a mean accuracy in %, the start included. Differences are paired by seed."
    )
    if s.against and len(s.seeds) > 1:
        note += " A hollow mark: not decided."
    charts = inline_charts(area_charts(s), f"{name}areas")
    return PageSection("Area under the curve", [note], charts, _table_of_arms(s, columns, cells, 3, 4))


def _verdict_of(e: Interval) -> str:
    """above, below, or undecided and why."""
    return f"undecided: {e.doubt}" if e.doubt else "above" if e.mean > 0 else "below"


def _wins_section(s: Summary) -> PageSection | None:
    """One seed or one arm has no such section; two seeds have a sentence instead of the table."""
    if len(s.arms) == 1 or len(s.seeds) == 1 or len(s.counts) == 1:
        return None
    if not wins_decidable(s):
        note = f"Not decided: {len(s.seeds)} seeds are too few, even where they agree. Run 3 or more."
        return PageSection("Who beats whom", [note])
    note = WINS_EXPLAINED
    if n := without_spread(s):
        times = "once" if n == 1 else f"{n} times"
        note += f" {times.capitalize()} a difference is the same in every seed: without spread it is not decided."
    inks, share = arm_inks(s), wins(s)
    rows = [PageRow(a, (), inks[a]) for a in s.arms]
    return PageSection("Who beats whom", [note], wins=PageWins(rows, share.tolist(), share.sum(0).tolist()))


def _cost_section(s: Summary, name: str) -> PageSection | None:
    charts = cost_charts(s)
    if not charts:
        return None
    cells = {}
    for a in s.arms:
        cost = query_cost(s, a)
        cells[a] = [
            "" if cost.query is None else format_seconds(cost.query),
            list_stages(cost),
            format_seconds(cost.train),
            format_bytes(cost.memory) if cost.memory else "",  # 0: could not be measured
        ]
    note = (
        "Medians over seeds and cycles: of one query, everything included, of its stages, and of one training. Peak "
        "memory is the most of any cycle: on a GPU of the device, on a CPU of the whole process."
    )
    columns = ["arm", "query", "of which", "training", "peak memory"]
    table = _table_of_arms(s, columns, cells, 2)
    return PageSection("What a query costs", [note], inline_charts(charts, f"{name}times"), table)


def _queried_pictures(s: Summary, pictures: Pictures, classes: Sequence[str] | None) -> dict[str, Any] | None:
    """The points that each arm queried first, with the first seed; None if there are no pictures of them."""
    seed, inks = s.seeds[0], arm_inks(s)
    arms: list[dict[str, Any]] = []
    for name in s.arms:
        records = [s.records[name, seed, c] for c in range(min(PICTURED_QUERIES, len(s.counts)))]
        queries = [query for r in records if (query := _pictured_query(r, pictures, classes))["pictures"]]
        if queries:
            arms.append({"name": name, "ink": inks[name], "queries": queries})
    if not arms:
        return None
    same = f" At {counted(s.counts[0], 'label')} every arm looks at the same network." if s.shared_start else ""
    note = (
        f"Seed {seed}, in the order of the query.{same} Below each picture: the class that the network predicted, and "
        "the true class where that was wrong."
    )
    names = [
        p[key] for arm in arms for query in arm["queries"] for p in query["pictures"] for key in ("predicted", "true")
    ]
    longest = max(len(word) for name in names for word in name.split() or [""])
    return {"arms": arms, "note": note, "width": min(max(longest, 4), WIDEST_CLASS)}


def _pictured_query(record: Record, pictures: Pictures, classes: Sequence[str] | None) -> dict[str, Any]:
    points = list(zip(record["queried"], record["predicted"], record["labels"]))
    shown = [
        {"src": thumbnail(pictures[i]), "predicted": _class_name(p, classes), "true": _class_name(t, classes)}
        for i, p, t in [point for point in points if point[0] in pictures][:PICTURES_PER_QUERY]
    ]
    wrong, kinds = sum(p != t for _, p, t in points), len(set(record["labels"]))
    note = f"at {counted(record['labelled'], 'label')}: {wrong} of {len(points)} mistaken, "
    note += counted(kinds, "class", "classes")
    if len(shown) < len(points):
        note += f"; {len(shown)} of them shown"
    return {"note": note, "pictures": shown}


def _class_name(c: int, classes: Sequence[str] | None) -> str:
    return classes[c] if classes is not None and 0 <= c < len(classes) else str(c)


def with_versions(about: Mapping[str, str], records: Iterable[Record]) -> dict[str, str]:
    """How a run was made, with the versions of its records. Those of ``about`` are of the last time it was resumed."""
    found = list_versions(records)
    if "versions" in about and " and " not in found.get("device", ""):
        found.pop("device", None)  # the machine is told already
    return dict(about) | found


def list_versions(records: Iterable[Record]) -> dict[str, str]:
    """Versions of Python and packages, and the devices; all that the records name, as machines may differ."""
    seen: dict[str, dict[str, None]] = {}
    for r in records:
        for name, version in r.get("versions", {}).items():
            seen.setdefault(name, {})[str(version)] = None
    devices = {name: list(found) for name, found in seen.items() if name == "device"}
    packages = [f"{name} {' and '.join(found)}" for name, found in seen.items() if name != "device"]
    out = {"versions": ", ".join(packages)} if packages else {}
    return out | {name: " and ".join(found) for name, found in devices.items()}
