"""Points of a user's own files: what has a label trains, what has none is the pool."""

import csv
import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from foretaste.data import Points, read_points
from foretaste.data.huggingface import _number_columns


def picture(path, seed=0, side=6):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def write(path, lines):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    return path


def parts(points: Points):
    """Labels by id, and the ids of the pool."""
    assert sorted([*points.labelled, *points.pool]) == list(range(len(points)))
    return {points.ids[i]: points.labels[i] for i in points.labelled}, [points.ids[i] for i in points.pool]


def test_a_table_of_features_with_gaps(tmp_path):
    lines = [["id", "label", "a", "b"], ["p", "x", 1, 2], ["q", "", 3, 4], ["r", "y", 5, 6], ["s", " ", 7, 8]]
    points = read_points(write(tmp_path / "t.csv", lines))
    assert parts(points) == ({"p": "x", "r": "y"}, ["q", "s"])
    assert points.kind == "features"
    assert points.x[points.labelled].tolist() == [[1, 2], [5, 6]]
    assert points.x[points.pool].tolist() == [[3, 4], [7, 8]]
    assert points.columns == points.take(points.pool).columns == ("a", "b")
    assert points.own_ids
    assert points.known_labels == ["x", "y"]


def test_a_table_without_labels_is_all_pool(tmp_path):
    points = read_points(write(tmp_path / "t.csv", [["a", "b"], [1, 2], [3, 4]]))
    assert parts(points) == ({}, ["0", "1"])
    assert not points.own_ids


@pytest.mark.parametrize(
    ("y", "labels"),
    [
        (np.array([1.0, np.nan, 0.0]), ["1", None, "0"]),
        (np.array(["cat", "", "dog"]), ["cat", None, "dog"]),
        (np.array([b"cat", b"", b"dog"]), ["cat", None, "dog"]),
        (np.array([1, -1, 0]), ["1", None, "0"]),
        (np.array([1.0, -1.0, 0.0]), ["1", None, "0"]),
        (np.array([[1], [2], [0]]), ["1", "2", "0"]),
        (None, [None, None, None]),
    ],
)
def test_an_npz_with_gaps(tmp_path, y, labels):
    np.savez(tmp_path / "a.npz", x=np.arange(6.0).reshape(3, 2), **({} if y is None else {"y": y}))
    points = read_points(tmp_path / "a.npz")
    assert points.labels == labels
    assert points.x[points.pool].tolist() == [[2 * k, 2 * k + 1] for k in range(3) if labels[k] is None]


def test_classes_of_an_npz_name_its_labels(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.array([1.0, np.nan, 0.0]), classes=np.array(["no", "yes"]))
    points = read_points(tmp_path / "a.npz")
    assert (points.labels, points.classes, points.y.tolist()) == (["yes", None, "no"], ("no", "yes"), [1, -1, 0])
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.array([1, 2, 0]), classes=np.array(["no", "yes"]))
    with pytest.raises(ValueError, match="1 label is not among its 2 classes, counted from 0"):
        read_points(tmp_path / "a.npz")


def test_float_pictures_in_an_npz_are_pictures(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x / 255)
    points = read_points(tmp_path / "a.npz")
    assert torch.equal(points.x, torch.from_numpy(x)[:, None])
    np.savez(tmp_path / "a.npz", x=x[:, None, :, :1] / 255)
    assert read_points(tmp_path / "a.npz", layout="NHWC").x.shape == (5, 1, 1, 28)


NUMBERS = {
    "t.csv": lambda path: write(path, [["y", "a"], *[[k / 4, k] for k in range(20)]]),
    "a.npz": lambda path: np.savez(path, x=np.arange(20.0)[:, None], y=np.arange(20) / 4),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_not_whole_are_for_regression(tmp_path, name):
    NUMBERS[name](tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name}: 15 of 20 labels are numbers that are not whole.*use regression"):
        read_points(tmp_path / name)
    points = read_points(tmp_path / name, regression=True)
    assert [float(label) for label in points.labels] == [k / 4 for k in range(20)]


def test_class_folders_beside_unsorted_photos(tmp_path):
    truth = {}
    for k, file in enumerate(
        ["cat/0.png", "cat/deep/1.png", "dog/0.png", "7.png", "unsorted/8.png", "Unlabelled/9.png"]
    ):
        truth[file] = picture(tmp_path / file, seed=k)
    (tmp_path / "notes.txt").write_text("x")
    points = read_points(tmp_path)
    known, pool = parts(points)
    assert known == {"cat/0.png": "cat", "cat/deep/1.png": "cat", "dog/0.png": "dog"}
    assert set(pool) == {"7.png", "unsorted/8.png", "Unlabelled/9.png"}
    for x, item, file in zip(points.x, points.items, points.ids):
        np.testing.assert_array_equal(x.numpy().transpose(1, 2, 0), truth[file])
        np.testing.assert_array_equal(np.asarray(item), truth[file])
    assert points.notes == ("1 file is not a picture and was left out: 1 .txt",)


def test_a_folder_without_class_folders_is_all_pool(tmp_path):
    for k in range(3):
        picture(tmp_path / f"{k}.png", seed=k)
    assert parts(read_points(tmp_path)) == ({}, ["0.png", "1.png", "2.png"])


def test_a_table_of_files_with_gaps_and_pictures_it_does_not_name(tmp_path):
    for k in range(5):
        picture(tmp_path / f"{k}.png", seed=k)
    table = write(tmp_path / "l.csv", [["file", "label"], ["3.png", "a"], ["1.png", ""], [tmp_path / "0.png", "b"]])
    assert parts(read_points(table)) == ({"3.png": "a", "0.png": "b"}, ["1.png"])
    points = read_points(tmp_path)
    assert parts(points) == ({"3.png": "a", "0.png": "b"}, ["1.png", "2.png", "4.png"])
    assert "2 pictures of the folder do not stand in l.csv: no label" in points.notes
    assert parts(read_points(write(tmp_path / "l.csv", [["file"], ["3.png"], ["1.png"]]))) == ({}, ["3.png", "1.png"])


def test_validation_rows_are_left_out_even_of_the_folder(tmp_path):
    for k in range(6):
        picture(tmp_path / f"{k}.png", seed=k)
    sides = ["train", "train", "test", "val", "train"]
    write(
        tmp_path / "l.csv", [["file", "label", "split"], *[[f"{k}.png", "ab"[k % 2], s] for k, s in enumerate(sides)]]
    )
    points = read_points(tmp_path)
    assert dict(zip(points.ids, points.side)) == {
        "0.png": "pool", "1.png": "pool", "2.png": "test", "4.png": "pool", "5.png": "pool",
    }  # fmt: skip
    assert [points.ids[i] for i in points.pool] == ["5.png"]


def test_sizes_that_differ_name_the_option_of_the_command_line(tmp_path):
    picture(tmp_path / "0.png")
    picture(tmp_path / "1.png", side=9)
    with pytest.raises(ValueError, match=r"2 sizes.*give a size in pixels, such as size=64 \(--size 64 on the command"):
        read_points(tmp_path).x  # noqa: B018
    assert read_points(tmp_path, size=4, channels=1).x.shape == (2, 1, 4, 4)
    (tmp_path / "2.png").write_bytes(b"rubbish")
    with pytest.raises(ValueError, match=r"skip_broken=True \(--skip-broken on the command line\)"):
        read_points(tmp_path, size=4, skip_broken=False)
    points = read_points(tmp_path, size=4)
    assert points.ids == ["0.png", "1.png"]
    assert any("2.png" in note for note in points.notes)


# Which side a point is on


def test_train_and_test_folders_are_sides(tmp_path):
    for k, file in enumerate(["train/cat/0.png", "train/dog/1.png", "test/cat/2.png", "test/dog/3.png", "4.png"]):
        picture(tmp_path / file, seed=k)
    points = read_points(tmp_path)
    assert dict(zip(points.ids, zip(points.labels, points.side))) == {
        "train/cat/0.png": ("cat", "pool"), "train/dog/1.png": ("dog", "pool"), "test/cat/2.png": ("cat", "test"),
        "test/dog/3.png": ("dog", "test"), "4.png": (None, "pool"),
    }  # fmt: skip
    assert points.take([points.ids.index("test/cat/2.png")]).side == ("test",)


def test_train_and_test_arrays_are_sides(tmp_path):
    x, y = np.arange(10.0).reshape(5, 2), np.array([0, 1, 0, 1, 0])
    np.savez(tmp_path / "a.npz", x_train=x[:3], y_train=y[:3], x_test=x[3:], y_test=y[3:])
    points = read_points(tmp_path / "a.npz")
    assert points.side == ("pool",) * 3 + ("test",) * 2
    assert points.labels == ["0", "1", "0", "1", "0"]


@pytest.mark.parametrize("measured", ["test", "val"])
def test_a_column_split_of_a_table_is_the_side(tmp_path, measured):
    lines = [[f"{k}", "ab"[k % 2], measured if k > 3 else "Train"] for k in range(6)]
    points = read_points(write(tmp_path / "t.csv", [["a", "label", "split"], *lines]))
    assert points.columns == ("a",)
    assert "column split is a split" in points.notes
    data = points.split()
    assert (data.pool.tolist(), data.test.tolist()) == ([0, 1, 2, 3], [4, 5])


def test_validation_rows_of_a_table_do_not_measure_beside_test(tmp_path):
    sides = ["train", "dev", "test", "train", "validation", "test", "train", "train"]
    lines = [[f"{k}", "ab"[k % 2], side] for k, side in enumerate(sides)]
    points = read_points(write(tmp_path / "t.csv", [["a", "label", "split"], *lines]))
    assert points.side == ("pool", "val", "test", "pool", "val", "test", "pool", "pool")
    data = points.split()
    assert (data.x[data.pool, 0].tolist(), data.x[data.test, 0].tolist()) == ([0, 3, 6, 7], [2, 5])
    assert "2 validation points were left out; test measures" in data.notes


def test_the_test_side_is_neither_labelled_nor_in_the_pool(tmp_path):
    sides = ["train", "val", "test", "train", "test"]
    labels = ["a", "b", "c", "", ""]
    lines = [[f"{k}", label, side] for k, (label, side) in enumerate(zip(labels, sides))]
    points = read_points(write(tmp_path / "t.csv", [["a", "label", "split"], *lines]))
    assert (points.labelled.tolist(), points.pool.tolist(), points.held_out.tolist()) == ([0], [3], [1, 2, 4])
    assert (points.known_labels, points.classes, points.y.tolist()) == (["a"], ("a", "b", "c"), [0, 1, 2, -1, -1])
    assert repr(points).endswith("5 features, 1 labelled, 1 in the pool, 3 on the test side)")
    rest = points.without_test()
    assert (rest.ids, rest.side, rest.notes[-1]) == (
        ["0", "3"],
        (),
        "3 points of the test or validation split are left out",
    )
    assert rest.without_test() is rest


def test_a_split_that_is_none_is_left_out_and_a_share_drawn(tmp_path):
    for cells in (["train"] * 10, ["train", "", *["test"] * 8]):
        lines = [[k, "ab"[k % 2], cells[k]] for k in range(10)]
        points = read_points(write(tmp_path / "t.csv", [["a", "label", "split"], *lines]))
        assert points.side == ()
        assert "column split is a split: left out" in points.notes
        assert len(points.split(0.4).test) == 4


def test_a_study_takes_no_folder_of_unsorted_photos_for_a_class(tmp_path):
    for k, file in enumerate(["cat/0.png", "cat/1.png", "dog/2.png", "dog/3.png", "unsorted/4.png"]):
        picture(tmp_path / file, seed=k)
    data = read_points(tmp_path, for_study=True).split(0.5)
    assert data.classes == ("cat", "dog")
    assert "1 picture (unsorted/4.png) lies in no class folder: left out" in data.notes


# Hugging Face


@pytest.fixture
def hf():
    made = pytest.importorskip("datasets")
    made.disable_progress_bars()
    return made


def cells(n):
    out = []
    for k in range(n):
        raw = io.BytesIO()
        Image.fromarray(np.full((6, 6, 3), k, np.uint8)).save(raw, "png")
        out.append({"bytes": raw.getvalue(), "path": None})
    return out


def saved(hf, path, data, **kinds):
    hf.Dataset.from_dict(data, features=hf.Features(kinds)).save_to_disk(str(path))
    return path


def test_a_saved_dataset_of_pictures_with_gaps(hf, tmp_path):
    kinds = {"image": hf.Image(), "label": hf.ClassLabel(names=["cat", "dog", "emu"])}
    data = {"image": cells(5), "label": [1, None, 0, -1, 1]}
    points = read_points(saved(hf, tmp_path / "d", data, **kinds))
    assert parts(points) == ({"0": "dog", "2": "cat", "4": "dog"}, ["1", "3"])
    assert points.classes == ("cat", "dog", "emu")
    assert points.x.shape == (5, 3, 6, 6)
    assert points.x[points.pool][:, 0, 0, 0].tolist() == [1, 3]
    kinds = {"image": hf.Image(), "id": hf.Value("string")}
    data = {"image": cells(3), "id": ["a", "b", "c"]}
    assert parts(read_points(saved(hf, tmp_path / "pool", data, **kinds))) == ({}, ["a", "b", "c"])


def test_broken_pictures_of_a_saved_dataset_go_with_their_labels(hf, tmp_path):
    data = {"image": cells(4), "label": ["a", "b", "", "b"]}
    data["image"][1] = {"bytes": b"rubbish", "path": None}
    path = saved(hf, tmp_path / "d", data, image=hf.Image(), label=hf.Value("string"))
    with pytest.raises(ValueError, match=r"row\[1\] \(not a picture\)"):
        read_points(path, skip_broken=False)
    assert parts(read_points(path)) == ({"0": "a", "3": "b"}, ["2"])


def test_a_saved_dataset_of_numbers(hf, tmp_path):
    floats = hf.Sequence(hf.Value("float32"))
    kinds = {"text": hf.Value("string"), "embedding": floats, "length": hf.Value("int64"), "label": hf.Value("string")}
    data = {
        "text": ["u", "v", "w"],
        "embedding": [[0, 1], [2, 3], [4, 5]],
        "length": [7, 8, 9],
        "label": ["a", None, "b"],
    }
    points = read_points(saved(hf, tmp_path / "d", data, **kinds))
    assert parts(points) == ({"0": "a", "2": "b"}, ["1"])
    assert points.x.tolist() == [[0, 1, 7], [2, 3, 8], [4, 5, 9]]
    assert points.columns == ("embedding[0]", "embedding[1]", "length")
    assert "1 column (text) has no numbers: left out" in points.notes
    with pytest.raises(ValueError, match="rows of 'embedding' differ in length"):
        read_points(saved(hf, tmp_path / "e", data | {"embedding": [[0], [2, 3], [4, 5]]}, **kinds))
    with pytest.raises(ValueError, match="1 row of 'embedding' without finite numbers"):
        read_points(saved(hf, tmp_path / "f", data | {"embedding": [[0, np.nan], [2, 3], [4, 5]]}, **kinds))
    assert read_points(saved(hf, tmp_path / "g", {"text": ["a"]}, text=hf.Value("string"))).kind == "text"


def test_numbers_of_a_saved_dataset_in_rows_selected_and_of_every_kind(hf, tmp_path):
    kinds = {"a": hf.Value("int8"), "b": hf.Value("bool"), "c": hf.Sequence(hf.Value("float64"), length=2)}
    data = {"a": [1, 2, 3], "b": [True, False, True], "c": [[0.5, 1], [2, 3], [4, 5]]}
    made = hf.Dataset.from_dict(data, features=hf.Features(kinds))
    made.select([2, 0]).save_to_disk(str(tmp_path / "d"))
    assert read_points(tmp_path / "d").x.tolist() == [[3, 1, 4, 5], [1, 1, 0.5, 1]]
    for name, values in (("a", [1, None, 3]), ("b", [None, True, True]), ("c", [[0, 1], None, [4, 5]])):
        path = saved(hf, tmp_path / name, data | {name: values}, **kinds)
        with pytest.raises(ValueError, match=f"of '{name}' (without finite numbers|differ in length or have none)"):
            read_points(path)


def test_a_dataset_without_rows_is_refused_by_name(hf):
    """A few bytes of an Arrow file can say that there are none; numpy then names no file."""
    none = hf.Dataset.from_dict({"width": [1.0], "label": ["a"]}).select([])
    with pytest.raises(ValueError, match="a folder has no rows; expected a dataset with points"):
        _number_columns("a folder", none, {"label"})


def test_query_takes_a_saved_dataset(hf, tmp_path):
    from foretaste.cli import app

    x = np.random.default_rng(0).normal(size=(40, 3))
    data = {"x": x.tolist(), "label": [None if k % 2 else "ab"[k // 2 % 2] for k in range(40)]}
    made = hf.Dataset.from_dict(data)
    made.filter(lambda row: row["label"] is not None).save_to_disk(str(tmp_path / "L"))
    made.filter(lambda row: row["label"] is None).remove_columns("label").save_to_disk(str(tmp_path / "U"))
    words = ["--labelled", tmp_path / "L", "--pool", tmp_path / "U", "--network", "mlp", "--steps", 300, "-n", 3]
    got = CliRunner().invoke(app, ["query", *map(str, words), "--out", str(tmp_path / "r.csv")])
    assert got.exit_code == 0, got.output
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 21


def test_float_labels_of_a_saved_dataset(hf, tmp_path):
    kinds = {"x": hf.Value("float32"), "label": hf.Value("float32")}
    whole = saved(hf, tmp_path / "d", {"x": [1, 2, 3], "label": [1.0, np.nan, 2.0]}, **kinds)
    assert read_points(whole).labels == ["1", None, "2"]
    broken = saved(hf, tmp_path / "e", {"x": [1, 2, 3], "label": [1.5, 1.0, 2.0]}, **kinds)
    with pytest.raises(ValueError, match="use regression"):
        read_points(broken)
    assert read_points(broken, regression=True).labels == ["1.5", "1.0", "2.0"]


def test_splits_of_a_saved_dataset(hf, tmp_path):
    one = hf.Dataset.from_dict({"x": [1.0, 2.0], "label": ["a", "b"]})
    hf.DatasetDict({"train": one, "test": one.select([0])}).save_to_disk(str(tmp_path / "d"))
    points = read_points(tmp_path / "d")
    assert len(points) == 2
    assert "split train is read; left out: test" in points.notes
    assert len(read_points(tmp_path / "d" / "test")) == 1
    hf.DatasetDict({"left": one, "right": one}).save_to_disk(str(tmp_path / "e"))
    with pytest.raises(ValueError, match=r"splits left, right, none called train; give one of them, such as .*left"):
        read_points(tmp_path / "e")


def test_a_saved_dataset_without_the_package(hf, tmp_path, monkeypatch):
    path = saved(hf, tmp_path / "d", {"x": [1.0]}, x=hf.Value("float32"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="needs the package datasets"):
        read_points(path)


# What is no file of points.


def test_ids_that_repeat_and_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match=r"1 id \(x\) stands more than once"):
        read_points(write(tmp_path / "t.csv", [["id", "a"], ["x", 1], ["x", 2]]))
    with pytest.raises(FileNotFoundError, match=r"does not exist; expected an \.npz, a CSV, or a folder"):
        read_points(tmp_path / "none.npz")
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(ValueError, match=r"unknown ending '\.txt'"):
        read_points(tmp_path / "x.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no pictures"):
        read_points(tmp_path / "empty")
    np.savez(tmp_path / "a.npz", images_of_cats=np.zeros((3, 2)))
    with pytest.raises(ValueError, match="has images_of_cats; expected x, and y and ids where there are any"):
        read_points(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.array([True, False, True]), ids=np.arange(2))
    with pytest.raises(ValueError, match=r"y is of truth values.*ids is int64 \(2,\); expected one for each of 3"):
        read_points(tmp_path / "a.npz")


def test_taking_all_points_copies_nothing():
    points = Points("t", "features", torch.arange(6.0).reshape(3, 2), list("abc"), ["x", "y", "x"])
    assert points.take(points.labelled) is points
    assert points.take(points.pool).x.shape == (0, 2)
    assert points.take([2, 0]).ids == ["c", "a"]
    assert points.take([2, 0]).x.tolist() == [[4, 5], [0, 1]]
