"""Run folders: finished or not, several beside each other, experiments that are no loop, and the command."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import foretaste.cli.run_command
from foretaste import report
from foretaste.cli.app import app
from foretaste.report.claim_pages import gap_power
from report_cases import HOSTILE, TOPS, read_page, record, records, write_run

FILES = {
    "index.html", "summary.csv", "curves.svg", "curves.pdf", "curves.png", "difference.svg", "difference.pdf",
    "auc.svg", "auc.pdf", "times.svg", "times.pdf", "wins.svg", "wins.pdf",
}  # fmt: skip


def table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_a_folder_is_reported_and_twice_the_same(tmp_path):
    run = write_run(tmp_path / "run", records(), arms=["random", "gain", "margin"])
    np.savez(run / "pictures.npz", ids=np.array([7, 3]), pixels=np.zeros((2, 200, 100, 3), np.uint8))
    page = report.folder(run)
    assert page == run / "report" / "index.html"
    first = contents(run / "report")
    assert set(first) == FILES
    report.folder(run, tmp_path / "again")
    assert contents(tmp_path / "again") == first
    seen = read_page(page)
    for words in ("A study", "What is the paper's.", "foretaste run x", "one", "two", "1 of 2 mistaken"):
        assert words in seen.text
    assert seen.tags.count("img") == 3 * 2 * 2
    assert "banner" not in page.read_text().split("</style>")[1]
    s = report.read_run(run).summary()
    assert s.arms == ("random", "gain", "margin")
    rows = table(run / "report" / "summary.csv")
    assert len(rows) == 9
    want = s.accuracy("gain", 2)
    (got,) = [r for r in rows if (r["arm"], r["cycle"]) == ("gain", "2")]
    assert (got["labels"], got["n"]) == ("40", "3")
    assert float(got["mean"]) == pytest.approx(want.mean, rel=1e-5)
    assert float(got["half"]) == pytest.approx(want.half, rel=1e-5)


@pytest.mark.slow
def test_figures_of_an_earlier_report_do_not_stay(tmp_path):
    run = write_run(tmp_path / "run", records({"gain": 0.9}, seeds=1), seeds=[0])
    (run / "report").mkdir()
    for name in ("wins.svg", "difference.pdf"):
        (run / "report" / name).write_text("old")
    report.folder(run)
    assert set(contents(run / "report")) == {n for n in FILES if not n.startswith(("wins", "difference"))}
    assert ",,1\n" in (run / "report" / "summary.csv").read_text()  # one seed has no interval


def test_a_run_still_being_written(tmp_path, no_figures):
    """A line half written is no record yet; a seed and an arm that have not begun are named."""
    rows = [r for r in records() if (r["arm"], r["seed"]) != ("margin", 2)]
    run = write_run(tmp_path / "run", rows, arms=[*TOPS, "entropy"])
    file = next(f for f in run.glob("records/*/1.jsonl") if '"margin"' in f.read_text())
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2]) + lines[2][:40])
    text = read_page(report.folder(run)).text
    assert "Not all of it is there." in text
    assert "margin: seed 2 not begun, seed 1 unfinished at 30 labels." in text
    assert "entropy: nothing yet." in text
    assert "Shown is what all arms have, seed" in text
    file.write_text("nonsense\n" + "".join(lines[1:]))
    with pytest.raises(ValueError, match=r"1\.jsonl, line 1, is not a record"):
        report.folder(run)


def test_pictures_of_a_run_that_has_just_begun(tmp_path, no_figures):
    """The first query stands in the record of cycle 0: its pictures are shown before cycle 1 is there."""
    run = write_run(tmp_path / "run", [r for r in records(seeds=1) if r["cycle"] == 0])
    np.savez(run / "pictures.npz", ids=np.array([7]), pixels=np.zeros((1, 8, 8), np.uint8))
    seen = read_page(report.folder(run))
    assert seen.tags.count("img") == 3  # one of the two points of each arm: the other is not written yet
    assert "1 of them shown" in seen.text


@pytest.mark.parametrize(("standin", "says"), [("Noise.", "Not a result. Noise."), ("It is not a result.",) * 2])
def test_a_stand_in_is_no_result(tmp_path, no_figures, standin, says):
    notes = "Broken\nin lines.\n\nSecond."
    told = {"standin": standin, "data_notes": ["2 images were skipped"]}
    page = report.folder(write_run(tmp_path / "run", records(), told=told, study={"notes": notes}))
    assert "<p class=notes>Broken in lines.</p>\n<p class=notes>Second.</p>" in page.read_text(encoding="utf-8")
    assert f"<p class=banner>{says}</p>" in page.read_text(encoding="utf-8")
    assert "2 images were skipped" in read_page(page).text


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no study\.json"):
        report.folder(tmp_path)
    lost = write_run(tmp_path / "lost", records())
    (lost / "study.json").unlink()
    with pytest.raises(ValueError, match=r"lost has records but no study\.json, which names .* start the run again"):
        report.folder(lost)
    with pytest.raises(ValueError, match="no finished cycle"):
        report.folder(write_run(tmp_path / "empty", [], arms=["gain"]))
    (tmp_path / "empty" / "study.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        report.folder(tmp_path / "empty")


@pytest.mark.slow
def test_hostile_names_in_a_folder(tmp_path):
    rows = [r | {"against": HOSTILE} for r in records({HOSTILE: 0.9, HOSTILE + "2": 0.8})]
    told = {"standin": HOSTILE, "data_notes": [HOSTILE], "about": {HOSTILE: HOSTILE}, "classes": [HOSTILE] * 3}
    run = write_run(tmp_path / "run", rows, told=told, study={"title": HOSTILE, "notes": HOSTILE})
    np.savez(run / "pictures.npz", ids=np.array([7, 3]), pixels=np.zeros((2, 8, 8), np.uint8))
    page = report.folder(run)
    assert read_page(page).text.count(HOSTILE) >= 20
    assert "<script" not in page.read_text(encoding="utf-8")
    assert set(contents(run / "report")) == FILES
    assert {r["arm"] for r in table(run / "report" / "summary.csv")} == {HOSTILE, HOSTILE + "2"}


def test_runs_on_the_same_data_share_charts(tmp_path, no_figures):
    a = write_run(tmp_path / "a", records({"gain": 0.9, "random": 0.7}))
    b = write_run(tmp_path / "b", records({"margin": 0.8, "Random": 0.6, "random": 0.65}), study={"title": "Other"})
    (group,) = report.groups([a, b])
    s = group.summary
    assert s.arms == ("gain", "a: random", "margin", "Random", "b: random")
    assert s.against == {"gain": "a: random", "margin": "Random", "b: random": "Random"}
    page = report.compare([a, b], tmp_path / "out")
    seen = read_page(page)
    for words in ("2 runs compared", "A study · Other", "a: random", "b: random", "How Other was made"):
        assert words in seen.text
    assert set(contents(tmp_path / "out")) == {"index.html", "summary.csv"}


def test_arms_of_the_same_name_are_named_by_their_run(tmp_path):
    paths = [
        write_run(tmp_path / x / "run", records({"gain": top, "random": 0.5}, noise=noise))
        for x, top, noise in (("a", 0.9, 0.004), ("b", 0.7, 0.005))
    ]
    (group,) = report.groups(paths)
    assert group.summary.arms == ("a/run: gain", "a/run: random", "b/run: gain", "b/run: random")
    assert group.summary.against == {"a/run: gain": "a/run: random", "b/run: gain": "b/run: random"}
    assert report.headline(group.summary).startswith("a/run: gain came out best")


@pytest.mark.parametrize("differ", ["data", "labels", "seeds"])
def test_runs_that_differ_are_not_averaged(tmp_path, no_figures, differ):
    a, rows, more = write_run(tmp_path / "a", records()), records({"gain": 0.4, "random": 0.3}), {}
    if differ == "data":
        more = {"data": "mnist"}
    elif differ == "labels":
        rows, more = [r | {"labelled": 5 + r["labelled"]} for r in rows], {"init": 25}
    else:
        rows, more = [r | {"seed": r["seed"] + 10} for r in rows], {"seeds": (10, 11, 12)}
    b = write_run(tmp_path / "b", rows, **more)
    one, two = report.groups([a, b])
    alone = report.read_run(a).summary()
    assert one.summary == alone
    assert two.summary == report.read_run(b).summary()
    if differ == "data":  # the page of two groups is the same for all
        seen = read_page(report.compare([a, b], tmp_path / "out"))
        assert "nothing is averaged across them" in seen.text
        assert set(contents(tmp_path / "out")) == {"index.html", "summary-1.csv", "summary-2.csv"}


def test_more_cycles_in_one_run_are_told(tmp_path):
    a = write_run(tmp_path / "a", records(last=4), cycles=4)
    b = write_run(tmp_path / "b", records({"badge": 0.5}))
    (group,) = report.groups([a, b])
    assert len(group.summary.counts) == 3
    assert group.summary.missing == (
        "Shown is what all arms have, seeds 0, 1, 2 up to 40 labels; 18 further records are left out.",
    )


def test_an_arm_is_never_compared_with_the_random_of_another_run(tmp_path):
    a = write_run(tmp_path / "a", records({"gain": 0.9, "margin": 0.8}))
    b = write_run(tmp_path / "b", records({"badge": 0.85, "random": 0.7}))
    ((_, s),) = report.groups([a, b])
    assert set(s.arms) == {"gain", "margin", "badge", "random"}
    assert s.against == {"badge": "random"}


def test_compare_refuses(tmp_path):
    a = write_run(tmp_path / "a", records())
    with pytest.raises(ValueError, match="twice"):
        report.compare([a, tmp_path / "a" / "..", a], tmp_path / "out")
    block = write_run(tmp_path / "b", blocks(), study={"experiment": "block"})
    with pytest.raises(ValueError, match="'block', which has no curves"):
        report.compare([a, block], tmp_path / "out")


def theorems(power=-0.5, seeds=3):
    kernel = [{"kind": "theorem", "seed": s, "width": None, "warm_cold_kernel": (s + 1) * 1e-13} for s in range(seeds)]
    return kernel + [
        {"kind": "theorem", "seed": s, "width": w, "warm_cold_network": (2 + s) * w**power}
        for s in range(seeds)
        for w in (64, 256, 1024)
    ]


def blocks():
    return [
        {
            "kind": "block", "seed": s, "arm": HOSTILE, "L": 10, "U": 50, "largest_difference": 2e-12,
            "relative_difference": 1e-12 * (s + 1), "seconds_block": 0.1, "seconds_direct": 2.0, "same_top": 1.0,
        }
        for s in range(2)
    ]  # fmt: skip


def test_theorem_page(tmp_path):
    run = write_run(tmp_path / "run", theorems(), arms=[], seeds=(0, 1, 2, 3), study={"experiment": "theorem"})
    assert gap_power(theorems(-0.7)).mean == pytest.approx(-0.7)
    assert gap_power([r for r in theorems() if r["width"] == 64]) is None
    seen = read_page(report.folder(run))
    for words in ("agree to 3.0e-13", "to the power −0.50 ± 0.00", "network of width 256", "seed 3 not begun", "0.375"):
        assert words in seen.text  # 3 · 64^-½ = 0.375 is the mean of width 64
    assert "svg" in seen.tags
    assert set(contents(run / "report")) == {"index.html", "gap.svg", "gap.pdf"}


def test_block_page(tmp_path):
    run = write_run(tmp_path / "run", blocks(), seeds=(0, 1), study={"experiment": "block"})
    seen = read_page(report.folder(run))
    for words in ("agree to 2.0e-12", "the same points come out on top", "1/20 of the time", HOSTILE, "seed 1", "2 s"):
        assert words in seen.text
    off = write_run(
        tmp_path / "off", [blocks()[0] | {"relative_difference": 0.02, "same_top": 0.8}], study={"experiment": "block"}
    )
    text = read_page(report.folder(off)).text
    assert "differ by 2.0e-02" in text
    assert "at least 80% of the points on top" in text
    with pytest.raises(ValueError, match="no records of experiment 'theorem'"):
        report.folder(write_run(tmp_path / "none", [], arms=[], study={"experiment": "theorem"}))


def invoke(*words):
    assert foretaste.cli.run_command.report_command
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_command(tmp_path, no_figures):
    a = write_run(tmp_path / "a", records())
    got = invoke(a)
    assert got.exit_code == 0, got.output
    assert str(a / "report" / "index.html") in got.stdout
    assert "gain came out best" in got.stdout
    b = write_run(tmp_path / "b", [record("badge", s, c) for s in range(2) for c in range(3)])
    got = invoke(a, b, "--out", tmp_path / "both")
    assert got.exit_code == 0, got.output
    assert (tmp_path / "both" / "index.html").exists()
    assert "badge: seed 2 not begun." in got.stdout
    block = write_run(tmp_path / "block", blocks(), study={"experiment": "block"})
    assert invoke(block).exit_code == 0
    assert invoke(tmp_path).exit_code == 2
    (tmp_path / "file").write_text(json.dumps({}))
    assert "is a file" in invoke(a, "--out", tmp_path / "file").stderr
