"""The committed figures come from the committed records."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", ["fig3a", "fig1a", "fig2a", "ll4al"])
def test_a_figure_is_remade_from_its_records(script, tmp_path, name):
    figures = script("figures")
    figures.make(name, tmp_path)
    assert (tmp_path / name / "summary.csv").read_text() == (RESULTS / name / "summary.csv").read_text()
    drawn, committed = ((folder / name / "curves.svg").read_text() for folder in (tmp_path, RESULTS))
    for arm in figures.FIGURES[name][1]:
        assert arm in drawn
    assert len(points_of_lines(drawn)) > 100
    assert points_of_lines(drawn) == pytest.approx(points_of_lines(committed), abs=0.01)


@pytest.mark.parametrize(("name", "first"), [("fig2a", 1000), ("fig2c", 10_000)])
def test_no_point_was_labelled_twice(name, first):
    """The ids beside the records are whole: those drawn at first, and 1000 others in each cycle."""
    with np.load(RESULTS / name / "ids.npz") as ids:
        arms = {key.rpartition("/")[0] for key in ids.files if key.endswith("/queried")}
        assert len(arms) == len(list((RESULTS / name).glob("records/*/*.jsonl")))
        for arm in arms:
            asked, drawn = ids[f"{arm}/queried"], ids[f"first/{arm.rpartition('/')[2]}"]
            assert asked.shape == ids[f"{arm}/labels"].shape == (5, 1000)
            assert len({*drawn.tolist(), *asked.flatten().tolist()}) == first + 5000


def points_of_lines(svg: str) -> list[float]:
    """The numbers of all paths that are drawn as lines."""
    return [float(n) for path in re.findall(r'<path d="(M [^"]*)"', svg) for n in re.findall(r"-?\d+\.?\d*", path)]


def test_the_table_of_the_pool_is_that_of_its_records(script, tmp_path):
    pool, docs = script("findings/pool/table"), RESULTS.parent / "docs"
    records = pool.read()
    assert len(records) == 42
    assert all(r["seeds"] == list(range(110, 120)) for r in records)
    assert pool.short_table(records) in (docs / "pool-notes.md").read_text()
    pool.figure(records, tmp_path / "pool.svg")
    drawn, committed = ((folder / "pool.svg").read_text() for folder in (tmp_path, docs))
    assert len(points_of_lines(drawn)) > 100
    assert points_of_lines(drawn) == pytest.approx(points_of_lines(committed), abs=0.01)


def test_the_table_of_the_field_is_that_of_its_records(script, tmp_path):
    field, docs = script("findings/field/field_table"), RESULTS.parent / "docs"
    records, page = field.read(), (docs / "field.md").read_text()
    assert len(records) == 36
    assert all(r["seeds"] == list(range(130, 140)) for r in records)
    assert field.verdict(records) in page
    told = dict(re.findall(r"^\| (\S+).*?( \| −.*)", field.verdict(records), re.MULTILINE))
    front = (RESULTS.parent / "README.md").read_text().replace("uncertainty herding", "herding")
    for name, row in told.items():
        assert name not in front or " | ".join(row.split(" | ")[1:4]) in front, name
    whole = (RESULTS / "findings/field/README.md").read_text()
    for what, base in field.VIEWS:
        assert field.rule(records, what, base) in page
        assert field.cells_table(records, what, base) in whole
    field.figure(records, tmp_path / "field.svg")
    drawn, committed = (
        [float(n) for n in re.findall(r'<use [^>]* x="([^"]*)"', (folder / "field.svg").read_text())]
        for folder in (tmp_path, docs)
    )
    assert len(drawn) > 800
    assert drawn == pytest.approx(committed, abs=0.01)


def test_the_figure_of_scaling_is_of_its_records(script, tmp_path):
    script("findings/scale/sizes").figure(tmp_path / "scaling.svg")
    drawn, committed = (
        [float(n) for n in re.findall(r'<use [^>]* y="([^"]*)"', (folder / "scaling.svg").read_text())]
        for folder in (tmp_path, RESULTS.parent / "docs")
    )
    assert len(drawn) > 8
    assert drawn == pytest.approx(committed, abs=0.01)


def test_the_table_of_steps_is_that_of_its_records(script):
    steps = script("findings/scale/steps")
    rows = steps.read()
    assert len(rows) == 45
    assert all(r["residual"] <= 1e-5 for r in rows)
    assert steps.table(rows) in (RESULTS.parent / "docs" / "scaling-notes.md").read_text()


def test_the_table_of_the_loop_is_that_of_its_records(script):
    loop = script("findings/scale/loop")
    rows = [json.loads(line) for line in loop.RECORDS.read_text().splitlines()]
    assert len({(r["size"], r["data"], r["arm"], r["seed"]) for r in rows}) == len(rows)
    assert loop.table(rows) in (RESULTS.parent / "docs" / "scaling-notes.md").read_text()


def test_the_tables_of_fine_tuning_are_those_of_its_records(script):
    tuning, pages = script("findings/tuning/table"), (RESULTS.parent / "docs" / "fine-tuning.md").read_text()
    pages += (RESULTS / "findings" / "tuning" / "README.md").read_text()
    assert tuning.record("loop-lora")["seeds"] == list(range(120, 126))
    for table in tuning.tables():
        assert table in pages


def test_the_tables_of_mistakes_are_those_of_their_records(script):
    lab, docs = script("findings/mistakes/mistakes"), RESULTS.parent / "docs"
    head, rule, *rows = "".join(lab.tables(lab.read())).splitlines()
    page, whole = (docs / "learner.md").read_text(), (RESULTS / "findings/mistakes/README.md").read_text()
    assert f"{head}\n{rule}\n" in whole
    for row in rows:
        data, errors, *figures = [cell.strip() for cell in row.strip("|").split("|")]
        assert row in whole
        shown = [f"{data}, {errors.removesuffix(', any')}", *figures[:5]]
        assert f"| {' | '.join(shown)} |" in page
    assert len(rows) == 6
    assert all(float(row.split("|")[8].split()[0].replace("−", "-")) >= 0 for row in rows)  # as many as its best


def test_committed_numbers_were_met_again(script):
    rows = script("repeats").rows()
    assert len(rows) == 12
    assert all(met for *_, met in rows)


def test_repeated_records_are_the_committed_ones(script):
    """Another day and machine: the same seed gave the same accuracy, and asked for the same points."""
    repeats = script("repeats")
    old, new = (
        {(r["arm"], r["seed"], r["cycle"]): (r["accuracy"], r["queried"]) for r in repeats.load(RESULTS / part)}
        for part in ("mnist", "repeat/mnist")
    )
    assert len(new) > 50
    assert new == {key: old[key] for key in new}
