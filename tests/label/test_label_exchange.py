"""Labels out and in again: CSV, JSON lines, class folders, Label Studio."""

import csv
import json

import pytest
from PIL import Image

from foretaste.label import LabelRow, LabelStore, StoreConflict, export_labels, import_labels, label_rows, read_labels

ITEMS = ["a.png", "sub/b.png", "=cmd.png", "'-1.png", "-5", "d e.png", "f.png", "unseen.png"]
CLASSES = ["cat", "@dog", "'+hen"]


@pytest.fixture
def store(tmp_path):
    with LabelStore(tmp_path / "store") as store:
        store.set_classes(CLASSES)
        for k, item in enumerate(ITEMS[:6]):
            store.record(item, "label", CLASSES[k % 3], who="Ada", purpose="teach")
        store.record("f.png", "unsure", who="Bob, =the second")
        yield store


def same(rows):
    return sorted((row.item, row.label, row.kind, row.who) for row in rows)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_files_come_back_as_they_were(store, tmp_path, ending):
    rows = label_rows(store)
    path = export_labels(rows, tmp_path / "out" / f"labels.{ending}")
    assert same(read_labels(path, ITEMS)) == same(rows)
    with LabelStore(tmp_path / "other") as other:
        other.set_classes(CLASSES)
        assert import_labels(other, read_labels(path, ITEMS)) == 7
        assert same(label_rows(other)) == same(rows)
        assert import_labels(other, read_labels(path, ITEMS)) == 0  # the same again changes nothing
        assert not list((tmp_path / "out").glob("*.part"))


def test_no_cell_of_a_csv_is_a_formula(store, tmp_path):
    path = export_labels(label_rows(store), tmp_path / "labels.csv")
    with path.open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert "'=cmd.png" in cells
    assert "''-1.png" in cells
    assert not [c for c in cells if c.startswith(("=", "+", "@")) or (c.startswith("-") and c != "-5")]


def test_label_studio_comes_back(store, tmp_path):
    path = export_labels(label_rows(store), tmp_path / "tasks.json")
    tasks = json.loads(path.read_text())
    assert tasks[0]["data"]["image"] == "a.png"
    assert tasks[0]["annotations"][0]["result"][0]["value"] == {"choices": ["cat"]}
    labelled = [row for row in label_rows(store) if row.label is not None]
    assert same(read_labels(path, ITEMS)) == same(labelled)


def test_exports_of_label_studio_itself(tmp_path):
    """Tasks name pictures by a longer path; cancelled annotations and tasks without any do not count."""
    tasks = [
        {"data": {"image": "/data/local-files/?d=photos/sub/b.png"}, "annotations": [annotation("cat")]},
        {"data": {"image": "/data/upload/1/a.png"}, "annotations": [annotation("cat"), annotation("@dog", True)]},
        {"data": {"image": "f.png"}, "annotations": []},
        {"data": {"image": "unseen.png"}, "annotations": [annotation("cat"), annotation("@dog"), {"result": []}]},
        {"image": "d%20e.png".replace("%20", " "), "choice": "@dog"},
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    got = {row.item: row.label for row in read_labels(tmp_path / "tasks.json", ITEMS)}
    assert got == {"sub/b.png": "cat", "a.png": "cat", "unseen.png": "@dog", "d e.png": "@dog"}  # the last one counts


def annotation(choice, cancelled=False):
    return {"was_cancelled": cancelled, "result": [{"type": "choices", "value": {"choices": [choice]}}]}


def test_folders_come_back(tmp_path):
    root = tmp_path / "pictures"
    for k, name in enumerate(["a.png", "sub/a.png", "c.png"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), k).save(root / name)
    rows = [LabelRow("a.png", "cat"), LabelRow("sub/a.png", "dog"), LabelRow("c.png", None, "unsure")]
    out = export_labels(rows, tmp_path / "sorted", root=root)
    files = sorted(p.relative_to(out).as_posix() for p in out.rglob("*.png"))
    assert files == ["cat/a.png", "dog/sub/a.png"]
    assert (out / "dog/sub/a.png").read_bytes() == (root / "sub/a.png").read_bytes()
    assert same(read_labels(out, ["a.png", "sub/a.png", "c.png"])) == same(rows[:2])
    with pytest.raises(FileExistsError, match="not an empty folder"):
        export_labels(rows, out, root=root)


@pytest.mark.parametrize("ending", [".xlsx", ".coco", ".CVS", ".mp4"])
def test_no_folder_is_named_like_a_file(store, tmp_path, ending):
    """labels.xlsx and out.coco were folders of pictures."""
    out = tmp_path / f"labels{ending}"
    words = rf"labels are not written as \{ending.lower()}; name a \.csv, \.jsonl, \.parquet, \.json"
    with pytest.raises(ValueError, match=words):
        export_labels(label_rows(store), out, root=tmp_path)
    assert not out.exists()


@pytest.mark.parametrize("name", ["sorted", "day.2", "2024.01.31", "made.before"])
def test_other_names_are_folders(tmp_path, name):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    if name == "made.before":
        (tmp_path / name).mkdir()
    out = export_labels([LabelRow("a.png", "cat")], tmp_path / name, root=tmp_path)
    assert (out / "cat" / "a.png").is_file()


@pytest.mark.parametrize("ending", ["csv", "jsonl", "json"])
def test_an_export_that_fails_leaves_the_one_before(store, tmp_path, monkeypatch, ending):
    path = export_labels(label_rows(store), tmp_path / "out" / f"labels.{ending}")
    before = path.read_bytes()

    def broken_off(*args, **options):
        yield "item,la"
        raise OSError("No space left on device")

    monkeypatch.setattr("foretaste.label.exchange.export_text", broken_off)
    with pytest.raises(OSError, match="No space left"):
        export_labels([], path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_folders_copy_nothing_from_outside_and_take_no_odd_names(tmp_path):
    root = tmp_path / "pictures"
    root.mkdir()
    (tmp_path / "secret.png").write_bytes(b"secret")
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    for item in ("link.png", "../secret.png"):
        with pytest.raises(ValueError, match="leads out of"):
            export_labels([LabelRow(item, "cat")], tmp_path / "out", root=root)
    for label in ("../up", ".hidden", "a/b"):
        with pytest.raises(ValueError, match="cannot name a folder"):
            export_labels([LabelRow("a.png", label)], tmp_path / "out", root=root)
    with pytest.raises(ValueError, match="these items are none"):
        export_labels([LabelRow("1", "cat")], tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pictures", "secret.png"]


def test_copies_of_a_picture_get_its_label(store):
    rows = {row.item: row for row in label_rows(store, {"copy.png": "a.png", "lonely.png": "unseen.png"})}
    assert (rows["copy.png"].label, rows["copy.png"].purpose) == ("cat", "copy")
    assert "lonely.png" not in rows


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("l.csv", "item,label\nb.pgn,cat\n", r"1 item \(b\.pgn\) is not here"),
        ("l.csv", "item,label\na.png,cat\na.png,@dog\n", "more than once"),
        ("l.csv", "what,label\na.png,cat\n", "expected label and one of item, file"),
        ("l.csv", "item,label\na.png\n", "row 2: not as many cells"),
        ("l.csv", 'item,label\n"a.png,cat\n', "is not a CSV"),
        ("l.csv", "item,label\na.png,\n", "row 2: the kind is label and the label None"),
        ("l.csv", "item,label,kind\na.png,cat,lable\n", "did you mean 'label'"),
        ("l.jsonl", "[1]\n", "line 1: expected an object with item and label"),
        ("l.jsonl", '{"item": ["a.png"], "label": "cat"}\n', "item is a list; expected text"),
        ("l.jsonl", "{\n", "line 1: not JSON"),
        ("l.json", "{}", "is not a list of tasks"),
        ("l.json", "[" * 100_000, "not JSON"),
        ("l.json", '[{"data": {"x": 1}}]', "task 1: its data names no item"),
        ("l.json", '[{"data": {"image": "a.png"}, "annotations": true}]', "task 1: annotations is a bool; expected"),
        ("l.txt", "", "unknown format 'txt'"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, name, text, error):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=error):
        read_labels(tmp_path / name, ITEMS)


def test_a_file_that_is_not_utf8(tmp_path):
    (tmp_path / "l.csv").write_bytes(b"item,label\ncaf\xe9.png,cat\n")
    with pytest.raises(ValueError, match=r"l\.csv is not UTF-8: line 2, near 'café\.png,cat'.*iconv -f WINDOWS-1252"):
        read_labels(tmp_path / "l.csv", ITEMS)


def test_what_an_answer_was_for_is_imported(tmp_path):
    """An item that measures measures again; that a row is of a copy is no purpose."""
    purposes = {"a.png": "check", "sub/b.png": "teach", "f.png": "copy", "unseen.png": ""}
    with LabelStore(tmp_path / "other") as other:
        other.set_classes(CLASSES)
        import_labels(other, [LabelRow(item, "cat", purpose=purpose) for item, purpose in purposes.items()])
        assert [other.state_of(item).purpose for item in purposes] == ["check", "teach", None, None]


def test_an_import_is_whole_or_nothing(store):
    log = store.events()
    with pytest.raises(ValueError, match=r"1 class \(cow\) is not among cat"):
        import_labels(store, [LabelRow("unseen.png", "cat"), LabelRow("a.png", "cow")])
    store.lease(["held.png"], tab="1", who="Ada")
    with pytest.raises(StoreConflict, match="on the screen"):
        import_labels(store, [LabelRow("unseen.png", "cat"), LabelRow("held.png", "cat")])
    assert store.events() == log
    assert "unseen.png" not in store.labels()
    assert import_labels(store, [LabelRow("unseen.png", "cat"), LabelRow("a.png", "@dog")]) == 2
    assert store.events()[-1].kind == "relabel"


@pytest.mark.parametrize("name", ["labels.coco.json", "labels.parquet"])
def test_labels_of_other_tools_come_back(store, tmp_path, name):
    rows = label_rows(store)
    path = export_labels(rows, tmp_path / name, classes=CLASSES)
    labelled = [row for row in rows if row.label is not None]
    assert [(r.item, r.label) for r in read_labels(path, ITEMS)] == [(r.item, r.label) for r in labelled]


def test_coco_has_images_annotations_and_all_categories(store, tmp_path):
    said = json.loads(
        export_labels(label_rows(store), tmp_path / "labels.coco.json", classes=[*CLASSES, "cow"]).read_text()
    )
    assert [c["name"] for c in said["categories"]] == [*CLASSES, "cow"]
    assert (said["images"][1], said["annotations"][1]) == (
        {"id": 2, "file_name": "sub/b.png"}, {"id": 2, "image_id": 2, "category_id": 2},
    )  # fmt: skip
    path = tmp_path / "other.json"
    boxes = [{"id": k, "image_id": 7, "category_id": c, "bbox": [0, 0, 1, 1]} for k, c in enumerate((3, 3))]
    said = {
        "images": [{"id": 7, "file_name": "photos/a.png"}],
        "categories": [{"id": 3, "name": "cat"}],
        "annotations": boxes,
    }
    path.write_text(json.dumps(said))
    assert [(r.item, r.label) for r in read_labels(path, ITEMS)] == [("a.png", "cat")]
    path.write_text(json.dumps(said | {"categories": []}))
    with pytest.raises(ValueError, match="is not COCO's JSON"):
        read_labels(path, ITEMS)
    path.write_text(
        json.dumps(
            said
            | {
                "categories": [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}],
                "annotations": [*boxes, boxes[0] | {"category_id": 4}],
            }
        )
    )
    with pytest.raises(ValueError, match="is cat and dog; expected one class"):
        read_labels(path, ITEMS)


def test_hugging_face_reads_pictures_texts_and_classes(store, tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    for item in ITEMS[:6]:
        Image.new("RGB", (4, 3), "red").save(tmp_path / "photos" / item, "PNG")
    path = export_labels(label_rows(store), tmp_path / "labels.parquet", root=tmp_path / "photos", classes=CLASSES)
    found = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    assert found.features["label"].names == CLASSES
    assert (found[1]["item"], found[1]["label"], found[1]["image"].size, found[1]["who"]) == (
        "sub/b.png",
        1,
        (4, 3),
        "Ada",
    )
    words = {item: f"text of {item}" for item in ITEMS}
    path = export_labels(
        label_rows(store), tmp_path / "texts.parquet", classes=CLASSES, field="text", texts=lambda: words
    )
    found = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    assert (found[0]["text"], found.features["label"].int2str(found[0]["label"])) == ("text of a.png", "cat")
    bare = tmp_path / "bare.parquet"
    found.remove_columns(["item", "kind"]).rename_column("text", "words").to_parquet(str(bare))
    with pytest.raises(ValueError, match="expected label and one of item, file"):
        read_labels(bare, ITEMS)
    bare.write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        read_labels(bare, ITEMS)


def test_what_each_person_said_goes_out_too(store, tmp_path):
    store.record("a.png", "label", "@dog", who="Bob", purpose="second")
    row = next(row for row in label_rows(store) if row.item == "a.png")
    assert (row.label, row.purpose, json.loads(row.voices)) == ("cat", "teach", {"Ada": "cat", "Bob": "@dog"})
    lines = export_labels(label_rows(store), tmp_path / "labels.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["voices"] == {"Ada": "cat", "Bob": "@dog"}
    assert "voices" in export_labels(label_rows(store), tmp_path / "labels.csv").read_text().splitlines()[0]
    assert len(read_labels(tmp_path / "labels.csv", ITEMS)) == 7
