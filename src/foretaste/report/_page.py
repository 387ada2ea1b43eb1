"""One self-contained HTML page: no script, nothing fetched, light and dark."""

from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np

from foretaste.report._curves import panels
from foretaste.report._headline import caveat, details, headline, savings
from foretaste.report._inline import chart, style, thumbnail
from foretaste.report._palette import inks
from foretaste.report._summary import Summary, summarize
from foretaste.report._table import columns, row, seconds
from foretaste.study.records import Record

Pictures = Mapping[int, np.ndarray]
INTERPOLATED = 1e-3  # look-ahead trusts that the network has learned its labels


def page(
    records: Iterable[Record],
    out: Path,
    *,
    pictures: Pictures | None = None,
    classes: tuple[str, ...] | None = None,
    about: Mapping[str, str] | None = None,
    title: str = "foretaste",
) -> Path:
    """Write the page of a study and return where it is.

    ``pictures`` shows the points asked for, by id, pixels in [0, 1]; ``about`` says how the records were made.
    """
    s = summarize(records)
    parts = [_head(s, title), _charts(s), _numbers(s), _asked(s, pictures or {}, classes), _made(about or {})]
    css = files("foretaste.report").joinpath("page.css").read_text(encoding="utf-8")
    html = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style()}
{css}</style>
</head>
<body>
<main>
{"".join(parts)}</main>
</body>
</html>
"""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(html, encoding="utf-8")
    return out


def _head(s: Summary, title: str) -> str:
    lines = [details(s), savings(s), caveat(s)]
    text = "\n".join(f"<p>{escape(line)}</p>" for line in lines if line)
    name = f"<p class=name>{escape(title)}</p>"
    return f"<header>{name}\n<h1>{escape(headline(s))}</h1>\n{text}\n{_residual(s)}</header>\n"


def _residual(s: Summary) -> str:
    worst = s.residual()
    if worst <= INTERPOLATED:
        return f"<p>Every network learned its labels: their mean squared error is at most {worst:.1e}.</p>\n"
    return (
        "<p class=warning>Not every network learned its labels: the largest labelled mean squared error is "
        f"{worst:.1e}, above {INTERPOLATED:.0e}. Look-ahead scores assume interpolation; train longer.</p>\n"
    )


def _charts(s: Summary) -> str:
    figures = "".join(
        f"<figure>{chart(s, panel, f'chart{k}', title)}</figure>\n"
        for k, (title, panel) in enumerate(panels(s).items())
    )
    note = (
        "Mean over seeds; bars are its 95 % interval, but for the start that all share."
        if len(s.seeds) > 1
        else "One seed, so no intervals."
    )
    return f"<section><h2>Learning curves</h2>\n<div class=charts>{figures}</div>\n<p class=note>{note}</p></section>\n"


def _numbers(s: Summary) -> str:
    look, best = inks(s.strategies), s.ranked()[0]
    head = "".join(f"<th scope=col>{escape(c)}</th>" for c in columns(s))
    body = ""
    for name in s.strategies:
        first, *cells = row(s, name)
        mark = f'<span class=dot style="background:var(--{look[name].name})"></span>'
        body += f"<tr{' class=best' if name == best else ''}><th scope=row>{mark}{escape(first)}</th>"
        body += "".join(f"<td>{_cell(cell)}</td>" for cell in cells) + "</tr>\n"
    training, _ = s.seconds(best)
    note = (
        "Mean is over the cycles after the first query; numbered columns are numbers of labels. Query s: median "
        f"seconds of one query, everything included; training once takes {seconds(training)} s."
    )
    return (
        f"<section><h2>Test accuracy, %</h2>\n<div class=scroll><table><thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}</tbody></table></div>\n<p class=note>{note}</p></section>\n"
    )


def _cell(cell: str) -> str:
    mean, plus_minus, half = cell.partition(" ± ")
    return escape(mean) + (f" <small>±&nbsp;{escape(half)}</small>" if plus_minus else "")


def _asked(s: Summary, pictures: Pictures, classes: tuple[str, ...] | None) -> str:
    """The points of the first two queries of the first seed."""
    seed, look = s.seeds[0], inks(s.strategies)
    blocks = ""
    for name in s.strategies:
        rows = ""
        for cycle in range(min(2, len(s.counts) - 1)):
            record = s.records[name, seed, cycle]
            shown = [
                _picture(pictures[i], _class(said, classes), _class(true, classes))
                for i, said, true in zip(record["queried"], record["predicted"], record["labels"])
                if i in pictures
            ]
            if shown:
                rows += f"<p class=note>at {record['labelled']} labels: {_tally(record)}</p>"
                rows += f"<div class=asked>{''.join(shown)}</div>\n"
        if rows:
            blocks += f'<div><h3 style="color:var(--{look[name].name})">{escape(name)}</h3>\n{rows}</div>\n'
    if not blocks:
        return ""
    note = (
        f"Seed {seed}, in the order asked. At {s.counts[0]} labels every strategy looks at the same network. Below "
        "each picture: what the network took it for, and what it is where that was wrong."
    )
    return f"<section><h2>What each asked for</h2>\n<p>{escape(note)}</p>\n<div class=pairs>{blocks}</div></section>\n"


def _tally(record: Record) -> str:
    n = len(record["queried"])
    wrong = sum(a != b for a, b in zip(record["predicted"], record["labels"]))
    kinds = len(set(record["labels"]))
    return f"{wrong} of {n} mistaken, {kinds} {'class' if kinds == 1 else 'classes'}"


def _class(c: int, classes: tuple[str, ...] | None) -> str:
    return str(c) if classes is None else classes[c]


def _picture(pixels: np.ndarray, said: str, true: str) -> str:
    right = said == true
    words = f"taken for {said}" + ("" if right else f", is {true}")
    below = escape(said) if right else f"<s>{escape(said)}</s> <b>{escape(true)}</b>"
    image = f'<img src="{thumbnail(pixels)}" alt="{escape(words)}" title="{escape(words)}">'
    return f"<figure{'' if right else ' class=wrong'}>{image}<figcaption>{below}</figcaption></figure>"


def _made(about: Mapping[str, str]) -> str:
    if not about:
        return ""
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>\n" for k, v in about.items())
    return f"<section><h2>How it was made</h2>\n<dl>\n{items}</dl></section>\n"
