"""The pictures that each arm asked for."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from foretaste.report._inline import thumbnail
from foretaste.report._palette import inks
from foretaste.report._summary import Summary
from foretaste.study import Record

Pictures = Mapping[int, np.ndarray]
QUERIES = 2
MOST = 20  # pictures of one query


def asked(s: Summary, pictures: Pictures, classes: Sequence[str] | None) -> str:
    """The points of the first two queries of the first seed, or nothing where there are no pictures of them."""
    seed, look = s.seeds[0], inks(s)
    blocks = ""
    for name in s.arms:
        rows = "".join(
            _query(s.records[name, seed, c], pictures, classes) for c in range(min(QUERIES, len(s.counts) - 1))
        )
        if rows:
            blocks += f'<div><h3 style="color:var(--{look[name].name})">{escape(name)}</h3>\n{rows}</div>\n'
    if not blocks:
        return ""
    same = f" At {s.counts[0]} labels every arm looks at the same network." if s.shared_start else ""
    note = (
        f"Seed {seed}, in the order asked.{same} Below each picture: what the network took it for, and what it is "
        "where that was wrong."
    )
    return f"<section><h2>What each asked for</h2>\n<p>{escape(note)}</p>\n<div class=pairs>{blocks}</div></section>\n"


def _query(record: Record, pictures: Pictures, classes: Sequence[str] | None) -> str:
    answers = zip(record["queried"], record["predicted"], record["labels"])
    there = [(i, _class(said, classes), _class(true, classes)) for i, said, true in answers if i in pictures]
    if not there:
        return ""
    shown = "".join(_picture(pictures[i], said, true) for i, said, true in there[:MOST])
    n = len(record["queried"])
    part = f"; {min(len(there), MOST)} of them shown" if min(len(there), MOST) < n else ""
    return f"<p class=note>at {record['labelled']} labels: {_tally(record)}{part}</p><div class=asked>{shown}</div>\n"


def _tally(record: Record) -> str:
    n = len(record["queried"])
    wrong = sum(a != b for a, b in zip(record["predicted"], record["labels"]))
    kinds = len(set(record["labels"]))
    return f"{wrong} of {n} mistaken, {kinds} {'class' if kinds == 1 else 'classes'}"


def _class(c: int, classes: Sequence[str] | None) -> str:
    return classes[c] if classes is not None and 0 <= c < len(classes) else str(c)


def _picture(pixels: np.ndarray, said: str, true: str) -> str:
    right = said == true
    words = f"taken for {said}" + ("" if right else f", is {true}")
    below = escape(said) if right else f"<s>{escape(said)}</s> <b>{escape(true)}</b>"
    image = f'<img src="{thumbnail(pixels)}" alt="{escape(words)}" title="{escape(words)}">'
    return f"<figure{'' if right else ' class=wrong'}>{image}<figcaption>{below}</figcaption></figure>"
