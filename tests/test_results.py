"""The committed figures come from the committed records."""

import importlib.util
import re
from pathlib import Path

import pytest

RESULTS = Path(__file__).parent.parent / "results"


@pytest.fixture(scope="module")
def figures():
    spec = importlib.util.spec_from_file_location("figures_of_the_results", RESULTS / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["fig3a", "fig1a"])
def test_a_figure_is_remade_from_its_records(figures, tmp_path, name):
    figures.make(name, tmp_path)
    assert (tmp_path / name / "summary.csv").read_text() == (RESULTS / name / "summary.csv").read_text()
    drawn, committed = ((folder / name / "curves.svg").read_text() for folder in (tmp_path, RESULTS))
    for arm in figures.FIGURES[name][1]:
        assert arm in drawn
    assert len(points_of_lines(drawn)) > 100
    assert points_of_lines(drawn) == pytest.approx(points_of_lines(committed), abs=0.01)


def points_of_lines(svg: str) -> list[float]:
    """The numbers of all paths that are drawn as lines."""
    return [float(n) for path in re.findall(r'<path d="(M [^"]*)"', svg) for n in re.findall(r"-?\d+\.?\d*", path)]
