"""From records alone: intervals, words, figures, table and page."""

import doctest
import importlib
import io
import json
import re

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from foretaste import report
from foretaste.report.charts import area_charts, cost_charts
from foretaste.report.drawing import arm_inks, make_figure, shorten_names, spread_apart
from foretaste.report.pages import WIDEST_CLASS
from foretaste.report.summary import query_cost
from foretaste.study import load, save
from report_cases import HOSTILE, TOPS, fidelity_records, read_page, record, records, write_run


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
    """Seeds that differ by far more than the arms leave a paired interval narrow."""
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
    assert s.shared_start


def test_the_interval_of_an_area_is_of_paired_differences():
    """Seeds differ by 20 points and the arms by 3 ± 0.1 within a seed: unpaired, nothing would be decided."""
    rows = [
        record(arm, seed, cycle, accuracy=(0.4 if cycle == 0 else 0.4 + 0.2 * seed) + lead * (0.03 + 0.001 * seed))
        for arm, lead in (("gain", 1), ("random", 0))
        for seed in range(3)
        for cycle in range(3)
    ]
    s = report.summarize(rows)
    lead, paired = s.area_lead("gain", "random"), report.interval([3.0, 3.1, 3.2])
    assert lead.mean == pytest.approx(paired.mean)
    assert lead.half == pytest.approx(paired.half)
    assert lead.decided
    assert s.lead("gain", "random").half == pytest.approx(paired.half)


def test_area_is_by_trapezoids_over_labels():
    """Typed out on labels that are not evenly spaced: (10·(50+70)/2 + 30·(70+90)/2) / 40 = 75."""
    labels, heights = (20, 30, 60), (0.5, 0.7, 0.9)
    rows = [
        record(name, s, c, labelled=labels[c], accuracy=heights[c] + up * (s + 1) * (c > 0))
        for name, up in (("gain", 0.01), ("random", 0))
        for s in range(2)
        for c in range(3)
    ]
    s = report.summarize(rows)
    assert s.area("random").mean == pytest.approx(75.0)
    # up by 1 and 2 points: (10·u/2 + 30·u) / 40 = 0.875 u
    lead = s.area_lead("gain", "random")
    assert lead.mean == pytest.approx(0.875 * 1.5)
    assert lead.half == pytest.approx(report.interval([0.875, 1.75]).half)
    assert report.summarize([record("gain", 0, 0, accuracy=0.4)]).area("gain").mean == pytest.approx(40.0)


def test_wins_are_shares_of_cycles_decided():
    """Held against the definition in a slow loop with scipy's interval."""
    rng = np.random.default_rng(0)
    rows = [
        record(name, s, c, last=4, accuracy=float(0.5 + 0.02 * k * c + 0.02 * rng.normal()))
        for k, name in enumerate("abc")
        for s in range(4)
        for c in range(5)
    ]
    accuracy = {(r["arm"], r["seed"], r["cycle"]): r["accuracy"] for r in rows}
    expect = np.zeros((3, 3))
    for i, a in enumerate("abc"):
        for j, b in enumerate("abc"):
            for c in range(1, 5):
                d = np.array([accuracy[a, s, c] - accuracy[b, s, c] for s in range(4)])
                if i != j and stats.t.interval(0.95, 3, loc=d.mean(), scale=stats.sem(d))[0] > 0:
                    expect[i, j] += 1 / 4
    got = report.wins(report.summarize(rows))
    np.testing.assert_allclose(got, expect)
    assert 0 < got.sum() < 6
    assert got[2, 0] > got[0, 2]


def test_baselines():
    names = {"a": 0.9, "b": 0.8, "A random": 0.7, "Random": 0.6}
    rows = [r | {"against": "A random" if r["arm"] == "a" else None} for r in records(names)]
    s = report.summarize(rows)
    assert s.against == {"a": "A random", "b": "Random", "A random": "Random"}
    assert s.bases == ("A random", "Random")
    assert s.baseline is None
    look = arm_inks(s)
    assert {look[name].name for name in s.bases} == {"grey"}
    assert look["A random"].dashes != look["Random"].dashes
    assert report.summarize(records()).baseline == "random"
    assert report.summarize(records({"a": 0.9, "b": 0.8})).against == {}
    lost = report.summarize([r | {"against": "gone"} for r in records({"a": 0.9, "b": 0.8})])
    assert lost.against == {}
    assert "a is to be compared with gone, which is not here." in lost.missing


def test_words_about_own_baselines(tmp_path):
    tops = {"a": 0.9, "a random": 0.7, "b": 0.6, "b random": 0.8, "c": 0.5}
    own = {"a": "a random", "b": "b random", "c": "b random", "a random": "a random"}
    rows = [r | {"against": own.get(r["arm"])} for r in records(tops)]
    rows = [r | {"accuracy": 0.8 + 0.1 * (r["seed"] - 1)} if r["arm"] == "c" else r for r in rows]
    s = report.summarize(rows)
    assert s.against == {"a": "a random", "b": "b random", "c": "b random"}
    text = read_page(report.page(s, tmp_path / "index.html")).text
    lead = s.lead("a", "a random")
    assert f"Above the own baseline: a by {lead.mean:.1f} ± {lead.half:.1f} points." in text
    assert "Below it: b (−" in text
    assert "Undecided: c." in text
    assert "Difference to the baseline of each" in text


def test_eighteen_arms_can_be_told_apart():
    s = report.summarize(records({f"arm {k}": 0.5 for k in range(18)} | {"random": 0.5}, seeds=1))
    look = arm_inks(s).values()
    assert len({(ink.name, ink.dashes) for ink in look}) == 19


def without(rows, **keys):
    return [r for r in rows if not all(r[k] in v for k, v in keys.items())]


def test_unfinished_arms_leave_what_all_have():
    rows = without(records(seeds=5), arm=["margin"], seed=[3], cycle=[1, 2])
    rows = without(rows, arm=["margin"], seed=[4])
    s = report.summarize(rows)
    assert s.seeds == (0, 1, 2)
    assert s.counts == (20, 30, 40)
    said = " ".join(s.missing)
    assert "margin: seed 4 not begun, seed 3 unfinished at 20 labels." in said
    assert "seeds 0, 1, 2 up to 40 labels; 13 further records are left out." in said
    whole = report.summarize([r for r in rows if r["seed"] < 3])
    assert whole.missing == ()
    assert whole.lead("gain", "margin") == s.lead("gain", "margin")


def test_fewer_cycles_with_all_seeds_may_be_more():
    rows = without(records(seeds=5, last=5), arm=["margin"], seed=[1, 2, 3, 4], cycle=[5])
    s = report.summarize(rows)
    assert (s.seeds, len(s.counts)) == ((0, 1, 2, 3, 4), 5)
    assert s.missing[0] == "margin: seeds 1, 2, 3, 4 unfinished at 60 labels."


def test_an_arm_with_no_seed_in_common_is_named():
    rows = without(records(seeds=2), arm=["margin"], seed=[0])
    rows = without(rows, arm=["gain", "random"], seed=[1])
    s = report.summarize(rows)
    assert s.arms == ("gain", "random")
    assert "margin is left out: it shares no seed with the others." in s.missing


def test_a_plan_names_what_has_not_begun_and_sets_the_order():
    plan = {name: report.ArmPlan((0, 1, 2), 3) for name in ("later", "random", "gain", "margin")}
    s = report.summarize(records(), plan)
    assert s.arms == ("random", "gain", "margin")
    assert s.missing[0] == "later: nothing yet."
    more = {name: report.ArmPlan((0, 1, 2, 3), 4) for name in TOPS}
    s = report.summarize(records(), more)
    assert s.missing[0] == "every arm: seed 3 not begun, seeds 0, 1, 2 unfinished at 40 labels."


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda r: [], "no records"),
        (lambda r: [r[0] | {"labelled": 21}, *r[1:]], r"cycle 0 has \[20, 21\] labels"),
        (lambda r: [r[0] | {"accuracy": float("nan")}, *r[1:]], "'gain', seed 0, cycle 0 must be finite"),
        (lambda r: [{"strategy": "gain"}], "no 'arm'"),
        (lambda r: [x for x in r if x["cycle"] > 0], "cycle 0"),
    ],
)
def test_records_that_cannot_be_compared_are_refused(spoil, says):
    with pytest.raises(ValueError, match=says):
        report.summarize(spoil(records()))


def test_other_first_labels_are_told():
    rows = records()
    assert report.summarize(rows).missing == ()
    off = [r | {"labelled_ids": [5, 6]} if (r["arm"], r["seed"]) == ("gain", 1) else r for r in rows]
    assert "seed 1 did not start from the same labels" in report.summarize(off).missing[0]


def test_headline_says_who_is_ahead_and_by_how_much():
    s = report.summarize(records())
    lead = s.lead("gain", "margin")
    assert report.headline(s) == f"gain came out best, {lead.mean:.1f} ± {lead.half:.1f} points above margin"
    assert "points above margin and" in report.details(s)
    e = s.accuracy("random", 2)
    assert report.savings(s) == (
        f"What random reached with 40 labels, {e.mean:.1f} ± {e.half:.1f} %, was reached by gain with 30 (30 in every "
        "seed); margin with 30 (30 in every seed)."
    )


def test_saved_labels_have_their_range_over_seeds():
    """By the means 30 labels are enough; one seed needs 40, and in another 40 do not reach it."""
    at = {"gain": [(0.4, 0.8, 0.9), (0.4, 0.65, 0.9), (0.4, 0.69, 0.69)], "random": [(0.4, 0.6, 0.7)] * 3}
    rows = [record(a, s, c, accuracy=x) for a, runs in at.items() for s, y in enumerate(runs) for c, x in enumerate(y)]
    said = report.savings(report.summarize(rows))
    assert said == (
        "What random reached with 40 labels, 70.0 ± 0.0 %, was reached by gain with 30 (by seed: 30 to more than 40)."
    )
    fewer = report.summarize([r for r in rows if r["seed"] < 2])
    assert report.savings(fewer).endswith("70.0 %, was reached by gain with 30 (by seed: 30 to 40).")
    single = report.summarize([r for r in rows if r["seed"] == 0])
    assert report.savings(single).endswith("70.0 %, was reached by gain with 30.")


def test_a_single_arm_has_its_interval_in_the_headline():
    s = report.summarize(records({"gain": 0.9}))
    e = s.accuracy("gain", 2)
    assert report.headline(s) == f"gain reached {e.mean:.1f} ± {e.half:.1f} % with 40 labels"


def test_headline_says_only_what_the_intervals_say():
    """No arm is called best unless every paired interval says so."""
    s = report.summarize(records({"gain": 0.9, "margin": 0.895, "random": 0.7}, noise=0.02))
    each = [f"{name} (+{e.mean:.1f} ± {e.half:.1f})" for name in s.ranked()[:2] for e in [s.lead(name, "random")]]
    assert report.headline(s) == f"{each[0]} and {each[1]} are above random"
    assert "On these seeds it cannot be told apart from" in report.details(s)
    s = report.summarize(records({"gain": 0.81, "margin": 0.8}, noise=0.02))
    assert report.headline(s) == "gain has the highest mean, but cannot be told from margin"
    s = report.summarize(records(seeds=1))
    assert report.headline(s) == "Nothing is decided: one seed gives no interval"
    assert "may be chance" in report.details(s)
    assert "no interval" in report.caveat(s)
    s = report.summarize([r for r in records() if r["cycle"] == 0])
    assert report.headline(s) == "Nothing has been measured after a query yet"


def wobbling(rows, arm):
    """An arm that scatters by seed far more than arms differ."""
    return [r | {"accuracy": 0.2 + 0.25 * r["seed"]} if r["arm"] == arm and r["cycle"] else r for r in rows]


def test_headline_when_nothing_can_be_told_from_random():
    """gain is ahead of margin by their interval, but neither can be told from a random that scatters."""
    s = report.summarize(wobbling(records(), "random"))
    assert s.ranked()[0] == "gain"
    assert s.lead("gain", "margin").decided
    assert not s.lead("gain", "random").decided
    assert report.headline(s) == "No strategy can be told from random"
    assert "cannot be told apart from random" in report.details(s)
    one = report.summarize(wobbling(records({"gain": 0.9, "random": 0.7}), "random"))
    assert report.headline(one) == "gain cannot be told from random"


def test_headline_names_those_above_below_and_undecided():
    rows = wobbling(records({"gain": 0.9, "margin": 0.8, "random": 0.7, "entropy": 0.6}), "margin")
    s = report.summarize(rows)
    up, down = s.lead("gain", "random"), s.lead("entropy", "random")
    assert report.headline(s) == (
        f"gain is above random by {up.mean:.1f} ± {up.half:.1f} points; "
        f"entropy is below random by {-down.mean:.1f} ± {down.half:.1f} points; margin cannot be told from random"
    )
    without = [r for r in rows if r["arm"] != "random"]
    assert report.headline(report.summarize(without)) == "gain is above entropy, and cannot be told from margin"


def agreeing(seeds):
    """The same difference in every seed: an interval of zero width."""
    return [
        record(name, s, c, accuracy=0.5 + 0.1 * s + up * (c > 0))
        for name, up in (("gain", 0.02), ("random", 0))
        for s in range(seeds)
        for c in range(3)
    ]


@pytest.mark.parametrize(("seeds", "why"), [(1, "one seed"), (2, "2 seeds only"), (3, "no spread over seeds")])
def test_seeds_that_agree_decide_nothing(tmp_path, seeds, why):
    s = report.summarize(agreeing(seeds))
    lead = s.lead("gain", "random")
    assert lead.half is None or lead.half == pytest.approx(0, abs=1e-9)
    assert (lead.decided, lead.doubt) == (False, why)
    assert not report.wins(s).any()
    assert "came out best" not in report.headline(s)
    text = read_page(report.page(s, tmp_path / "index.html")).text
    assert f"undecided: {why}" in text
    if seeds == 2:
        assert report.headline(s) == "Nothing is decided: two seeds are too few for an interval"
        assert "Two seeds decide nothing, even where they agree" in report.caveat(s)
        assert "Not decided: 2 seeds are too few, even where they agree." in text
    if seeds == 3:
        assert report.headline(s) == "gain cannot be told from random"
        assert "The difference to random is the same in every seed: its interval has no width" in report.details(s)
        assert "2 times a difference is the same in every seed" in text  # in both cycles


def test_two_seeds_that_differ_decide_nothing_either():
    s = report.summarize(records(seeds=2, noise=1e-4))
    assert s.lead("gain", "random").half < s.lead("gain", "random").mean
    assert not report.wins(s).any()
    assert report.headline(s) == "Nothing is decided: two seeds are too few for an interval"


def test_two_seeds_have_a_dash_for_an_interval(tmp_path):
    """Student's t of two seeds gives ± 136.7 where they differ by 21.5 points: that says nothing."""
    rows = [r | {"accuracy": r["accuracy"] - 0.215 * r["seed"]} for r in records(seeds=2)]
    s = report.summarize(rows)
    assert s.accuracy("gain", 2).half > 100
    text = read_page(report.page(s, tmp_path / "index.html")).text
    assert re.findall(r"±\s*(.)", text) == ["–"] * (3 * (1 + 3 + 1) + 2 * 2)  # mean, cycles, areas; differences
    assert "Two seeds, so no intervals" in text
    out = io.StringIO()
    Console(file=out, width=80).print(report.table(s))
    assert set(re.findall(r"±(\S+)", out.getvalue())) == {"–"}
    assert not report.curves(s).axes[0].collections  # no bars
    assert not make_figure(area_charts(s)).axes[0].collections
    for words in (report.headline(s), report.details(s), report.savings(s) or "", report.caveat(s)):
        assert "±" not in words


def test_an_interval_wider_than_the_scale_is_a_dash():
    assert report.interval([0.0, 0.0, 100.0]).half > 100
    assert report.interval([0.0, 0.0, 100.0]).shown_half is None
    assert report.interval([2.0, 3.0, 4.0]).shown_half == report.interval([2.0, 3.0, 4.0]).half


def test_headline_when_random_wins():
    s = report.summarize(records({"gain": 0.7, "random": 0.9}))
    assert report.headline(s).startswith("random came out best")
    assert report.savings(s).startswith("No arm compared with random reached")


def test_words_of_many_arms_stay_short():
    s = report.summarize(records({f"arm {k}": 0.9 - 0.02 * k for k in range(14)}))
    assert re.search(r"points above arm \d and 8 others", report.details(s))
    even = report.summarize(records({f"arm {k}": 0.9 for k in range(9)} | {"random": 0.2}))
    assert re.fullmatch(
        r"arm \d \(\+\S+ ± \S+\), arm \d \(\S+ ± \S+\) and 7 others are above random", report.headline(even)
    )


def test_names_with_commas_are_told_apart():
    rows = records({"a": 0.9, "NTK, CE": 0.8, "b": 0.7, "random": 0.6})
    assert re.search(r"points above NTK, CE; \S+ ± \S+ points above b; ", report.details(report.summarize(rows)))


@pytest.mark.parametrize("seeds", [1, 3])
def test_page_is_self_contained(tmp_path, seeds):
    pixels = np.eye(8)
    out = report.page(
        records(seeds=seeds),
        tmp_path / "new" / "index.html",
        pictures={7: pixels, 3: (255 * pixels).astype(np.uint8)},
        about={"command": "a <b>"},
        notes=["Chosen: a <i>rate</i>"],
        warnings=["no data"],
    )
    seen = read_page(out)
    text = out.read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)|@import", text)
    assert text.count("data:image/png;base64,") == 3 * 2 * 2  # arms × cycles × points
    assert len(set(re.findall(r"base64,([^\"]*)", text))) == 1  # floats and bytes alike
    for words in ("1 of 2 mistaken, 2 classes", "a <b>", "Chosen: a <i>rate</i>", "no data", "torch 2.13.0", "cpu x86"):
        assert words in seen.text
    assert ("95 %" in seen.text) == (seeds > 1)
    assert ("Who beats whom" in seen.text) == (seeds > 1)
    assert "kernel 0.015 s, score 0.004 s" in seen.text
    assert "total" not in seen.text
    assert "123 MB" in seen.text
    for name in TOPS:
        assert seen.text.count(name) >= 6  # charts and tables


def test_page_escapes_a_hostile_name(tmp_path):
    rows = [
        r | {"against": HOSTILE} if r["arm"] == "b" else r for r in records({HOSTILE: 0.9, "b": 0.8, "random": 0.7})
    ]
    out = report.page(
        rows, tmp_path / "index.html", title=HOSTILE, about={HOSTILE: HOSTILE}, notes=[HOSTILE], warnings=[HOSTILE]
    )
    seen = read_page(out)
    assert seen.text.count(HOSTILE) >= 10  # title twice, headline, tables, about twice, notes, warnings
    assert shorten_names([HOSTILE])[0] in seen.text  # charts
    assert "<script" not in out.read_text(encoding="utf-8")


def test_page_without_random_has_no_difference(tmp_path):
    seen = read_page(report.page(records({"gain": 0.9, "margin": 0.8}), tmp_path / "index.html"))
    assert "Difference to" not in seen.text
    assert "random" not in seen.text
    assert len(report.curves(records({"gain": 0.9, "margin": 0.8})).axes) == 1
    assert len(report.curves(records()).axes) == 2


def test_page_says_who_did_not_interpolate(tmp_path):
    good, bad = records(), [*records()[:-1], record("random", 2, 2, accuracy=0.7, residual=0.02, interpolates=False)]
    assert "at most 1.0e-04" in read_page(report.page(good, tmp_path / "good.html")).text
    text = read_page(report.page(bad, tmp_path / "bad.html")).text
    assert "random in 1 of 9 trainings did not" in text
    assert "2.0e-02" in text


def test_class_names_are_not_broken(tmp_path):
    """A column below a picture holds the longest name, or what fits of a very long one."""
    pixels, names = np.eye(8), ["cat", "caterpillar", "dromedary camel"]
    out = report.page(records(), tmp_path / "index.html", pictures={7: pixels, 3: pixels}, classes=names)
    text = out.read_text(encoding="utf-8")
    assert "--class-width:11" in text  # caterpillar
    assert "<span>caterpillar</span>" in text
    assert "<s>dromedary camel</s><b>cat</b>" in text
    rules = re.findall(r"[^{}]*(?:figcaption|th)[^{}]*{[^}]*}", text[: text.index("</style>")])
    assert rules
    assert not any("anywhere" in rule or "break-word" in rule for rule in rules)
    long = report.page(records(), tmp_path / "long.html", pictures={7: pixels, 3: pixels}, classes=["x" * 60] * 3)
    assert f"--class-width:{WIDEST_CLASS}" in long.read_text(encoding="utf-8")
    assert "text-overflow: ellipsis" in long.read_text(encoding="utf-8")


def test_every_table_scrolls_by_itself(tmp_path):
    """A table in a box that scrolls sideways leaves the page as wide as a phone."""
    text = report.page(records(last=12), tmp_path / "index.html").read_text(encoding="utf-8")
    assert text.count("<table") == 4
    assert len(re.findall(r"<div class=scroll tabindex=0>\s*<table", text)) == 4
    (rule,) = re.findall(r"^\.scroll {[^}]*}", text, re.M)
    assert "overflow-x: auto" in rule


def test_page_before_the_first_query(tmp_path):
    seen = read_page(report.page([r for r in records(last=0) if r["cycle"] == 0], tmp_path / "index.html"))
    assert "Nothing has been measured after a query yet" in seen.text
    assert "What a query costs" not in seen.text


def test_records_survive_a_file(tmp_path):
    save(records(), tmp_path / "records.jsonl")
    assert load(tmp_path / "records.jsonl") == records()
    again = report.page(load(tmp_path / "records.jsonl"), tmp_path / "a.html").read_bytes()
    assert again == report.page(records(), tmp_path / "b.html").read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        save([record(accuracy=float("nan"))], tmp_path / "x.jsonl")
    assert json.loads((tmp_path / "records.jsonl").read_text().splitlines()[0])["arm"] == "gain"


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
    apart = [r | {"accuracy": 0.4 + 0.01 * r["seed"]} if r["arm"] == "gain" and r["cycle"] == 0 else r for r in rows]
    assert len(report.curves(apart).axes[0].collections) == 9


@pytest.mark.parametrize("top", [0.999, 1.0])
def test_axes_of_accuracy_end_at_100(tmp_path, top):
    """An interval may reach beyond 100 %, the axis may not."""
    rows = [r | {"accuracy": min(r["accuracy"], 1.0)} for r in records({"gain": top, "random": 0.9}, noise=0.03)]
    s = report.summarize(rows)
    assert max(s.accuracy("random", c).mean + s.accuracy("random", c).half for c in range(3)) > 100
    accuracy, difference = report.curves(s).axes
    low, high = accuracy.get_ylim()
    assert 0 <= low < high == 100
    assert difference.get_ylim()[1] != 100
    area, _ = make_figure(area_charts(s)).axes
    assert area.get_xlim()[1] <= 100
    nothing = report.summarize([r | {"accuracy": 0.01 * r["accuracy"]} for r in rows])
    assert report.curves(nothing).axes[0].get_ylim()[0] >= 0


def test_bars_end_at_0_and_100_with_an_arrowhead(tmp_path):
    """No accuracy is beyond them. A bar that only met the frame looked like one that ends there."""
    rows = [r | {"accuracy": min(r["accuracy"], 1.0)} for r in records({"gain": 1.0, "random": 0.9}, noise=0.03)]
    s = report.summarize(rows)
    beyond = [e for a in s.arms for c in (1, 2) for e in [s.accuracy(a, c)] if e.mean + e.half > 100]
    figure = report.curves(s)
    ends = np.array([bar.get_segments()[0][:, 1] for bar in figure.axes[0].collections])
    assert ends.min() >= 0
    assert ends.max() == 100
    heads = [line for line in figure.axes[0].lines if line.get_marker() == "^"]
    assert [line.get_ydata()[0] for line in heads] == [100] * len(beyond)
    assert "cut at 0 and 100" in read_page(report.page(s, tmp_path / "cut.html")).text
    assert "cut at 0 and 100" not in read_page(report.page(records(), tmp_path / "whole.html")).text
    low = report.summarize([r | {"accuracy": 1 - r["accuracy"]} for r in rows])
    heads = [line for line in report.curves(low).axes[0].lines if line.get_marker() == "v"]
    assert [line.get_ydata()[0] for line in heads] == [0] * len(beyond)
    areas = make_figure(area_charts(report.summarize([r | {"accuracy": min(1, r["accuracy"] + 0.4)} for r in rows])))
    for bar in areas.axes[0].collections:
        assert bar.get_segments()[0][:, 0].max() <= 100


def test_titles_have_room_beside_long_names():
    """The names of rows stand left of the axes; a title above the axes alone was cut off."""
    s = report.summarize(records({"a rather long name of a strategy": 0.9, "random": 0.7}))
    for chart in [*area_charts(s), *cost_charts(s)]:
        figure = make_figure([chart])
        figure.draw_without_rendering()
        box = figure.axes[0]._left_title.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width
        assert box.x0 < figure.axes[0].bbox.x0


def test_times_are_medians():
    costs = [0.02, 0.03, 9.0]
    rows = [
        record("gain", s, 0, cost={"train": s + 1.0, "query": t, "stages": {"kernel": t / 2}, "peak_memory": 10**9 * s})
        for s, t in enumerate(costs)
    ]
    got = query_cost(report.summarize(rows), "gain")
    assert (got.train, got.query, got.stages, got.memory) == (2.0, 0.03, {"kernel": 0.015}, 2 * 10**9)


def test_table_fits_eighty_columns():
    rows = records({"gain [bold]sequential": 0.9, "random": 0.7}, last=10)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.table(rows))
    text = console.export_text()
    assert "gain [bold]sequential" in text
    assert max(map(len, text.splitlines())) <= 80
    s = report.summarize(rows)
    assert f"{s.average('random').mean:.1f}" in text
    assert f"{s.lead('gain [bold]sequential', 'random').mean:+.1f}" in text
    assert " 120" in text  # the last number of labels


@pytest.mark.parametrize(
    ("places", "expect"),
    [([0, 5], [0, 5]), ([1, 1], [0.5, 1.5]), ([0, 0, 0], [-1, 0, 1]), ([0, 0.5, 9], [-0.25, 0.75, 9]), ([], [])],
)
def test_spread_moves_names_apart_no_more_than_needed(places, expect):
    np.testing.assert_allclose(spread_apart(places, 1.0), expect)


def test_spread_keeps_within_bounds():
    np.testing.assert_allclose(spread_apart([0, 0, 9], 1.0, 0, 9.5), [0, 1, 9])
    np.testing.assert_allclose(spread_apart([9, 9, 9], 1.0, 0, 9.5), [7.5, 8.5, 9.5])


def test_long_names_lose_their_middle_but_not_their_difference():
    assert shorten_names(["gain", "a" * 40 + "b"]) == ["gain", "a" * 13 + "…" + "a" * 11 + "b"]
    assert shorten_names(["a" * 40, "a" * 41]) == ["a" * 13 + "…" + "a" * 12 + f" ({k})" for k in (1, 2)]


@pytest.mark.parametrize("module", ["charts", "fidelity_page", "pages", "runs", "summary", "words"])
def test_examples_of_docstrings(module, tmp_path, monkeypatch, no_figures):
    """They run where runs/fig2a, runs/cold and fidelity/records.jsonl are."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "fig2a", records())
    write_run(tmp_path / "runs" / "cold", records({"margin": 0.85, "random": 0.6}), study={"title": "Cold"})
    (tmp_path / "fidelity").mkdir()
    save(fidelity_records(), tmp_path / "fidelity" / "records.jsonl")
    got = doctest.testmod(importlib.import_module(f"foretaste.report.{module}"))
    assert got.attempted > 0
    assert got.failed == 0


def test_versions_are_those_of_the_records(tmp_path):
    """A run that was resumed after an update named only the versions of its last part."""
    old = {"python": "3.12.1", "torch": "2.11.0", "device": "cpu x86_64"}
    rows = records(seeds=2)
    mixed = [r | {"versions": old} if r["seed"] == 0 else r for r in rows]
    about = {"versions": "python 3.12.1, torch 2.13.0", "machine": "cpu x86_64, 1 process"}
    for made, told in ((rows, "torch 2.13.0"), (mixed, "torch 2.11.0 and 2.13.0")):
        text = report.page(made, tmp_path / "index.html", title="x", about=about).read_text()
        assert f"python 3.12.1, {told}" in text
        assert "cpu x86_64, 1 process" in text
