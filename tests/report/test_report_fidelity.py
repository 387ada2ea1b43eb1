"""Look-ahead against real retraining: the verdict in words, the page and its figures."""

import re

import pytest
from matplotlib.figure import Figure

from foretaste.report import fidelity_page, fidelity_table, verdict
from foretaste.report.fidelity_page import best_setting, fidelity_charts, least_rank
from foretaste.tangent import OUTPUTS
from report_cases import fidelity_records as made_up
from report_cases import read_page


@pytest.mark.parametrize(
    ("records", "level", "says"),
    [
        (made_up(0.95), "trust", "agree with retraining (correlation 0.95, ranking 0.90): trust look-ahead here"),
        (made_up(0.95, rank=0.52), "care", "at 0.95, rankings at 0.52: trust the predicted changes, not the ranking"),
        (made_up(0.95, rank=None), "care", "at 0.95, too few candidates to rank: trust the predicted changes"),
        (
            made_up(0.95, candidates=list("abcd")),
            "care",
            "rankings at 0.90 (may be chance): trust the predicted",
        ),
        (made_up(0.75), "care", "at 0.75, rankings at 0.90: trust look-ahead with care"),
        (made_up(0.86, rank=0.52), "care", "at 0.86, rankings at 0.52: trust the changes with care, not the ranking"),
        (made_up(0.3, rank=0.2), "no", "at 0.30, rankings at 0.20: do not trust look-ahead here"),
        (made_up(0.52, rank=0.52), "no", "at 0.52, rankings at 0.52: do not trust look-ahead here"),
        (made_up(0.3, rank=0.95), "care", "rankings at 0.95: trust no more than the ranking"),
        (made_up(0.3, rank=0.2, interpolates=False), "no", "has not learned its labels, train it longer"),
        (made_up(None), "no", "Nothing could be compared"),
    ],
)
def test_verdicts(records, level, says):
    """Both numbers are named; only where both are high do predictions "agree"."""
    got = verdict(records)
    assert (got.level, says in got.headline) == (level, True), got.headline
    assert ("agree" in got.headline) == (level == "trust")
    assert any("correlation of at least 0.9 and a ranking of at least 0.8" in line for line in got.lines)
    assert any("Care needs a correlation of at least 0.6" in line for line in got.lines)


@pytest.mark.parametrize(
    ("records", "level", "says"),
    [
        (made_up(0.896), "care", "correlate at 0.89, rankings at 0.90: trust look-ahead with care"),
        (made_up(0.89996), "care", "correlate at 0.89,"),
        (made_up(0.9), "trust", "(correlation 0.90, ranking 0.90)"),
        (made_up(0.596, rank=0.2), "no", "correlate at 0.59, rankings at 0.20: do not trust"),
        (made_up(0.95, rank=0.797), "care", "rankings at 0.79: trust the predicted changes, not the ranking"),
        (made_up(0.95, rank=0.8759, candidates=list("abcdef")), "care", "rankings at 0.87 (may be chance)"),
    ],
)
def test_no_number_is_printed_on_the_other_side_of_its_threshold(records, level, says):
    """0.896 was printed as 0.90, and not trusted, where trust needs 0.9."""
    got = verdict(records)
    assert (got.level, says in got.headline) == (level, True), got.headline
    r = records[2]["correlation"]
    shown = float(re.search(r"of the outputs correlate at ([\d.]+\d)", got.lines[1]).group(1))
    cell = float(next(fidelity_table(records).columns[3].cells).plain)
    for limit in (0.9, 0.6):
        assert (shown >= limit, cell >= limit) == (r >= limit, r >= limit)
    rank, needed = map(
        float, re.search(r"ranking is ([\d.]+); with \d+ of them ([\d.]+) is", " ".join(got.lines)).groups()
    )
    assert needed == least_rank(len(records[0]["candidates"]))
    assert (rank >= needed) == (level == "trust" or records[2]["rank"] == 0.9)


def test_drift_is_not_said_to_be_more_than_the_same_number():
    assert "more (1.04) than a label does (1.01)" in verdict(made_up(drift=1.04, change=1.01)).warnings[0]
    assert "correlate at 0.79" in verdict(made_up(agreement=0.798)).warnings[0]


def test_the_verdict_says_whose_kernel_it_is_about():
    ours = verdict(made_up()).lines[1]
    assert (
        'With the default kernel of foretaste query (output="signs", ridge="misfit", here 0.0048 of the mean diagonal, '
        "float32), predicted and real changes" in ours
    )
    records = made_up()
    del records[2]
    other = verdict(records).lines[1]
    assert 'With output="sum", ridge 1e-06 of the mean diagonal, float32, predicted' in other
    assert "The default of foretaste query is output signs with ridge misfit." in other
    old = made_up()  # of a version whose own kernel was that of ft.linearize
    del old[0]["query"]
    assert "query" not in " ".join(verdict(old).lines)


def test_few_candidates_and_one_repeat_in_words():
    few = " ".join(verdict(made_up(candidates=["a", "b", "c"], repeats=1)).lines)
    assert "3 candidates were labelled" in few
    assert "40 + 1 points, once each" in few
    assert "with 3 of them any value may be chance" in few
    more = " ".join(verdict(made_up()).lines)
    assert "40 + 1 points, 2 times each" in more
    assert "with 8 of them 0.80 is needed" in more


def test_warnings_of_the_verdict():
    assert not verdict(made_up()).warnings
    noisy = verdict(made_up(0.6, agreement=0.5)).warnings[0]
    assert "correlate at 0.50, so a prediction is hardly expected to reach more than 0.71." in noisy
    assert "mean squared residual is 5.0e-02" in verdict(made_up(interpolates=False)).warnings[0]
    assert "had not come to rest" in verdict(made_up(drift=2.0)).warnings[0]
    bad = made_up()
    bad[1]["interpolates"] = False
    assert "1 of 1 retraining did not learn" in verdict(bad).warnings[0]
    assert best_setting(made_up(0.2))["output"] == "sum"
    skipped = made_up()
    skipped[4]["own"] = True
    assert "The default kernel of foretaste query could not be tried: needs 12 GB" in verdict(skipped).warnings[0]


def test_the_page_carries_everything_and_escapes(tmp_path):
    records = made_up()
    page = fidelity_page(records, tmp_path / "new" / "index.html", classes=("a&b", "<i>")).read_text(encoding="utf-8")
    for text in (
        "trust look-ahead here",
        "needs 12 GB &amp; more",
        "&lt;b&gt;",
        "&lt;i&gt;",
        "0.950",
        "signs<small> · as foretaste query · highest correlation",
        "misfit (0.0048)",
        "sum<small> · as ft.linearize",
    ):
        assert text in page, text
    assert "<b>" not in page
    assert "<script" not in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("https://matplotlib.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "")
    assert page.count("<svg") == 2
    figures = {f"{name}.{ending}" for name in ("changes", "scores") for ending in ("svg", "pdf")}
    assert {f.name for f in (tmp_path / "new").iterdir()} == {"index.html", *figures}
    again = fidelity_page(records, tmp_path / "again.html", classes=("a&b", "<i>")).read_text(encoding="utf-8")
    assert page == again
    assert fidelity_table(records).row_count == 2


def test_every_output_has_its_line_in_the_chart_of_scales():
    grid = [{"theta_scale": x, "error": 0.4 + abs(x - 1)} for x in (0.25, 1.0, 4.0)]
    scales = [{"kind": "calibration", "output": output, "best": 1.0, "grid": grid} for output in OUTPUTS]
    ax = Figure().add_subplot()
    fidelity_charts(scales)["scale"].draw(ax)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == list(OUTPUTS)
    said = " ".join(verdict([*made_up(), *scales]).lines)
    assert all(f"1 for {output} (error 0.40)" in said for output in OUTPUTS)


def test_figures_are_files_too(tmp_path):
    """Those of an earlier report go when the records do not give them any more."""
    grid = [{"theta_scale": x, "error": 0.4 + abs(x - 1)} for x in (0.25, 1.0, 4.0)]
    scale = {"kind": "calibration", "output": "sum", "best": 1.0, "grid": grid}
    read_page(fidelity_page([*made_up(), scale], tmp_path / "index.html"))
    names = {f.name for f in tmp_path.iterdir()}
    assert names == {f"{n}.{e}" for n in ("changes", "scores", "scale") for e in ("svg", "pdf")} | {"index.html"}
    assert (tmp_path / "scale.pdf").read_bytes().startswith(b"%PDF")
    fidelity_page(made_up()[:-1], tmp_path / "index.html")
    assert {f.name for f in tmp_path.iterdir()} == {"index.html"}
