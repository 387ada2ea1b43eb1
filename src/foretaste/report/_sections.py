"""The sections of a study's page, each from a Summary."""

from collections.abc import Mapping, Sequence
from html import escape

from foretaste.report._areas import areas
from foretaste.report._curves import learning
from foretaste.report._draw import LONGEST, Chart
from foretaste.report._headline import caveat, details, gains, learned, savings
from foretaste.report._inline import card, swatch
from foretaste.report._palette import inks
from foretaste.report._summary import Summary
from foretaste.report._table import columns, row
from foretaste.report._times import spent, times
from foretaste.report._wins import EXPLAINED, comparable, wins
from foretaste.report._words import number, seconds, size


def words(s: Summary) -> str:
    """What came out, and how far it can be trusted."""
    good, residual = learned(s)
    text = "".join(f"<p>{escape(line)}</p>\n" for line in (details(s), gains(s), savings(s)) if line)
    if s.missing:
        text += f"<p class=warning>Not all of it is there. {escape(' '.join(s.missing))}</p>\n"
    text += f"<p class=quiet>{escape(caveat(s))}</p>\n"
    return text + f"<p class={'quiet' if good else 'warning'}>{escape(residual)}</p>\n"


def numbers(s: Summary, name: str) -> str:
    """Everything of one set of arms that is drawn or tabulated; ``name`` keeps ids on one page apart."""
    return _learning(s, name) + _accuracies(s) + _areas(s, name) + _wins(s) + _times(s, name)


def _section(title: str, body: str, note: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{body}<p class=note>{escape(note)}</p></section>\n"


def _cards(s: Summary, charts: Sequence[Chart], name: str) -> str:
    return f"<div class=charts>{''.join(card(s, chart, f'{name}{k}') for k, chart in enumerate(charts))}</div>\n"


def _table(s: Summary, head: Sequence[str], body: Mapping[str, Sequence[str]], left: Sequence[int] = ()) -> str:
    """A row for each arm, its first cell the arm's own; columns ``left`` are words."""
    look, best = inks(s), s.ranked()[0]
    kind = [" class=words" if k in left else "" for k in range(len(head))]
    text = "".join(f"<th scope=col{kind[k]}>{escape(c)}</th>" for k, c in enumerate(head))
    rows = ""
    for name, cells in body.items():
        rows += f"<tr{' class=best' if name == best else ''}>{_first(name, swatch(look[name]))}"
        rows += "".join(f"<td{kind[k]}>{_cell(cell)}</td>" for k, cell in enumerate(cells, start=1)) + "</tr>\n"
    return f"<div class=scroll><table><thead><tr>{text}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n"


def _first(name: str, mark: str) -> str:
    """The head of a row; a long name may break, a short one may not."""
    return f"<th scope=row{' class=long' if len(name) > LONGEST else ''}>{mark}{escape(name)}</th>"


def _cell(cell: str) -> str:
    mean, plus_minus, half = cell.partition(" ± ")
    return escape(mean) + (f" <small>±&nbsp;{escape(half)}</small>" if plus_minus else "")


def _learning(s: Summary, name: str) -> str:
    start = ", but for the start that all share" if s.shared_start else ""
    note = f"Mean over seeds; bars are its 95 % interval{start}." if len(s.seeds) > 1 else "One seed, so no intervals."
    if len(s.bases) > 1:
        note += " Baselines are grey; the table says which is whose."
    return _section("Learning curves", _cards(s, learning(s), f"{name}curves"), note)


def _accuracies(s: Summary) -> str:
    cycles = range(len(s.counts))
    head = columns(s, cycles)
    body = {a: row(s, a, cycles)[1:] for a in s.arms}
    if len(s.bases) > 1:
        head.insert(3, "baseline")
        body = {a: [*cells[:2], s.against.get(a, ""), *cells[2:]] for a, cells in body.items()}
    note = (
        "Mean is over the cycles after the first query, and so is the difference; numbered columns are numbers of "
        "labels. Query s: median seconds of one query, everything included."
    )
    return _section("Test accuracy, %", _table(s, head, body, (3,) if len(s.bases) > 1 else ()), note)


def _areas(s: Summary, name: str) -> str:
    if len(s.counts) == 1:
        return ""
    body = {}
    for a in s.arms:
        body[a] = [number(s.area(a))]
        if a in s.against:
            e = s.area_lead(a, s.against[a])
            said = "one seed" if e.half is None else ("above" if e.mean > 0 else "below") if e.decided else "undecided"
            body[a] += [number(e, sign=True), s.against[a], said]
        elif s.against:
            body[a] += ["", "", ""]
    head = ["arm", "area", *(["difference", "to", "by its interval"] if s.against else [])]
    note = (
        f"Area under the accuracy curve by trapezoids, from {s.counts[0]} to {s.counts[-1]} labels, divided by that "
        "span: a mean accuracy in %, the start included. Differences are paired by seed."
    )
    if s.against and len(s.seeds) > 1:
        note += " A hollow mark: the 95 % interval includes zero."
    return _section("Area under the curve", _cards(s, areas(s), f"{name}areas") + _table(s, head, body, (3, 4)), note)


def _times(s: Summary, name: str) -> str:
    drawn = times(s)
    if not drawn:
        return ""
    cost = {a: spent(s, a) for a in s.arms}
    body = {
        a: ["" if t.query is None else seconds(t.query), t.told, seconds(t.train), size(t.memory)]
        for a, t in cost.items()
    }
    head = ["arm", "query s", "of which", "training s", "peak memory"]
    note = (
        "Medians over seeds and cycles, in seconds: of one query, everything included, of its stages, and of one "
        "training. Peak memory is the most of any cycle: on a GPU of the device, on a CPU of the whole process."
    )
    return _section("What a query costs", _cards(s, drawn, f"{name}times") + _table(s, head, body, (2,)), note)


def _wins(s: Summary) -> str:
    if not comparable(s):
        return ""
    share, look = wins(s), inks(s)
    head = "".join(f"<th scope=col title='{escape(a)}'>{swatch(look[a])}<br>{escape(a)}</th>" for a in s.arms)
    rows = ""
    for i, a in enumerate(s.arms):
        cells = "".join(
            "<td>–</td>" if i == j else f'<td style="--share:{100 * x:.0f}%">{x:.2f}</td>'
            for j, x in enumerate(share[i])
        )
        rows += f"<tr>{_first(a, swatch(look[a]))}{cells}</tr>\n"
    sums = "".join(f"<td>{x:.2f}</td>" for x in share.sum(0))
    table = (
        f"<div class=scroll><table class=wins><thead><tr><th></th>{head}</tr></thead>\n<tbody>\n{rows}</tbody>"
        f"<tfoot><tr><th scope=row>sum</th>{sums}</tr></tfoot></table></div>\n"
    )
    return _section("Who beats whom", table, EXPLAINED)
