"""Every experiment of the list, through the command line, shrunk; and a study with a strategy of the user's own."""

import errno
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from foretaste.cli import app
from foretaste.cli.run_command import command_line
from foretaste.study import load, read, run, shipped, smoke

runner = CliRunner()


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch):
    """No data sets at hand: digits stand in for them."""
    monkeypatch.setenv("FORETASTE_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("FORETASTE_CACHE", str(tmp_path / "features"))
    monkeypatch.chdir(tmp_path)


# Drawing a page takes most of the time. These have one: two seeds and files of figures, arms with a baseline of their
# own, and the experiments that are no loop. The loops of the others differ from them by their settings alone.
WITH_PAGE = ["block", "fig2a", "fig3a", "theorem"]


def settings(name):
    """One seed but for fig2a, and few test points: the kernels of infinite width take their time for each."""
    if "features" in name:
        pytest.importorskip("efficientnet_lite_pytorch", reason="needs foretaste[pretrained]")
    return ["data.test_points=16", *(["seeds=[0]"] if name != "fig2a" else [])]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*shipped()} - {"demo", *WITH_PAGE}))
def test_smoke_without_a_page(name):
    of = smoke(read(name, settings(name)))
    records = run(of, standin=True)
    assert len(records) == of.size == len(of.arms) * 3
    assert {r["arm"] for r in records} == {*read(name).names}
    assert {r["labelled"] for r in records} == {16, 20, 24}


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_PAGE)
def test_smoke(name, tmp_path, request):
    if name != "fig2a":
        request.getfixturevalue("no_figures")
    words = [word for setting in settings(name) for word in ("--set", setting)]
    result = runner.invoke(app, ["run", name, "--smoke", "--processes", "1", "--device", "cpu", *words])
    assert result.exit_code == 0, result.output
    folder = tmp_path / "runs" / f"{name}-smoke"
    of, records = read(name, settings(name)), load(folder)
    assert {r["arm"] for r in records} == {*of.names}
    assert {r["seed"] for r in records} == {*of.seeds[:2]}
    page = (folder / "report" / "index.html").read_text()
    assert of.title in page
    for arm in of.arms:
        assert arm.name in page
    assert "Shrunk by --smoke: a look at the machinery, not a result" in page
    if name == "fig2a":
        assert {p.stem for p in (folder / "report").glob("*.svg")} == {"curves", "difference", "auc", "times"}
    if of.data.name != "digits":
        assert f"{of.data.name} was not found" in json.loads((folder / "study.json").read_text())["standin"]
    if of.experiment == "loop":
        assert {r["labelled"] for r in records} == {16, 20, 24}
        assert f"{'One seed' if len(of.seeds) == 1 else 'Two seeds'}, so no intervals." in page
    if of.experiment == "block":
        assert max(r["relative_difference"] for r in records) < 1e-10
    if of.experiment == "theorem":
        assert max(r["warm_cold_kernel"] for r in records if r["width"] is None) < 1e-12


@pytest.mark.slow
def test_the_gap_between_warm_and_cold_start_shrinks_with_width():
    """Theorem 3.1 holds in the limit; networks that learn their labels come nearer to it with width."""
    records = run(read("theorem", ["seeds=[0]", "widths=[32, 512]", "train.steps=3000"]))
    kernel, narrow, wide = records
    assert kernel["warm_cold_kernel"] < 1e-12
    assert max(narrow["residuals"] + wide["residuals"]) < 1e-5
    assert wide["warm_cold_network"] < narrow["warm_cold_network"] / 3


MINE = '''
import torch
import foretaste as ft


@ft.register("furthest")
def furthest(state):
    """Points whose outputs are far from those of all others."""
    f = state.pool_mean
    return torch.cdist(f, f).mean(1)
'''

STUDY = """
title = "Mine"
strategies = ["furthest", "random"]
seeds = [0]
plugins = ["mine.py"]

[labels]
init = 20
per_cycle = 5
cycles = 1

[train]
steps = 20
"""


@pytest.mark.usefixtures("no_figures")
def test_a_strategy_of_ones_own_runs_by_name(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.toml").write_text(STUDY)
    assert len(MINE.strip().splitlines()) < 15
    result = runner.invoke(app, ["run", "mine.toml", "--out", "out", "--processes", "1"])
    assert result.exit_code == 0, result.output
    assert "about" in result.output  # what it will cost
    asked = {r["arm"]: r["queried"] for r in load(tmp_path / "out") if r["cycle"] == 0}
    assert len(asked["furthest"]) == 5
    assert asked["furthest"] != asked["random"]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("kind", ["pictures", "features"])
def test_smoke_of_a_few_points_of_ones_own(tmp_path, kind):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60, 9, 9), dtype=np.uint8) if kind == "pictures" else rng.random((60, 4), np.float32)
    np.savez(tmp_path / "few.npz", x=x, y=np.arange(60) % 3)
    (tmp_path / "few.toml").write_text('strategies = ["margin", "random"]\n[data]\nname = "few.npz"')
    result = runner.invoke(app, ["run", "few.toml", "--smoke", "--processes", "1"])
    assert result.exit_code == 0, result.output
    assert {r["labelled"] for r in load(tmp_path / "runs/few-smoke")} == {16, 20, 24}
    result = runner.invoke(app, ["run", "few.toml", "--set", "data.pool_points=400", "--estimate"])
    assert result.exit_code == 2  # asked for in earnest, they must be there
    assert "expected 1 to 48" in result.output


def test_the_command_that_is_told_has_all_that_changes_records():
    assert command_line("a b.toml", ["seeds=[0, 1]"], ["mine.py"], True) == (
        "foretaste run 'a b.toml' --set 'seeds=[0, 1]' --plugin mine.py --smoke"
    )


@pytest.mark.usefixtures("no_figures")
def test_a_folder_of_other_settings_is_refused_before_anything_is_measured(tmp_path):
    np.savez(tmp_path / "few.npz", x=np.random.default_rng(0).random((60, 4)), y=np.arange(60) % 3)
    text = STUDY.replace("furthest", "margin").replace('plugins = ["mine.py"]', "") + '\n[data]\nname = "few.npz"'
    (tmp_path / "a.toml").write_text(text)
    result = runner.invoke(app, ["run", "a.toml", "--out", "out", "--processes", "1"])
    assert result.exit_code == 0, result.output
    (tmp_path / "few.npz").unlink()
    result = runner.invoke(app, ["run", "a.toml", "--out", "out", "--set", "labels.init=21"])
    assert result.exit_code == 2
    assert "labels.init is 20 there and 21 here" in result.output


def test_a_full_disk_is_told_by_every_command(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("foretaste.report.folder", full)
    result = runner.invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert "error: the disk is full; free some space and run the same command again" in result.output


def test_what_is_not_there_is_told():
    result = runner.invoke(app, ["run", "fig2a"])
    assert result.exit_code == 2
    assert "foretaste data get svhn" in result.output
    result = runner.invoke(app, ["run", "fig2z"])
    assert "did you mean 'fig2" in result.output
    result = runner.invoke(app, ["run", "demo", "--set", "train.step=1", "--set", "label.init=3"])
    assert result.exit_code == 2
    assert "did you mean 'steps'" in result.output
    assert "did you mean 'labels'" in result.output
    result = runner.invoke(app, ["run", "demo", "--device", "cuda:99"])
    assert result.exit_code == 2


def test_the_list():
    result = runner.invoke(app, ["run", "--list"])
    assert result.exit_code == 0
    assert "fig2a" in result.output
    assert "Figure 2a" in result.output
