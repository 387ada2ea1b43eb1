"""Features in a CSV."""

import numpy as np
import pytest
from typer.testing import CliRunner

from foretaste.cli import app
from foretaste.data import load

TEXT = "id;Label;height;width\n" + "\n".join(f"p{i};{'b' if i % 2 else 'a10'};{i};{i / 4}" for i in range(20))


def test_columns_are_features_but_for_id_and_label(tmp_path):
    (tmp_path / "t.csv").write_text(TEXT, encoding="utf-8-sig")
    data = load(tmp_path / "t.csv", test=0.3)
    assert data.classes == ("a10", "b")
    assert data.y.tolist() == [i % 2 for i in range(20)]
    assert np.array_equal(data.x.numpy(), [[i, i / 4] for i in range(20)])
    assert len(data.test) == 6
    assert sorted([*data.pool, *data.test]) == list(range(20))
    columns = "columns: id = id (by its name); label = Label (by its name); features = height, width"
    assert data.notes == (columns, "t.csv: 2 features of 20 points")


def test_load_takes_it_and_measures_on_the_pool(tmp_path):
    (tmp_path / "t.csv").write_text(TEXT)
    data = load(tmp_path / "t.csv")
    mean, std = data.normalise
    assert mean == pytest.approx(data.x[data.pool].mean(0).tolist())
    assert std == pytest.approx(data.x[data.pool].std(0, correction=0).tolist())
    with pytest.raises(ValueError, match=r"size \(8\): only for folders of pictures.*t.csv holds features"):
        load(tmp_path / "t.csv", size=8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,a\nx,1\ny,2\n", "has columns a and none for the label; expected one of label"),
        ("label,a\nx,1\nx,2\n", "all 2 points are of one class, 'x'; expected two classes or more"),
        ("y,a\n0.5,1\n1.5,2\n3,2\n", "2 of 3 labels are numbers that are not whole, such as 0.5.*use regression"),
        ("label,a\nx,1\ny,2\n", "2 points leave none for a test share of 0.2"),
        ("pic,label\n0.png,a\n1.png,b\n", "column pic holds names of pictures; call it file"),
        ("label,a\n", "has no points"),
    ],
)
def test_what_it_cannot_be(tmp_path, text, says):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=says):
        load(tmp_path / "t.csv")


def test_whole_numbers_written_as_decimals_are_classes(tmp_path):
    lines = [f"{c},{i}" for i, c in enumerate(["1.0", "10.0", "2", "2.0", "1e1"] * 4)]
    (tmp_path / "t.csv").write_text("label,a\n" + "\n".join(lines))
    data = load(tmp_path / "t.csv")
    assert data.classes == ("1", "2", "10")
    assert [data.classes[c] for c in data.y[:5]] == ["1", "10", "2", "2", "10"]


def test_names_that_look_like_numbers_stay_names(tmp_path):
    (tmp_path / "t.csv").write_text("label,a\n" + "".join(f"{c},1\n" for c in ["007", "1.5", "v2"] * 5))
    assert load(tmp_path / "t.csv").classes == ("1.5", "007", "v2")


def test_a_study_of_a_table(tmp_path, monkeypatch, no_figures):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(TEXT)
    (tmp_path / "s.toml").write_text(
        'strategies = ["gain", "random"]\nseeds = [0]\n[data]\nname = "t.csv"\n'
        "[labels]\ninit = 4\nper_cycle = 2\ncycles = 1\n[train]\nsteps = 20"
    )
    result = CliRunner().invoke(app, ["run", "s.toml", "--processes", "1"])
    assert result.exit_code == 0, result.output
    assert "2 features of 20 points" in result.output
