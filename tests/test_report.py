"""From records alone: intervals, words, figures, table and page."""

import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from foretaste import report
from foretaste.report._curves import spread
from foretaste.report._table import seconds
from foretaste.study import load, save

HOSTILE = '<script>alert("x")</script>&amp;$\\frac{$ \'"[bold]'
TOPS = {"gain": 0.9, "margin": 0.8, "random": 0.7}


def record(strategy="random", seed=0, cycle=0, **over):
    asks = cycle < 2
    return {
        "strategy": strategy,
        "seed": seed,
        "cycle": cycle,
        "labelled": 20 + 10 * cycle,
        "accuracy": 0.5,
        "residual": 1e-4,
        "train_seconds": 0.4,
        "query_seconds": 0.02 if asks else None,
        "queried": [7, 3] if asks else [],
        "predicted": [1, 2] if asks else [],
        "labels": [1, 0] if asks else [],
        "scale": 0.1 if strategy == "gain" else None,
    } | over


def records(tops=TOPS, seeds=3, noise=0.004):
    """Three cycles; each strategy at its own height after the first, with a wobble by seed."""
    return [
        record(name, s, c, accuracy=0.5 if c == 0 else top + noise * ((s * 7 + c + k) % 3))
        for k, (name, top) in enumerate(tops.items())
        for s in range(seeds)
        for c in range(3)
    ]


class Links(HTMLParser):
    """Collects what a browser would run or fetch, and checks that tags are closed in order."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self):
        super().__init__()
        self.open, self.scripts, self.fetched, self.text, self.ids = [], 0, [], "", []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.scripts += tag == "script" or any(name.startswith("on") for name, _ in attrs)
        self.fetched += [v for k, v in attrs if k in ("src", "href", "xlink:href") and not v.startswith(("data:", "#"))]
        self.ids += [v for k, v in attrs if k == "id"]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(path):
    seen = Links()
    seen.feed(path.read_text(encoding="utf-8"))
    seen.close()
    assert seen.open == []
    return seen


@pytest.mark.parametrize("n", [2, 3, 8])
def test_interval_is_scipys(n):
    values = np.random.default_rng(n).normal(90, 2, n)
    got = report.interval(list(values))
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    np.testing.assert_allclose([got.mean - got.half, got.mean + got.half], [low, high], rtol=1e-12)


def test_one_value_has_no_interval():
    got = report.interval([3.0])
    assert (got.mean, got.half, got.n, got.decided) == (3.0, None, 1, False)
    with pytest.raises(ValueError, match="no values"):
        report.interval([])


def test_lead_is_paired_by_seed():
    """Seeds that differ by far more than the strategies leave a paired interval narrow."""
    rows = [
        record(name, s, c, accuracy=0.5 + 0.1 * s + up * (c > 0))
        for name, up in (("gain", 0.02), ("random", 0))
        for s in range(3)
        for c in range(3)
    ]
    s = report.summarize(rows)
    assert s.lead("gain", "random").mean == pytest.approx(2.0)
    assert s.lead("gain", "random").half == pytest.approx(0, abs=1e-9)
    assert s.average("gain").half > 10
    assert s.average("gain").mean == pytest.approx(62.0)  # the cycles after the first query
    assert s.difference("gain", "random", 0).mean == 0


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda r: [], "no records"),
        (lambda r: r[:-1], "1 records are missing.*'random', seed 2, cycle 2"),
        (lambda r: [r[0] | {"labelled": 21}, *r[1:]], r"cycle 0 has \[20, 21\] labels"),
    ],
)
def test_uneven_records_are_refused(spoil, says):
    with pytest.raises(ValueError, match=says):
        report.summarize(spoil(records()))


def test_headline_says_who_is_ahead_and_by_how_much():
    s = report.summarize(records())
    lead = s.lead("gain", "margin")
    assert report.headline(s) == f"gain came out best, {lead.mean:.1f} points above margin"
    assert "points above margin and" in report.details(s)
    assert report.savings(s).endswith("was reached by gain with 30; margin with 30.")


def test_headline_does_not_decide_what_intervals_leave_open():
    s = report.summarize(records({"gain": 0.9, "margin": 0.8995, "random": 0.7}, noise=0.02))
    assert report.headline(s) == "gain and margin came out best"
    assert "cannot be told apart from margin" in report.details(s)
    s = report.summarize(records({"gain": 0.801, "margin": 0.8}, noise=0.02))
    assert "no strategy is clearly ahead" in report.headline(s)
    s = report.summarize(records(seeds=1))
    assert report.headline(s) == "gain came out best, on a single seed"
    assert "may be chance" in report.details(s)
    assert "no interval" in report.caveat(s)


def test_headline_leaves_out_a_wobbly_straggler():
    """The lowest of all may be undecided by its own scatter; that does not put it among the best."""
    rows = [r | {"accuracy": 0.2 + 0.25 * r["seed"]} if r["strategy"] == "random" else r for r in records()]
    s = report.summarize(rows)
    assert not s.lead("gain", "random").decided
    assert report.headline(s).startswith("gain came out best")
    assert "cannot be told apart from random" in report.details(s)


def test_headline_when_random_wins():
    s = report.summarize(records({"gain": 0.7, "random": 0.9}))
    assert report.headline(s).startswith("random came out best")
    assert report.savings(s).startswith("No other strategy reached")


@pytest.mark.parametrize("seeds", [1, 3])
def test_page_is_self_contained(tmp_path, seeds):
    pixels = np.eye(8)
    out = report.page(
        records(seeds=seeds),
        tmp_path / "new" / "index.html",
        pictures={7: pixels, 3: pixels},
        about={"command": "a <b>"},
    )
    seen = read(out)
    text = out.read_text(encoding="utf-8")
    assert (seen.scripts, seen.fetched) == (0, [])
    assert len(seen.ids) == len(set(seen.ids)) > 0
    assert not re.search(r"url\((?!#)|@import", text)
    assert text.count("data:image/png;base64,") == 3 * 2 * 2  # strategies × cycles × points
    assert "1 of 2 mistaken, 2 classes" in seen.text
    assert "a <b>" in seen.text
    assert ("95 %" in seen.text) == (seeds > 1)
    for name in TOPS:
        assert seen.text.count(name) >= 3  # both charts, the table


def test_page_escapes_a_hostile_name(tmp_path):
    out = report.page(
        records({HOSTILE: 0.9, "random": 0.7}), tmp_path / "index.html", title=HOSTILE, about={HOSTILE: HOSTILE}
    )
    seen = read(out)
    assert (seen.scripts, seen.fetched) == (0, [])
    assert seen.text.count(HOSTILE) >= 6  # title twice, headline, table, charts, about twice
    assert "<script" not in out.read_text(encoding="utf-8")


def test_page_without_random_has_no_difference(tmp_path):
    seen = read(report.page(records({"gain": 0.9, "margin": 0.8}), tmp_path / "index.html"))
    assert "Difference" not in seen.text
    assert "random" not in seen.text
    assert len(report.curves(records({"gain": 0.9, "margin": 0.8})).axes) == 1
    assert len(report.curves(records()).axes) == 2


def test_page_says_when_training_did_not_interpolate(tmp_path):
    good, bad = records(), [*records()[:-1], record("random", 2, 2, accuracy=0.7, residual=0.02)]
    assert "at most 1.0e-04" in read(report.page(good, tmp_path / "good.html")).text
    assert "2.0e-02" in read(report.page(bad, tmp_path / "bad.html")).text


def test_records_survive_a_file(tmp_path):
    save(records(), tmp_path / "records.jsonl")
    assert load(tmp_path / "records.jsonl") == records()
    again = report.page(load(tmp_path / "records.jsonl"), tmp_path / "a.html").read_bytes()
    assert again == report.page(records(), tmp_path / "b.html").read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        save([record(accuracy=float("nan"))], tmp_path / "x.jsonl")
    assert json.loads((tmp_path / "records.jsonl").read_text().splitlines()[0])["strategy"] == "gain"


def test_curves_draw_the_means_and_intervals():
    rows = records()
    s = report.summarize(rows)
    ax = report.curves(rows).axes[0]
    lines = {tuple(np.round(line.get_ydata(), 9)) for line in ax.lines}
    assert lines == {tuple(round(s.accuracy(name, c).mean, 9) for c in range(3)) for name in TOPS}
    bars = [bar.get_segments()[0][:, 1] for bar in ax.collections]
    ends = [s.accuracy(name, c) for name in TOPS for c in (1, 2)]  # the start is shared, and has none
    np.testing.assert_allclose(bars, [[e.mean - e.half, e.mean + e.half] for e in ends])
    assert {t.get_text() for t in ax.texts} == set(TOPS)


def test_table_fits_eighty_columns():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.table(records({"gain [bold]sequential": 0.9, "random": 0.7})))
    text = console.export_text()
    assert "gain [bold]sequential" in text
    assert max(map(len, text.splitlines())) <= 80
    s = report.summarize(records({"gain [bold]sequential": 0.9, "random": 0.7}))
    assert f"{s.average('random').mean:.1f}" in text
    assert f"{s.lead('gain [bold]sequential', 'random').mean:+.1f}" in text


@pytest.mark.parametrize(
    ("t", "text"), [(123.4, "123"), (1.26, "1.3"), (0.0304, "0.030"), (0.0004, "<0.001"), (0, "<0.001")]
)
def test_seconds_have_two_digits(t, text):
    assert seconds(t) == text


@pytest.mark.parametrize(
    ("places", "expect"),
    [([0, 5], [0, 5]), ([1, 1], [0.5, 1.5]), ([0, 0, 0], [-1, 0, 1]), ([0, 0.5, 9], [-0.25, 0.75, 9]), ([], [])],
)
def test_spread_moves_names_apart_no_more_than_needed(places, expect):
    np.testing.assert_allclose(spread(places, 1.0), expect)
